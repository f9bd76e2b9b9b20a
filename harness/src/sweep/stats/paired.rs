//! Counts of items that two arms answered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The same items answered by a reference and by an arm under test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Paired {
    /// Right on both.
    pub both: u64,
    /// Right on the reference alone: lost.
    pub lost: u64,
    /// Right on the arm under test alone: gained.
    pub gained: u64,
    /// Right on neither.
    pub neither: u64,
}

impl Paired {
    /// Counts pairs of (reference right, test right).
    pub fn tally(pairs: impl IntoIterator<Item = (bool, bool)>) -> Self {
        let mut counts = Self::default();
        for pair in pairs {
            *match pair {
                (true, true) => &mut counts.both,
                (true, false) => &mut counts.lost,
                (false, true) => &mut counts.gained,
                (false, false) => &mut counts.neither,
            } += 1;
        }
        counts
    }

    /// How many items there are.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.both + self.lost + self.gained + self.neither
    }

    /// How many items one arm alone got right.
    #[must_use]
    pub const fn discordant(&self) -> u64 {
        self.lost + self.gained
    }

    /// Accuracy of the reference; NaN without items.
    #[must_use]
    pub fn reference_accuracy(&self) -> f64 {
        (self.both + self.lost) as f64 / self.items() as f64
    }

    /// Accuracy of the arm under test; NaN without items.
    #[must_use]
    pub fn test_accuracy(&self) -> f64 {
        (self.both + self.gained) as f64 / self.items() as f64
    }

    /// Accuracy of the arm under test less that of the reference; NaN without items.
    #[must_use]
    pub fn difference(&self) -> f64 {
        (self.gained as f64 - self.lost as f64) / self.items() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted() {
        let pairs = [(true, true), (true, false), (true, false), (false, true), (false, false)];
        let counts = Paired::tally(pairs);
        assert_eq!(counts, Paired { both: 1, lost: 2, gained: 1, neither: 1 });
        assert_eq!((counts.items(), counts.discordant()), (5, 3));
        assert_eq!((counts.reference_accuracy(), counts.test_accuracy()), (0.6, 0.4));
        assert_eq!(counts.difference(), -0.2);
        assert!(Paired::default().difference().is_nan());
    }
}
