//! McNemar's exact test: do two arms that answered the same items differ in accuracy?
//!
//! Items that both arms answered alike say nothing about the difference. Of the `m` others, an arm that is no better
//! and no worse loses each with probability 1/2, so the number lost is binomial. The two-sided p value is
//! `min(1, 2 P(X <= min(lost, gained)))`. It is exact given `m`, and conservative where `m` is small: with fewer than
//! six discordant items it cannot fall below 0.05.

use super::{Paired, binomial};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The two p values of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct McNemar {
    /// The exact two-sided p value, by which sweeps decide.
    #[serde(with = "crate::figure::Figure")]
    pub p: f64,
    /// The mid-p value, which counts half of the observed table's own probability. Less conservative, and for
    /// reading only: it does not hold its level in every case.
    #[serde(with = "crate::figure::Figure")]
    pub mid_p: f64,
}

/// Tests the difference of `counts`. Without discordant items both values are 1.
#[must_use]
pub fn test(counts: &Paired) -> McNemar {
    let (m, fewer) = (counts.discordant(), counts.lost.min(counts.gained));
    if 2 * fewer == m {
        // Both tails hold the middle: doubling would count it twice.
        let mid_p = if m == 0 { 1.0 } else { 1.0 - binomial::exactly(fewer, m, 0.5) };
        return McNemar { p: 1.0, mid_p };
    }
    let p = two_sided(fewer, m);
    McNemar { p, mid_p: p - binomial::exactly(fewer, m, 0.5) }
}

/// The exact two-sided p value of `fewer` losses, or gains, among `m` discordant items.
pub(super) fn two_sided(fewer: u64, m: u64) -> f64 {
    (2.0 * binomial::at_most(fewer, m, 0.5)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(lost: u64, gained: u64) -> McNemar {
        test(&Paired { both: 10, lost, gained, neither: 3 })
    }

    /// Fagerland, Lydersen and Laake 2013, BMC Medical Research Methodology 13:91, the airway example (1 against 7).
    #[test]
    fn the_published_example() {
        let found = of(1, 7);
        assert!((found.p - 18.0 / 256.0).abs() < 1e-14, "0.070: {found:?}");
        assert!((found.mid_p - 10.0 / 256.0).abs() < 1e-14, "0.039: {found:?}");
    }

    #[test]
    fn no_discordance_and_a_draw() {
        assert_eq!(of(0, 0), McNemar { p: 1.0, mid_p: 1.0 });
        // P(X = 2) of 4 is 6/16.
        let draw = of(2, 2);
        assert!(draw.p == 1.0 && (draw.mid_p - 10.0 / 16.0).abs() < 1e-14, "{draw:?}");
    }

    #[test]
    fn five_losses_are_never_significant_and_six_are() {
        assert!(of(5, 0).p > 0.05 && of(6, 0).p < 0.05);
    }

    proptest! {
        #[test]
        fn p_values_are_symmetric_and_between_0_and_1(lost in 0u64..400, gained in 0u64..400) {
            let found = of(lost, gained);
            prop_assert!(found.p > 0.0 && found.p <= 1.0 && found.mid_p > 0.0 && found.mid_p <= found.p);
            prop_assert_eq!(found, of(gained, lost));
        }

        #[test]
        fn another_loss_is_more_evidence(gained in 0u64..200, ahead in 0u64..200) {
            let lost = gained + ahead;
            prop_assert!(of(lost + 1, gained).p <= of(lost, gained).p);
        }
    }
}
