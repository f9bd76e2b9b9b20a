//! The vocabulary of generated models: a working byte-level BPE of any size from 8 tokens up.

use std::collections::HashSet;

use crate::byte_level;

/// Padding token.
pub(super) const PAD: u32 = 0;
/// End of sequence.
pub(super) const EOS: u32 = 1;
/// Mask token.
pub(super) const MASK: u32 = 2;
/// Begin of sequence.
pub(super) const BOS: u32 = 3;
/// The four special tokens, three characters and one merge.
pub(super) const SMALLEST: usize = 8;

const SPECIAL: [&str; 4] = ["<pad>", "<eos>", "<mask>", "<bos>"];

/// GGUF's token types.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// Characters in the order in which they get a token: the most useful first, then the rest of printable
/// ASCII, then all other bytes.
const FIRST: &[u8] = b" etaoinshrdlcumwfgypbvk0123456789+-*/=?.,!\n\t'\"()ABCDEFGHIJKLMNOPQRSTUVWXYZjxqz";

/// Pairs in the order in which they get a merge, where both halves have a token.
const PAIRS: &[(&str, &str)] = &[
    ("Ġ", "t"),
    ("h", "e"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġ", "a"),
    ("a", "t"),
    ("e", "n"),
    ("Ġt", "he"),
    ("o", "r"),
    ("i", "s"),
    ("Ġ", "s"),
    ("o", "u"),
    ("Ġ", "c"),
    ("in", "g"),
    ("e", "d"),
    ("Ġ", "w"),
    ("i", "t"),
    ("a", "l"),
    ("Ġ", "o"),
    ("an", "d"),
    ("e", "s"),
    ("a", "r"),
    ("Ġ", "p"),
    ("Ġ", "b"),
    ("Ġo", "f"),
    ("a", "b"),
    ("Ġ", "in"),
    ("i", "on"),
    ("Ġ", "m"),
    ("a", "s"),
    ("l", "e"),
    ("Ġ", "f"),
    ("i", "c"),
    ("Ġ", "and"),
    ("l", "l"),
    ("o", "m"),
    ("en", "t"),
    ("Ġt", "o"),
    ("c", "t"),
    ("Ġ", "he"),
    ("v", "er"),
    ("Ġ", "is"),
    ("t", "h"),
    ("Ġt", "h"),
    ("at", "ion"),
    ("Ġth", "at"),
    ("Ġ", "re"),
];

/// Token texts, their types, and the merges.
pub(super) struct Vocabulary {
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<i32>,
    pub(super) merges: Vec<String>,
}

impl Vocabulary {
    /// A vocabulary of exactly `n` tokens, `n` at least [`SMALLEST`]: the special tokens, as many
    /// characters as leave room for a merge, merges, and unused tokens for the rest. From 261 tokens on it
    /// has every byte.
    pub(super) fn new(n: usize) -> Self {
        let mut tokens: Vec<String> = SPECIAL.map(String::from).to_vec();
        let mut types = vec![CONTROL; tokens.len()];

        // Printable ASCII, line feed and tab come first; other bytes only if all of them fit, since half of
        // a character's bytes help nobody.
        let ascii = characters(|b| (b' '..=b'~').contains(&b) || b"\n\t".contains(&b));
        let room = n - SPECIAL.len() - 1;
        let characters = if room >= 256 { characters(|_| true) } else { ascii };
        for &byte in characters.iter().take(room) {
            tokens.push(byte_level::to_char(byte).to_string());
            types.push(NORMAL);
        }

        let mut merges = Vec::new();
        let mut known: HashSet<String> = tokens.iter().cloned().collect();
        for (left, right) in PAIRS {
            let whole = format!("{left}{right}");
            if tokens.len() < n && known.contains(*left) && known.contains(*right) && !known.contains(&whole)
            {
                merges.push(format!("{left} {right}"));
                known.insert(whole.clone());
                tokens.push(whole);
                types.push(NORMAL);
            }
        }
        for i in 0..n - tokens.len() {
            tokens.push(format!("<unused{i}>"));
            types.push(UNUSED);
        }
        Self { tokens, types, merges }
    }
}

/// The wanted bytes, most useful first.
fn characters(wanted: impl Fn(u8) -> bool) -> Vec<u8> {
    let rest = (0..=u8::MAX).filter(|b| !FIRST.contains(b));
    FIRST.iter().copied().chain(rest).filter(|&b| wanted(b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_distinct_tokens_and_a_merge() {
        for n in (SMALLEST..400).chain([5000]) {
            let v = Vocabulary::new(n);
            assert_eq!((v.tokens.len(), v.types.len()), (n, n));
            assert_eq!(v.tokens.iter().collect::<HashSet<_>>().len(), n);
            assert!(!v.merges.is_empty(), "{n}");
        }
    }

    #[test]
    fn the_presets_vocabulary_has_all_of_printable_ascii() {
        let v = Vocabulary::new(130);
        for byte in (b' '..=b'~').chain(*b"\n\t") {
            assert!(v.tokens.contains(&byte_level::to_char(byte).to_string()), "{byte}");
        }
        assert!(!v.types.contains(&UNUSED));
    }

    #[test]
    fn a_large_vocabulary_has_every_byte() {
        let v = Vocabulary::new(261);
        assert!((0..=u8::MAX).all(|b| v.tokens.contains(&byte_level::to_char(b).to_string())));
    }
}
