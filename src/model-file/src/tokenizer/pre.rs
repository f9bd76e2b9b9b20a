//! Pre-tokenizers: how byte-level BPE cuts a text into words before it merges inside them.
//!
//! The regular expressions are those of llama.cpp, whose own engine for them knows Unicode's categories as
//! of version 15. Letters, digits and punctuation that version 16 added are no such for it and are for us;
//! no other character is cut differently.

use fancy_regex::Regex;

use super::vocabulary::fault;
use crate::error::Error;
use crate::gguf::Metadata;

const PRE_KEY: &str = "tokenizer.ggml.pre";

/// GPT-2's splitting into words, as llama.cpp spells it: a space stays with the word after it.
const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// Qwen2's: contractions in either case, digits one by one, line ends with what precedes them.
const QWEN2_WORDS: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Llama 3's: the same but for digits, which come in threes from the left.
const LLAMA3_WORDS: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A pre-tokenizer as it is written down.
struct Rule {
    /// The value of `tokenizer.ggml.pre`.
    name: &'static str,
    /// Applied one after the other, each to the pieces that the one before left. Matches and the text
    /// between them become pieces.
    expressions: &'static [&'static str],
    /// Whether a word that is a token as a whole is that token, even if no merges lead to it.
    whole_words: bool,
    /// Whether a begin-of-sequence token is added where the file says nothing.
    add_bos: bool,
}

const RULES: &[Rule] = &[
    // llama.cpp's fallback: punctuation and operators apart, words, digits apart in threes.
    Rule {
        name: "default",
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"],
        whole_words: false,
        add_bos: false,
    },
    // Every digit on its own, then words.
    Rule { name: "smollm", expressions: &[r"\p{N}", GPT2_WORDS], whole_words: false, add_bos: false },
    Rule { name: "qwen2", expressions: &[QWEN2_WORDS], whole_words: false, add_bos: false },
    Rule { name: "llama-bpe", expressions: &[LLAMA3_WORDS], whole_words: true, add_bos: true },
    Rule { name: "gpt-2", expressions: &[GPT2_WORDS], whole_words: false, add_bos: false },
];

/// A pre-tokenizer ready for use.
pub(super) struct PreTokenizer {
    pub(super) name: &'static str,
    pub(super) whole_words: bool,
    pub(super) add_bos: bool,
    expressions: Vec<Regex>,
}

impl PreTokenizer {
    /// The one that the file names. Files older than the key mean the fallback.
    pub(super) fn read(m: &Metadata) -> Result<Self, Error> {
        let name = m.opt_str(PRE_KEY)?.unwrap_or("default");
        let Some(rule) = RULES.iter().find(|rule| rule.name == name) else {
            let known: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
            let message = format!("this pre-tokenizer is not implemented; {} are", known.join(", "));
            return Err(m.locate(Error::unsupported(message), PRE_KEY));
        };
        let expressions = rule
            .expressions
            .iter()
            .map(|e| Regex::new(e).map_err(|e| fault(m, PRE_KEY, e.to_string())))
            .collect::<Result<_, _>>()?;
        Ok(Self { name: rule.name, whole_words: rule.whole_words, add_bos: rule.add_bos, expressions })
    }

    /// A text's words; together they are the text. An error where an expression gives up, on runs of
    /// about a million spaces.
    pub(super) fn words<'t>(&self, text: &'t str) -> Result<Vec<&'t str>, Box<fancy_regex::Error>> {
        let mut words = vec![text];
        for expression in &self.expressions {
            let mut pieces = Vec::with_capacity(words.len());
            for word in words {
                let mut done = 0;
                for found in expression.find_iter(word) {
                    let found = found.map_err(Box::new)?;
                    pieces.push(&word[done..found.start()]);
                    pieces.push(found.as_str());
                    done = found.end();
                }
                pieces.push(&word[done..]);
            }
            pieces.retain(|piece| !piece.is_empty());
            words = pieces;
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    fn pre_tokenizer(name: &str) -> PreTokenizer {
        let mut m = Metadata::new();
        m.insert(PRE_KEY, name);
        PreTokenizer::read(&m).unwrap()
    }

    #[track_caller]
    fn check(name: &str, text: &str, words: &[&str]) {
        assert_eq!(pre_tokenizer(name).words(text).unwrap(), words, "{name}");
    }

    #[test]
    fn words_are_cut_as_in_llama_cpp() {
        check("default", "15*23?", &["15", "*", "23", "?"]);
        check(
            "default",
            "Don't pay $12345, ok?",
            &["Don", "'", "t", " pay", " ", "$", "123", "45", ",", " ok", "?"],
        );
        check("default", "a\n\nb   c  ", &["a", "\n", "\n", "b", "  ", " c", "  "]);
        check("smollm", "Don't pay $123, ok?", &["Don", "'t", " pay", " $", "1", "2", "3", ",", " ok", "?"]);
        check("smollm", "x 1", &["x", " ", "1"]);
        check("gpt-2", "I'LL we'll 1234\n\n x", &["I", "'", "LL", " we", "'ll", " 1234", "\n\n", " x"]);
        check("qwen2", "I'LL pay (12)\n\n  x", &["I", "'LL", " pay", " (", "1", "2", ")\n\n", " ", " x"]);
        check("llama-bpe", "1234567 \r\n.x", &["123", "456", "7", " \r\n", ".x"]);
    }

    #[test]
    fn a_run_too_long_for_the_expressions_is_an_error_and_no_other_tokens() {
        let long = " ".repeat(2_000_000) + "x";
        assert!(pre_tokenizer("gpt-2").words(&long).is_err());
        let long = " ".repeat(200_000) + "x";
        assert_eq!(pre_tokenizer("gpt-2").words(&long).unwrap().len(), 2);
    }

    static ALL: LazyLock<Vec<PreTokenizer>> =
        LazyLock::new(|| RULES.iter().map(|rule| pre_tokenizer(rule.name)).collect());

    proptest! {
        #[test]
        fn words_make_up_the_text(text in any::<String>()) {
            for pre in ALL.iter() {
                prop_assert_eq!(&pre.words(&text).unwrap().concat(), &text);
            }
        }
    }
}
