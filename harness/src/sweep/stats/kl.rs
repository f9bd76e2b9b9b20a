//! The KL divergences of a sweep in four figures.

use super::bootstrap::{Estimate, Resampling, Share, ratio_of_sums};
use super::quantile::nearest_rank;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// KL(reference || test) over all rows of all items, in nats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Kl {
    /// How many rows there are.
    pub rows: u64,
    /// The mean over rows, with an interval from resampling items.
    pub mean: Estimate,
    /// The row that 99 of 100 do not exceed, by nearest rank; NaN without rows.
    #[serde(with = "crate::figure::Figure")]
    pub p99: f64,
    /// The worst row; NaN without rows.
    #[serde(with = "crate::figure::Figure")]
    pub max: f64,
}

/// Sums up the KL of each row of each item. Items without rows add nothing.
#[must_use]
pub fn summary(items: &[Vec<f64>], how: &Resampling) -> Kl {
    let shares: Vec<Share> = items
        .iter()
        .filter(|rows| !rows.is_empty())
        .map(|rows| Share { sum: rows.iter().sum(), weight: rows.len() as f64 })
        .collect();
    let rows = items.concat();
    Kl {
        rows: rows.len() as u64,
        mean: ratio_of_sums(&shares, how),
        p99: nearest_rank(&rows, 0.99).unwrap_or(f64::NAN),
        max: nearest_rank(&rows, 1.0).unwrap_or(f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_weigh_and_nan_is_the_worst() {
        let how = Resampling::default();
        let found = summary(&[vec![1.0, 2.0, 3.0], vec![], vec![6.0]], &how);
        assert_eq!((found.rows, found.mean.value, found.p99, found.max), (4, 3.0, 6.0, 6.0));
        let interval = found.mean.interval.unwrap();
        assert_eq!((interval.low, interval.high), (2.0, 6.0), "of two items, each may be drawn twice");
        let nan = summary(&[vec![0.1, f64::NAN], vec![0.2]], &how);
        assert!(nan.max.is_nan() && nan.mean.value.is_nan());
        let none = summary(&[], &how);
        assert!(none.rows == 0 && none.max.is_nan() && none.mean.interval.is_none());
    }
}
