//! From tokens back to text.

use super::spm::SPACE;
use super::vocabulary::{TokenType, byte_of};
use super::{Scheme, Tokenizer};
use crate::byte_level;

/// What decoding does with tokens that are no text: control, unknown and unused ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialTokens {
    /// Leave them out.
    Skip,
    /// Write them as the vocabulary does, as `<eos>`.
    Render,
}

impl Tokenizer {
    /// The text of tokens, without control and unused ones. Bytes that are no UTF-8 become U+FFFD, as do
    /// ids outside the vocabulary.
    ///
    /// It is the text that [`encode`](Self::encode) was given, but for special tokens, and for `▁` in a
    /// SentencePiece vocabulary, which means a space there. The space that such a tokenizer puts before a
    /// text is taken away again.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_with(ids, SpecialTokens::Skip)
    }

    /// The text of tokens, with control and unused ones left out or written as the vocabulary does.
    pub fn decode_with(&self, ids: &[u32], special: SpecialTokens) -> String {
        String::from_utf8_lossy(&self.decode_bytes(ids, special)).into_owned()
    }

    fn decode_bytes(&self, ids: &[u32], special: SpecialTokens) -> Vec<u8> {
        let prefixed = matches!(&self.scheme, Scheme::Spm(spm) if spm.add_space_prefix);
        let mut out = Vec::new();
        // Whether encoding has put a space before the text that comes next.
        let mut first = prefixed;
        for &id in ids {
            let Some((text, ty)) = self.vocabulary.get(id) else {
                out.extend_from_slice("\u{FFFD}".as_bytes());
                first = false;
                continue;
            };
            match ty {
                TokenType::Normal | TokenType::Undefined => {
                    let text = if first { text.strip_prefix(SPACE).unwrap_or(text) } else { text };
                    self.spell(text, &mut out);
                    first = false;
                }
                TokenType::Byte => {
                    out.extend(byte_of(text));
                    first = false;
                }
                TokenType::UserDefined => {
                    out.extend_from_slice(text.as_bytes());
                    first = prefixed;
                }
                TokenType::Unknown | TokenType::Control | TokenType::Unused => {
                    if special == SpecialTokens::Render {
                        out.extend_from_slice(text.as_bytes());
                    }
                    first = prefixed;
                }
            }
        }
        out
    }

    /// What a normal token's spelling stands for.
    fn spell(&self, text: &str, out: &mut Vec<u8>) {
        for c in text.chars() {
            let byte = match &self.scheme {
                Scheme::Bpe(_) => byte_level::to_byte(c),
                Scheme::Spm(_) => (c == SPACE).then_some(b' '),
            };
            match byte {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}
