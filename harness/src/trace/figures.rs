//! What is said of a node's values against others.

use crate::compare::Nmse;
use serde::{Deserialize, Serialize};

/// A node's values against the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The squared difference over the squared reference.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
    /// The largest difference.
    #[serde(with = "crate::figure::Figure")]
    pub max_abs: f64,
    /// Values that are not finite and not the reference's.
    pub not_finite: u64,
    /// The row that is farthest off, counted in the order of the elements.
    pub worst_row: usize,
    /// Its NMSE.
    #[serde(with = "crate::figure::Figure")]
    pub worst_row_nmse: f64,
}

impl Figures {
    /// `x` against `reference`, in rows of `row` values. Values of another number are no figure: everything is NaN.
    #[must_use]
    pub fn of(reference: &[f64], x: &[f64], row: usize) -> Self {
        let nan = f64::NAN;
        if reference.len() != x.len() || row == 0 {
            return Self { nmse: nan, max_abs: nan, not_finite: 0, worst_row: 0, worst_row_nmse: nan };
        }
        let mut found = Self { nmse: 0.0, max_abs: 0.0, not_finite: 0, worst_row: 0, worst_row_nmse: 0.0 };
        let mut all = Nmse::default();
        for (i, (r, x)) in reference.chunks(row).zip(x.chunks(row)).enumerate() {
            let of_row = Nmse::of(r, x);
            all.merge(of_row);
            for (r, x) in r.iter().zip(x) {
                let difference = if r == x { 0.0 } else { (x - r).abs() };
                if difference.is_nan() || difference > found.max_abs {
                    found.max_abs = difference;
                }
                found.not_finite += u64::from(!x.is_finite() && !(r == x));
            }
            // NaN is worse than anything, and stays.
            if !found.worst_row_nmse.is_nan() && !(of_row.value() <= found.worst_row_nmse) {
                (found.worst_row, found.worst_row_nmse) = (i, of_row.value());
            }
        }
        found.nmse = all.value();
        found
    }
}

/// The NMSE of each head, heads being dimension `axis` of `ne`.
#[must_use]
pub fn by_head(reference: &[f64], x: &[f64], ne: [usize; 4], axis: usize) -> Vec<f64> {
    let inner: usize = ne[..axis].iter().product();
    let mut heads = vec![Nmse::default(); ne[axis]];
    if inner == 0 || reference.len() != x.len() {
        return vec![f64::NAN; ne[axis]];
    }
    for (i, (r, x)) in reference.chunks(inner).zip(x.chunks(inner)).enumerate() {
        heads[i % ne[axis]].merge(Nmse::of(r, x));
    }
    heads.into_iter().map(Nmse::value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_row_and_the_largest_difference() {
        let found = Figures::of(&[1.0, 0.0, 2.0, 0.0], &[1.0, 0.0, 2.0, 1.0], 2);
        assert_eq!((found.nmse, found.max_abs, found.not_finite), (0.2, 1.0, 0));
        assert_eq!((found.worst_row, found.worst_row_nmse), (1, 0.25));
    }

    #[test]
    fn what_is_not_finite_is_counted_and_is_the_worst() {
        let nan = f64::NAN;
        let found = Figures::of(&[1.0, 1.0, 1.0], &[nan, 9.0, f64::INFINITY], 1);
        assert_eq!((found.not_finite, found.worst_row), (2, 0));
        assert!(found.nmse.is_nan() && found.worst_row_nmse.is_nan());
        let same = Figures::of(&[f64::NEG_INFINITY, 1.0], &[f64::NEG_INFINITY, 1.0], 2);
        assert_eq!((same.nmse, same.max_abs, same.not_finite), (0.0, 0.0, 0));
        assert!(Figures::of(&[1.0], &[1.0, 2.0], 1).nmse.is_nan());
    }

    #[test]
    fn heads_are_told_apart_in_either_dimension() {
        let r = [1.0, 1.0, 1.0, 1.0];
        let x = [1.0, 1.0, 1.0, 2.0];
        assert_eq!(by_head(&r, &x, [2, 2, 1, 1], 1), [0.0, 0.5]);
        assert_eq!(by_head(&r, &x, [1, 2, 2, 1], 2), [0.0, 0.5]);
        assert_eq!(by_head(&r, &x, [1, 2, 2, 1], 1), [0.0, 0.5]);
        assert!(by_head(&r, &x[..2], [2, 2, 1, 1], 1)[0].is_nan());
    }
}
