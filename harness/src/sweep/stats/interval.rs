//! Intervals and the level at which they hold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// A confidence interval, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// The lower end.
    #[serde(with = "crate::figure::Figure")]
    pub low: f64,
    /// The upper end.
    #[serde(with = "crate::figure::Figure")]
    pub high: f64,
}

impl Interval {
    /// The interval of figures that are not finite: nothing can be said, and every check of it fails.
    pub const UNKNOWN: Self = Self { low: f64::NAN, high: f64::NAN };

    /// Whether `value` lies inside; never, where one of the three is NaN.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Upper less lower end.
    #[must_use]
    pub fn width(&self) -> f64 {
        self.high - self.low
    }
}

/// The probability with which an interval is to cover the truth, above 0 and below 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Level(f64);

/// A number that is no level.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("level `{0}` is not between 0 and 1, as 0.95")]
pub struct NotALevel(pub f64);

impl Level {
    /// 95 %, which reports use.
    pub const P95: Self = Self(0.95);

    /// A level.
    ///
    /// # Errors
    /// A number that is not above 0 and below 1.
    pub fn new(level: f64) -> Result<Self, NotALevel> {
        if level > 0.0 && level < 1.0 { Ok(Self(level)) } else { Err(NotALevel(level)) }
    }

    /// As a fraction.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }

    /// The probability left to each side of a two-sided interval.
    #[must_use]
    pub fn tail(self) -> f64 {
        (1.0 - self.0) / 2.0
    }

    /// How many standard deviations of a normal distribution each side of a two-sided interval has: 1.96 at 95 %.
    #[must_use]
    pub fn z(self) -> f64 {
        Normal::standard().inverse_cdf(1.0 - self.tail())
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::P95
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z_of_the_common_levels() {
        // Tables of the normal distribution.
        for (level, z) in [(0.90, 1.644_853_627), (0.95, 1.959_963_985), (0.99, 2.575_829_304)] {
            assert!((Level::new(level).unwrap().z() - z).abs() < 1e-8, "{level}");
        }
    }

    #[test]
    fn no_level_outside_0_and_1() {
        for level in [0.0, 1.0, -0.5, 95.0, f64::NAN] {
            assert!(Level::new(level).is_err(), "{level}");
        }
    }

    #[test]
    fn an_unknown_interval_contains_nothing() {
        assert!(!Interval::UNKNOWN.contains(0.0) && !Interval { low: 0.0, high: 1.0 }.contains(f64::NAN));
    }
}
