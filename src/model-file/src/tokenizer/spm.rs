//! SentencePiece's BPE, `tokenizer.ggml.model = llama`: of all neighbours that together are a token, the
//! pair with the highest score is joined first. Spaces are written `▁`; a character without a token is
//! written in byte tokens.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Lost;
use super::vocabulary::{SCORES_KEY, Vocabulary, byte_text, fault};
use crate::error::Error;
use crate::gguf::Metadata;

const ADD_SPACE_PREFIX_KEY: &str = "tokenizer.ggml.add_space_prefix";

/// How a space is spelled.
pub(super) const SPACE: char = '▁';

pub(super) struct Spm {
    /// Whether a space is put before the text, and before each text that follows a special token.
    pub(super) add_space_prefix: bool,
    scores: Vec<f32>,
    /// The byte tokens, by byte.
    bytes: Box<[Option<u32>; 256]>,
}

impl Spm {
    pub(super) fn read(m: &Metadata, vocabulary: &Vocabulary) -> Result<Self, Error> {
        let Some(scores) = vocabulary.scores.clone() else {
            return Err(fault(m, SCORES_KEY, "missing, a score for each token is needed"));
        };
        let mut bytes = Box::new([None; 256]);
        for (byte, id) in (0..=u8::MAX).zip(bytes.iter_mut()) {
            let plain = || vocabulary.id(char::from(byte).encode_utf8(&mut [0; 2]));
            *id = vocabulary.id(&byte_text(byte)).or_else(|| byte.is_ascii().then(plain).flatten());
        }
        let add_space_prefix = m.opt_bool(ADD_SPACE_PREFIX_KEY)?.unwrap_or(true);
        Ok(Self { add_space_prefix, scores, bytes })
    }

    /// The tokens of a text without special tokens; `first` where it begins the text or follows a special
    /// token. The error says which character has none and where in the text it stands, in bytes.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        first: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), Lost> {
        let prefix = if first && self.add_space_prefix { " " } else { "" };
        let spelled = format!("{prefix}{text}").replace(' ', SPACE.encode_utf8(&mut [0; 4]));
        for piece in Merging::new(self, vocabulary, &spelled).run() {
            if let Some(id) = vocabulary.id(&spelled[piece.clone()]) {
                out.push(id);
                continue;
            }
            for byte in spelled[piece.clone()].bytes() {
                out.push(self.bytes[usize::from(byte)].ok_or_else(|| {
                    // The place in the text as it was: each space has become three bytes.
                    let before = &spelled[..piece.start];
                    let at = before.replace(SPACE, " ").len().saturating_sub(prefix.len());
                    Lost::Character { at, c: spelled[piece.clone()].chars().next().unwrap_or_default() }
                })?);
            }
        }
        Ok(())
    }
}

/// A stretch of the text that is a token or a single character; joined to its left neighbour it is empty.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that together are a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Pair {
    /// The highest score is greatest, of equal ones the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        // Scores are never NaN; 0 and -0 are equal.
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score.then(other.left.cmp(&self.left)).then(self.len.cmp(&other.len))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

struct Merging<'a> {
    spm: &'a Spm,
    vocabulary: &'a Vocabulary,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
}

impl<'a> Merging<'a> {
    fn new(spm: &'a Spm, vocabulary: &'a Vocabulary, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = Vec::new();
        for (i, (start, c)) in text.char_indices().enumerate() {
            let next = (start + c.len_utf8() < text.len()).then_some(i + 1);
            symbols.push(Symbol { start, len: c.len_utf8(), previous: i.checked_sub(1), next });
        }
        Self { spm, vocabulary, text, symbols, queue: BinaryHeap::new() }
    }

    /// The stretches that are left when nothing can be joined any more.
    fn run(mut self) -> impl Iterator<Item = std::ops::Range<usize>> {
        for i in 1..self.symbols.len() {
            self.offer(Some(i - 1), Some(i));
        }
        while let Some(pair) = self.queue.pop() {
            let [left, right] = [&self.symbols[pair.left], &self.symbols[pair.right]];
            // One of them has been joined to another since.
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            let next = right.next;
            self.symbols[pair.right].len = 0;
            self.symbols[pair.left].len = pair.len;
            self.symbols[pair.left].next = next;
            if let Some(next) = next {
                self.symbols[next].previous = Some(pair.left);
            }
            self.offer(self.symbols[pair.left].previous, Some(pair.left));
            self.offer(Some(pair.left), next);
        }
        self.symbols.into_iter().filter(|s| s.len > 0).map(|s| s.start..s.start + s.len)
    }

    fn offer(&mut self, left: Option<usize>, right: Option<usize>) {
        let Some((left, right)) = left.zip(right) else { return };
        let start = self.symbols[left].start;
        let len = self.symbols[left].len + self.symbols[right].len;
        if let Some(id) = self.vocabulary.id(&self.text[start..start + len]) {
            self.queue.push(Pair { score: self.spm.scores[id as usize], left, right, len });
        }
    }
}
