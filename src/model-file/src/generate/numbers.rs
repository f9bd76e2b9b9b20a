//! The numbers of generated models: integers from a seeded stream, and only exact or correctly rounded
//! operations on them, so that every platform gets the same bits.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

/// Standard deviation of the sum of four even 16-bit integers, `65536 / sqrt(3)`.
const SUM_OF_FOUR: f64 = 37_837.227_227_907_25;

/// A tensor's own stream of integers.
pub(super) struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of a name under a seed.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"ggml-parity generated model 1\0");
        hash.update(seed.to_le_bytes());
        hash.update(name.as_bytes());
        Self(ChaCha8Rng::from_seed(hash.finalize().into()))
    }
}

/// How a tensor's values are made from its stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values {
    /// Bell-shaped around 0: the sum of four even integers, times `scale`.
    Bell { scale: f32 },
    /// Even in `middle` ± `reach`, never exactly `middle`.
    Even { middle: f32, scale: f32 },
    /// From the first to the last value in equal steps.
    Ramp { first: f32, last: f32 },
    /// The first `n` values are `first`, those after them `rest`.
    Step { n: u64, first: f32, rest: f32 },
}

impl Values {
    /// Bell-shaped with this standard deviation.
    pub(super) fn bell(deviation: f64) -> Self {
        Self::Bell { scale: (deviation / SUM_OF_FOUR) as f32 }
    }

    /// These values times `factor`, rounded once.
    pub(super) fn times(self, factor: f32) -> Self {
        match self {
            Self::Bell { scale } => Self::Bell { scale: scale * factor },
            Self::Even { middle, scale } => Self::Even { middle: middle * factor, scale: scale * factor },
            Self::Ramp { first, last } => Self::Ramp { first: first * factor, last: last * factor },
            Self::Step { n, first, rest } => Self::Step { n, first: first * factor, rest: rest * factor },
        }
    }

    /// Even in `middle` ± `reach`.
    pub(super) fn even(middle: f32, reach: f64) -> Self {
        Self::Even { middle, scale: (reach / 65_535.0) as f32 }
    }

    /// From `first` to `last`.
    pub(super) fn ramp(first: f32, last: f32) -> Self {
        Self::Ramp { first, last }
    }

    /// Value `i` of `n`.
    pub(super) fn next(self, stream: &mut Stream, i: u64, n: u64) -> f32 {
        match self {
            Self::Bell { scale } => {
                let bits = stream.0.next_u64();
                let sum: i32 = (0..4).map(|k| ((bits >> (16 * k)) & 0xFFFF) as i32).sum();
                // At most 18 bits: exact as f32.
                (sum - 2 * 65_535) as f32 * scale
            }
            Self::Even { middle, scale } => {
                // Odd integers from -65535 to 65535.
                let k = 2 * (stream.0.next_u32() >> 16) as i32 - 65_535;
                middle + k as f32 * scale
            }
            Self::Ramp { first, last } => {
                let t = if n > 1 { i as f64 / (n - 1) as f64 } else { 0.0 };
                (f64::from(first) + (f64::from(last) - f64::from(first)) * t) as f32
            }
            Self::Step { n: end, first, rest } => {
                if i < end {
                    first
                } else {
                    rest
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(values: Values, n: u64) -> Vec<f64> {
        let mut stream = Stream::new(9, "x");
        (0..n).map(|i| f64::from(values.next(&mut stream, i, n))).collect()
    }

    #[test]
    fn the_bell_has_the_deviation_asked_for() {
        let v = draw(Values::bell(0.5), 100_000);
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        let deviation = (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt();
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((deviation - 0.5).abs() < 0.01, "{deviation}");
    }

    #[test]
    fn even_values_stay_in_reach_and_off_the_middle() {
        let v = draw(Values::even(0.0, 0.1), 100_000);
        assert!(v.iter().all(|&x| x != 0.0 && x.abs() <= 0.100_001));
        assert!(v.iter().any(|&x| x > 0.099) && v.iter().any(|&x| x < -0.099));
    }

    #[test]
    fn the_ramp_meets_both_ends() {
        assert_eq!(draw(Values::ramp(1.0, 8.0), 8), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(draw(Values::ramp(1.0, 8.0), 1), [1.0]);
    }

    #[test]
    fn names_and_seeds_have_streams_of_their_own() {
        let first = |seed, name| Stream::new(seed, name).0.next_u64();
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_eq!(first(1, "a"), first(1, "a"));
    }
}
