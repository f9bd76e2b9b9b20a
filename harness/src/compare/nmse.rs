//! Normalised mean squared error, over the whole tensor and per row:
//! `sum((x - ref)^2) / sum(ref^2)`, sums in f64 in the order of the elements.

use super::RowPlace;
use super::order::{badness, quantiles, worst_index};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Running sums of one NMSE.
///
/// An infinity that both arms hold is left out; any other value that is not finite makes the result NaN or
/// infinite, so it fails every limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Nmse {
    error: f64,
    energy: f64,
    count: u64,
}

impl Nmse {
    /// The sums over two slices of equal length.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn of(reference: &[f64], test: &[f64]) -> Self {
        assert_eq!(reference.len(), test.len(), "elements to compare");
        let mut sums = Self::default();
        for (&r, &x) in reference.iter().zip(test) {
            sums.add(r, x);
        }
        sums
    }

    /// Adds one element.
    pub fn add(&mut self, reference: f64, test: f64) {
        if reference == test && reference.is_infinite() {
            return;
        }
        let difference = test - reference;
        self.error += difference * difference;
        self.energy += reference * reference;
        self.count += 1;
    }

    /// Adds the sums of a later part of the same tensor.
    pub fn merge(&mut self, part: Self) {
        self.error += part.error;
        self.energy += part.energy;
        self.count += part.count;
    }

    /// The NMSE. Where the reference is all zeros: 0 if the test is too, else infinite.
    pub fn value(self) -> f64 {
        if self.energy == 0.0 && !self.error.is_nan() {
            return if self.error == 0.0 { 0.0 } else { f64::INFINITY };
        }
        self.error / self.energy
    }

    /// The mean square of the reference.
    pub fn mean_square(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.energy / self.count as f64 }
    }
}

/// NMSE of logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogitsNmse {
    /// Over all rows.
    #[serde(with = "crate::figure::Figure")]
    pub overall: f64,
    /// The number of rows.
    pub rows: u64,
    /// The worst row.
    pub worst: WorstRow,
    /// The median row.
    #[serde(with = "crate::figure::Figure")]
    pub p50: f64,
    /// The row that 99 of 100 do not exceed.
    #[serde(with = "crate::figure::Figure")]
    pub p99: f64,
}

/// The worst row of logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorstRow {
    /// Which row it is, and where it stood.
    #[serde(flatten)]
    pub place: RowPlace,
    /// Its NMSE.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
    /// The column of its largest error; `None` where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
}

/// Gathers [`LogitsNmse`] row by row.
#[derive(Default)]
pub(super) struct RowSums {
    total: Nmse,
    rows: Vec<f64>,
    /// The worst row so far and the column of its largest error.
    worst: Option<(usize, Option<u64>)>,
}

impl RowSums {
    /// Adds the sums of one row, `reference` against `test`.
    pub(super) fn push(&mut self, row: Nmse, reference: &[f64], test: &[f64]) {
        self.total.merge(row);
        let nmse = row.value();
        if self.worst.is_none_or(|(worst, _)| badness(nmse, self.rows[worst]).is_gt()) {
            self.worst = Some((self.rows.len(), worst_column(reference, test)));
        }
        self.rows.push(nmse);
    }

    /// The mean square of all reference logits.
    pub(super) fn mean_square(&self) -> f64 {
        self.total.mean_square()
    }

    /// The metric; `place` tells where a row stood. There is at least one row.
    pub(super) fn finish(self, place: impl Fn(usize) -> RowPlace) -> LogitsNmse {
        let (worst, column) = self.worst.expect("a capture has at least one row");
        let [p50, p99] = quantiles(&self.rows, [0.5, 0.99]);
        LogitsNmse {
            overall: self.total.value(),
            rows: self.rows.len() as u64,
            worst: WorstRow { place: place(worst), nmse: self.rows[worst], column },
            p50,
            p99,
        }
    }
}

/// The column of the largest error of a row; a NaN is the largest of all.
fn worst_column(reference: &[f64], test: &[f64]) -> Option<u64> {
    // An infinity that both hold is no error, though their difference is NaN.
    let errors = reference.iter().zip(test).map(|(r, x)| if r == x { 0.0 } else { (x - r).abs() });
    let column = worst_index(errors)?;
    (reference[column] != test[column]).then_some(column as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::within;
    use proptest::prelude::*;

    fn pairs() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        proptest::collection::vec((-1e3..1e3, -1e3..1e3), 1..40).prop_map(|pairs| pairs.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn scaling_both_arms_changes_nothing((r, x) in pairs(), exponent in -20i32..20) {
            let scale = |v: &[f64]| v.iter().map(|a| a * 2f64.powi(exponent)).collect::<Vec<_>>();
            prop_assert_eq!(Nmse::of(&r, &x).value(), Nmse::of(&scale(&r), &scale(&x)).value());
        }

        #[test]
        fn the_sign_of_both_arms_and_of_the_error_changes_nothing((r, x) in pairs()) {
            let negated = |v: &[f64]| v.iter().map(|a| -a).collect::<Vec<_>>();
            prop_assert_eq!(Nmse::of(&r, &x).value(), Nmse::of(&negated(&r), &negated(&x)).value());
        }

        #[test]
        fn equal_arms_have_none((r, _) in pairs()) {
            prop_assert_eq!(Nmse::of(&r, &r).value(), 0.0);
        }

        #[test]
        fn a_nan_fails_every_limit((mut r, mut x) in pairs(), at in any::<prop::sample::Index>(), arm: bool) {
            let at = at.index(r.len());
            if arm { r[at] = f64::NAN } else { x[at] = f64::NAN }
            prop_assert!(!within(Nmse::of(&r, &x).value(), f64::INFINITY));
        }

        #[test]
        fn parts_sum_to_the_whole((r, x) in pairs(), at in any::<prop::sample::Index>()) {
            let at = at.index(r.len());
            let mut parts = Nmse::of(&r[..at], &x[..at]);
            parts.merge(Nmse::of(&r[at..], &x[at..]));
            let whole = Nmse::of(&r, &x).value();
            prop_assert!((parts.value() - whole).abs() <= 1e-12 * whole);
        }
    }

    #[test]
    fn the_reference_is_the_denominator() {
        assert_eq!(Nmse::of(&[2.0, 0.0], &[2.0, 1.0]).value(), 0.25);
        assert_eq!(Nmse::of(&[1.0], &[1e6]).value(), (1e6f64 - 1.0).powi(2));
    }

    #[test]
    fn the_column_of_the_largest_error_is_named() {
        let inf = f64::INFINITY;
        assert_eq!(worst_column(&[1.0, 2.0, 3.0], &[1.0, 2.5, 2.0]), Some(2));
        assert_eq!(worst_column(&[inf, 2.0, 3.0], &[inf, 2.5, 3.0]), Some(1));
        assert_eq!(worst_column(&[1.0, 2.0, 3.0], &[1e9, f64::NAN, -inf]), Some(1));
        assert_eq!(worst_column(&[inf, 2.0], &[inf, 2.0]), None);
        let mut rows = RowSums::default();
        for (r, x) in [([1.0, 1.0], [1.0, 1.1]), ([1.0, 1.0], [1.5, 1.0]), ([1.0, 1.0], [1.0, 1.2])] {
            rows.push(Nmse::of(&r, &x), &r, &x);
        }
        let found = rows.finish(|row| RowPlace { row: row as u64, position: 0, step: 0 });
        assert_eq!((found.worst.place.row, found.worst.column), (1, Some(0)));
    }

    #[test]
    fn a_reference_of_zeros_passes_only_zeros() {
        assert_eq!(Nmse::of(&[0.0, 0.0], &[0.0, 0.0]).value(), 0.0);
        assert_eq!(Nmse::of(&[0.0, 0.0], &[0.0, 1e-30]).value(), f64::INFINITY);
        assert!(Nmse::of(&[0.0], &[f64::NAN]).value().is_nan());
    }

    #[test]
    fn a_matched_infinity_is_left_out_and_any_other_fails() {
        let inf = f64::INFINITY;
        assert_eq!(Nmse::of(&[-inf, 2.0], &[-inf, 1.0]).value(), 0.25);
        for (r, x) in [(inf, -inf), (inf, 1.0), (1.0, inf)] {
            assert!(!within(Nmse::of(&[r, 1.0], &[x, 1.0]).value(), 1e30));
        }
    }
}
