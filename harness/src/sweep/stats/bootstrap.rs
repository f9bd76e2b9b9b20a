//! Bootstrap intervals of a ratio of sums over items, such as the mean KL of all rows.
//!
//! Rows of one text depend on each other, so whole items are drawn, with replacement, as many as there are; both arms'
//! figures of an item stay together, which makes comparisons paired. The interval is BCa (bias-corrected and
//! accelerated; Efron 1987), the acceleration by the jackknife, since KL is skewed and plain percentiles would
//! lie too low. BCa quantiles are nearest ranks of the replicates, so an increasing function of the statistic has
//! that function of the interval.

use super::{Interval, Level};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// What one item adds to the two sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// To the numerator, as the sum of the item's KL.
    pub sum: f64,
    /// To the denominator, as the number of the item's rows; not negative.
    pub weight: f64,
}

/// How items are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resampling {
    /// How often.
    pub resamples: usize,
    /// Of the interval.
    pub level: Level,
    /// Of the generator.
    pub seed: u64,
}

impl Default for Resampling {
    fn default() -> Self {
        Self { resamples: 10_000, level: Level::P95, seed: 0 }
    }
}

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// The figure; NaN where the weights sum to 0.
    #[serde(with = "crate::figure::Figure")]
    pub value: f64,
    /// Its interval; `None` for fewer than two items, of which resampling learns nothing.
    pub interval: Option<Interval>,
}

impl Estimate {
    /// The same through an increasing function.
    #[must_use]
    pub fn map(self, increasing: impl Fn(f64) -> f64) -> Self {
        let interval = self.interval.map(|i| Interval { low: increasing(i.low), high: increasing(i.high) });
        Self { value: increasing(self.value), interval }
    }
}

/// Sum of sums over sum of weights, with its interval. A figure that is not finite has [`Interval::UNKNOWN`]. The
/// interval always holds the figure itself; where BCa leaves it outside, as very few items can bring about, that end
/// is moved to the figure.
#[must_use]
pub fn ratio_of_sums(items: &[Share], how: &Resampling) -> Estimate {
    let total = items.iter().fold(Share { sum: 0.0, weight: 0.0 }, add);
    let value = total.sum / total.weight;
    if items.len() < 2 || how.resamples == 0 {
        return Estimate { value, interval: None };
    }
    if !value.is_finite() {
        return Estimate { value, interval: Some(Interval::UNKNOWN) };
    }
    let mut replicates = replicates(items, how);
    replicates.sort_by(f64::total_cmp);
    let (low, high) = bca_ranks(&replicates, value, acceleration(items, total), how.level);
    let interval = Interval { low: replicates[low].min(value), high: replicates[high].max(value) };
    Estimate { value, interval: Some(interval) }
}

fn add(total: Share, item: &Share) -> Share {
    Share { sum: total.sum + item.sum, weight: total.weight + item.weight }
}

/// The ratio of each resample. One whose weights are all 0 is drawn again, at most so often as there are resamples.
fn replicates(items: &[Share], how: &Resampling) -> Vec<f64> {
    let mut generator = ChaCha8Rng::seed_from_u64(how.seed);
    // The upper half of a 128-bit product: the same index everywhere, and even to 2^-64 of its probability.
    let mut index = || ((u128::from(generator.next_u64()) * items.len() as u128) >> 64) as usize;
    let mut draw = || {
        let total =
            (0..items.len()).fold(Share { sum: 0.0, weight: 0.0 }, |total, _| add(total, &items[index()]));
        total.sum / total.weight
    };
    let mut replicates: Vec<f64> = Vec::with_capacity(how.resamples);
    for _ in 0..2 * how.resamples {
        let replicate = draw();
        if replicate.is_finite() {
            replicates.push(replicate);
        }
        if replicates.len() == how.resamples {
            break;
        }
    }
    replicates
}

/// Places of the two ends among the sorted replicates.
fn bca_ranks(replicates: &[f64], value: f64, acceleration: f64, level: Level) -> (usize, usize) {
    let count = replicates.len() as f64;
    let normal = Normal::standard();
    let below = replicates.partition_point(|&r| r < value) as f64;
    let equal = replicates.partition_point(|&r| r <= value) as f64 - below;
    let share = ((below + equal / 2.0) / count).clamp(0.5 / count, 1.0 - 0.5 / count);
    let bias = normal.inverse_cdf(share);
    let rank = |z: f64| {
        let shifted = bias + z;
        let stretch = 1.0 - acceleration * shifted;
        // Beyond its pole the acceleration means nothing: without it, the bias alone is corrected.
        let adjusted = if stretch > 0.0 { bias + shifted / stretch } else { bias + shifted };
        let place = (normal.cdf(adjusted) * count).ceil() as usize;
        place.clamp(1, replicates.len()) - 1
    };
    (rank(-level.z()), rank(level.z()))
}

/// A sixth of the skewness of the ratio's jackknife values; 0 where they are all the same.
fn acceleration(items: &[Share], total: Share) -> f64 {
    let without = |item: &Share| (total.sum - item.sum) / (total.weight - item.weight);
    let values: Vec<f64> = items.iter().map(without).filter(|v| v.is_finite()).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let moment = |power: i32| values.iter().map(|v| (mean - v).powi(power)).sum::<f64>();
    let acceleration = moment(3) / (6.0 * moment(2).powf(1.5));
    if acceleration.is_finite() { acceleration } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::stats::binomial;
    use proptest::prelude::*;
    use rand_chacha::rand_core::RngCore;

    fn shares(values: &[f64]) -> Vec<Share> {
        values.iter().map(|&sum| Share { sum, weight: 1.0 }).collect()
    }

    /// Of zeros and ones the replicates are binomial, so the percentiles are known: 30 of 60, whose resampled mean
    /// is within 22/60 and 38/60 with probability 0.95 (no bias, no skewness, hence BCa is the percentile interval).
    #[test]
    fn a_symmetric_coin_has_the_binomial_percentiles() {
        let coin: Vec<f64> = (0..60).map(|i| f64::from(i % 2)).collect();
        let found = ratio_of_sums(&shares(&coin), &Resampling { resamples: 40_000, ..Resampling::default() });
        let quantile =
            |p: f64| (0..=60u64).find(|&k| binomial::at_most(k, 60, 0.5) >= p).unwrap() as f64 / 60.0;
        assert_eq!((quantile(0.025), quantile(0.975)), (22.0 / 60.0, 38.0 / 60.0));
        let interval = found.interval.unwrap();
        assert_eq!(found.value, 0.5);
        assert!((interval.low - quantile(0.025)).abs() <= 1.0 / 60.0 + 1e-12, "{found:?}");
        assert!((interval.high - quantile(0.975)).abs() <= 1.0 / 60.0 + 1e-12, "{found:?}");
    }

    /// The acceleration is a sixth of the skewness over the root of n: 1, 1, 1, 5 has moments 12 and 24 around 2, and
    /// the jackknife scales all deviations alike, so it is 24 / (6 x 12^1.5).
    #[test]
    fn the_acceleration_by_hand() {
        let items = shares(&[1.0, 1.0, 1.0, 5.0]);
        let total = items.iter().fold(Share { sum: 0.0, weight: 0.0 }, add);
        assert!((acceleration(&items, total) - 24.0 / (6.0 * 12f64.powf(1.5))).abs() < 1e-12);
    }

    /// The mean of exponential waiting times is 1; 95 % intervals of 40 of them should cover it about as often.
    #[test]
    fn skewed_figures_are_covered_about_as_often_as_promised() {
        let mut generator = ChaCha8Rng::seed_from_u64(7);
        let mut uniform = || (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let covered = (0..400)
            .filter(|&seed| {
                let items: Vec<f64> = (0..40).map(|_| -(1.0 - uniform()).ln()).collect();
                let how = Resampling { resamples: 1_000, seed, ..Resampling::default() };
                ratio_of_sums(&shares(&items), &how).interval.unwrap().contains(1.0)
            })
            .count();
        assert!((360..=392).contains(&covered), "{covered} of 400");
    }

    #[test]
    fn too_few_items_equal_items_and_figures_that_are_not_finite() {
        let how = Resampling::default();
        assert_eq!(ratio_of_sums(&shares(&[2.0]), &how), Estimate { value: 2.0, interval: None });
        assert!(ratio_of_sums(&[], &how).value.is_nan());
        let equal = ratio_of_sums(&shares(&[2.0; 9]), &how);
        assert_eq!(equal.interval, Some(Interval { low: 2.0, high: 2.0 }));
        for bad in [f64::NAN, f64::INFINITY] {
            let found = ratio_of_sums(&shares(&[1.0, bad, 2.0]), &how);
            assert!(!found.value.is_finite() && !found.interval.unwrap().contains(1.0), "{found:?}");
        }
    }

    #[test]
    fn a_seed_is_an_interval() {
        let items = shares(&[0.1, 0.4, 0.2, 0.9, 0.3, 0.35, 0.6]);
        let with =
            |seed| ratio_of_sums(&items, &Resampling { resamples: 200, seed, ..Resampling::default() });
        assert_eq!(with(3), with(3));
        assert_ne!(with(3), with(4));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn it_contains_the_figure_and_scales(
            items in proptest::collection::vec((0.0f64..10.0, 1u32..50), 2..40),
            seed in 0u64..1000,
        ) {
            let how = Resampling { resamples: 400, seed, ..Resampling::default() };
            let share = |scale: f64| -> Vec<Share> {
                items.iter().map(|&(v, w)| Share { sum: scale * v * f64::from(w), weight: f64::from(w) }).collect()
            };
            let found = ratio_of_sums(&share(1.0), &how);
            let interval = found.interval.unwrap();
            prop_assert!(interval.contains(found.value), "{found:?}");
            // A power of two scales without rounding.
            let scaled = ratio_of_sums(&share(4.0), &how);
            prop_assert_eq!(scaled, found.map(|v| 4.0 * v));
        }

        #[test]
        fn more_items_of_the_same_kind_narrow_it(values in proptest::collection::vec(0.0f64..10.0, 12..20)) {
            prop_assume!(values.iter().any(|v| (v - values[0]).abs() > 1.0));
            let how = Resampling { resamples: 1_000, ..Resampling::default() };
            let few = ratio_of_sums(&shares(&values), &how).interval.unwrap();
            let many = ratio_of_sums(&shares(&values.repeat(9)), &how).interval.unwrap();
            prop_assert!(many.width() < few.width(), "{few:?} {many:?}");
        }
    }
}
