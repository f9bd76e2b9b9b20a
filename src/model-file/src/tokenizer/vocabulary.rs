//! The tokens of a file: texts, types and scores, checked.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, quoted};
use crate::gguf::Metadata;
use crate::hparams::TOKENS_KEY;

const TYPES_KEY: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES_KEY: &str = "tokenizer.ggml.scores";

/// Tokens of these texts end a generation besides those that the metadata names, and are control tokens
/// whatever the file calls them, as in llama.cpp. Chat models end a turn with one that is not their `eos`.
const END_TEXTS: &[&str] = &[
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
];

/// What a token is for, from `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// Not said.
    Undefined,
    /// A piece of text, in the tokenizer's own spelling.
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Steers the model: begin, end, mask, roles.
    Control,
    /// Plain text that is never split.
    UserDefined,
    /// A row of the embedding that means nothing.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

impl TokenType {
    const fn from_id(id: i32) -> Option<Self> {
        Some(match id {
            0 => Self::Undefined,
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Texts, types and scores by id; the id by text.
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<TokenType>,
    pub(super) scores: Option<Vec<f32>>,
    ids: HashMap<String, u32>,
}

impl Vocabulary {
    pub(super) fn read(m: &Metadata) -> Result<Self, Error> {
        let (tokens, ids) = tokens(m)?;
        let types = token_types(m, &tokens)?;
        let scores = scores(m, &tokens)?;
        Ok(Self { tokens, types, scores, ids })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The token with this spelling.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// A token's spelling and type.
    pub(super) fn get(&self, id: u32) -> Option<(&str, TokenType)> {
        let id = id as usize;
        Some((self.tokens.get(id)?, *self.types.get(id)?))
    }

    /// Ids, spellings and types.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenType)> {
        (0..).zip(&self.tokens).zip(&self.types).map(|((id, text), &ty)| (id, text.as_str(), ty))
    }

    /// The tokens whose text says that they end a generation.
    pub(super) fn named_ends(&self) -> impl Iterator<Item = u32> {
        END_TEXTS.iter().filter_map(|text| self.id(text))
    }
}

/// An error about a key.
pub(super) fn fault(m: &Metadata, key: &str, message: impl Into<String>) -> Error {
    m.locate(Error::new(ErrorKind::Tokenizer, message), key)
}

/// The same for one entry of an array.
pub(super) fn fault_at(m: &Metadata, key: &str, i: usize, value: &str, message: impl Into<String>) -> Error {
    fault(m, key, message).field(format!("{key}[{i}]")).value(quoted(value))
}

fn tokens(m: &Metadata) -> Result<(Vec<String>, HashMap<String, u32>), Error> {
    let mut tokens = m.array_str(TOKENS_KEY)?.to_vec();
    if tokens.is_empty() {
        return Err(fault(m, TOKENS_KEY, "there are no tokens"));
    }
    let mut ids = HashMap::with_capacity(tokens.len());
    for (i, token) in tokens.iter_mut().enumerate() {
        if token.is_empty() {
            // A token without text cannot be found in any; llama.cpp gives it this name.
            *token = format!("[EMPTY_{i}]");
        }
        if let Some(first) = ids.insert(token.clone(), i as u32) {
            return Err(fault_at(m, TOKENS_KEY, i, token, format!("the same token as {first}")));
        }
    }
    Ok((tokens, ids))
}

fn token_types(m: &Metadata, tokens: &[String]) -> Result<Vec<TokenType>, Error> {
    let mut types = vec![TokenType::Normal; tokens.len()];
    if let Some(ids) = m.opt_array_i32(TYPES_KEY)? {
        if ids.len() != tokens.len() {
            return Err(fault(m, TYPES_KEY, format!("{} types for {} tokens", ids.len(), tokens.len())));
        }
        for (i, (&id, token)) in ids.iter().zip(tokens).enumerate() {
            types[i] = TokenType::from_id(id).ok_or_else(|| {
                fault(m, TYPES_KEY, "unknown token type").field(format!("{TYPES_KEY}[{i}]")).value(id)
            })?;
            if types[i] == TokenType::Byte && byte_of(token).is_none() {
                return Err(fault_at(m, TOKENS_KEY, i, token, "a byte token is spelled <0x00> to <0xFF>"));
            }
        }
    }
    for (ty, token) in types.iter_mut().zip(tokens) {
        if END_TEXTS.contains(&token.as_str()) {
            *ty = TokenType::Control;
        }
    }
    Ok(types)
}

fn scores(m: &Metadata, tokens: &[String]) -> Result<Option<Vec<f32>>, Error> {
    let Some(scores) = m.opt_array_f32(SCORES_KEY)? else {
        return Ok(None);
    };
    if scores.len() != tokens.len() {
        return Err(fault(m, SCORES_KEY, format!("{} scores for {} tokens", scores.len(), tokens.len())));
    }
    if let Some(i) = scores.iter().position(|s| s.is_nan()) {
        return Err(fault_at(m, SCORES_KEY, i, &tokens[i], "this token's score is NaN"));
    }
    Ok(Some(scores.to_vec()))
}

/// The byte of a byte token.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` alone would take a sign.
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The spelling of a byte token.
pub(super) fn byte_text(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}
