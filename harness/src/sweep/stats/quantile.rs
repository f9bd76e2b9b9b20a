//! Quantiles with one definition: the nearest rank, the same as in the comparison of captures.

use crate::compare::order;

/// The smallest figure that at least the share `q` (0 to 1) of `figures` does not exceed: of 1 to 100, `q` = 0.99 is
/// 99. Always one of the figures, never a mean of two. NaN is larger than everything. `None` for an empty list.
#[must_use]
pub fn nearest_rank(figures: &[f64], q: f64) -> Option<f64> {
    let [quantile] = order::quantiles(figures, [q]);
    (!figures.is_empty()).then_some(quantile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_by_hand() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(nearest_rank(&hundred, 0.99), Some(99.0));
        assert_eq!(nearest_rank(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(nearest_rank(&[], 0.5), None);
        assert!(nearest_rank(&[1.0, f64::NAN], 0.99).unwrap().is_nan());
    }
}
