//! Masked diffusion: a prompt and masks, unmasked step by step, the surest first.
//!
//! Each step is a forward pass. Every masked position has a candidate, the most likely token that is not the
//! mask, and a score, the candidate's probability over the whole row. The best k are unmasked; of equal
//! scores the lower position goes first. In models with shifted logits row i - 1 stands for position i
//! (row 0 for position 0).

use std::collections::BTreeSet;

use crate::generate::{margin, most_likely};
use crate::{Cache, Error, GivenExperts, LayerKv, Logits, Network, Precision, Request, Routing, Rows};

/// How many masks go at each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Schedule {
    /// `1 / (steps - step)` of the remaining masks.
    #[default]
    Linear,
    /// With t from 0 to 1 over the steps, `(cos(t0 pi/2) - cos(t1 pi/2)) / cos(t0 pi/2)` of the remaining ones.
    Cosine,
}

impl Schedule {
    /// Masks to unmask at `step` (from 0) of `steps`, when `remaining` are left: halves rounded up, at least
    /// one, at most all; all at the last step. 0 only where none remain.
    pub fn count(self, step: usize, steps: usize, remaining: usize) -> usize {
        let left = steps.saturating_sub(step);
        if left <= 1 {
            return remaining;
        }
        let count = match self {
            // floor(remaining / left + 1 / 2), in integers
            Self::Linear => (2 * remaining + left) / (2 * left),
            Self::Cosine => {
                let at = |s: usize| (s as f64 / steps as f64 * std::f64::consts::FRAC_PI_2).cos();
                let share = (at(step) - at(step + 1)) / at(step);
                (remaining as f64 * share + 0.5).floor() as usize
            }
        };
        count.max(1).min(remaining)
    }
}

/// Sparse passes: after the first full one, only active positions are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sparse {
    /// Steps that a position stays active after the first whose forward reads its new token.
    pub keep_active: usize,
    /// A full pass every so many steps; 0: only the first.
    pub refresh: usize,
}

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plan<'a> {
    /// Masks after the prompt.
    pub masks: usize,
    /// Steps of the schedule; it ends early when no mask is left.
    pub steps: usize,
    /// Masks a step.
    pub schedule: Schedule,
    /// Sparse passes; `None`: every pass is full.
    pub sparse: Option<Sparse>,
    /// How K and V are rounded.
    pub precision: Precision,
    /// Layers left out of every pass.
    pub skip: &'a [usize],
    /// Experts that are to work whatever the routers choose, on the rows of all passes.
    pub experts: Option<GivenExperts<'a>>,
}

/// One decision: a token for a position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unmask {
    /// The step.
    pub step: usize,
    /// The position.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// The token's logit less that of the best other candidate: negative where a replayed decision is not
    /// this network's own.
    pub token_margin: f64,
    /// How clearly this step's positions were chosen, the same for all of them: the lowest log-odds
    /// `ln(p / (1 - p))` among the chosen candidates less the highest among those left, at least 0 in a free
    /// run, infinite if none was left. Noise of d in the logits moves it by at most 4d.
    pub order_margin: f64,
}

impl Unmask {
    /// The lesser of both margins: below it no noise changes this decision.
    pub fn margin(&self) -> f64 {
        self.token_margin.min(self.order_margin)
    }
}

/// One decision to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// The step.
    pub step: usize,
    /// The position.
    pub position: usize,
    /// The token.
    pub token: u32,
}

impl From<&Unmask> for Replay {
    fn from(u: &Unmask) -> Self {
        Self { step: u.step, position: u.position, token: u.token }
    }
}

/// A step as it is before its tokens are placed.
#[derive(Debug)]
pub struct Step<'a> {
    /// The step, from 0.
    pub step: usize,
    /// The sequence that the pass read.
    pub tokens: &'a [u32],
    /// Masked positions, ascending.
    pub masked: &'a [usize],
    /// Row i is the one read for `masked[i]`.
    pub logits: &'a Logits,
    /// Positions that went through the layers: all in a full pass.
    pub active: &'a [usize],
    /// K and V of the active positions in each layer as computed, before the cache rounded them.
    pub kv: &'a [LayerKv],
    /// What the router of each layer with experts decided for the active positions.
    pub routing: &'a [Routing],
    /// The cache after the pass; it holds every position.
    pub cache: &'a Cache,
}

/// What was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// Every decision, by step, then position.
    pub unmasked: Vec<Unmask>,
    /// Passes made.
    pub steps: usize,
    /// K and V as the last pass left them: it read the sequence before the last step's tokens were placed.
    pub cache: Cache,
}

/// Generates `plan.masks` tokens after `prompt`, free or along the trajectory `given`.
///
/// A trajectory must be ordered by step and unmask a position at most once; its steps may unmask none. Where it
/// leaves masks, passes go on up to `plan.steps` and the masks stay. Every decision's margins are this network's
/// own. `observe` sees every step.
///
/// # Errors
/// A network without a mask token or with causal attention; no masks or no steps; a trajectory that does not
/// fit; a row that chooses no token; and as [`Network::forward`].
pub fn generate(
    network: &Network,
    prompt: &[u32],
    plan: Plan<'_>,
    given: Option<&[Replay]>,
    mut observe: impl FnMut(&Step<'_>),
) -> Result<Generated, Error> {
    let h = network.hparams();
    let mask = match h.mask_token {
        Some(mask) if !h.causal => mask,
        _ => return Err(Error::Unsupported(format!("{} is no masked-diffusion model", h.architecture))),
    };
    if plan.masks == 0 || plan.steps == 0 {
        return Err(Error::Plan("at least one mask and one step are needed".to_string()));
    }
    let mut tokens = prompt.to_vec();
    tokens.resize(prompt.len() + plan.masks, mask);
    if let Some(given) = given {
        check(given, &tokens, mask, h.n_vocab)?;
    }

    // A prompt may hold masks too: whatever is masked is generated.
    let mut masked: Vec<usize> = (0..tokens.len()).filter(|&i| tokens[i] == mask).collect();
    // First step whose pass reads a position's new token.
    let mut changed_at: Vec<Option<usize>> = vec![None; tokens.len()];
    let mut cache = network.cache_stored_as(tokens.len(), plan.precision);
    let mut unmasked = Vec::with_capacity(masked.len());
    let mut given_experts = plan.experts;
    let mut step = 0;
    let last = given.map(|given| given.last().map_or(0, |r| r.step + 1).max(plan.steps));
    while !masked.is_empty() && last.is_none_or(|last| step < last) {
        let read = |position: usize| if h.shift_logits { position.saturating_sub(1) } else { position };
        let active: Vec<usize> = match plan.sparse {
            Some(sparse) if !is_full(sparse, step) => {
                active_set(&masked, read, &changed_at, step, sparse.keep_active)
            }
            _ => {
                cache.clear();
                (0..tokens.len()).collect()
            }
        };
        let rows: Vec<usize> = masked
            .iter()
            .map(|&p| active.binary_search(&read(p)).expect("rows that are read are active"))
            .collect();
        let active_tokens: Vec<u32> = active.iter().map(|&p| tokens[p]).collect();
        let experts = given_experts.as_mut().map(|given| given.take(active.len())).transpose()?;
        let request = Request {
            positions: Some(&active),
            rows: Rows::Only(&rows),
            skip: plan.skip,
            experts: experts.as_deref(),
            ..Request::new(&active_tokens)
        };
        let pass = network.forward(&mut cache, request)?;
        let logits = pass.logits;
        observe(&Step {
            step,
            tokens: &tokens,
            masked: &masked,
            logits: &logits,
            active: &active,
            kv: &pass.kv,
            routing: &pass.routing,
            cache: &cache,
        });

        let chosen = match given {
            None => Chosen::Best(plan.schedule.count(step, plan.steps, masked.len())),
            Some(given) => Chosen::Given(given.iter().filter(|r| r.step == step).collect()),
        };
        for decision in decide(step, &masked, &logits, mask, &chosen)? {
            tokens[decision.position] = decision.token;
            changed_at[decision.position] = Some(step + 1);
            unmasked.push(decision);
        }
        masked.retain(|&p| tokens[p] == mask);
        step += 1;
    }
    Ok(Generated { tokens, unmasked, steps: step, cache })
}

/// Whether a step of a sparse generation makes a full pass.
fn is_full(sparse: Sparse, step: usize) -> bool {
    step == 0 || sparse.refresh > 0 && step.is_multiple_of(sparse.refresh)
}

/// The positions a sparse step computes, ascending: those still masked, the rows read for them, and those
/// changed lately.
fn active_set(
    masked: &[usize],
    read: impl Fn(usize) -> usize,
    changed_at: &[Option<usize>],
    step: usize,
    keep_active: usize,
) -> Vec<usize> {
    let changed = changed_at.iter().enumerate().filter_map(|(p, at)| {
        let age = step - (*at)?;
        (age <= keep_active).then_some(p)
    });
    let active: BTreeSet<usize> = masked.iter().flat_map(|&p| [p, read(p)]).chain(changed).collect();
    active.into_iter().collect()
}

/// Whether a trajectory fits a sequence: ordered, within it, no mask twice, with tokens that can stand there.
fn check(given: &[Replay], tokens: &[u32], mask: u32, n_vocab: usize) -> Result<(), Error> {
    let fault = |message: String| Err(Error::Trajectory(message));
    if let Some(pair) = given.windows(2).find(|p| p[0].step > p[1].step) {
        return fault(format!("step {} follows step {}", pair[1].step, pair[0].step));
    }
    let mut open: BTreeSet<usize> = (0..tokens.len()).filter(|&p| tokens[p] == mask).collect();
    for r in given {
        if !open.remove(&r.position) {
            return fault(format!("step {} unmasks position {}, which is not masked", r.step, r.position));
        }
        if r.token == mask || r.token as usize >= n_vocab {
            return fault(format!("step {} puts token {} at position {}", r.step, r.token, r.position));
        }
    }
    Ok(())
}

/// How a step's positions are chosen.
enum Chosen<'a> {
    /// This many of the best.
    Best(usize),
    /// These.
    Given(Vec<&'a Replay>),
}

/// A masked position's candidate.
struct Candidate {
    position: usize,
    /// Row of the logits.
    row: usize,
    token: u32,
    probability: f64,
    log_odds: f64,
}

/// A step's decisions, by position.
fn decide(
    step: usize,
    masked: &[usize],
    logits: &Logits,
    mask: u32,
    chosen: &Chosen<'_>,
) -> Result<Vec<Unmask>, Error> {
    let mut candidates = Vec::with_capacity(masked.len());
    for (row, &position) in masked.iter().enumerate() {
        let best = most_likely(logits.row(row), Some(mask)).ok_or(Error::NoCandidate { step, position })?;
        let token = match chosen {
            Chosen::Best(_) => best.token,
            // A given token's own score, so that the margin says how this network sees the decision.
            Chosen::Given(given) => {
                given.iter().find(|r| r.position == position).map_or(best.token, |r| r.token)
            }
        };
        let (probability, log_odds) = score(logits.row(row), token);
        candidates.push(Candidate { position, row, token, probability, log_odds });
    }
    // Stable: of equal probabilities the lower position stays first.
    candidates.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    let taken = match chosen {
        Chosen::Best(k) => *k,
        Chosen::Given(given) => {
            candidates.sort_by_key(|c| !given.iter().any(|r| r.position == c.position));
            given.len()
        }
    };
    let (taken, left) = candidates.split_at_mut(taken);
    let lowest = taken.iter().map(|c| c.log_odds).fold(f64::INFINITY, f64::min);
    let highest = left.iter().map(|c| c.log_odds).fold(f64::NEG_INFINITY, f64::max);
    let order_margin = match chosen {
        _ if left.is_empty() || taken.is_empty() => f64::INFINITY,
        // Equal infinities are a tie. Saturated probabilities tie where log-odds still differ.
        Chosen::Best(_) if !(lowest > highest) => 0.0,
        Chosen::Given(_) if lowest == highest => 0.0,
        _ => lowest - highest,
    };
    taken.sort_by_key(|c| c.position);
    Ok(taken
        .iter()
        .map(|c| Unmask {
            step,
            position: c.position,
            token: c.token,
            token_margin: margin(logits.row(c.row), c.token, Some(mask)),
            order_margin,
        })
        .collect())
}

/// A token's probability over the whole row, the mask included, and its log-odds.
fn score(row: &[f64], token: u32) -> (f64, f64) {
    let own = row[token as usize];
    let others: f64 = (0u32..).zip(row).filter(|(t, _)| *t != token).map(|(_, z)| (z - own).exp()).sum();
    (1.0 / (1.0 + others), -others.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_unmask_everything_and_round_halves_up() {
        for schedule in [Schedule::Linear, Schedule::Cosine] {
            for masks in [1, 2, 5, 32, 33, 100] {
                for steps in [1, 2, 3, 16, 32, 200] {
                    let mut left = masks;
                    let mut step = 0;
                    while left > 0 {
                        let k = schedule.count(step, steps, left);
                        assert!((1..=left).contains(&k), "{schedule:?} {masks} {steps}");
                        left -= k;
                        step += 1;
                    }
                    assert!(
                        step <= steps.min(masks),
                        "{schedule:?} {masks} masks in {step} of {steps} steps"
                    );
                }
            }
        }
        // 5 / 2 and 1 / 2 are rounded up, 5 / 4 down.
        assert_eq!(Schedule::Linear.count(0, 2, 5), 3);
        assert_eq!(Schedule::Linear.count(0, 4, 5), 1);
        assert_eq!(Schedule::Linear.count(0, 4, 6), 2);
        assert_eq!(Schedule::Linear.count(0, 8, 2), 1);
        // 1 - cos(pi / 8) = 0.076 of 32 is 2.4; at step 2 of 4, (cos(pi/4) - cos(3pi/8)) / cos(pi/4) = 0.459.
        assert_eq!(Schedule::Cosine.count(0, 4, 32), 2);
        assert_eq!(Schedule::Cosine.count(2, 4, 20), 9);
        assert_eq!(Schedule::Cosine.count(3, 4, 11), 11);
        assert_eq!(Schedule::Linear.count(7, 4, 3), 3, "beyond the last step");
    }

    #[test]
    fn the_active_set_follows_the_definition() {
        let shifted = |p: usize| p.saturating_sub(1);
        // Position 3 changed at step 1, position 5 at step 2.
        let changed = [None, None, None, Some(1), None, Some(2), None, None];
        assert_eq!(active_set(&[6, 7], shifted, &changed, 2, 0), [5, 6, 7]);
        assert_eq!(active_set(&[7], shifted, &changed, 2, 0), [5, 6, 7]);
        assert_eq!(active_set(&[7], |p| p, &changed, 2, 1), [3, 5, 7]);
        assert_eq!(active_set(&[7], |p| p, &changed, 4, 1), [7]);
        assert_eq!(active_set(&[0], shifted, &changed, 9, 0), [0]);
        let full: Vec<usize> =
            (0..9).filter(|&s| is_full(Sparse { keep_active: 0, refresh: 4 }, s)).collect();
        assert_eq!(full, [0, 4, 8]);
        assert!(!is_full(Sparse::default(), 4));
    }

    fn logits(rows: &[[f64; 4]]) -> Logits {
        Logits::from_rows(4, rows.concat())
    }

    /// Token 3 is the mask.
    #[test]
    fn the_surest_by_probability_go_first() {
        // Row 1 has the larger logit, but a rival; row 0 is surer. The mask counts in the sum only.
        let rows = logits(&[[5.0, 0.0, 0.0, 0.0], [9.0, 8.0, 0.0, 0.0], [5.0, 0.0, 0.0, 6.0]]);
        let chosen = decide(0, &[10, 11, 12], &rows, 3, &Chosen::Best(1)).unwrap();
        assert_eq!((chosen[0].position, chosen[0].token, chosen[0].token_margin), (10, 0, 5.0));
        let odds = |p: f64| (p / (1.0 - p)).ln();
        let first = 5f64.exp() / (5f64.exp() + 3.0);
        let second = 9f64.exp() / (9f64.exp() + 8f64.exp() + 2.0);
        assert!((chosen[0].order_margin - (odds(first) - odds(second))).abs() < 1e-12);
        // Row 2's mask logit makes it the least sure, but never the mask.
        let all = decide(0, &[10, 11, 12], &rows, 3, &Chosen::Best(3)).unwrap();
        assert_eq!(all.iter().map(|u| u.token).collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(all[0].order_margin, f64::INFINITY);
    }

    #[test]
    fn ties_go_to_the_lower_position_and_token() {
        let rows = logits(&[[1.0, 2.0, 2.0, 0.0], [2.0, 2.0, 1.0, 0.0]]);
        let chosen = decide(0, &[4, 6], &rows, 3, &Chosen::Best(1)).unwrap();
        assert_eq!((chosen[0].position, chosen[0].token), (4, 1));
        assert_eq!((chosen[0].token_margin, chosen[0].order_margin), (0.0, 0.0));
    }

    #[test]
    fn saturated_probabilities_tie() {
        // Both are 1 in f64, the second by more: the lower position goes first with margin 0.
        let rows = logits(&[[60.0, 0.0, 0.0, 0.0], [70.0, 0.0, 0.0, 0.0]]);
        let chosen = decide(0, &[4, 6], &rows, 3, &Chosen::Best(1)).unwrap();
        assert_eq!((chosen[0].position, chosen[0].order_margin), (4, 0.0));
    }

    #[test]
    fn replayed_decisions_have_this_networks_margins() {
        let rows = logits(&[[5.0, 0.0, 0.0, 0.0], [3.0, 2.0, 0.0, 0.0]]);
        let replay = Replay { step: 0, position: 11, token: 1 };
        let chosen = decide(0, &[10, 11], &rows, 3, &Chosen::Given(vec![&replay])).unwrap();
        assert_eq!((chosen[0].position, chosen[0].token, chosen[0].token_margin), (11, 1, -1.0));
        let expected = (2.0 - (3f64.exp() + 2.0).ln()) - (5.0 - 3f64.ln());
        assert!((chosen[0].order_margin - expected).abs() < 1e-12 && expected < -4.9);
    }

    #[test]
    fn a_row_with_nan_is_an_error_that_names_the_position() {
        let rows = logits(&[[5.0, 0.0, 0.0, 0.0], [f64::NAN, 2.0, 0.0, 0.0]]);
        let e = decide(2, &[10, 11], &rows, 3, &Chosen::Best(1)).unwrap_err();
        assert!(matches!(e, Error::NoCandidate { step: 2, position: 11 }));
    }

    #[test]
    fn trajectories_that_do_not_fit_are_errors() {
        let r = |step, position, token| Replay { step, position, token };
        let tokens = [5, 3, 3];
        assert!(check(&[r(0, 2, 1), r(4, 1, 1)], &tokens, 3, 6).is_ok());
        assert!(check(&[r(0, 1, 1)], &tokens, 3, 6).is_ok());
        for (given, why) in [
            (vec![r(1, 1, 1), r(0, 2, 1)], "step 0 follows step 1"),
            (vec![r(0, 0, 1)], "not masked"),
            (vec![r(0, 1, 1), r(1, 1, 2)], "not masked"),
            (vec![r(0, 1, 3)], "puts token 3"),
            (vec![r(0, 1, 6)], "puts token 6"),
        ] {
            let e = check(&given, &tokens, 3, 6).unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
        }
    }
}
