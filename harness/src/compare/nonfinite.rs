//! Values that are not finite, counted by kind and place. A NaN fails; an infinity passes only where the
//! reference has the same one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts over all tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NonFinite {
    /// Counts by tensor, of the tensors that have any.
    pub tensors: BTreeMap<String, NonFiniteCounts>,
    /// The first value that fails.
    pub first: Option<NonFinitePlace>,
}

/// Counts in one tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NonFiniteCounts {
    /// NaN in the reference.
    pub reference_nan: u64,
    /// NaN in the test.
    pub test_nan: u64,
    /// The same infinity in both: allowed, and left out of the figures.
    pub matched_infinite: u64,
    /// An infinity in one arm where the other has another value.
    pub unmatched_infinite: u64,
}

/// Where a value that fails stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NonFinitePlace {
    /// The tensor.
    pub tensor: String,
    /// The row, or the position in a cache.
    pub row: u64,
    /// The element within the row.
    pub column: u64,
    /// What the reference holds there.
    pub reference: String,
    /// What the test holds there.
    pub test: String,
}

impl NonFinite {
    /// Scans one row of a tensor.
    pub(super) fn scan(&mut self, tensor: &str, row: usize, reference: &[f64], test: &[f64]) {
        for (column, (&r, &x)) in reference.iter().zip(test).enumerate() {
            if r.is_finite() && x.is_finite() {
                continue;
            }
            let counts = self.tensors.entry(tensor.to_owned()).or_default();
            counts.reference_nan += u64::from(r.is_nan());
            counts.test_nan += u64::from(x.is_nan());
            if r == x {
                counts.matched_infinite += 1;
                continue;
            }
            counts.unmatched_infinite += u64::from(r.is_infinite() || x.is_infinite());
            self.first.get_or_insert_with(|| NonFinitePlace {
                tensor: tensor.to_owned(),
                row: row as u64,
                column: column as u64,
                reference: r.to_string(),
                test: x.to_string(),
            });
        }
    }

    /// NaN in either arm, in all tensors.
    pub fn nan(&self) -> u64 {
        self.tensors.values().map(|c| c.reference_nan + c.test_nan).sum()
    }

    /// Unmatched infinities in all tensors.
    pub fn unmatched_infinite(&self) -> u64 {
        self.tensors.values().map(|c| c.unmatched_infinite).sum()
    }

    /// Whether no value fails.
    pub fn passes(&self) -> bool {
        self.first.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let mut found = NonFinite::default();
        found.scan("k.0", 0, &[1.0, -inf], &[1.0, -inf]);
        assert!(found.passes());
        found.scan("logits", 3, &[nan, nan, inf, 1.0, inf], &[nan, 0.0, -inf, inf, nan]);
        let counts = &found.tensors["logits"];
        assert_eq!((counts.reference_nan, counts.test_nan), (2, 2));
        assert_eq!((counts.matched_infinite, counts.unmatched_infinite), (0, 3));
        assert_eq!(found.tensors["k.0"].matched_infinite, 1);
        assert_eq!((found.nan(), found.unmatched_infinite(), found.passes()), (4, 3, false));
        let first = found.first.unwrap();
        assert_eq!((first.tensor.as_str(), first.row, first.column), ("logits", 3, 0));
    }
}
