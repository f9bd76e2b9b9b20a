//! Special tokens: their roles from the metadata, and where a text spells them out.

use super::vocabulary::{TokenType, Vocabulary, fault};
use crate::error::Error;
use crate::gguf::Metadata;

const ADD_BOS_KEY: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS_KEY: &str = "tokenizer.ggml.add_eos_token";

/// Which tokens have a role, and which of them encoding adds.
pub(super) struct Roles {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) padding: Option<u32>,
    pub(super) mask: Option<u32>,
    /// The tokens that end a generation, ascending.
    pub(super) ends: Vec<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
}

impl Roles {
    /// `add_bos` is what holds where the file says nothing.
    pub(super) fn read(m: &Metadata, vocabulary: &Vocabulary, add_bos: bool) -> Result<Self, Error> {
        let n = vocabulary.len();
        let id = |name: &str| token_id(m, &format!("tokenizer.ggml.{name}_token_id"), n);
        let (bos, eos) = (id("bos")?, id("eos")?);
        let mask = match id("mask")? {
            Some(mask) => Some(mask),
            None => token_id(m, "diffuse.mask_token_id", n)?,
        };
        let flag = |key: &str, default: bool, id: Option<u32>, id_key: &str| {
            let add = m.opt_bool(key)?.unwrap_or(default);
            if add && id.is_none() {
                return Err(fault(m, key, format!("there is no {id_key} to add")));
            }
            Ok(add)
        };
        let add_bos = flag(ADD_BOS_KEY, add_bos, bos, "tokenizer.ggml.bos_token_id")?;
        let add_eos = flag(ADD_EOS_KEY, false, eos, "tokenizer.ggml.eos_token_id")?;

        let mut ends: Vec<u32> = eos.into_iter().chain(id("eot")?).chain(id("eom")?).collect();
        ends.extend(vocabulary.named_ends());
        ends.sort_unstable();
        ends.dedup();
        Ok(Self { bos, eos, unknown: id("unknown")?, padding: id("padding")?, mask, ends, add_bos, add_eos })
    }
}

fn token_id(m: &Metadata, key: &str, n: usize) -> Result<Option<u32>, Error> {
    match m.opt_u32(key)? {
        Some(id) if id as usize >= n => Err(fault(m, key, format!("outside the vocabulary of {n}"))),
        id => Ok(id),
    }
}

/// A stretch of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    /// Text that begins at this byte.
    Text(usize, &'t str),
    /// A special token that is spelled out there.
    Token(u32),
}

/// The spellings that mean a token wherever they stand in a text.
///
/// The longest spelling is looked for first in the whole text, then the next one in what is left, as
/// llama.cpp does: where two overlap, the longer one wins even if the other begins before it. Of equally
/// long ones the lower id comes first.
pub(super) struct Spellings {
    entries: Vec<Spelling>,
}

struct Spelling {
    id: u32,
    text: String,
    /// User-defined tokens are text, which counts even where special tokens are not to be recognised.
    always: bool,
}

impl Spellings {
    pub(super) fn new(vocabulary: &Vocabulary) -> Self {
        let mut entries: Vec<Spelling> = vocabulary
            .iter()
            .filter(|(_, _, ty)| {
                matches!(ty, TokenType::Control | TokenType::Unknown | TokenType::UserDefined)
            })
            .map(|(id, text, ty)| Spelling { id, text: text.into(), always: ty == TokenType::UserDefined })
            .collect();
        entries.sort_by_key(|s| std::cmp::Reverse(s.text.len()));
        Self { entries }
    }

    /// Cuts a text at the special tokens in it; without `special` at user-defined ones only.
    pub(super) fn split<'t>(&self, text: &'t str, special: bool) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(Piece::Text(0, text));
        }
        for spelling in self.entries.iter().filter(|s| special || s.always) {
            if text.contains(&spelling.text) {
                pieces = pieces.into_iter().flat_map(|piece| spelling.cut(piece)).collect();
            }
        }
        pieces
    }
}

impl Spelling {
    fn cut<'t>(&self, piece: Piece<'t>) -> Vec<Piece<'t>> {
        let Piece::Text(at, text) = piece else {
            return vec![piece];
        };
        let mut pieces = Vec::new();
        let mut done = 0;
        for (start, found) in text.match_indices(&self.text) {
            if start > done {
                pieces.push(Piece::Text(at + done, &text[done..start]));
            }
            pieces.push(Piece::Token(self.id));
            done = start + found.len();
        }
        if done < text.len() {
            pieces.push(Piece::Text(at + done, &text[done..]));
        }
        pieces
    }
}
