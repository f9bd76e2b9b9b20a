//! Masked diffusion: a prompt followed by masks, unmasked step by step, the surest positions first.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::generate::{Candidate, most_likely};
use crate::session::{Logits, Rows, Session};

/// How many masks go at each step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// The same share of the original masks at every step.
    #[default]
    Linear,
    /// Few at first, more later: the share of the remaining ones is `1 - cos(t1 pi/2) / cos(t0 pi/2)`.
    Cosine,
}

impl Schedule {
    /// How many of `remaining` masks step `step` of `steps` removes: at least one, halves rounded up.
    #[must_use]
    pub fn count(self, remaining: usize, step: usize, steps: usize) -> usize {
        if remaining == 0 || step + 1 >= steps {
            return remaining;
        }
        let share = match self {
            Self::Linear => 1.0 / (steps - step) as f64,
            Self::Cosine => {
                let at = |s: usize| (s as f64 / steps as f64 * std::f64::consts::FRAC_PI_2).cos();
                1.0 - at(step + 1) / at(step)
            }
        };
        ((remaining as f64 * share + 0.5).floor() as usize).clamp(1, remaining)
    }
}

/// How a generation proceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Masks to fill.
    pub masks: usize,
    /// Forward passes at most.
    pub steps: usize,
    /// Masks a step.
    pub schedule: Schedule,
}

/// A mask that became a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unmask {
    /// The step whose logits decided.
    pub step: usize,
    /// The position in the sequence.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// How far the step's decisions were from others, in logits: the smallest lead of a chosen token over
    /// the next best, or of the last chosen position over the first one left (as log-probabilities).
    /// Infinite where the order was given.
    pub margin: f64,
}

/// What one step sees.
#[derive(Debug)]
pub struct StepView<'a> {
    /// The step.
    pub step: usize,
    /// The sequence the forward pass read.
    pub tokens: &'a [u32],
    /// The positions that are still masked.
    pub masked: &'a [usize],
    /// The row of logits that predicts each of them.
    pub logits: &'a Logits,
}

/// A finished generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The sequence, prompt included.
    pub tokens: Vec<u32>,
    /// In which order masks became tokens.
    pub unmasked: Vec<Unmask>,
}

/// Fills `plan.masks` masks after `prompt` by low-confidence remasking: at each step the positions whose
/// best token has the highest probability keep it, the lower position among equals. With `replay` the given
/// order is imposed instead, so that every device sees the same sequence at every step.
///
/// # Errors
/// When the model has no mask token, or ggml fails.
pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    plan: Plan,
    replay: Option<&[Unmask]>,
    mut observe: impl FnMut(&StepView<'_>),
) -> Result<Generated, Error> {
    let hparams = session.hparams();
    let mask = hparams.mask_token.ok_or_else(|| {
        Error::Input(format!(
            "architecture {} has no mask token to generate with",
            hparams.architecture.name()
        ))
    })?;
    let shift = hparams.shift_logits;
    let mut tokens = prompt.to_vec();
    tokens.resize(prompt.len() + plan.masks, mask);
    let mut masked: Vec<usize> = (prompt.len()..tokens.len()).collect();
    let mut unmasked = Vec::with_capacity(plan.masks);
    for step in 0..plan.steps {
        if masked.is_empty() {
            break;
        }
        let rows: Vec<usize> = masked.iter().map(|&p| if shift { p.saturating_sub(1) } else { p }).collect();
        let logits = session.full(&tokens, Rows::Only(&rows), false)?.logits;
        observe(&StepView { step, tokens: &tokens, masked: &masked, logits: &logits });
        let now: Vec<Unmask> = match replay {
            Some(given) => given.iter().filter(|u| u.step == step).copied().collect(),
            None => {
                let k = plan.schedule.count(masked.len(), step, plan.steps);
                let (chosen, margin) = surest(&masked, &logits, mask, k);
                chosen
                    .into_iter()
                    .map(|(position, c)| Unmask { step, position, token: c.token, margin })
                    .collect()
            }
        };
        for u in &now {
            match tokens.get_mut(u.position) {
                Some(token) => *token = u.token,
                None => {
                    return Err(Error::Input(format!(
                        "position {} of {} tokens is unmasked",
                        u.position,
                        tokens.len()
                    )));
                }
            }
        }
        masked.retain(|p| !now.iter().any(|u| u.position == *p));
        unmasked.extend(now);
    }
    Ok(Generated { tokens, unmasked })
}

/// The `k` surest positions with their tokens, and the margin of that choice.
fn surest(masked: &[usize], logits: &Logits, mask: u32, k: usize) -> (Vec<(usize, Candidate)>, f64) {
    let mut all: Vec<(usize, Candidate)> =
        masked.iter().enumerate().map(|(i, &p)| (p, most_likely(logits.row(i), Some(mask)))).collect();
    // A NaN is the least sure of all; equal probabilities go by position.
    let key = |c: &Candidate| if c.probability.is_nan() { f64::NEG_INFINITY } else { c.probability };
    all.sort_by(|a, b| key(&b.1).total_cmp(&key(&a.1)).then(a.0.cmp(&b.0)));
    let left = all.split_off(k.min(all.len()));
    let tokens = all.iter().map(|(_, c)| c.margin).fold(f64::INFINITY, f64::min);
    let order = match (all.last(), left.first()) {
        (Some((_, last)), Some((_, next))) => last.probability.ln() - next.probability.ln(),
        _ => f64::INFINITY,
    };
    (all, tokens.min(order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_schedule_takes_equal_parts() {
        let mut remaining = 32;
        for step in 0..16 {
            let k = Schedule::Linear.count(remaining, step, 16);
            assert_eq!(k, 2, "step {step}");
            remaining -= k;
        }
        assert_eq!(remaining, 0);
        // 5 masks in 2 steps: 2.5 rounds up.
        assert_eq!(Schedule::Linear.count(5, 0, 2), 3);
    }

    #[test]
    fn a_cosine_schedule_grows_and_ends() {
        let (mut remaining, mut counts) = (32, Vec::new());
        for step in 0..8 {
            let k = Schedule::Cosine.count(remaining, step, 8);
            remaining -= k;
            counts.push(k);
        }
        assert_eq!(remaining, 0);
        assert!(counts[0] < counts[6], "{counts:?}");
        assert!(counts.iter().all(|&k| k >= 1), "{counts:?}");
    }

    #[test]
    fn the_surest_positions_go_first_and_equals_by_position() {
        let logits = Logits { vocab: 3, values: vec![0.0, 1.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 5.0] };
        let (picked, margin) = surest(&[4, 7, 9], &logits, 0, 2);
        assert_eq!(picked.iter().map(|(p, c)| (*p, c.token)).collect::<Vec<_>>(), [(7, 1), (9, 2)]);
        // Position 4 was left out by more than the logits of the chosen tokens lead.
        assert!(margin > 0.0 && margin < 5.0, "{margin}");
        let (_, tie) = surest(&[4, 7, 9], &logits, 0, 1);
        assert!(tie.abs() < 1e-12, "positions 7 and 9 are equally sure: {tie}");
    }
}
