//! How many masks go at each step, and which positions may.

use serde::{Deserialize, Serialize};

/// How many masks go at each step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// The same share of the original masks at every step, at least one; halves round up.
    #[default]
    Linear,
    /// Few at first, more later: the share of the remaining ones is `1 - cos(t1 pi/2) / cos(t0 pi/2)`, at least
    /// one; halves round up.
    Cosine,
    /// Dream's own: times fall linearly from 1 to `eps`; from t to s the share `1 - s / t` of the remaining ones
    /// goes, rounded down, so that a step may take none; the last takes all.
    Timestep {
        /// The last time, above 0 and below 1.
        eps: f64,
    },
    /// LLaDA's: blocks of this many positions from left to right; they share the steps, and the steps of a block
    /// take equal counts, the first ones one more where it does not divide.
    Block {
        /// Positions of a block, at least 1.
        length: usize,
    },
}

impl Schedule {
    /// Dream's own `eps`.
    pub const EPS: f64 = 1e-3;

    /// How many of the first masked positions may be considered at `step` of `steps`, and how many of those become
    /// tokens. `masked` are the positions still masked, rising, of `masks` that began at `first`.
    #[must_use]
    pub fn turn(self, masked: &[usize], first: usize, masks: usize, step: usize, steps: usize) -> Turn {
        if step + 1 >= steps {
            return Turn { eligible: masked.len(), count: masked.len() };
        }
        match self {
            Self::Block { length } => Block::at(length.max(1), masks, step, steps).turn(masked, first),
            _ => Turn { eligible: masked.len(), count: self.share(masked.len(), step, steps) },
        }
    }

    /// How many of `remaining` masks a step takes that is not the last.
    fn share(self, remaining: usize, step: usize, steps: usize) -> usize {
        let (share, rounding, least) = match self {
            Self::Linear | Self::Block { .. } => (1.0 / (steps - step) as f64, 0.5, 1),
            Self::Cosine => {
                let at = |s: usize| libm::cos(s as f64 / steps as f64 * std::f64::consts::FRAC_PI_2);
                (1.0 - at(step + 1) / at(step), 0.5, 1)
            }
            Self::Timestep { eps } => {
                let at = |s: usize| 1.0 - (1.0 - eps) * s as f64 / steps as f64;
                (1.0 - at(step + 1) / at(step), 0.0, 0)
            }
        };
        let count = (remaining as f64 * share + rounding).floor() as usize;
        count.max(least).min(remaining)
    }
}

/// What a schedule allows at one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// So many of the masked positions, from the left, may be considered.
    pub eligible: usize,
    /// So many of those become tokens.
    pub count: usize,
}

/// The block that a step works on.
struct Block {
    /// Masks before its end, from the first mask on.
    end: usize,
    /// Masks that are left of it after the step.
    left: usize,
}

impl Block {
    fn at(length: usize, masks: usize, step: usize, steps: usize) -> Self {
        let blocks = masks.div_ceil(length).max(1);
        let begins = |block: usize| block * steps / blocks;
        let block = (0..blocks).rev().find(|&block| begins(block) <= step).unwrap_or(0);
        let (from, end) = (block * length, ((block + 1) * length).min(masks));
        let (size, turns) = (end - from, (begins(block + 1) - begins(block)).max(1));
        let done = step - begins(block) + 1;
        let taken = if done >= turns { size } else { done * (size / turns) + done.min(size % turns) };
        Self { end, left: size - taken }
    }

    fn turn(&self, masked: &[usize], first: usize) -> Turn {
        let eligible = masked.partition_point(|&position| position < first + self.end);
        Turn { eligible, count: eligible.saturating_sub(self.left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of every step when each takes the first masks it may.
    fn counts(schedule: Schedule, masks: usize, steps: usize) -> Vec<usize> {
        let mut masked: Vec<usize> = (7..7 + masks).collect();
        let counts = (0..steps).map(|step| {
            let turn = schedule.turn(&masked, 7, masks, step, steps);
            assert!(turn.count <= turn.eligible && turn.eligible <= masked.len());
            masked.drain(..turn.count);
            turn.count
        });
        let counts = counts.collect();
        assert!(masked.is_empty(), "{schedule:?} leaves {masked:?}");
        counts
    }

    #[test]
    fn a_linear_schedule_takes_equal_parts() {
        assert_eq!(counts(Schedule::Linear, 32, 16), [2; 16]);
        // 2.5 rounds up.
        assert_eq!(counts(Schedule::Linear, 5, 2), [3, 2]);
        assert_eq!(counts(Schedule::Linear, 2, 4), [1, 1, 0, 0]);
    }

    #[test]
    fn a_cosine_schedule_grows_and_ends() {
        let counts = counts(Schedule::Cosine, 32, 8);
        // 32 (1 - cos(pi/16)) is 0.6, and the first step must take one.
        assert_eq!(counts[0], 1);
        assert!(counts[..7].windows(2).all(|pair| pair[0] <= pair[1] + 1), "{counts:?}");
        assert!(counts[0] < counts[6] && counts.iter().all(|&k| k >= 1), "{counts:?}");
    }

    #[test]
    fn a_timestep_schedule_may_take_none_until_the_last() {
        let timestep = Schedule::Timestep { eps: Schedule::EPS };
        // Of three masks in eight steps the share reaches a whole mask only late.
        let few = counts(timestep, 3, 8);
        assert_eq!(few[0], 0);
        assert_eq!(few.iter().sum::<usize>(), 3);
        // From 1 to 0.75025 of 32: a quarter, just under 8.
        assert_eq!(counts(timestep, 32, 4), [7, 8, 8, 9]);
    }

    #[test]
    fn blocks_go_from_left_to_right_in_equal_counts() {
        let block = Schedule::Block { length: 8 };
        assert_eq!(counts(block, 16, 8), [2; 8]);
        // Ten masks in four steps: the remainder goes first.
        assert_eq!(counts(Schedule::Block { length: 10 }, 10, 4), [3, 3, 2, 2]);
        let masked: Vec<usize> = (4..20).collect();
        assert_eq!(block.turn(&masked, 4, 16, 0, 8), Turn { eligible: 8, count: 2 });
        // A short last block, and fewer steps than blocks: a step may end several blocks.
        assert_eq!(counts(block, 20, 6), [4, 4, 4, 4, 2, 2]);
        assert_eq!(counts(Schedule::Block { length: 2 }, 8, 2), [4, 4]);
        assert_eq!(counts(Schedule::Block { length: 2 }, 8, 3), [4, 2, 2]);
        // What a block was left with when its steps ended goes with the next one.
        assert_eq!(
            block.turn(&[9, 12, 13, 14, 15, 16, 17, 18, 19], 4, 16, 4, 8),
            Turn { eligible: 9, count: 3 }
        );
    }
}
