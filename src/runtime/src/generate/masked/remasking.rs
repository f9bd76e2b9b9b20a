//! Which of the masked positions keep their candidate.

use serde::{Deserialize, Serialize};

use super::sampling::Sampling;
use super::schedule::Turn;
use crate::generate::Candidate;
use crate::session::Logits;

/// The rule by which positions are ranked. Equals go by position, the lower first; a NaN ranks last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remasking {
    /// By the candidate's probability under a soft-max over the whole row.
    #[default]
    LowConfidence,
    /// Another name for the same rule, from models that use it.
    MaskgitPlus,
    /// By the row's entropy: all positions under the threshold at once, whatever the schedule says, and at least the
    /// one of the lowest entropy. What is above it when the steps end stays masked.
    EntropyExit {
        /// In nats.
        threshold: f64,
    },
    /// By the probability of the best allowed token less that of the second.
    TopKMargin,
    /// By seeded draws.
    Random,
}

impl Remasking {
    /// The usual threshold of [`EntropyExit`](Self::EntropyExit), in nats.
    pub const THRESHOLD: f64 = 1.5;
}

/// What was chosen at one step.
pub(super) struct Choice {
    /// Positions with their tokens, the surest first.
    pub(super) chosen: Vec<(usize, Candidate)>,
    /// How far the step's decisions were from others, in logits.
    pub(super) margin: f64,
}

/// A masked position with its candidate and rank.
struct Ranked {
    position: usize,
    candidate: Candidate,
    /// Higher goes first.
    score: f64,
    /// The score as it is compared for the margin, and how much noise of the logits moves it.
    level: f64,
    spread: f64,
}

/// What a rule needs to know of a row.
struct RowFigures {
    entropy: f64,
    /// The mean distance of surprisal from entropy: what noise of one in every logit moves the entropy by, at most.
    entropy_spread: f64,
    /// Probabilities of the best two allowed tokens.
    top: [f64; 2],
}

impl RowFigures {
    fn of(row: &[f32], never: u32) -> Self {
        let max = row.iter().map(|&z| f64::from(z)).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|&z| libm::exp(f64::from(z) - max)).sum();
        let log_sum = libm::log(sum);
        // A token of probability 0 adds nothing; its surprisal is infinite.
        let parts = || row.iter().map(|&z| f64::from(z) - max - log_sum).map(|log| (libm::exp(log), -log));
        let weighted = |of: &dyn Fn(f64) -> f64| -> f64 {
            parts().map(|(p, surprisal)| if p == 0.0 { 0.0 } else { p * of(surprisal) }).sum()
        };
        let entropy = weighted(&|surprisal| surprisal);
        let mut top = [0.0; 2];
        for (_, (p, _)) in (0u32..).zip(parts()).filter(|&(token, _)| token != never) {
            if p > top[0] {
                top = [p, top[0]];
            } else if p > top[1] {
                top[1] = p;
            }
        }
        Self { entropy, entropy_spread: weighted(&|surprisal| (surprisal - entropy).abs()), top }
    }
}

/// The noise of logits, times two, that brings `gap` between two figures of these spreads to nothing.
fn noise(gap: f64, spread: f64, other: f64) -> f64 {
    let both = spread + other;
    if both > 0.0 { 2.0 * gap / both } else { f64::INFINITY }
}

impl Remasking {
    /// Chooses among `masked`, row i of `logits` being that of `masked[i]`.
    pub(super) fn choose(
        self,
        masked: &[usize],
        logits: &Logits,
        never: u32,
        sampling: Sampling,
        step: usize,
        turn: Turn,
    ) -> Choice {
        let mut ranked: Vec<Ranked> = masked[..turn.eligible]
            .iter()
            .enumerate()
            .map(|(i, &position)| self.rank(position, logits.row(i), never, sampling, step))
            .collect();
        let key = |r: &Ranked| if r.score.is_nan() { f64::NEG_INFINITY } else { r.score };
        ranked.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.position.cmp(&b.position)));
        let count = match self {
            Self::EntropyExit { threshold } => {
                let under = ranked.iter().take_while(|r| -r.score < threshold).count();
                under.max(1).min(ranked.len())
            }
            _ => turn.count,
        };
        let left = ranked.split_off(count.min(ranked.len()));
        let tokens = ranked.iter().map(|r| r.candidate.margin).fold(f64::INFINITY, f64::min);
        let order = self.order_margin(&ranked, &left);
        Choice {
            chosen: ranked.into_iter().map(|r| (r.position, r.candidate)).collect(),
            margin: tokens.min(order),
        }
    }

    fn rank(self, position: usize, row: &[f32], never: u32, sampling: Sampling, step: usize) -> Ranked {
        let draws = sampling.draws(step, position);
        let candidate = sampling.choose(row, never, draws.token);
        let (score, level, spread) = match self {
            Self::LowConfidence | Self::MaskgitPlus => {
                (candidate.probability, libm::log(candidate.probability), 1.0)
            }
            Self::EntropyExit { .. } => {
                let figures = RowFigures::of(row, never);
                (-figures.entropy, -figures.entropy, figures.entropy_spread)
            }
            Self::TopKMargin => {
                let [first, second] = RowFigures::of(row, never).top;
                (first - second, first - second, 2.0 * first)
            }
            Self::Random => (draws.order, draws.order, 0.0),
        };
        Ranked { position, candidate, score, level, spread }
    }

    /// How far the last chosen position was from being left, and the first left one from being chosen.
    fn order_margin(self, chosen: &[Ranked], left: &[Ranked]) -> f64 {
        let between = |a: Option<&Ranked>, b: Option<&Ranked>| match (a, b) {
            (Some(a), Some(b)) => noise(a.level - b.level, a.spread, b.spread),
            _ => f64::INFINITY,
        };
        match self {
            Self::EntropyExit { threshold } => {
                let to_threshold = |r: &Ranked| noise((threshold + r.level).abs(), r.spread, 0.0);
                let next = left.first().map_or(f64::INFINITY, to_threshold);
                match chosen.last() {
                    Some(last) if -last.score < threshold => next.min(to_threshold(last)),
                    last => next.min(between(last, left.first())),
                }
            }
            _ => between(chosen.last(), left.first()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKED: [usize; 3] = [4, 7, 9];

    fn choose(
        rule: Remasking,
        rows: &[[f32; 3]],
        count: usize,
        sampling: Sampling,
    ) -> (Vec<(usize, u32)>, f64) {
        let logits = Logits { vocab: 3, values: rows.as_flattened().to_vec() };
        let turn = Turn { eligible: rows.len(), count };
        let choice = rule.choose(&MASKED[..rows.len()], &logits, 0, sampling, 2, turn);
        (choice.chosen.iter().map(|(p, c)| (*p, c.token)).collect(), choice.margin)
    }

    fn cold(rule: Remasking, rows: &[[f32; 3]], count: usize) -> (Vec<(usize, u32)>, f64) {
        choose(rule, rows, count, Sampling::default())
    }

    #[test]
    fn the_surest_positions_go_first_and_equals_by_position() {
        let rows = [[0.0, 1.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0]];
        for rule in [Remasking::LowConfidence, Remasking::MaskgitPlus] {
            let (picked, margin) = cold(rule, &rows, 2);
            assert_eq!(picked, [(7, 1), (9, 2)]);
            // Position 4 was left out by less than the logits of the chosen tokens lead.
            assert!(margin > 0.0 && margin < 5.0, "{margin}");
            let (_, tie) = cold(rule, &rows, 1);
            assert!(tie.abs() < 1e-12, "positions 7 and 9 are equally sure: {tie}");
        }
    }

    #[test]
    fn confidence_is_a_probability_and_no_raw_logit() {
        // The larger logit belongs to the flatter row.
        let rows = [[9.0, 9.5, 9.0], [0.0, 4.0, 0.0]];
        assert_eq!(cold(Remasking::LowConfidence, &rows, 1).0, [(7, 1)]);
        // The mask takes part in the soft-max, though it is never chosen.
        let rows = [[9.0, 1.0, 0.0], [0.0, 1.0, 0.0]];
        assert_eq!(cold(Remasking::LowConfidence, &rows, 1).0, [(7, 1)]);
    }

    #[test]
    fn top_k_margin_ranks_by_the_lead_over_the_second() {
        // Position 4 has the higher probability of its best token, position 7 the larger lead.
        let p = |a: f32, b: f32, c: f32| [c.ln(), a.ln(), b.ln()];
        let rows = [p(0.5, 0.45, 0.05), p(0.45, 0.15, 0.40)];
        assert_eq!(cold(Remasking::LowConfidence, &rows, 1).0, [(4, 1)]);
        let (picked, margin) = cold(Remasking::TopKMargin, &rows, 1);
        assert_eq!(picked, [(7, 1)]);
        assert!(margin > 0.0 && margin.is_finite());
    }

    #[test]
    fn entropy_exit_takes_all_under_the_threshold_and_at_least_one() {
        let sharp = [0.0, 9.0, 0.0];
        let flat = [0.0; 3];
        let rule = Remasking::EntropyExit { threshold: 0.5 };
        assert_eq!(cold(rule, &[flat, sharp, sharp], 1).0, [(7, 1), (9, 1)]);
        assert_eq!(cold(rule, &[flat, [0.0, 1.0, 0.0], flat], 3).0, [(7, 1)]);
        // All flat: ln 3 = 1.0986 nats each.
        let all = Remasking::EntropyExit { threshold: Remasking::THRESHOLD };
        assert_eq!(cold(all, &[flat, flat, flat], 1).0, [(4, 1), (7, 1), (9, 1)]);
        // A masked-out token adds nothing.
        let hard = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
        assert_eq!(cold(rule, &[flat, flat, hard], 1).0, [(9, 1)]);
    }

    #[test]
    fn random_order_is_seeded() {
        let rows = [[0.0, 1.0, 0.0]; 3];
        let order = |seed| choose(Remasking::Random, &rows, 3, Sampling { temperature: 0.0, seed }).0;
        assert_eq!(order(1), order(1));
        assert!((0..20).any(|seed| order(seed) != order(1)));
    }

    #[test]
    fn a_row_of_nan_goes_last() {
        let rows = [[f32::NAN; 3], [0.0, 0.1, 0.0], [0.0, 0.2, 0.0]];
        for rule in
            [Remasking::LowConfidence, Remasking::TopKMargin, Remasking::EntropyExit { threshold: 1e-9 }]
        {
            assert_eq!(cold(rule, &rows, 1).0, [(9, 1)], "{rule:?}");
        }
    }
}
