//! The exact interval of a proportion (Clopper and Pearson 1934), which covers the truth at least as often as its
//! level says, at every sample size.

use super::{Interval, Level};
use statrs::distribution::{Beta, ContinuousCDF};

/// The interval of the rate of `hits` in `trials`: the rates at which as many hits, or as few, have the probability
/// `(1 - level) / 2`. Without trials it is 0 to 1. More hits than trials are [`Interval::UNKNOWN`].
#[must_use]
pub fn interval(hits: u64, trials: u64, level: Level) -> Interval {
    if hits > trials {
        return Interval::UNKNOWN;
    }
    let (k, n) = (hits as f64, trials as f64);
    let quantile = |a: f64, b: f64, p: f64| Beta::new(a, b).map_or(f64::NAN, |beta| beta.inverse_cdf(p));
    let low = if hits == 0 { 0.0 } else { quantile(k, n - k + 1.0, level.tail()) };
    let high = if hits == trials { 1.0 } else { quantile(k + 1.0, n - k, 1.0 - level.tail()) };
    Interval { low, high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::stats::binomial::at_most;
    use proptest::prelude::*;

    /// Newcombe 1998, Statistics in Medicine 17:857, table I, method 5.
    #[test]
    fn published_intervals() {
        for (hits, trials, low, high) in [
            (81, 263, 0.2527, 0.3676),
            (15, 148, 0.0578, 0.1617),
            (0, 20, 0.0, 0.1684),
            (1, 29, 0.0009, 0.1776),
        ] {
            let found = interval(hits, trials, Level::P95);
            assert!((found.low - low).abs() < 6e-5 && (found.high - high).abs() < 6e-5, "{hits} {found:?}");
        }
    }

    #[test]
    fn the_ends() {
        assert_eq!(interval(0, 0, Level::P95), Interval { low: 0.0, high: 1.0 });
        // 1 - 0.025^(1/n), in closed form.
        let all = interval(50, 50, Level::P95);
        assert!((all.low - 0.025f64.powf(1.0 / 50.0)).abs() < 1e-9 && all.high == 1.0, "{all:?}");
        assert!(interval(3, 2, Level::P95).low.is_nan());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_end_leaves_its_tail(trials in 1u64..3000, share in 0.0f64..=1.0) {
            let hits = (share * trials as f64) as u64;
            let found = interval(hits, trials, Level::P95);
            prop_assert!(found.contains(hits as f64 / trials as f64), "{found:?}");
            if hits < trials {
                prop_assert!((at_most(hits, trials, found.high) - 0.025).abs() < 1e-6, "{found:?}");
            }
            if hits > 0 {
                prop_assert!((1.0 - at_most(hits - 1, trials, found.low) - 0.025).abs() < 1e-6, "{found:?}");
            }
        }

        #[test]
        fn it_is_symmetric_and_narrows_with_more_trials(trials in 1u64..500, share in 0.0f64..=1.0) {
            let hits = (share * trials as f64) as u64;
            let found = interval(hits, trials, Level::P95);
            let mirrored = interval(trials - hits, trials, Level::P95);
            prop_assert!((found.low - (1.0 - mirrored.high)).abs() < 1e-8);
            let more = interval(4 * hits, 4 * trials, Level::P95);
            prop_assert!(more.width() < found.width());
        }
    }
}
