//! Byte-level BPE built from a file's own metadata.
//!
//! The merging is done by Hugging Face's `tokenizers`; this module checks the metadata, chooses the
//! pre-tokenizer and keeps the rules where llama.cpp has its own: special tokens in a text are recognised,
//! a begin-of-sequence token is added only if the file asks for it.
//!
//! Where llama.cpp silently drops characters that have no token, [`Tokenizer::encode`] is an error: a
//! prompt that lost a character would be another prompt.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use crate::byte_level;
use crate::error::{Error, ErrorKind, quoted};
use crate::gguf::{GgufFile, Metadata};
use crate::hparams::TOKENS_KEY;

const MODEL_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const MERGES_KEY: &str = "tokenizer.ggml.merges";
const ADD_BOS_KEY: &str = "tokenizer.ggml.add_bos_token";

/// GPT-2's splitting into words, as llama.cpp spells it: a space stays with the word after it.
const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// The pre-tokenizers: the name in the file and the expressions applied one after the other, each to the
/// pieces that the one before left. Matches and the text between them become pieces.
const PRE_TOKENIZERS: &[(&str, &[&str])] = &[
    // llama.cpp's fallback: punctuation and operators apart, words, digits apart in threes.
    ("default", &[r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"]),
    // Every digit on its own, then words.
    ("smollm", &[r"\p{N}", GPT2_WORDS]),
];

/// Control tokens of these texts end a generation besides those that the metadata names. Chat models end a
/// turn with one that is not their `eos`.
const END_TEXTS: &[&str] = &[
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<EOT>",
    "<eos>",
    "</s>",
];

/// What a token is for, from `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// Not said.
    Undefined,
    /// Text in the byte-level alphabet.
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

    /// Whether the token's text in a prompt means the token.
    const fn is_special(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

/// What decoding does with tokens that are no text: control, unknown and unused ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialTokens {
    /// Leave them out.
    Skip,
    /// Write them as the vocabulary does, as `<eos>`.
    Render,
}

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    file: PathBuf,
    pre: &'static str,
    tokens: Vec<String>,
    types: Vec<TokenType>,
    add_bos: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    mask: Option<u32>,
    eog: Vec<u32>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("file", &self.file)
            .field("pre", &self.pre)
            .field("n_vocab", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer that a file describes.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, Error> {
        Self::from_metadata(file.metadata(), file.path())
    }

    fn from_metadata(m: &Metadata, file: &Path) -> Result<Self, Error> {
        if m.str(MODEL_KEY)? != "gpt2" {
            let error = Error::unsupported("this tokenizer is not implemented; byte-level BPE, gpt2, is");
            return Err(m.locate(error, MODEL_KEY));
        }
        let (pre, expressions) = pre_tokenizer(m)?;
        let tokens = tokens(m)?;
        let types = token_types(m, &tokens)?;
        if let Some(scores) = m.opt_array_f32(SCORES_KEY)?.filter(|s| s.len() != tokens.len()) {
            return Err(fault(m, SCORES_KEY, format!("{} scores for {} tokens", scores.len(), tokens.len())));
        }
        let ids: HashMap<&str, u32> = tokens.iter().map(String::as_str).zip(0..).collect();
        let merges = merges(m, &ids)?;

        let id = |name: &str| token_id(m, &format!("tokenizer.ggml.{name}_token_id"), tokens.len());
        let (bos, eos) = (id("bos")?, id("eos")?);
        id("padding")?;
        id("unknown")?;
        let mask = match id("mask")? {
            Some(mask) => Some(mask),
            None => token_id(m, "diffuse.mask_token_id", tokens.len())?,
        };
        let add_bos = m.opt_bool(ADD_BOS_KEY)?.unwrap_or(false);
        if add_bos && bos.is_none() {
            return Err(fault(m, ADD_BOS_KEY, "there is no tokenizer.ggml.bos_token_id to add"));
        }
        let mut eog: Vec<u32> = eos.into_iter().chain(id("eot")?).chain(id("eom")?).collect();
        eog.extend((0..).zip(&tokens).zip(&types).filter_map(|((id, text), &ty)| {
            (ty == TokenType::Control && END_TEXTS.contains(&text.as_str())).then_some(id)
        }));
        eog.sort_unstable();
        eog.dedup();

        let inner = build(&tokens, &types, merges, expressions)
            .map_err(|e| Error::new(ErrorKind::Tokenizer, e.to_string()).file(file))?;
        Ok(Self { inner, file: file.to_path_buf(), pre, tokens, types, add_bos, bos, eos, mask, eog })
    }

    /// A text's tokens. Special tokens spelled out in the text are recognised; the begin-of-sequence token
    /// comes first if the file says so. An error if a character has no token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let fault = |message: String| Error::new(ErrorKind::Tokenizer, message).file(&self.file);
        let encoding = self.inner.encode_fast(text, false).map_err(|e| fault(e.to_string()))?;
        let ids = encoding.get_ids();

        let spelled = self.decode_bytes(ids, SpecialTokens::Render);
        if spelled != text.as_bytes() {
            let same = spelled.iter().zip(text.as_bytes()).take_while(|(a, b)| a == b).count();
            let (at, lost) = text.char_indices().take_while(|(i, _)| *i <= same).last().unwrap_or_default();
            return Err(fault(format!(
                "the vocabulary has no token for {} at byte {at} of the text",
                quoted(lost.encode_utf8(&mut [0; 4]))
            )));
        }

        let bos = self.bos.filter(|_| self.add_bos);
        Ok(bos.into_iter().chain(ids.iter().copied()).collect())
    }

    /// The text of tokens, without control and unused ones. Bytes that are no UTF-8 become U+FFFD, as do
    /// ids outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_with(ids, SpecialTokens::Skip)
    }

    /// The text of tokens, with control and unused ones left out or written as the vocabulary does.
    pub fn decode_with(&self, ids: &[u32], special: SpecialTokens) -> String {
        String::from_utf8_lossy(&self.decode_bytes(ids, special)).into_owned()
    }

    fn decode_bytes(&self, ids: &[u32], special: SpecialTokens) -> Vec<u8> {
        let mut out = Vec::new();
        for &id in ids {
            let Some((text, &ty)) = self.token_text(id).zip(self.types.get(id as usize)) else {
                out.extend_from_slice("\u{FFFD}".as_bytes());
                continue;
            };
            match ty {
                TokenType::Normal | TokenType::Undefined => {
                    for c in text.chars() {
                        match byte_level::to_byte(c) {
                            Some(byte) => out.push(byte),
                            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                        }
                    }
                }
                TokenType::UserDefined => out.extend_from_slice(text.as_bytes()),
                TokenType::Byte => out.extend(byte_of(text)),
                TokenType::Unknown | TokenType::Control | TokenType::Unused => {
                    if special == SpecialTokens::Render {
                        out.extend_from_slice(text.as_bytes());
                    }
                }
            }
        }
        out
    }

    /// A token as the vocabulary spells it, in the byte-level alphabet.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    /// What a token is for.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// The token with this spelling.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.tokens.len()
    }

    /// The pre-tokenizer's name.
    pub fn pre_tokenizer(&self) -> &'static str {
        self.pre
    }

    /// The tokens that end a generation, ascending: those that the metadata names as end of sequence, of
    /// turn or of message, and control tokens with a name in common use for it.
    pub fn eog_ids(&self) -> &[u32] {
        &self.eog
    }

    /// The begin-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// The mask token of a masked-diffusion model.
    pub fn mask_id(&self) -> Option<u32> {
        self.mask
    }
}

fn fault(m: &Metadata, key: &str, message: impl Into<String>) -> Error {
    m.locate(Error::new(ErrorKind::Tokenizer, message), key)
}

/// The same for one entry of an array.
fn fault_at(m: &Metadata, key: &str, i: usize, value: &str, message: impl Into<String>) -> Error {
    fault(m, key, message).field(format!("{key}[{i}]")).value(quoted(value))
}

fn pre_tokenizer(m: &Metadata) -> Result<(&'static str, &'static [&'static str]), Error> {
    // Files older than the key mean the fallback.
    let name = m.opt_str(PRE_KEY)?.unwrap_or("default");
    PRE_TOKENIZERS.iter().find(|(n, _)| *n == name).copied().ok_or_else(|| {
        let known: Vec<_> = PRE_TOKENIZERS.iter().map(|(n, _)| *n).collect();
        let error =
            Error::unsupported(format!("this pre-tokenizer is not implemented; {} are", known.join(", ")));
        m.locate(error, PRE_KEY)
    })
}

fn tokens(m: &Metadata) -> Result<Vec<String>, Error> {
    let tokens = m.array_str(TOKENS_KEY)?;
    if tokens.is_empty() {
        return Err(fault(m, TOKENS_KEY, "there are no tokens"));
    }
    let mut seen = HashMap::with_capacity(tokens.len());
    for (i, token) in tokens.iter().enumerate() {
        if let Some(first) = seen.insert(token, i) {
            return Err(fault_at(m, TOKENS_KEY, i, token, format!("the same token as {first}")));
        }
    }
    Ok(tokens.to_vec())
}

fn token_types(m: &Metadata, tokens: &[String]) -> Result<Vec<TokenType>, Error> {
    let Some(ids) = m.opt_array_i32(TYPES_KEY)? else {
        return Ok(vec![TokenType::Normal; tokens.len()]);
    };
    if ids.len() != tokens.len() {
        return Err(fault(m, TYPES_KEY, format!("{} types for {} tokens", ids.len(), tokens.len())));
    }
    let mut types = Vec::with_capacity(ids.len());
    for (i, (&id, token)) in ids.iter().zip(tokens).enumerate() {
        let ty = TokenType::from_id(id).ok_or_else(|| {
            fault(m, TYPES_KEY, "unknown token type").field(format!("{TYPES_KEY}[{i}]")).value(id)
        })?;
        if ty == TokenType::Byte && byte_of(token).is_none() {
            return Err(fault_at(m, TOKENS_KEY, i, token, "a byte token is spelled <0x00> to <0xFF>"));
        }
        types.push(ty);
    }
    Ok(types)
}

/// The byte of a byte token.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` alone would take a sign.
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

fn merges(m: &Metadata, ids: &HashMap<&str, u32>) -> Result<Vec<(String, String)>, Error> {
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
            if !ids.contains_key(part) {
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

fn token_id(m: &Metadata, key: &str, n: usize) -> Result<Option<u32>, Error> {
    match m.opt_u32(key)? {
        Some(id) if id as usize >= n => Err(fault(m, key, format!("outside the vocabulary of {n}"))),
        id => Ok(id),
    }
}

fn build(
    tokens: &[String],
    types: &[TokenType],
    merges: Vec<(String, String)>,
    expressions: &[&str],
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let vocabulary: Vocab = tokens.iter().cloned().zip(0..).collect();
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);

    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for &expression in expressions {
        let pattern = SplitPattern::Regex(expression.to_string());
        steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
    }
    steps.push(ByteLevel::new(false, false, false).into());
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));

    let special: Vec<AddedToken> = tokens
        .iter()
        .zip(types)
        .filter(|(text, ty)| ty.is_special() && !text.is_empty())
        .map(|(text, _)| AddedToken::from(text.clone(), true))
        .collect();
    tokenizer.add_special_tokens(&special);
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    /// `pad eos mask bos`, single characters, two merges, a byte token, an unused one.
    fn metadata() -> Metadata {
        let tokens =
            ["<pad>", "<eos>", "<mask>", "<bos>", "a", "b", "Ġ", "ab", "Ġab", "<0x0A>", "<unused>", "<tag>"];
        let types = [3, 3, 3, 3, 1, 1, 1, 1, 1, 6, 5, 4];
        let mut m = Metadata::new();
        m.insert(MODEL_KEY, "gpt2");
        m.insert(PRE_KEY, "default");
        m.insert(TOKENS_KEY, tokens.map(String::from).to_vec());
        m.insert(TYPES_KEY, types.to_vec());
        m.insert(MERGES_KEY, vec!["a b".to_string(), "Ġ ab".to_string()]);
        m.insert("tokenizer.ggml.bos_token_id", 3u32);
        m.insert("tokenizer.ggml.eos_token_id", 1u32);
        m.insert("tokenizer.ggml.mask_token_id", 2u32);
        m
    }

    fn with(key: &str, value: impl Into<Value>) -> Result<Tokenizer, Error> {
        let mut m = metadata();
        m.insert(key, value);
        Tokenizer::from_metadata(&m, Path::new("x.gguf"))
    }

    fn without(key: &str) -> Result<Tokenizer, Error> {
        let full = metadata();
        let mut m = Metadata::new();
        for (k, v) in full.iter().filter(|(k, _)| *k != key) {
            m.insert(k, v.clone());
        }
        Tokenizer::from_metadata(&m, Path::new("x.gguf"))
    }

    #[test]
    fn encodes_with_merges_and_special_tokens() {
        let t = with(ADD_BOS_KEY, false).unwrap();
        assert_eq!(t.encode("ab ab").unwrap(), [7, 8]);
        assert_eq!(t.encode("<bos>ab<mask><tag>a<eos>").unwrap(), [3, 7, 2, 11, 4, 1]);
        assert_eq!(t.encode("").unwrap(), [0u32; 0]);
        assert_eq!(t.eog_ids(), [1]);
        assert_eq!(t.mask_id(), Some(2));
        assert_eq!(t.token_text(8), Some("Ġab"));
        assert_eq!(t.token_text(99), None);
    }

    #[test]
    fn bos_comes_first_only_if_the_file_says_so() {
        assert_eq!(with(ADD_BOS_KEY, true).unwrap().encode("a").unwrap(), [3, 4]);
        assert_eq!(without(ADD_BOS_KEY).unwrap().encode("a").unwrap(), [4]);
    }

    #[test]
    fn decodes_bytes_and_skips_or_renders_special_tokens() {
        let t = without(ADD_BOS_KEY).unwrap();
        let ids = [3, 7, 8, 9, 10, 11, 1, 77];
        assert_eq!(t.decode(&ids), "ab ab\n<tag>\u{FFFD}");
        assert_eq!(t.decode_with(&ids, SpecialTokens::Render), "<bos>ab ab\n<unused><tag><eos>\u{FFFD}");
    }

    #[test]
    fn a_character_without_a_token_is_an_error_that_names_it() {
        let t = without(ADD_BOS_KEY).unwrap();
        let e = t.encode("ab é").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Tokenizer);
        assert_eq!(e.message(), "the vocabulary has no token for \"é\" at byte 3 of the text");
    }

    #[test]
    fn bad_metadata_is_refused_by_name() {
        let strings = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let mut twice = metadata().array_str(TOKENS_KEY).unwrap().to_vec();
        twice[5] = "a".into();
        let mut byte = metadata().array_str(TOKENS_KEY).unwrap().to_vec();
        byte[9] = "<0x-1>".into();
        let mut types = metadata().array_i32(TYPES_KEY).unwrap().to_vec();
        types[6] = 9;

        let cases: Vec<(Result<Tokenizer, Error>, &str)> = vec![
            (
                with(MODEL_KEY, "llama"),
                r#"field tokenizer.ggml.model: value "llama": this tokenizer is not implemented"#,
            ),
            (
                with(PRE_KEY, "qwen9"),
                r#"field tokenizer.ggml.pre: value "qwen9": this pre-tokenizer is not implemented; default, smollm are"#,
            ),
            (with(PRE_KEY, 3u32), "field tokenizer.ggml.pre: value 3: is of type u32, must be string"),
            (without(MODEL_KEY), "field tokenizer.ggml.model: missing"),
            (without(TOKENS_KEY), "field tokenizer.ggml.tokens: missing"),
            (without(MERGES_KEY), "field tokenizer.ggml.merges: missing"),
            (with(MERGES_KEY, Vec::<String>::new()), "there are no merges"),
            (
                with(MERGES_KEY, strings(&["ab"])),
                r#"field tokenizer.ggml.merges[0]: value "ab": a merge is two tokens"#,
            ),
            (
                with(MERGES_KEY, strings(&["a b", "b a"])),
                r#"merges[1]: value "b a": "ba" is not in the vocabulary"#,
            ),
            (with(MERGES_KEY, strings(&["a b", "a b"])), "the merge occurs twice"),
            (with(TOKENS_KEY, Vec::<String>::new()), "there are no tokens"),
            (with(TOKENS_KEY, vec![1i32]), "is of type array of i32, must be array of string"),
            (with(TOKENS_KEY, twice), r#"field tokenizer.ggml.tokens[5]: value "a": the same token as 4"#),
            (with(TOKENS_KEY, byte), r#"field tokenizer.ggml.tokens[9]: value "<0x-1>": a byte token"#),
            (with(TYPES_KEY, vec![1.0f32; 12]), "is of type array of f32, must be array of i32"),
            (with(TYPES_KEY, vec![1i32; 3]), "3 types for 12 tokens"),
            (with(TYPES_KEY, types), "field tokenizer.ggml.token_type[6]: value 9: unknown token type"),
            (with(SCORES_KEY, strings(&["x"])), "is of type array of string, must be array of f32"),
            (with(SCORES_KEY, vec![0.0f32; 2]), "2 scores for 12 tokens"),
            (
                with("tokenizer.ggml.bos_token_id", 12u32),
                "field tokenizer.ggml.bos_token_id: value 12: outside the vocabulary of 12",
            ),
            (with("tokenizer.ggml.eos_token_id", u32::MAX), "value 4294967295: outside the vocabulary of 12"),
            (with("tokenizer.ggml.mask_token_id", 64u32), "value 64: outside the vocabulary of 12"),
            (with("tokenizer.ggml.eos_token_id", "1"), "is of type string, must be u32"),
            (with(ADD_BOS_KEY, 1u32), "is of type u32, must be bool"),
        ];
        for (result, expected) in cases {
            let message = result.expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
        }
    }

    /// The pieces a pre-tokenizer makes, spaces shown as `Ġ`.
    fn pieces(pre: &str, text: &str) -> Vec<String> {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
        let t = with(PRE_KEY, pre).unwrap();
        let mut pieces = PreTokenizedString::from(text);
        t.inner.get_pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(s, _, _)| s.to_string()).collect()
    }

    #[test]
    fn pre_tokenizers_split_as_llama_cpp_does() {
        assert_eq!(pieces("default", "15*23?"), ["15", "*", "23", "?"]);
        assert_eq!(
            pieces("default", "Don't pay $12345, ok?"),
            ["Don", "'", "t", "Ġpay", "Ġ", "$", "123", "45", ",", "Ġok", "?"]
        );
        assert_eq!(pieces("default", "a\n\nb   c  "), ["a", "Ċ", "Ċ", "b", "ĠĠ", "Ġc", "ĠĠ"]);
        assert_eq!(
            pieces("smollm", "Don't pay $12345, ok?"),
            ["Don", "'t", "Ġpay", "Ġ$", "1", "2", "3", "4", "5", ",", "Ġok", "?"]
        );
        assert_eq!(pieces("smollm", "x 1"), ["x", "Ġ", "1"]);
    }
}
