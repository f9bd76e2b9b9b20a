//! What the tokenizer as a whole promises, on small vocabularies.

use std::path::Path;

use super::*;
use crate::Value;

const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const MERGES_KEY: &str = "tokenizer.ggml.merges";
const ADD_BOS_KEY: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS_KEY: &str = "tokenizer.ggml.add_eos_token";

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
            with(MODEL_KEY, "bert"),
            r#"x.gguf: field tokenizer.ggml.model: value "bert": this tokenizer is not implemented"#,
        ),
        (
            with(PRE_KEY, "qwen9"),
            r#"x.gguf: field tokenizer.ggml.pre: value "qwen9": this pre-tokenizer is not implemented; default, smollm, qwen2, llama-bpe, gpt-2 are"#,
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
        (
            with(ADD_EOS_KEY, "yes"),
            "field tokenizer.ggml.add_eos_token: value \"yes\": is of type string, must be bool",
        ),
        (
            with(SCORES_KEY, [vec![0.0; 11], vec![f32::NAN]].concat()),
            r#"field tokenizer.ggml.scores[11]: value "<tag>": this token's score is NaN"#,
        ),
        (with(MODEL_KEY, "llama"), "field tokenizer.ggml.scores: missing, a score for each token is needed"),
        (with("tokenizer.chat_template", 1u32), "field tokenizer.chat_template: value 1: is of type u32"),
    ];
    for (result, expected) in cases {
        let message = result.expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
    }
}

#[test]
fn eos_comes_last_if_the_file_says_so_and_neither_if_not_wanted() {
    let mut m = metadata();
    m.insert(ADD_BOS_KEY, true);
    m.insert(ADD_EOS_KEY, true);
    let t = Tokenizer::from_metadata(&m, Path::new("x.gguf")).unwrap();
    assert_eq!(t.encode("a").unwrap(), [3, 4, 1]);
    assert_eq!(t.encode("").unwrap(), [3, 1]);
    let bare = EncodeOptions { add_special: false, parse_special: true };
    assert_eq!(t.encode_with("a", bare).unwrap(), [4]);
}

#[test]
fn a_flag_without_its_token_is_an_error() {
    let mut m = Metadata::new();
    for (k, v) in metadata().iter().filter(|(k, _)| !k.ends_with("bos_token_id")) {
        m.insert(k, v.clone());
    }
    // Llama 3's pre-tokenizer adds a begin of sequence unless the file says otherwise.
    m.insert(PRE_KEY, "llama-bpe");
    let e = Tokenizer::from_metadata(&m, Path::new("x.gguf")).unwrap_err();
    assert_eq!(
        e.to_string(),
        "x.gguf: field tokenizer.ggml.add_bos_token: there is no tokenizer.ggml.bos_token_id to add"
    );
    m.insert(ADD_BOS_KEY, false);
    assert_eq!(Tokenizer::from_metadata(&m, Path::new("x.gguf")).unwrap().encode("a").unwrap(), [4]);
}

#[test]
fn llama_3_takes_whole_words_and_adds_bos() {
    let mut m = metadata();
    m.insert(MERGES_KEY, vec!["a b".to_string()]);
    for (pre, expected) in [("gpt-2", vec![6, 7]), ("llama-bpe", vec![3, 8])] {
        m.insert(PRE_KEY, pre);
        let t = Tokenizer::from_metadata(&m, Path::new("x.gguf")).unwrap();
        assert_eq!(t.encode(" ab").unwrap(), expected, "{pre}");
    }
}

#[test]
fn texts_that_end_a_generation_are_control_tokens_whatever_their_type() {
    let mut m = metadata();
    let mut tokens = m.array_str(TOKENS_KEY).unwrap().to_vec();
    tokens[11] = "<|im_end|>".into();
    m.insert(TOKENS_KEY, tokens);
    let t = Tokenizer::from_metadata(&m, Path::new("x.gguf")).unwrap();
    assert_eq!((t.token_type(11), t.eog_ids()), (Some(TokenType::Control), &[1, 11][..]));
}

/// Pieces in which the best pair is not the leftmost, and bytes for `é` only.
fn sentence_piece(keys: &[(&str, bool)]) -> Tokenizer {
    let pieces: [(&str, i32, f32); 15] = [
        ("<unk>", 2, 0.0),
        ("<s>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("<0xC3>", 6, 0.0),
        ("<0xA9>", 6, 0.0),
        ("▁", 1, -9.0),
        ("a", 1, -9.0),
        ("b", 1, -9.0),
        ("c", 1, -9.0),
        ("ab", 1, -2.0),
        ("bc", 1, -1.0),
        ("▁a", 1, -3.0),
        ("▁ab", 1, -4.0),
        ("▁▁", 1, -0.5),
        ("<tag>", 4, 0.0),
    ];
    let mut m = Metadata::new();
    m.insert(MODEL_KEY, "llama");
    m.insert(TOKENS_KEY, pieces.map(|p| p.0.to_string()).to_vec());
    m.insert(TYPES_KEY, pieces.map(|p| p.1).to_vec());
    m.insert(SCORES_KEY, pieces.map(|p| p.2).to_vec());
    m.insert("tokenizer.ggml.bos_token_id", 1u32);
    m.insert("tokenizer.ggml.eos_token_id", 2u32);
    for &(key, value) in keys {
        m.insert(key, value);
    }
    Tokenizer::from_metadata(&m, Path::new("x.gguf")).unwrap()
}

#[test]
fn sentence_piece_joins_the_best_pair_first() {
    let t = sentence_piece(&[]);
    // bos is added unless the file says otherwise, and a space; "bc" scores higher than "ab".
    assert_eq!(t.encode("abc").unwrap(), [1, 11, 10]);
    assert_eq!(t.encode("ab").unwrap(), [1, 12]);
    // Two spaces score highest, the leftmost two of three come first.
    assert_eq!(t.encode("  ab").unwrap(), [1, 13, 12]);
    // The space comes again after a special token; bytes where there is no piece.
    assert_eq!(t.encode("é<s>b<tag>b").unwrap(), [1, 5, 3, 4, 1, 5, 7, 14, 5, 7]);
    assert_eq!(t.decode(&[1, 5, 3, 4, 1, 5, 7, 14, 5, 7]), "éb<tag>b");
    assert_eq!(t.decode(&t.encode("  ab c").unwrap()), "  ab c");

    let t = sentence_piece(&[
        ("tokenizer.ggml.add_space_prefix", false),
        (ADD_BOS_KEY, false),
        (ADD_EOS_KEY, true),
    ]);
    assert_eq!(t.encode("abc").unwrap(), [6, 10, 2]);
    assert_eq!(t.decode(&[5, 7]), " b");
}

#[test]
fn a_byte_without_a_token_is_an_error_that_names_the_character() {
    let e = sentence_piece(&[]).encode("<s>a bü").unwrap_err();
    assert_eq!(e.to_string(), "x.gguf: the vocabulary has no token for \"ü\" at byte 6 of the text");
}

#[test]
fn the_longest_spelling_wins_even_where_another_begins_before_it() {
    let mut m = metadata();
    let mut tokens = m.array_str(TOKENS_KEY).unwrap().to_vec();
    tokens[11] = "sk><bos>".into();
    m.insert(TOKENS_KEY, tokens);
    m.insert(TYPES_KEY, vec![3, 3, 3, 3, 1, 1, 1, 1, 1, 6, 5, 3]);
    let t = Tokenizer::from_metadata(&m, Path::new("x.gguf")).unwrap();
    let split = t.spellings.split("a<mask><bos><eos>", true);
    assert_eq!(split, [Piece::Text(0, "a<ma"), Piece::Token(11), Piece::Token(1)]);
    assert_eq!(t.spellings.split("<bos>", false), [Piece::Text(0, "<bos>")]);
    assert_eq!(t.spellings.split("", true), []);
}
