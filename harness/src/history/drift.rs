//! A drift: a figure that stays within its limit and keeps growing from build to build.
//!
//! One value stands for each build, the median of its runs, so that a build that was run often counts no more than
//! another. Of the last builds whose figures are all within their limit (at most [`Rule::window`] of them, at least
//! [`Rule::builds`]) the trend test of Mann and Kendall asks whether they grow; it is flagged where the probability of so
//! much growth by chance is at most [`Rule::p`] **and** the last third is at least [`Rule::ratio`] times the first third,
//! median against median. The test alone would flag a growth of a millionth, the ratio alone one outlier.

use super::store::{Metric, Point};
use crate::sweep::stats::mann_kendall;
use crate::verdict::Status;
use serde::Serialize;

/// What is a drift.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// The fewest builds.
    pub builds: usize,
    /// The most builds, the last ones.
    pub window: usize,
    /// The largest probability.
    pub p: f64,
    /// The least growth.
    pub ratio: f64,
}

impl Default for Rule {
    /// Five builds that grow throughout have a probability of 1/120.
    fn default() -> Self {
        Self { builds: 5, window: 20, p: 0.01, ratio: 2.0 }
    }
}

/// A drift that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drift {
    /// The first build of the window.
    pub from: String,
    /// The last build.
    pub to: String,
    /// How many builds.
    pub builds: usize,
    /// The probability.
    pub p: f64,
    /// The median of the last third over that of the first.
    pub ratio: f64,
    /// The last build's figure as a share of its limit, where it has one.
    pub used: Option<f64>,
}

/// What stands for one build.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildValue {
    /// The build.
    pub build: String,
    /// When its first run began.
    pub started: String,
    /// The median of its runs.
    pub value: Option<f64>,
    /// The limit of its last run.
    pub limit: Option<f64>,
    /// Whether every run did what was asked of it.
    pub good: bool,
}

/// One value for each build, in the order in which builds came.
#[must_use]
pub fn by_build(points: &[Point], metric: Metric) -> Vec<BuildValue> {
    let mut builds: Vec<(BuildValue, Vec<f64>)> = Vec::new();
    for point in points {
        let (value, limit) = point.figure(metric);
        let place = builds.iter().position(|(build, _)| build.build == point.build).unwrap_or_else(|| {
            let (build, started) = (point.build.clone(), point.started.clone());
            builds.push((BuildValue { build, started, value: None, limit: None, good: true }, Vec::new()));
            builds.len() - 1
        });
        let (build, values) = &mut builds[place];
        build.limit = limit.or(build.limit);
        build.good &= matches!(point.status, Status::Pass | Status::Expected);
        values.extend(value);
    }
    builds.into_iter().map(|(build, values)| BuildValue { value: median(&values), ..build }).collect()
}

/// The median; of an even number the mean of the two in the middle. A NaN among the values is the median.
fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    if values.iter().any(|value| value.is_nan()) {
        return Some(f64::NAN);
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    })
}

/// The last builds that the rule looks at: those with a figure, back to the last one that was over its limit.
fn window(builds: &[BuildValue], rule: &Rule) -> Vec<(String, f64, Option<f64>)> {
    let within = |build: &&BuildValue| {
        build.value.is_none_or(|value| value <= build.limit.unwrap_or(f64::INFINITY) && value.is_finite())
    };
    let last = builds.iter().rev().take_while(within);
    let mut window: Vec<_> =
        last.filter_map(|b| Some((b.build.clone(), b.value?, b.limit))).take(rule.window).collect();
    window.reverse();
    window
}

/// Whether there are enough builds for the rule to say anything.
#[must_use]
pub fn is_enough(points: &[Point], metric: Metric, rule: &Rule) -> bool {
    window(&by_build(points, metric), rule).len() >= rule.builds.max(3)
}

/// The drift of a series, if there is one.
#[must_use]
pub fn drift(points: &[Point], metric: Metric, rule: &Rule) -> Option<Drift> {
    let window = window(&by_build(points, metric), rule);
    if window.len() < rule.builds.max(3) {
        return None;
    }
    let values: Vec<f64> = window.iter().map(|(_, value, _)| *value).collect();
    let trend = mann_kendall::trend(&values)?;
    let third = (values.len() / 3).max(1);
    let (first, last) = (median(&values[..third])?, median(&values[values.len() - third..])?);
    let ratio = if first > 0.0 {
        last / first
    } else if last > 0.0 {
        f64::INFINITY
    } else {
        1.0
    };
    let (to, value, limit) = &window[window.len() - 1];
    (trend.p <= rule.p && ratio >= rule.ratio).then(|| Drift {
        from: window[0].0.clone(),
        to: to.clone(),
        builds: window.len(),
        p: trend.p,
        ratio,
        used: limit.filter(|limit| *limit > 0.0).map(|limit| value / limit),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: f64 = 1e-4;

    /// A run a build, in order.
    fn series(values: &[f64]) -> Vec<Point> {
        let point =
            |(i, &value): (usize, &f64)| Point::for_test(&i.to_string(), &format!("b{i}"), value, LIMIT);
        values.iter().enumerate().map(point).collect()
    }

    fn found(values: &[f64]) -> Option<Drift> {
        drift(&series(values), Metric::Logits, &Rule::default())
    }

    #[test]
    fn growth_within_the_limit_is_found_and_its_share_of_the_limit_told() {
        let drift = found(&[1e-6, 2e-6, 4e-6, 8e-6, 1.6e-5]).unwrap();
        assert_eq!((drift.from.as_str(), drift.to.as_str(), drift.builds), ("b0", "b4", 5));
        assert!((drift.p - 1.0 / 120.0).abs() < 1e-12 && (drift.ratio - 16.0).abs() < 1e-9);
        assert!((drift.used.unwrap() - 0.16).abs() < 1e-12);
    }

    #[test]
    fn no_drift() {
        assert_eq!(found(&[1e-6, 2e-6, 4e-6, 8e-6]), None, "too few builds");
        assert_eq!(found(&[1e-6, 1.01e-6, 1.02e-6, 1.03e-6, 1.04e-6, 1.05e-6]), None, "too little");
        assert_eq!(found(&[1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 9e-5]), None, "one outlier");
        assert_eq!(found(&[3e-6, 1e-6, 4e-6, 1e-6, 5e-6, 9e-6, 2e-6]), None, "up and down");
        assert_eq!(found(&[8e-6, 6e-6, 4e-6, 2e-6, 1e-6]), None, "falling");
        assert_eq!(found(&[0.0; 8]), None, "nothing at all");
        assert_eq!(found(&[1e-6, 2e-6, 4e-6, 8e-6, f64::NAN]), None, "a NaN is over the limit");
    }

    #[test]
    fn one_step_back_does_not_hide_a_growth_over_many_builds() {
        let mut values: Vec<f64> = (0..10).map(|i| 1e-6 * 1.4f64.powi(i)).collect();
        values.swap(4, 5);
        assert!(found(&values).is_some());
    }

    #[test]
    fn what_was_over_the_limit_begins_the_series_anew() {
        assert_eq!(found(&[1e-6, 2e-6, 4e-6, 1e-3, 8e-6, 1.6e-5]), None);
        assert!(found(&[1e-3, 1e-6, 2e-6, 4e-6, 8e-6, 1.6e-5]).is_some());
    }

    #[test]
    fn runs_of_one_build_are_one_value() {
        let mut points = series(&[1e-6, 2e-6, 4e-6]);
        for run in 3..20 {
            points.push(Point::for_test(&run.to_string(), "b2", 4e-6 + f64::from(run) * 1e-7, LIMIT));
        }
        assert_eq!(by_build(&points, Metric::Logits).len(), 3);
        assert_eq!(drift(&points, Metric::Logits, &Rule::default()), None);
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert!(median(&[3.0, f64::NAN]).unwrap().is_nan());
        assert_eq!(median(&[]), None);
    }

    proptest! {
        /// Whatever its size: growth by a tenth a build for twelve builds is found, in any unit.
        #[test]
        fn steady_growth_is_found(start in -12f64..-6.0) {
            let values: Vec<f64> = (0..12).map(|i| 10f64.powf(start) * 1.1f64.powi(i)).collect();
            prop_assert!(found(&values).is_some());
        }

        /// A figure that moves around without growing is rarely flagged, and never without the ratio.
        #[test]
        fn a_flag_keeps_its_word(values in prop::collection::vec(1e-7f64..1e-5, 0..30)) {
            if let Some(drift) = found(&values) {
                prop_assert!(drift.p <= 0.01 && drift.ratio >= 2.0 && drift.builds >= 5 && drift.builds <= 20);
                prop_assert!(drift.used.unwrap() <= 1.0);
            }
        }
    }
}
