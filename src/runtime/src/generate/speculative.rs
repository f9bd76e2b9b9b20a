//! Speculative decoding: a draft model proposes tokens, the target checks them in one batch.

use crate::error::Error;
use crate::generate::most_likely;
use crate::session::{Logits, Rows, Session};

/// One batch that the target checked.
#[derive(Debug)]
pub struct Checked<'a> {
    /// Which batch it is, from 0; the prompt is none.
    pub batch: usize,
    /// The position of its first token.
    pub position: usize,
    /// The token that was certain and those that were proposed after it.
    pub tokens: &'a [u32],
    /// A row for each; row `i` decides what follows token `i`.
    pub logits: &'a Logits,
}

/// How well the draft proposed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// Batches that the target computed.
    pub batches: usize,
    /// Tokens proposed.
    pub proposed: usize,
    /// Proposed tokens that the target would have chosen too.
    pub accepted: usize,
}

impl Acceptance {
    /// Accepted tokens to proposed ones; `None` where none was proposed.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        (self.proposed > 0).then(|| self.accepted as f64 / self.proposed as f64)
    }
}

/// A finished run.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculated {
    /// The tokens after the prompt.
    pub tokens: Vec<u32>,
    /// The target's margin of each.
    pub margins: Vec<f64>,
    /// How well the draft proposed.
    pub acceptance: Acceptance,
}

/// Decodes `n` tokens greedily after `prompt`: `draft` proposes up to `ahead` tokens, `target` checks them in
/// one batch and adds one of its own, which is computed at the head of the next batch. Both begin with the
/// caches they have, which must be empty and hold `prompt.len() + n` positions.
///
/// # Errors
/// When a cache is full, the vocabularies differ, or ggml fails.
pub fn decode(
    target: &mut Session,
    draft: &mut Session,
    prompt: &[u32],
    n: usize,
    ahead: usize,
    mut observe: impl FnMut(&Checked<'_>),
) -> Result<Speculated, Error> {
    let (vocab, other) = (target.hparams().n_vocab, draft.hparams().n_vocab);
    if vocab != other {
        return Err(Error::Input(format!("a draft with {other} tokens for a model with {vocab}")));
    }
    let mut done = Speculated { tokens: Vec::new(), margins: Vec::new(), acceptance: Acceptance::default() };
    if n == 0 {
        return Ok(done);
    }
    let mut sequence = prompt.to_vec();
    let first = most_likely(target.extend(prompt, Rows::Last)?.row(0), None);
    sequence.push(first.token);
    done.tokens.push(first.token);
    done.margins.push(first.margin);
    while done.tokens.len() < n {
        let start = target.cached();
        // The batch gives one token more than it proposes.
        let ahead = ahead.min(n - done.tokens.len() - 1);
        let mut batch = vec![sequence[start]];
        if ahead > 0 {
            let mut unseen = sequence[draft.cached()..].to_vec();
            while batch.len() <= ahead {
                let proposed = most_likely(draft.extend(&unseen, Rows::Last)?.row(0), None).token;
                batch.push(proposed);
                unseen = vec![proposed];
            }
        }
        let logits = target.extend(&batch, Rows::All)?;
        observe(&Checked {
            batch: done.acceptance.batches,
            position: start,
            tokens: &batch,
            logits: &logits,
        });
        let mut accepted = 0;
        for row in 0..batch.len() {
            let chosen = most_likely(logits.row(row), None);
            sequence.push(chosen.token);
            done.tokens.push(chosen.token);
            done.margins.push(chosen.margin);
            if batch.get(row + 1) != Some(&chosen.token) {
                break;
            }
            accepted += 1;
        }
        done.acceptance.batches += 1;
        done.acceptance.proposed += ahead;
        done.acceptance.accepted += accepted;
        // What was refused goes; the last token stays out until the next batch.
        target.truncate(start + 1 + accepted)?;
        draft.truncate(draft.cached().min(start + 1 + accepted))?;
    }
    Ok(done)
}

/// Computes given batches again, each after the positions before its first: the same graphs in the same order
/// as the run that checked them. `observe` also gets the target, whose cache ends with the batch.
///
/// # Errors
/// When a batch begins after the cached positions, the cache is full, or ggml fails.
pub fn replay(
    target: &mut Session,
    prompt: &[u32],
    batches: &[(usize, Vec<u32>)],
    mut observe: impl FnMut(&Session, &Checked<'_>),
) -> Result<(), Error> {
    target.extend(prompt, Rows::Last)?;
    for (batch, (position, tokens)) in batches.iter().enumerate() {
        target.truncate(*position)?;
        let logits = target.extend(tokens, Rows::All)?;
        observe(target, &Checked { batch, position: *position, tokens, logits: &logits });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proposals_have_no_rate() {
        assert_eq!(Acceptance::default().rate(), None);
        assert_eq!(Acceptance { batches: 2, proposed: 8, accepted: 6 }.rate(), Some(0.75));
    }
}
