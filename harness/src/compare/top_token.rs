//! Top-token mismatches, and whether the allowed noise explains them.
//!
//! A mismatch is a `tie` flip when the row itself is within its NMSE limit **and** the reference's top-1 and
//! top-2 are at most `4 sqrt(limit x mean(ref^2))` apart: the noise that the limit allows, never the noise that
//! was measured, which would forgive garbage. Every other mismatch is `real`.

use super::RowPlace;
use super::nmse::Nmse;
use crate::named::named_enum;
use crate::sweep::stats::{Level, clopper_pearson};
use crate::verdict::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many mismatches are listed one by one.
const LISTED: usize = 32;
/// A margin of at most so many times the allowed noise is a tie.
pub(super) const TIE_FACTOR: f64 = 4.0;

named_enum! {
    /// What a mismatch means.
    pub enum MismatchKind as "mismatch kind" {
        /// The reference was undecided within the allowed noise.
        Tie = "tie",
        /// The allowed noise does not explain it.
        Real = "real",
    }
}

/// Top-token agreement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopToken {
    /// Rows compared.
    pub rows: u64,
    /// Rows whose top token differs.
    pub mismatches: u64,
    /// Those that are tie flips.
    pub ties: u64,
    /// Those that are real.
    pub real: u64,
    /// Mismatches per row.
    #[serde(with = "crate::figure::Figure")]
    pub rate: f64,
    /// The 95 % Clopper-Pearson interval of the rate.
    #[serde(with = "crate::figure::Figures")]
    pub interval: Vec<f64>,
    /// The first mismatches, real ones before tie flips.
    pub list: Vec<Mismatch>,
}

/// One mismatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mismatch {
    /// Where the row stood.
    #[serde(flatten)]
    pub place: RowPlace,
    /// What it means.
    pub kind: MismatchKind,
    /// The reference's top token; `None` where its row has NaN.
    pub reference: Option<u64>,
    /// The test's top token; `None` where its row has NaN.
    pub test: Option<u64>,
    /// The reference's top-1 less its top-2.
    #[serde(with = "crate::figure::Figure")]
    pub margin: f64,
    /// The reference's top-1 less its logit of the token that the test chose.
    #[serde(with = "crate::figure::Figure")]
    pub gap: f64,
    /// The margin up to which the allowed noise explains a flip.
    #[serde(with = "crate::figure::Figure")]
    pub allowed: f64,
}

/// The noise that an NMSE limit allows in one logit: `sqrt(limit x mean(ref^2))`.
pub(super) fn allowed_noise(limit: f64, mean_square: f64) -> f64 {
    (limit * mean_square).sqrt()
}

/// The first largest value of a row and the margin to the second; `None` when the row has a NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Top {
    pub(super) token: usize,
    pub(super) margin: f64,
}

impl Top {
    pub(super) fn of(row: &[f64]) -> Option<Self> {
        let (mut token, mut first, mut second) = (0, f64::NEG_INFINITY, f64::NEG_INFINITY);
        for (index, &value) in row.iter().enumerate() {
            if value.is_nan() {
                return None;
            }
            if value > first {
                (token, second, first) = (index, first, value);
            } else if value > second {
                second = value;
            }
        }
        // Two equal infinities are a tie as well; their difference would be NaN.
        let margin = if first == second { 0.0 } else { first - second };
        Some(Self { token, margin })
    }
}

/// Gathers [`TopToken`] row by row.
#[derive(Default)]
pub(super) struct TopTokens {
    rows: u64,
    ties: Vec<Mismatch>,
    real: Vec<Mismatch>,
    tie_count: u64,
    real_count: u64,
}

impl TopTokens {
    /// Adds a row, `row` being its sums.
    pub(super) fn push(
        &mut self,
        place: RowPlace,
        reference: &[f64],
        test: &[f64],
        row: Nmse,
        limits: &Limits,
    ) {
        self.rows += 1;
        let (top, chosen) = (Top::of(reference), Top::of(test));
        let same = matches!((top, chosen), (Some(top), Some(chosen)) if top.token == chosen.token);
        if same {
            return;
        }
        let margin = top.map_or(f64::NAN, |top| top.margin);
        let gap = match (top, chosen) {
            (Some(top), Some(chosen)) => reference[top.token] - reference[chosen.token],
            _ => f64::NAN,
        };
        let allowed = TIE_FACTOR * allowed_noise(limits.logits_nmse.limit, row.mean_square());
        let explained = chosen.is_some() && margin <= allowed && limits.row_nmse.holds(row.value());
        let (kind, count, list) = if explained {
            (MismatchKind::Tie, &mut self.tie_count, &mut self.ties)
        } else {
            (MismatchKind::Real, &mut self.real_count, &mut self.real)
        };
        *count += 1;
        if list.len() < LISTED {
            let token = |top: Option<Top>| top.map(|top| top.token as u64);
            let (reference, test) = (token(top), token(chosen));
            list.push(Mismatch { place, kind, reference, test, margin, gap, allowed });
        }
    }

    pub(super) fn finish(self) -> TopToken {
        let mismatches = self.tie_count + self.real_count;
        let mut list = self.real;
        list.extend(self.ties);
        list.truncate(LISTED);
        TopToken {
            rows: self.rows,
            mismatches,
            ties: self.tie_count,
            real: self.real_count,
            rate: mismatches as f64 / self.rows.max(1) as f64,
            interval: clopper_pearson(mismatches, self.rows).to_vec(),
            list,
        }
    }
}

/// The Clopper-Pearson interval of the rate of `hits` in `trials`.
fn clopper_pearson(hits: u64, trials: u64) -> [f64; 2] {
    let interval = clopper_pearson::interval(hits, trials, Level::P95);
    [interval.low, interval.high]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability of `k` hits in `n` trials.
    fn binomial(k: u32, n: u32, p: f64) -> f64 {
        let choose: f64 = (0..k).map(|i| f64::from(n - i) / f64::from(k - i)).product();
        choose * p.powf(f64::from(k)) * (1.0 - p).powf(f64::from(n - k))
    }

    #[test]
    fn intervals_agree_with_closed_forms_and_with_binomial_tails() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        let [low, high] = clopper_pearson(0, 24);
        assert!(low == 0.0 && close(high, 1.0 - 0.025f64.powf(1.0 / 24.0)), "{high}");
        let [low, high] = clopper_pearson(24, 24);
        assert!(close(low, 0.025f64.powf(1.0 / 24.0)) && high == 1.0, "{low}");
        // At each end, what was seen or something more extreme has just the probability of one tail.
        for (hits, trials) in [(1u32, 2u32), (4, 32), (17, 60), (5, 100_000)] {
            let [low, high] = clopper_pearson(hits.into(), trials.into());
            let below = |k, p| (0..k).map(|k| binomial(k, trials, p)).sum::<f64>();
            assert!(close(1.0 - below(hits, low), 0.025), "{low}");
            assert!(close(below(hits + 1, high), 0.025), "{high}");
        }
        assert_eq!(clopper_pearson(0, 0), [0.0, 1.0]);
    }

    #[test]
    fn the_top_is_the_first_maximum() {
        assert_eq!(Top::of(&[1.0, 3.0, 3.0]), Some(Top { token: 1, margin: 0.0 }));
        assert_eq!(Top::of(&[5.0, 3.0, 4.0]), Some(Top { token: 0, margin: 1.0 }));
        assert_eq!(Top::of(&[f64::NEG_INFINITY; 2]), Some(Top { token: 0, margin: 0.0 }));
        assert_eq!(Top::of(&[f64::INFINITY, f64::INFINITY]).unwrap().margin, 0.0);
        assert_eq!(Top::of(&[9.0, f64::NAN]), None);
    }
}
