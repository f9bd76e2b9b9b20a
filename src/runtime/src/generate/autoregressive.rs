//! Decoding one token after the other: greedy or drawn, free or along given tokens.

use crate::error::Error;
use crate::generate::sampler::{Sampler, Sampling};
use crate::session::{Logits, Rows, Session};

/// How a text is continued.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan<'a> {
    /// Tokens at most.
    pub n: usize,
    /// How they are drawn.
    pub sampling: Sampling,
    /// Tokens that end the text; the one that does is the last of the result.
    pub end: &'a [u32],
}

/// The tokens after the prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generated {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// How sure the session itself was of each, in logits (see [`Drawn`](super::sampler::Drawn)).
    pub margins: Vec<f64>,
}

/// Fills the cache with `prompt`, then decodes one token after the other: those of `replay`, or, up to the end of
/// the text, those that `plan` draws. `observe` sees a row of logits for the prompt's last token (step 0) and for
/// every decoded token but the last.
///
/// # Errors
/// When the cache is full or ggml fails.
pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    plan: &Plan<'_>,
    replay: Option<&[u32]>,
    mut observe: impl FnMut(usize, &Logits),
) -> Result<Generated, Error> {
    let mut sampler = Sampler::new(plan.sampling, prompt);
    let mut done = Generated::default();
    let mut logits = session.extend(prompt, Rows::Last)?;
    let n = replay.map_or(plan.n, <[u32]>::len);
    for step in 0..n {
        observe(step, &logits);
        let token = match replay {
            Some(given) => {
                let drawn = sampler.force(logits.row(0), given[step]);
                done.margins.push(drawn.margin);
                given[step]
            }
            None => {
                let drawn = sampler.draw(logits.row(0));
                done.margins.push(drawn.margin);
                drawn.token
            }
        };
        done.tokens.push(token);
        if step + 1 == n || (replay.is_none() && plan.end.contains(&token)) {
            break;
        }
        logits = session.extend(&[token], Rows::Last)?;
    }
    Ok(done)
}

/// Fills the cache with `prompt`, then decodes one token after the other: the given ones of `replay`, or the
/// model's own choice for `n` tokens. Returns the tokens after the prompt. `observe` sees `n + 1` rows of
/// logits: that of the prompt's last token (step 0) and those of the decoded tokens.
///
/// # Errors
/// When the cache is full or ggml fails.
pub fn decode(
    session: &mut Session,
    prompt: &[u32],
    n: usize,
    replay: Option<&[u32]>,
    observe: impl FnMut(usize, &Logits),
) -> Result<Vec<u32>, Error> {
    let logits = session.extend(prompt, Rows::Last)?;
    decode_after(session, logits, n, replay, observe)
}

/// As [`decode`] after a prompt that is in the cache already and whose last row of logits is given.
///
/// # Errors
/// When the cache is full or ggml fails.
pub fn decode_after(
    session: &mut Session,
    mut logits: Logits,
    n: usize,
    replay: Option<&[u32]>,
    mut observe: impl FnMut(usize, &Logits),
) -> Result<Vec<u32>, Error> {
    observe(0, &logits);
    let mut tokens = Vec::with_capacity(n);
    for step in 0..n {
        let token = match replay {
            Some(given) => *given
                .get(step)
                .ok_or_else(|| Error::Input(format!("{} given tokens for {n} steps", given.len())))?,
            None => super::most_likely(logits.row(0), None).token,
        };
        tokens.push(token);
        logits = session.extend(&[token], Rows::Last)?;
        observe(step + 1, &logits);
    }
    Ok(tokens)
}
