//! Masked diffusion: a prompt followed by masks, unmasked step by step.
//!
//! Each step computes the rows that predict the masked positions ([`CacheUse`] says how), takes a candidate for each
//! ([`Sampling`]), and lets as many as the [`Schedule`] says keep it, in the order of the [`Remasking`] rule.

mod active_set;
mod remasking;
mod sampling;
mod schedule;

use std::collections::BTreeMap;

pub use active_set::Sparse;
pub use remasking::Remasking;
pub use sampling::Sampling;
pub use schedule::{Schedule, Turn};

use crate::cache::LayerKv;
use crate::error::Error;
use crate::fault::Fault;
use crate::session::{Logits, Rows, Session};
use active_set::row_of;

/// What a step computes and what it takes from the device's K/V cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheUse {
    /// Everything anew, nothing is kept.
    #[default]
    None,
    /// Everything anew, through the cache.
    Full,
    /// Only the active set, against what the cache has of the others.
    Sparse(Sparse),
}

/// How a generation proceeds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Plan {
    /// Masks to fill.
    pub masks: usize,
    /// Forward passes at most.
    pub steps: usize,
    /// Masks a step.
    pub schedule: Schedule,
    /// Which positions go first.
    pub remasking: Remasking,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The cache.
    pub cache: CacheUse,
    /// Whether [`StepView::kv`] has keys and values where there is no cache to read them from.
    pub keep_kv: bool,
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

/// What one step saw and did.
#[derive(Debug)]
pub struct StepView<'a> {
    /// The step.
    pub step: usize,
    /// The sequence the forward pass read.
    pub tokens: &'a [u32],
    /// The positions that were masked in it.
    pub masked: &'a [usize],
    /// The positions that were computed, rising; all of them in a full step.
    pub active: &'a [usize],
    /// The row of logits that predicts each masked position.
    pub logits: &'a Logits,
    /// Which masks became tokens.
    pub unmasked: &'a [Unmask],
    /// Keys and values after the step.
    pub kv: StepKv<'a>,
}

/// Keys and values as a step left them.
pub struct StepKv<'a> {
    session: &'a Session,
    /// Those of all positions, where they are in no cache.
    fresh: Option<&'a [LayerKv]>,
}

impl std::fmt::Debug for StepKv<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepKv").field("cached", &self.fresh.is_none()).finish_non_exhaustive()
    }
}

impl StepKv<'_> {
    /// Those of these positions, per layer `[positions, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// When a position is not in the sequence, nothing was kept ([`Plan::keep_kv`]), or the device cannot be read.
    pub fn rows(&self, positions: &[usize]) -> Result<Vec<LayerKv>, Error> {
        let Some(fresh) = self.fresh else { return self.session.read_cache_rows(positions) };
        let pick = |values: &[f32], width: usize| {
            let row = |&p: &usize| values.get(p * width..(p + 1) * width);
            let rows: Option<Vec<&[f32]>> = positions.iter().map(row).collect();
            rows.map(|rows| rows.concat())
        };
        let layer = |(i, layer): (usize, &LayerKv)| {
            let width = self.session.hparams().layer(i).kv_width();
            Some(LayerKv { k: pick(&layer.k, width)?, v: pick(&layer.v, width)? })
        };
        let kept: Option<Vec<LayerKv>> = fresh.iter().enumerate().map(layer).collect();
        kept.filter(|kept| !kept.is_empty())
            .ok_or_else(|| Error::Input("keys and values of a step that were not kept".to_owned()))
    }
}

/// A finished generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The sequence, prompt included; masks that the steps did not resolve are still in it.
    pub tokens: Vec<u32>,
    /// In which order masks became tokens.
    pub unmasked: Vec<Unmask>,
    /// The mask token of the model's own tokenizer.
    pub mask: u32,
}

impl Generated {
    /// The tokens from position `first` on without unresolved masks.
    ///
    /// # Panics
    /// When `first` is beyond the end.
    #[must_use]
    pub fn resolved(&self, first: usize) -> Vec<u32> {
        self.tokens[first..].iter().copied().filter(|&token| token != self.mask).collect()
    }
}

/// Fills `plan.masks` masks after `prompt`. With `replay` the given order is imposed instead of the plan's rules, so
/// that every device sees the same sequence at every step.
///
/// # Errors
/// When the model has no mask token, a given position is not in the sequence, or ggml fails.
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
    let mut tokens = prompt.to_vec();
    tokens.resize(prompt.len() + plan.masks, mask);
    let mut masked: Vec<usize> = (prompt.len()..tokens.len()).collect();
    let mut unmasked = Vec::with_capacity(plan.masks);
    let mut forward = Forward::new(session, plan, tokens.len())?;
    for step in 0..plan.steps {
        if masked.is_empty() {
            break;
        }
        let (active, logits) = forward.step(step, &tokens, &masked)?;
        let now: Vec<Unmask> = match replay {
            Some(given) => given.iter().filter(|u| u.step == step).copied().collect(),
            None => {
                let turn = plan.schedule.turn(&masked, prompt.len(), plan.masks, step, plan.steps);
                let choice = plan.remasking.choose(&masked, &logits, mask, plan.sampling, step, turn);
                let margin = choice.margin;
                let unmask = |(position, c): (usize, super::Candidate)| Unmask {
                    step,
                    position,
                    token: c.token,
                    margin,
                };
                choice.chosen.into_iter().map(unmask).collect()
            }
        };
        observe(&StepView {
            step,
            tokens: &tokens,
            masked: &masked,
            active: &active,
            logits: &logits,
            unmasked: &now,
            kv: forward.kv(),
        });
        for u in &now {
            let total = tokens.len();
            let token = tokens.get_mut(u.position).ok_or_else(|| {
                Error::Input(format!("position {} of {total} tokens is unmasked", u.position))
            })?;
            *token = u.token;
            forward.changed_at[u.position] = Some(step + 1);
        }
        masked.retain(|p| !now.iter().any(|u| u.position == *p));
        unmasked.extend(now);
    }
    Ok(Generated { tokens, unmasked, mask })
}

/// Forward passes of one generation.
struct Forward<'a> {
    session: &'a mut Session,
    cache: CacheUse,
    keep_kv: bool,
    /// Of the last step, where there is no cache.
    fresh: Vec<LayerKv>,
    shift: bool,
    /// For each position the first step that reads its new token.
    changed_at: Vec<Option<usize>>,
    /// Rows of earlier steps, kept only where the active set is planted to lack some.
    earlier: BTreeMap<usize, Vec<f32>>,
}

impl<'a> Forward<'a> {
    fn new(session: &'a mut Session, plan: Plan, length: usize) -> Result<Self, Error> {
        let Plan { cache, keep_kv, .. } = plan;
        if cache != CacheUse::None {
            session.reset_cache(length)?;
        }
        let planted = session.planted();
        let shift = Fault::shift(planted, session.hparams());
        let cache = match cache {
            CacheUse::Sparse(sparse) if planted == Some(Fault::PredecessorsLeftOut) => {
                CacheUse::Sparse(Sparse { predecessors: false, ..sparse })
            }
            cache => cache,
        };
        let changed_at = vec![None; length];
        Ok(Self { session, cache, keep_kv, fresh: Vec::new(), shift, changed_at, earlier: BTreeMap::new() })
    }

    /// Keys and values after the last step.
    fn kv(&self) -> StepKv<'_> {
        let fresh = (self.cache == CacheUse::None).then_some(self.fresh.as_slice());
        StepKv { session: self.session, fresh }
    }

    /// Computes a step: the positions that it computed, and the row that predicts each of `masked`.
    fn step(&mut self, step: usize, tokens: &[u32], masked: &[usize]) -> Result<(Vec<usize>, Logits), Error> {
        let rows: Vec<usize> = masked.iter().map(|&p| row_of(p, self.shift)).collect();
        let everything = || (0..tokens.len()).collect::<Vec<_>>();
        match self.cache {
            CacheUse::None => {
                let pass = self.session.full(tokens, Rows::Only(&padded(&rows)), self.keep_kv)?;
                self.fresh = pass.kv;
                Ok((everything(), first_rows(pass.logits, rows.len())))
            }
            CacheUse::Full => {
                let logits = self.session.full_cached(tokens, Rows::Only(&padded(&rows)))?;
                Ok((everything(), first_rows(logits, rows.len())))
            }
            CacheUse::Sparse(sparse) => {
                let logits = if sparse.is_full(step) {
                    let logits = self.session.full_cached(tokens, Rows::Only(&padded(&rows)))?;
                    (everything(), first_rows(logits, rows.len()))
                } else {
                    let active = sparse.active(step, masked, &self.changed_at, self.shift);
                    let logits = self.recompute(tokens, &active, &rows)?;
                    (active, logits)
                };
                if !sparse.predecessors {
                    let computed = rows.iter().enumerate().map(|(i, &row)| (row, logits.1.row(i).to_vec()));
                    self.earlier.extend(computed);
                }
                Ok(logits)
            }
        }
    }

    /// Computes the active positions; a wanted row that is not among them stands as an earlier step computed it.
    fn recompute(&mut self, tokens: &[u32], active: &[usize], rows: &[usize]) -> Result<Logits, Error> {
        let some: Vec<u32> = active.iter().map(|&p| tokens[p]).collect();
        let places: Vec<Option<usize>> = rows.iter().map(|row| active.binary_search(row).ok()).collect();
        let computed: Vec<usize> = places.iter().copied().flatten().collect();
        let logits = self.session.recompute(&some, active, Rows::Only(&padded(&computed)))?;
        let logits = first_rows(logits, computed.len());
        if computed.len() == rows.len() {
            return Ok(logits);
        }
        let mut new = (0..logits.rows()).map(|i| logits.row(i));
        let mut values = Vec::with_capacity(rows.len() * logits.vocab);
        for (row, place) in rows.iter().zip(&places) {
            let earlier = || self.earlier.get(row).map(Vec::as_slice);
            let row = place.map_or_else(earlier, |_| new.next());
            values.extend_from_slice(
                row.ok_or_else(|| Error::Input("a row of logits that no step has computed".to_owned()))?,
            );
        }
        Ok(Logits { vocab: logits.vocab, values })
    }
}

/// Rows to ask for so that their number is a multiple of 16, the last one again and again: a head that is
/// multiplied with another number of columns at every step would take another kernel at every step, and on
/// Vulkan each small number is a shader of its own to compile.
fn padded(rows: &[usize]) -> Vec<usize> {
    let filler = rows.last().into_iter().cycle();
    rows.iter().chain(filler).take(rows.len().next_multiple_of(16)).copied().collect()
}

/// The first `n` rows.
fn first_rows(mut logits: Logits, n: usize) -> Logits {
    logits.values.truncate(n * logits.vocab);
    logits
}
