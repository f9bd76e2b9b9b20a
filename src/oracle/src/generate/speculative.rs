//! Speculative decoding (Leviathan et al. 2022, <https://arxiv.org/abs/2211.17192>), greedy: the output is that of
//! plain greedy decoding of the target, bit for bit, since a batch's rows equal single tokens' here.

use crate::generate::{Choice, most_likely};
use crate::{Cache, Error, Network, Rows};

/// How a speculative run went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Batches the target checked.
    pub rounds: usize,
    /// Tokens the draft proposed.
    pub proposed: usize,
    /// Proposals that were the target's own choice.
    pub accepted: usize,
}

/// A network with its cache.
#[derive(Debug)]
pub struct Arm<'a> {
    /// The network.
    pub network: &'a Network,
    /// Its cache, empty, with room for the prompt and all tokens.
    pub cache: &'a mut Cache,
}

/// Decodes `n` tokens after `prompt`: the draft proposes `k` at a time, the target checks them in one batch.
///
/// The target's own token after the last accepted one, the bonus, is deferred: it is in no cache yet and
/// begins the next batch. At the end the target's cache holds the prompt and all tokens but the last.
///
/// # Errors
/// An empty prompt, `k` of 0, caches that are not empty or too small, networks of different vocabularies; a
/// row that chooses no token; and as [`Network::forward`].
pub fn decode(
    target: Arm<'_>,
    draft: Arm<'_>,
    prompt: &[u32],
    n: usize,
    k: usize,
) -> Result<(Vec<Choice>, Statistics), Error> {
    if prompt.is_empty() || k == 0 {
        return Err(Error::Plan("speculation needs a prompt and at least one proposal a round".to_string()));
    }
    if !target.cache.is_empty() || !draft.cache.is_empty() {
        return Err(Error::Plan("the caches must be empty".to_string()));
    }
    let (ours, theirs) = (target.network.hparams().n_vocab, draft.network.hparams().n_vocab);
    if ours != theirs {
        return Err(Error::Plan(format!("the target has {ours} tokens, the draft {theirs}")));
    }
    let mut statistics = Statistics::default();
    let mut chosen: Vec<Choice> = Vec::with_capacity(n);
    let mut sequence = prompt.to_vec();
    // Whatever of the sequence is not in a cache yet goes with the next pass.
    while chosen.len() < n {
        let known = sequence.len();
        let proposals = k.min(n - chosen.len() - 1);
        for _ in 0..proposals {
            let pass = draft.network.extend(draft.cache, &sequence[draft.cache.len()..], Rows::Last)?;
            sequence.push(choose(pass.logits.row(0), sequence.len(), prompt.len())?.token);
        }
        let fresh = &sequence[target.cache.len()..];
        let rows: Vec<usize> = (fresh.len() - proposals - 1..fresh.len()).collect();
        let pass = target.network.extend(target.cache, fresh, Rows::Only(&rows))?;
        let mut accepted = 0;
        loop {
            let own = choose(pass.logits.row(accepted), known + accepted, prompt.len())?;
            chosen.push(own);
            if accepted < proposals && sequence[known + accepted] == own.token {
                accepted += 1;
                continue;
            }
            sequence.truncate(known + accepted);
            sequence.push(own.token);
            break;
        }
        target.cache.truncate(known + accepted);
        draft.cache.truncate(known + accepted);
        statistics.rounds += 1;
        statistics.proposed += proposals;
        statistics.accepted += accepted;
    }
    Ok((chosen, statistics))
}

fn choose(row: &[f64], position: usize, prompt: usize) -> Result<Choice, Error> {
    most_likely(row, None).ok_or(Error::NoCandidate { step: position - prompt, position })
}
