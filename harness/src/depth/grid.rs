//! Which lengths are tried first.

use crate::plan::Mode;
use std::str::FromStr;

/// The default grid up to `max`: every length to 9, then each power of two, one more than it, and half as much again.
/// Kernels of ggml change at 4, 9, 24 and 33 columns, and tiles are powers of two.
#[must_use]
pub fn standard(least: u32, max: u32) -> Vec<u32> {
    let powers = (3..32).map(|exponent| 1u32 << exponent);
    let around = powers.flat_map(|power| [power, power + 1, power.saturating_add(power / 2)]);
    let mut grid: Vec<u32> =
        (1..=9).chain(around).chain([max]).filter(|n| (least..=max).contains(n)).collect();
    grid.sort_unstable();
    grid.dedup();
    grid
}

/// The shortest length at which a mode computes anything; none for a mode that reads no context.
#[must_use]
pub const fn least(mode: Mode) -> Option<u32> {
    match mode {
        // Block diffusion has its canvas besides.
        Mode::Prefill | Mode::Decode | Mode::Profile | Mode::Speculative | Mode::Unified | Mode::PromptKv => {
            Some(1)
        }
        // A part of the prompt goes first; half of the sequence is masks.
        Mode::Batch | Mode::Full | Mode::FullCache | Mode::Sparse | Mode::Generate => Some(2),
        Mode::Lifecycle => Some(9),
        Mode::Sampler => None,
    }
}

/// A length, or all from one to another: `33`, `30..40`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The first.
    pub first: u32,
    /// The last, itself included.
    pub last: u32,
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "a length from 1 on, or a range as 30..40, is wanted".to_owned();
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n >= 1).ok_or_else(wanted);
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok(Self { first, last }) } else { Err(wanted()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_grid_has_the_lengths_at_which_kernels_change() {
        let grid = standard(1, 64);
        assert_eq!(grid, [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64]);
        assert_eq!(standard(9, 20), [9, 12, 16, 17, 20]);
        assert_eq!(standard(1, 1), [1]);
        assert_eq!(standard(1, u32::MAX).last(), Some(&u32::MAX));
    }

    #[test]
    fn lengths_are_read_alone_and_as_ranges() {
        assert_eq!("33".parse(), Ok(Lengths { first: 33, last: 33 }));
        assert_eq!("30..40".parse(), Ok(Lengths { first: 30, last: 40 }));
        for text in ["", "0", "40..30", "a", "1..", "-1"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }
}
