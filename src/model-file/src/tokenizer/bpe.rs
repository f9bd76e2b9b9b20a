//! Byte-level BPE, `tokenizer.ggml.model = gpt2`.
//!
//! The merging is done by Hugging Face's `tokenizers`; this module checks the merges and spells words in
//! the byte-level alphabet.

use std::collections::HashSet;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

use super::Lost;
use super::pre::PreTokenizer;
use super::vocabulary::{Vocabulary, fault, fault_at};
use crate::byte_level;
use crate::error::{Error, quoted};
use crate::gguf::Metadata;

const MERGES_KEY: &str = "tokenizer.ggml.merges";

pub(super) struct Bpe {
    pub(super) pre: PreTokenizer,
    model: BPE,
}

impl Bpe {
    pub(super) fn read(m: &Metadata, vocabulary: &Vocabulary) -> Result<Self, Error> {
        let pre = PreTokenizer::read(m)?;
        let tokens: Vocab = vocabulary.tokens.iter().cloned().zip(0..).collect();
        let model = BPE::builder()
            .vocab_and_merges(tokens, merges(m, vocabulary)?)
            .ignore_merges(pre.whole_words)
            .build()
            .map_err(|e| fault(m, MERGES_KEY, e.to_string()))?;
        Ok(Self { pre, model })
    }

    /// The tokens of a text without special tokens. The error says which character has none and where in
    /// the text it stands, in bytes.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Lost> {
        let mut at = 0;
        for word in self.pre.words(text).map_err(|e| Lost::Other(e.to_string()))? {
            let spelled = byte_level::spell(word.as_bytes());
            let tokens = self.model.tokenize(&spelled).map_err(|e| Lost::Other(e.to_string()))?;
            // What has no token is left out by the library.
            if tokens.iter().map(|t| t.value.len()).sum::<usize>() != spelled.len() {
                let lost = word.char_indices().find(|(_, c)| !self.has_bytes(*c));
                let (i, c) = lost.or_else(|| word.char_indices().next()).unwrap_or_default();
                return Err(Lost::Character { at: at + i, c });
            }
            out.extend(tokens.iter().map(|t| t.id));
            at += word.len();
        }
        Ok(())
    }

    /// Whether each of a character's bytes has a token.
    fn has_bytes(&self, c: char) -> bool {
        let spelled = byte_level::spell(c.encode_utf8(&mut [0; 4]).as_bytes());
        spelled.chars().all(|b| self.model.token_to_id(b.encode_utf8(&mut [0; 4])).is_some())
    }
}

fn merges(m: &Metadata, vocabulary: &Vocabulary) -> Result<Vec<(String, String)>, Error> {
    let lines = m.array_str(MERGES_KEY)?;
    if lines.is_empty() {
        return Err(fault(m, MERGES_KEY, "there are no merges"));
    }
    let mut seen = HashSet::with_capacity(lines.len());
    let mut merges = Vec::with_capacity(lines.len());
    for (i, line) in lines.iter().enumerate() {
        let Some((left, right)) = line.split_once(' ').filter(|(l, r)| !l.is_empty() && !r.is_empty()) else {
            return Err(fault_at(m, MERGES_KEY, i, line, "a merge is two tokens with a space between"));
        };
        for part in [left, right, &format!("{left}{right}")] {
            if vocabulary.id(part).is_none() {
                let message = format!("{} is not in the vocabulary", quoted(part));
                return Err(fault_at(m, MERGES_KEY, i, line, message));
            }
        }
        if !seen.insert((left, right)) {
            return Err(fault_at(m, MERGES_KEY, i, line, "the merge occurs twice"));
        }
        merges.push((left.to_string(), right.to_string()));
    }
    Ok(merges)
}
