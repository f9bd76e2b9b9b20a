//! From noise floors to limits, by one rule: the smallest number of one significant digit that is at least
//! `factor` x the largest figure, and never below [`LEAST`].
//!
//! The largest figure of a fixed set of seeded cells is the same each time on a device that computes the same each
//! time, and the rounding keeps a figure that moves a little at one limit or at its neighbour, at most twice as large.

use super::floor::Measured;
use super::samples::{Metric, Sample};
use crate::plan::KvType;
use crate::verdict::{DeviceClass, WeightClass};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a limit is of the largest figure, unless it is said otherwise: room for tokens and weights that were not drawn.
pub const FACTOR: f64 = 5.0;

/// The smallest limit: what F32 sums in another order reach on larger models than those that are calibrated on.
pub const LEAST: f64 = 1e-12;

/// A proposed row of a table of tolerances.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// The table.
    pub metric: Metric,
    /// The class of the weights.
    pub weights: WeightClass,
    /// The type of the cache.
    pub kv: KvType,
    /// The class of the device.
    pub device: DeviceClass,
    /// The limit; `None` where a figure was no number, for which there is none.
    pub limit: Option<f64>,
    /// The smallest limit in use among the cells that the row is of.
    #[serde(with = "crate::figure::Figure")]
    pub in_use: f64,
    /// The figures.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Proposal {
    /// Whether it is above the limit in use.
    #[must_use]
    pub fn is_above(&self) -> bool {
        self.limit.is_some_and(|limit| !(limit <= self.in_use))
    }
}

/// The limit that follows from the largest figure; `None` where that is not finite.
#[must_use]
pub fn limit(max: f64, factor: f64) -> Option<f64> {
    max.is_finite().then(|| one_digit(factor * max).max(LEAST))
}

/// The smallest number of one significant digit that is at least `value`; 0 for 0.
fn one_digit(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    // Through text, so that 3e-6 is the number that 3e-6 reads as.
    let text = format!("{value:.0e}");
    let (digit, exponent) = text.split_once('e').expect("a number in scientific notation");
    let near: f64 = text.parse().expect("what was written reads back");
    if near >= value {
        return near;
    }
    let digit: u32 = digit.parse().expect("one digit");
    format!("{}e{exponent}", digit + 1).parse().expect("a number")
}

/// One row for each class of weights, type of cache and class of device, in both tables.
#[must_use]
pub fn proposals(samples: &[Sample], factor: f64) -> Vec<Proposal> {
    let mut groups: BTreeMap<_, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let place = &sample.place;
        groups.entry((sample.metric, place.weights, place.kv, place.class)).or_default().push(sample);
    }
    groups
        .into_iter()
        .map(|((metric, weights, kv, device), samples)| {
            let measured = Measured::of(&samples);
            let in_use = samples.iter().map(|sample| sample.in_use).fold(f64::INFINITY, f64::min);
            Proposal { metric, weights, kv, device, limit: limit(measured.max, factor), in_use, measured }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_limit_is_one_digit_above_the_factor() {
        assert_eq!(limit(3.2e-6, 5.0), Some(2e-5));
        assert_eq!(limit(2e-6, 5.0), Some(1e-5));
        assert_eq!(limit(1.9e-6, 5.0), Some(1e-5));
        assert_eq!(limit(4.0e-4, 5.0), Some(2e-3));
        assert_eq!(limit(1.0, 9.5), Some(10.0));
        assert_eq!(limit(1e-15, 5.0), Some(LEAST));
        assert_eq!(limit(0.0, 5.0), Some(LEAST));
        assert_eq!(limit(f64::NAN, 5.0), None);
        assert_eq!(limit(f64::INFINITY, 5.0), None);
    }

    proptest! {
        #[test]
        fn figures_that_differ_a_little_give_limits_within_a_factor_of_two(max in 1e-12f64..1.0, by in 1.0f64..1.1) {
            let (a, b) = (limit(max, FACTOR).unwrap(), limit(max * by, FACTOR).unwrap());
            prop_assert!(a >= FACTOR * max * (1.0 - 1e-12));
            prop_assert!(a <= b && b <= 2.0 * a * (1.0 + 1e-12), "{a} {b}");
            prop_assert!(a <= 2.0 * FACTOR * max * (1.0 + 1e-12));
        }
    }
}
