//! Order and quantiles of figures in which NaN is worse than everything.

use std::cmp::Ordering;

/// Orders figures from good to bad: NaN comes last, whatever its sign.
pub(crate) fn badness(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The worse of two figures: NaN if either is. (`f64::max` would drop it.)
pub(crate) fn worse(a: f64, b: f64) -> f64 {
    if badness(b, a).is_gt() { b } else { a }
}

/// The index of the worst figure, the first of equals; `None` for an empty list.
pub(crate) fn worst_index(figures: impl IntoIterator<Item = f64>) -> Option<usize> {
    let mut worst: Option<(usize, f64)> = None;
    for (index, figure) in figures.into_iter().enumerate() {
        if worst.is_none_or(|(_, so_far)| badness(figure, so_far).is_gt()) {
            worst = Some((index, figure));
        }
    }
    worst.map(|(index, _)| index)
}

/// The nearest-rank quantiles `q` (0 to 1) of a list; 0 for an empty one.
pub(crate) fn quantiles<const N: usize>(figures: &[f64], q: [f64; N]) -> [f64; N] {
    let mut sorted = figures.to_vec();
    sorted.sort_by(|a, b| badness(*a, *b));
    q.map(|q| {
        let rank = (q * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_the_worst_of_all() {
        assert!(worse(f64::NAN, 1.0).is_nan() && worse(1.0, -f64::NAN).is_nan());
        assert_eq!(worse(f64::INFINITY, 1.0), f64::INFINITY);
        assert_eq!(worst_index([1.0, f64::INFINITY, -f64::NAN, 2.0]), Some(2));
        assert_eq!(worst_index([3.0, 3.0]), Some(0));
        assert_eq!(worst_index([]), None);
    }

    #[test]
    fn quantiles_are_nearest_ranks() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantiles(&hundred, [0.5, 0.99, 1.0, 0.0]), [50.0, 99.0, 100.0, 1.0]);
        assert_eq!(quantiles(&[7.0], [0.5, 0.99]), [7.0, 7.0]);
        assert!(quantiles(&[-f64::NAN, 1.0], [1.0])[0].is_nan());
        assert_eq!(quantiles(&[], [0.5]), [0.0]);
    }
}
