//! How likely a text is to a model.
//!
//! An autoregressive model is asked for each token after those before it. A text longer than the context is cut into
//! windows that follow each other by the stride; a token is scored in the first window that holds it, so that all but
//! the first token of the text are scored once, each after at least `context - stride` others.
//!
//! A masked model sees each window once, with the chosen tokens masked all at once, and is asked for these. The mask
//! token is one of the vocabulary as any other.

use super::watch::Watch;
use super::{Scoring, SweepTask, failed};
use crate::compare::log_sum_exp;
use crate::sweep::result::Loss;
use crate::worker::protocol::Failure;
use runtime::generate::masked::{CacheUse, padded};
use runtime::{Logits, Rows, Session};

/// Logits of one pass over a text, so that memory does not grow with it.
const PASS_BYTES: usize = 32 << 20;

/// Tokens that are computed together, and those of them that are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The first token.
    pub begin: usize,
    /// The token after the last.
    pub end: usize,
    /// The first token that is scored; the others up to `end` follow.
    pub scored: usize,
}

/// The windows of a text of `n` tokens.
#[must_use]
pub fn windows(n: usize, context: usize, stride: usize) -> Vec<Window> {
    let (context, stride) = (context.max(2), stride.clamp(1, context.max(2) - 1));
    let mut windows = Vec::new();
    let (mut begin, mut scored) = (0, 1);
    while scored < n {
        let end = n.min(begin + context);
        windows.push(Window { begin, end, scored });
        (begin, scored) = (begin + stride, end);
    }
    windows
}

/// Scores the text of `task`; `watch` sees the rows that tokens are scored by.
pub(super) fn score(
    session: &mut Session,
    task: &SweepTask,
    how: &Scoring,
    watch: &mut Watch,
) -> Result<Loss, Failure> {
    let tokens = &task.input.tokens;
    let mut loss = Loss { nats: 0.0, tokens: 0 };
    match how {
        Scoring::Forward { context, stride } => {
            for (step, window) in windows(tokens.len(), *context, *stride).into_iter().enumerate() {
                forward(session, tokens, step, window, &mut loss, watch).map_err(failed)?;
                watch.check()?;
            }
        }
        Scoring::Masked { context, masks } => {
            let cache = task.id.arm.case.options.masked.cache_use(task.id.arm.case.mode);
            for (step, begin) in (0..tokens.len()).step_by((*context).max(1)).enumerate() {
                let end = tokens.len().min(begin + context);
                let masks: Vec<usize> = masks
                    .iter()
                    .copied()
                    .filter(|at| (begin..end).contains(at))
                    .map(|at| at - begin)
                    .collect();
                if !masks.is_empty() {
                    let window = &tokens[begin..end];
                    masked(session, cache, window, (step, begin), &masks, &mut loss, watch)
                        .map_err(failed)?;
                    watch.check()?;
                }
            }
        }
    }
    Ok(loss)
}

/// One window of an autoregressive model: what comes before the scored tokens fills the cache, the rest in passes.
fn forward(
    session: &mut Session,
    tokens: &[u32],
    step: usize,
    window: Window,
    loss: &mut Loss,
    watch: &mut Watch,
) -> Result<(), runtime::Error> {
    // The row of each token predicts the next; that of the last is not needed.
    let (first, last) = (window.scored - 1, window.end - 1);
    session.reset_cache(window.end - window.begin)?;
    if first > window.begin {
        session.extend(&tokens[window.begin..first], Rows::Only(&[]))?;
    }
    let vocab = session.hparams().n_vocab;
    let pass = (PASS_BYTES / (vocab * size_of::<f32>()).max(1)).clamp(16, 512);
    for begin in (first..last).step_by(pass) {
        let end = last.min(begin + pass);
        let logits = session.extend(&tokens[begin..end], Rows::All)?;
        for (i, position) in (begin..end).enumerate() {
            watch.row(position, step, logits.row(i));
            add(loss, &logits, i, tokens[position + 1]);
        }
    }
    Ok(())
}

/// One window of a masked model, `place` being its number and its first position.
fn masked(
    session: &mut Session,
    cache: CacheUse,
    tokens: &[u32],
    place: (usize, usize),
    masks: &[usize],
    loss: &mut Loss,
    watch: &mut Watch,
) -> Result<(), runtime::Error> {
    let h = session.hparams();
    let shift = h.shift_logits;
    let mask = h.mask_token.ok_or_else(|| {
        runtime::Error::Input(format!("architecture {} has no mask token", h.architecture.name()))
    })?;
    let mut canvas = tokens.to_vec();
    masks.iter().for_each(|&at| canvas[at] = mask);
    let rows: Vec<usize> = masks.iter().map(|&at| if shift { at.saturating_sub(1) } else { at }).collect();
    let padded = padded(&rows);
    let logits = if cache == CacheUse::None {
        session.full(&canvas, Rows::Only(&padded), false)?.logits
    } else {
        session.reset_cache(canvas.len())?;
        session.full_cached(&canvas, Rows::Only(&padded))?
    };
    for (i, (&at, &row)) in masks.iter().zip(&rows).enumerate() {
        watch.row(place.1 + row, place.0, logits.row(i));
        add(loss, &logits, i, tokens[at]);
    }
    Ok(())
}

/// Adds `-ln p(token)` of row `i`.
fn add(loss: &mut Loss, logits: &Logits, i: usize, token: u32) {
    let row = logits.row(i);
    let own = row.get(token as usize).map_or(f64::NAN, |&z| f64::from(z));
    loss.nats += log_sum_exp(|| row.iter().map(|&z| f64::from(z))) - own;
    loss.tokens += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_text_is_one_window() {
        assert_eq!(windows(10, 64, 32), [Window { begin: 0, end: 10, scored: 1 }]);
        assert!(windows(1, 64, 32).is_empty() && windows(0, 64, 32).is_empty());
        let found = windows(10, 4, 2);
        let all: Vec<_> = found.iter().map(|w| (w.begin, w.end, w.scored)).collect();
        assert_eq!(all, [(0, 4, 1), (2, 6, 4), (4, 8, 6), (6, 10, 8)]);
    }

    #[test]
    fn a_loss_is_the_negative_logarithm_of_the_probability() {
        let logits = Logits { vocab: 2, values: vec![0.0, 3f32.ln(), f32::NAN, 0.0] };
        let mut loss = Loss { nats: 0.0, tokens: 0 };
        add(&mut loss, &logits, 0, 0);
        assert!((loss.nats - 4f64.ln()).abs() < 1e-6 && loss.tokens == 1, "{loss:?}");
        add(&mut loss, &logits, 1, 1);
        assert!(loss.nats.is_nan());
    }

    proptest! {
        #[test]
        fn every_token_but_the_first_is_scored_once(
            n in 0usize..200, context in 2usize..40, stride in 1usize..50,
        ) {
            let mut scored = Vec::new();
            for window in windows(n, context, stride) {
                prop_assert!(window.begin < window.scored && window.scored < window.end);
                prop_assert!(window.end - window.begin <= context);
                scored.extend(window.scored..window.end);
            }
            prop_assert_eq!(scored, (1..n).collect::<Vec<_>>());
        }
    }
}
