//! Long inputs by repetition: a recipe of a few words instead of megabytes in the repository.

use serde::Deserialize;

/// No recipe asks for more tokens, or characters, than this.
pub(super) const MOST: usize = 1 << 20;
/// A text of so many bytes for each token asked for should have been enough; tokens of text have four or five.
const BYTES_PER_TOKEN: usize = 64;

/// The field `repeat`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recipe {
    /// Ids of items with `text`, in order.
    pub(super) of: Vec<String>,
    /// The length in tokens of the model.
    pub(super) tokens: Option<usize>,
    /// Or in characters.
    pub(super) characters: Option<usize>,
}

/// Texts joined by blank lines, over and over, cut to a number of tokens.
///
/// Lengths in tokens depend on the model, so the cut is made when its tokenizer is at hand. With one tokenizer a
/// shorter input of the same texts is the beginning of a longer one, which is what a sweep over depths wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    block: String,
    tokens: usize,
}

/// Why there are no such tokens.
#[derive(Debug, thiserror::Error)]
pub enum NotRepeated<E> {
    /// The tokenizer refused the text.
    #[error("{0}")]
    Encode(E),
    /// The tokenizer makes next to nothing of the text.
    #[error("{bytes} bytes of text are {found} tokens, {wanted} are wanted")]
    TooFew {
        /// Length of the text.
        bytes: usize,
        /// What it has.
        found: usize,
        /// What was asked for.
        wanted: usize,
    },
}

impl Repeated {
    pub(super) fn new(texts: &[String], tokens: usize) -> Self {
        Self { block: block(texts), tokens }
    }

    /// How many tokens [`Repeated::encode`] gives.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.tokens
    }

    /// Whether no tokens are asked for; never, in a corpus that was read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Exactly [`Repeated::len`] tokens, `encode` being the model's tokenizer. It is called on the whole text, so that
    /// a begin-of-sequence token comes once.
    ///
    /// # Errors
    /// Those of the tokenizer, and a tokenizer that makes fewer than one token of 64 bytes.
    pub fn encode<E>(
        &self,
        mut encode: impl FnMut(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, NotRepeated<E>> {
        let mut text = self.block.clone();
        loop {
            let mut ids = encode(&text).map_err(NotRepeated::Encode)?;
            if ids.len() >= self.tokens {
                ids.truncate(self.tokens);
                return Ok(ids);
            }
            if text.len() > self.tokens * BYTES_PER_TOKEN {
                return Err(NotRepeated::TooFew { bytes: text.len(), found: ids.len(), wanted: self.tokens });
            }
            // As many blocks again: seldom more than three rounds.
            text = text.repeat(2);
        }
    }
}

/// The texts, each followed by a blank line.
fn block(texts: &[String]) -> String {
    texts.iter().flat_map(|text| [text.as_str(), "\n\n"]).collect()
}

/// The same repetition cut to a number of characters.
pub(super) fn characters(texts: &[String], count: usize) -> String {
    block(texts).chars().cycle().take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn bytes(text: &str) -> Result<Vec<u32>, Infallible> {
        Ok(text.bytes().map(u32::from).collect())
    }

    #[test]
    fn it_has_the_length_asked_for_and_shorter_ones_are_beginnings() {
        let texts = ["one two".to_owned(), "three".to_owned()];
        let long = Repeated::new(&texts, 50).encode(bytes).unwrap();
        let expected: String = "one two\n\nthree\n\n".chars().cycle().take(50).collect();
        assert_eq!(long, bytes(&expected).unwrap());
        assert_eq!(Repeated::new(&texts, 9).encode(bytes).unwrap(), long[..9]);
        assert_eq!(characters(&texts, 50), expected);
    }

    #[test]
    fn a_tokenizer_that_makes_nothing_of_it_ends() {
        let repeated = Repeated::new(&["a".to_owned()], 8);
        let error = repeated.encode(|_| Ok::<_, Infallible>(vec![1])).unwrap_err();
        assert!(error.to_string().ends_with("are 1 tokens, 8 are wanted"), "{error}");
        let refused = repeated.encode(|_| Err("no token for `a`")).unwrap_err();
        assert_eq!(refused.to_string(), "no token for `a`");
    }
}
