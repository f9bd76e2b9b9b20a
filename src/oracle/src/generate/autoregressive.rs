//! Greedy decoding.

use crate::generate::{Choice, margin, most_likely};
use crate::{Cache, Error, Network, Request, Rows};

/// What to decode.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The prompt, at least one token.
    pub prompt: &'a [u32],
    /// Tokens to decode. End of generation is the caller's concern: a comparison wants a fixed number.
    pub n: usize,
    /// The tokens to go on with, `n` of them, instead of the most likely ones.
    pub given: Option<&'a [u32]>,
    /// Layers left out while decoding. The prompt goes through all.
    pub skip: &'a [usize],
}

impl<'a> Plan<'a> {
    /// A free run through all layers.
    pub fn new(prompt: &'a [u32], n: usize) -> Self {
        Self { prompt, n, given: None, skip: &[] }
    }
}

/// Prefills the prompt into the cache, which must be empty, and decodes `n` tokens one by one.
///
/// `observe(step, row)` gets n + 1 rows of logits `[n_vocab]`: step 0 is the last row of the prompt, step i
/// the row of the i-th token; the last row chooses nothing. So the cache ends with prompt and all n tokens.
///
/// # Errors
/// An empty prompt, a cache that is not empty or too small, `given` of another length; a row that chooses no
/// token; and as [`Network::forward`].
pub fn decode(
    network: &Network,
    cache: &mut Cache,
    plan: Plan<'_>,
    mut observe: impl FnMut(usize, &[f64]),
) -> Result<Vec<Choice>, Error> {
    let Plan { prompt, n, given, skip } = plan;
    if prompt.is_empty() {
        return Err(Error::Plan("decoding needs a prompt of at least one token".to_string()));
    }
    if !cache.is_empty() {
        return Err(Error::Plan(format!("the cache already holds {} positions", cache.len())));
    }
    if let Some(given) = given.filter(|g| g.len() != n) {
        return Err(Error::Trajectory(format!("{} tokens are given, {n} are to be decoded", given.len())));
    }
    if prompt.len() + n > cache.capacity() {
        return Err(Error::CacheFull { position: cache.capacity(), capacity: cache.capacity() });
    }
    let mut logits = network.extend(cache, prompt, Rows::Last)?.logits;
    let mut chosen = Vec::with_capacity(n);
    for step in 0..n {
        let row = logits.row(0);
        observe(step, row);
        // A row with a NaN is an error with a given token too: its margin would mean nothing.
        let free =
            most_likely(row, None).ok_or(Error::NoCandidate { step, position: prompt.len() + step })?;
        let choice = match given.map(|g| g[step]) {
            None => free,
            Some(token) if (token as usize) < row.len() => Choice { token, margin: margin(row, token, None) },
            Some(token) => {
                return Err(Error::Token { index: prompt.len() + step, token, n_vocab: row.len() });
            }
        };
        chosen.push(choice);
        let tokens = [choice.token];
        logits = network.forward(cache, Request { skip, ..Request::new(&tokens) })?.logits;
    }
    observe(n, logits.row(0));
    Ok(chosen)
}
