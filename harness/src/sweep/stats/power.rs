//! Power of the paired comparison: what a corpus can find before the sweep is run.
//!
//! The design: `n` items, answered by a reference and by an arm under test. A share `discordance` of the items is
//! expected to be answered rightly by one arm alone, for whatever reason; the arms' accuracies differ by `difference`,
//! so an item is lost with probability `(discordance + difference) / 2` and gained with `(discordance - difference) /
//! 2`. The discordance is an assumption, to be taken from an earlier sweep: noise that flips answers both ways hides a
//! difference. It cannot be smaller than the difference; equal to it, nothing but the difference flips answers.
//!
//! Power is that of [`super::mcnemar`]'s exact test, by enumeration: over the number of discordant items, which is
//! binomial, and over the losses among them. Without correction for other comparisons; for a family of `k`, give
//! `alpha / k`, which Holm's correction never exceeds in severity. A corpus of more than [`EXACT_UP_TO`] items is
//! counted by Connor's normal approximation (1987, Biometrics 43:207), which is a few items in a thousand too low there.

use super::{binomial, mcnemar};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// Up to so many items [`items_needed`] enumerates.
pub const EXACT_UP_TO: u64 = 20_000;

/// How many standard deviations of a binomial count are enumerated; what lies beyond has a probability under 1e-20.
const REACH: f64 = 10.0;

/// What is assumed and asked of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Design {
    /// Share of items that one arm alone answers rightly, above 0, to 1.
    pub discordance: f64,
    /// p values up to this are called a difference.
    pub alpha: f64,
    /// The probability with which a difference is to be found.
    pub power: f64,
}

impl Design {
    /// The common question: 95 % confidence, 80 % power.
    #[must_use]
    pub const fn common(discordance: f64) -> Self {
        Self { discordance, alpha: 0.05, power: 0.8 }
    }

    fn check(&self) -> Result<(), BadDesign> {
        let share =
            |field, value: f64, why, holds| if holds { Ok(()) } else { Err(BadDesign { field, value, why }) };
        let inside = |v: f64| v > 0.0 && v < 1.0;
        let open = "a number above 0 and below 1 is wanted";
        share("alpha", self.alpha, open, inside(self.alpha))?;
        share("power", self.power, open, inside(self.power))?;
        let discordance = self.discordance > 0.0 && self.discordance <= 1.0;
        share("discordance", self.discordance, "a number above 0, to 1, is wanted", discordance)
    }

    fn check_with(&self, difference: f64) -> Result<(), BadDesign> {
        self.check()?;
        if difference.abs() <= self.discordance {
            return Ok(());
        }
        let why = "no difference of accuracies is larger than the share of items that differ (discordance)";
        Err(BadDesign { field: "difference", value: difference, why })
    }
}

/// A design that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}: {why}")]
pub struct BadDesign {
    /// What is wrong.
    pub field: &'static str,
    /// Its value.
    pub value: f64,
    /// Why it cannot be.
    pub why: &'static str,
}

/// How many items a difference takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needed {
    /// The number.
    pub items: u64,
    /// Whether it was enumerated; otherwise it is the normal approximation.
    pub exact: bool,
}

/// The probability that `items` show a `difference` of accuracies (its sign does not matter). A difference of 0 gives
/// the test's real rate of false alarms.
///
/// # Errors
/// A design or a difference that cannot be.
pub fn power(items: u64, difference: f64, design: &Design) -> Result<f64, BadDesign> {
    design.check_with(difference)?;
    let (first, last) = likely(items, design.discordance);
    let rejections = rejections(first, last, difference, design);
    Ok(weigh(items, design.discordance, first, &rejections))
}

/// The smallest difference of accuracies that `items` find with the power asked for, to 1e-6; `None` where even a
/// difference as large as the discordance is missed more often.
///
/// # Errors
/// A design that cannot be.
pub fn detectable(items: u64, design: &Design) -> Result<Option<f64>, BadDesign> {
    let found = |difference: f64| power(items, difference, design).map(|power| power >= design.power);
    let (mut low, mut high) = (0.0, design.discordance);
    if !found(high)? {
        return Ok(None);
    }
    while high - low > 1e-6 {
        let middle = low + (high - low) / 2.0;
        if found(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(high))
}

/// How many items find `difference` with the power asked for. The power of an exact test falls a little at some larger
/// numbers of items; this is the number from which on it stays.
///
/// # Errors
/// A design or a difference that cannot be; a difference of 0.
pub fn items_needed(difference: f64, design: &Design) -> Result<Needed, BadDesign> {
    design.check_with(difference)?;
    if !(difference.abs() > 0.0) {
        return Err(BadDesign {
            field: "difference",
            value: difference,
            why: "no corpus finds a difference of 0",
        });
    }
    let approximate = connor(difference, design);
    let mut most = (1.3 * approximate) as u64 + 60;
    if approximate > EXACT_UP_TO as f64 {
        return Ok(Needed { items: approximate as u64, exact: false });
    }
    loop {
        let (_, last) = likely(most, design.discordance);
        let rejections = rejections(0, last, difference, design);
        let enough = |items: u64| {
            let (first, last) = likely(items, design.discordance);
            weigh(items, design.discordance, first, &rejections[first as usize..=last as usize])
                >= design.power
        };
        if enough(most) {
            let too_few = (0..most).rev().find(|&items| !enough(items));
            return Ok(Needed { items: too_few.map_or(0, |items| items + 1), exact: true });
        }
        most += most / 2;
    }
}

/// Connor's approximation, rounded up.
fn connor(difference: f64, design: &Design) -> f64 {
    let normal = Normal::standard();
    let (z_alpha, z_power) = (normal.inverse_cdf(1.0 - design.alpha / 2.0), normal.inverse_cdf(design.power));
    let d2 = difference * difference;
    let root = z_alpha * design.discordance.sqrt() + z_power * (design.discordance - d2).max(0.0).sqrt();
    (root * root / d2).ceil()
}

/// The numbers of discordant items among `items` that are likely enough to count.
fn likely(items: u64, discordance: f64) -> (u64, u64) {
    let mean = items as f64 * discordance;
    let reach = REACH * (mean * (1.0 - discordance)).sqrt() + REACH;
    ((mean - reach).max(0.0) as u64, ((mean + reach).ceil() as u64).min(items))
}

/// For each number of discordant items from `first` to `last`: the probability that the test calls a difference.
fn rejections(first: u64, last: u64, difference: f64, design: &Design) -> Vec<f64> {
    // Rounding may leave 1 + 1e-16 where the difference is as large as the discordance.
    let lost = ((design.discordance + difference.abs()) / (2.0 * design.discordance)).clamp(0.0, 1.0);
    let significant = |fewer: u64, m: u64| 2 * fewer < m && mcnemar::two_sided(fewer, m) <= design.alpha;
    // How many values of the smaller count are significant: it grows with m, by at most 1 each time.
    let mut values = (0..=first).find(|&fewer| !significant(fewer, first)).unwrap_or(0);
    (first..=last)
        .map(|m| {
            values += u64::from(significant(values, m));
            let tail = |p: f64| if values == 0 { 0.0 } else { binomial::at_most(values - 1, m, p) };
            tail(lost) + tail(1.0 - lost)
        })
        .collect()
}

/// The mean of `rejections`, which begin at `first`, over the number of discordant items.
fn weigh(items: u64, discordance: f64, first: u64, rejections: &[f64]) -> f64 {
    if items == 0 || rejections.is_empty() {
        return 0.0;
    }
    let last = first + rejections.len() as u64 - 1;
    let masses = if discordance >= 1.0 {
        (first..=last).map(|m| f64::from(u8::from(m == items))).collect()
    } else {
        binomial::masses(first..=last, items, discordance)
    };
    masses.iter().zip(rejections).map(|(mass, rejection)| mass * rejection).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::stats::Paired;
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    /// Six discordant items are significant only if all went one way: 3/4 to the sixth and 1/4 to the sixth.
    #[test]
    fn six_items_by_hand() {
        let design = Design::common(1.0);
        let expected = 0.75f64.powi(6) + 0.25f64.powi(6);
        assert!((power(6, 0.5, &design).unwrap() - expected).abs() < 1e-12);
        assert!((power(6, 0.25, &Design::common(0.5)).unwrap() - expected / 64.0).abs() < 1e-12);
        assert_eq!(power(5, 1.0, &design).unwrap(), 0.0);
        assert_eq!(items_needed(1.0, &design).unwrap(), Needed { items: 6, exact: true });
        assert_eq!(detectable(5, &design).unwrap(), None);
    }

    /// Every table of 25 items, by the trinomial distribution and the test itself.
    #[test]
    fn it_is_the_sum_over_all_tables() {
        let (n, lost, gained) = (25u64, 0.35, 0.1);
        let design = Design::common(lost + gained);
        let mut expected = 0.0;
        for b in 0..=n {
            for c in 0..=n - b {
                let counts = Paired { both: n - b - c, lost: b, gained: c, neither: 0 };
                if mcnemar::test(&counts).p <= design.alpha {
                    let given = binomial::exactly(c, n - b, gained / (1.0 - lost));
                    expected += binomial::exactly(b, n, lost) * given;
                }
            }
        }
        let found = power(n, lost - gained, &design).unwrap();
        assert!((found - expected).abs() < 1e-10, "{found} {expected}");
    }

    /// 20,000 corpora of 150 items: the standard error is at most 0.0036.
    #[test]
    fn simulated_sweeps_find_it_as_often() {
        let mut generator = ChaCha8Rng::seed_from_u64(11);
        let mut uniform = || (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        for (lost, gained) in [(0.15, 0.05), (0.06, 0.0), (0.1, 0.1)] {
            let hits = (0..20_000)
                .filter(|_| {
                    let mut counts = Paired::default();
                    for _ in 0..150 {
                        let u = uniform();
                        counts.lost += u64::from(u < lost);
                        counts.gained += u64::from(u >= lost && u < lost + gained);
                    }
                    mcnemar::test(&counts).p <= 0.05
                })
                .count();
            let found = power(150, lost - gained, &Design::common(lost + gained)).unwrap();
            assert!((found - hits as f64 / 20_000.0).abs() < 0.015, "{lost} {gained}: {found} {hits}");
        }
    }

    /// Connor's formula by hand: (1.95996 x 0.44721 + 0.84162 x 0.43589)^2 / 0.01 = 154.6. The exact test, which is
    /// conservative, takes more; the figures are those of a separate program in Python, with exact critical values.
    #[test]
    fn items_for_ten_percent_at_a_discordance_of_a_fifth() {
        let design = Design::common(0.2);
        assert_eq!(connor(0.1, &design), 155.0);
        let needed = items_needed(0.1, &design).unwrap();
        assert_eq!(needed, Needed { items: 168, exact: true });
        assert_eq!(items_needed(0.05, &Design::common(0.1)).unwrap().items, 337);
        assert!(power(needed.items - 1, 0.1, &design).unwrap() < 0.8);
        for items in needed.items..needed.items + 100 {
            assert!(power(items, 0.1, &design).unwrap() >= 0.8, "{items}");
        }
        assert_eq!(items_needed(-0.1, &design), Ok(needed));
    }

    /// By the same separate program.
    #[test]
    fn differences_that_corpora_of_224_and_500_items_find() {
        for (items, discordance, difference) in [
            (224, 0.05, 0.042_094),
            (224, 0.1, 0.060_802),
            (224, 0.2, 0.085_917),
            (500, 0.05, 0.028_932),
            (500, 0.1, 0.040_671),
            (500, 0.2, 0.057_444),
        ] {
            let found = detectable(items, &Design::common(discordance)).unwrap().unwrap();
            assert!((found - difference).abs() < 3e-6, "{items} {discordance}: {found}");
        }
    }

    #[test]
    fn the_approximation_takes_over_smoothly() {
        let design = Design::common(0.1);
        let needed = items_needed(0.0075, &design).unwrap();
        let approximate = connor(0.0075, &design);
        assert!(needed.exact, "{needed:?}");
        let excess = needed.items as f64 / approximate;
        assert!((1.0..1.02).contains(&excess), "{needed:?} {approximate}");
        assert!(!items_needed(0.001, &design).unwrap().exact);
    }

    #[test]
    fn impossible_designs_name_the_field() {
        let text = |error: BadDesign| error.to_string();
        let error = text(power(100, 0.2, &Design::common(0.1)).unwrap_err());
        assert!(error.starts_with("difference is 0.2: ") && error.contains("discordance"), "{error}");
        assert!(text(detectable(9, &Design::common(0.0)).unwrap_err()).starts_with("discordance is 0"));
        let alpha = Design { alpha: f64::NAN, ..Design::common(0.1) };
        assert!(text(items_needed(0.1, &alpha).unwrap_err()).starts_with("alpha is NaN"));
        assert!(text(items_needed(0.0, &Design::common(0.1)).unwrap_err()).contains("difference of 0"));
        assert!(power(100, f64::NAN, &Design::common(0.1)).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn power_grows_with_the_difference_and_holds_its_level(
            items in 1u64..600,
            discordance in 0.01f64..1.0,
            share in 0.0f64..1.0,
        ) {
            let design = Design::common(discordance);
            let at = |share: f64| power(items, share * discordance, &design).unwrap();
            prop_assert!((0.0..=1.0 + 1e-9).contains(&at(share)));
            prop_assert!(at(share) <= at(share + (1.0 - share) / 2.0) + 1e-9);
            prop_assert!(at(0.0) <= 0.05 + 1e-9, "an exact test holds its level");
        }

        #[test]
        fn what_is_detectable_takes_no_more_than_the_items(items in 100u64..400, discordance in 0.1f64..0.6) {
            let design = Design::common(discordance);
            let difference = detectable(items, &design).unwrap();
            let difference = difference.expect("a tenth of a hundred is enough");
            prop_assert!(power(items, difference, &design).unwrap() >= 0.8);
            prop_assert!(power(items, difference - 1e-5, &design).unwrap() < 0.8);
        }
    }
}
