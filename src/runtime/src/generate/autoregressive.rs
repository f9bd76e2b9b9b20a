//! Greedy decoding, free or along given tokens.

use crate::error::Error;
use crate::generate::most_likely;
use crate::session::{Logits, Rows, Session};

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
    mut observe: impl FnMut(usize, &Logits),
) -> Result<Vec<u32>, Error> {
    let mut logits = session.extend(prompt, Rows::Last)?;
    observe(0, &logits);
    let mut tokens = Vec::with_capacity(n);
    for step in 0..n {
        let token = match replay {
            Some(given) => *given
                .get(step)
                .ok_or_else(|| Error::Input(format!("{} given tokens for {n} steps", given.len())))?,
            None => most_likely(logits.row(0), None).token,
        };
        tokens.push(token);
        logits = session.extend(&[token], Rows::Last)?;
        observe(step + 1, &logits);
    }
    Ok(tokens)
}
