//! Makes the vocabularies of the tokenizer fixtures: a byte-level BPE reduced from SmolLM2's, and a small
//! SentencePiece one with seeded scores. `ci/tokenizer-fixtures/README.md` says how it is used.
//!
//! `cargo run --release -p model-file --example tokenizer_vocabulary -- SMOLLM2.gguf FOLDER`

use std::collections::HashSet;
use std::error::Error;
use std::path::Path;

use model_file::{GgufFile, GgufWriter, Metadata};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Merges taken over for byte-level BPE and for the pieces of SentencePiece.
const MERGES: usize = 3000;
const PIECES: usize = 2500;
/// Every so many of the later tokens that are words become tokens to which no merges lead.
const WORDS_STEP: usize = 173;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

#[derive(Default)]
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
    seen: HashSet<String>,
}

impl Vocabulary {
    fn add(&mut self, text: &str, ty: i32, score: f32) {
        if self.seen.insert(text.to_string()) {
            self.tokens.push(text.to_string());
            self.types.push(ty);
            self.scores.push(score);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder] = arguments.as_slice() else {
        return Err("usage: tokenizer_vocabulary SMOLLM2.gguf FOLDER".into());
    };
    let folder = Path::new(folder);
    let source = GgufFile::open(Path::new(model))?;
    let tokens = source.metadata().array_str("tokenizer.ggml.tokens")?;
    let merges = source.metadata().array_str("tokenizer.ggml.merges")?;

    let template = source.metadata().str("tokenizer.chat_template")?;

    let mut bpe = byte_level(tokens, merges);
    bpe.insert("tokenizer.chat_template", template);
    std::fs::write(folder.join("chat_template.jinja"), template)?;
    write(&bpe, &folder.join("bpe.gguf"))?;
    for pre in ["default", "smollm", "qwen2", "llama-bpe", "gpt-2"] {
        let mut m = bpe.clone();
        m.insert("tokenizer.ggml.pre", pre);
        write(&m, &folder.join(format!("{pre}.gguf")))?;
    }

    let spm = sentence_piece(merges);
    write(&spm, &folder.join("spm.gguf"))?;
    let mut m = spm;
    m.insert("tokenizer.ggml.add_space_prefix", false);
    write(&m, &folder.join("spm-no-prefix.gguf"))?;
    Ok(())
}

/// What llama.cpp wants to see of a model besides its vocabulary.
fn metadata(name: &str) -> Metadata {
    let mut m = Metadata::new();
    m.insert("general.architecture", "llama");
    m.insert("general.name", name);
    for (key, value) in [
        ("context_length", 64u32),
        ("embedding_length", 32),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 1),
    ] {
        m.insert(format!("llama.{key}"), value);
    }
    m.insert("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    m
}

/// SmolLM2's control tokens and first merges, all bytes, words without merges, and tokens of every type.
fn byte_level(tokens: &[String], merges: &[String]) -> Metadata {
    let mut v = Vocabulary::default();
    for token in tokens.iter().take_while(|t| t.starts_with('<') && t.len() > 1) {
        v.add(token, CONTROL, 0.0);
    }
    for byte in 0..=u8::MAX {
        v.add(&byte_level_character(byte).to_string(), NORMAL, 0.0);
    }
    let mut lines = across_borders();
    let mut seen: HashSet<String> = lines.iter().cloned().collect();
    lines.extend(merges[..MERGES].iter().filter(|m| seen.insert(m.to_string())).cloned());
    for merge in &lines {
        v.add(&merge.replace(' ', ""), NORMAL, 0.0);
    }
    for merge in merges[MERGES..].iter().step_by(WORDS_STEP) {
        v.add(&merge.replace(' ', ""), NORMAL, 0.0);
    }
    v.add("<unk>", UNKNOWN, 0.0);
    v.add("<tool>", USER_DEFINED, 0.0);
    v.add("🦀🦀", USER_DEFINED, 0.0);
    // Longer than what it overlaps with, and beginning later.
    v.add("|><|im_start|><", USER_DEFINED, 0.0);
    v.add("<unused0>", UNUSED, 0.0);
    // llama.cpp takes this for a control token whatever its type.
    v.add("<|eom_id|>", NORMAL, 0.0);

    let mut m = metadata("byte-level BPE reduced from SmolLM2, Apache-2.0");
    m.insert("tokenizer.ggml.model", "gpt2");
    m.insert("tokenizer.ggml.pre", "default");
    m.insert("tokenizer.ggml.tokens", v.tokens);
    m.insert("tokenizer.ggml.token_type", v.types);
    m.insert("tokenizer.ggml.merges", lines);
    m.insert("tokenizer.ggml.bos_token_id", 1u32);
    m.insert("tokenizer.ggml.eos_token_id", 2u32);
    m.insert("tokenizer.ggml.add_bos_token", false);
    m
}

/// Merges that come before all others and join characters of different kinds. SmolLM2 was trained on words
/// that were cut already, so its own merges never cross a border, and a border in the wrong place would not
/// show.
fn across_borders() -> Vec<String> {
    /// A few characters of each kind.
    const ASCII: &[u8] = b" \t\n\r.,!?'\"(_=$<a13st";
    let spell = byte_level_character;
    let ascii = |f: &dyn Fn(u8) -> bool| ASCII.iter().copied().filter(|b| f(*b)).collect::<Vec<_>>();
    let mut pairs: Vec<(u8, u8)> = Vec::new();
    let mut product = |left: &[u8], right: &[u8]| {
        pairs.extend(left.iter().flat_map(|&l| right.iter().map(move |&r| (l, r))));
    };
    // The last byte of one character and the first one of the next.
    let last: Vec<u8> = (0x80..=0xBF).collect();
    let first: Vec<u8> = (0xC2..=0xF4).collect();
    product(&last, &first);
    product(&ascii(&|_| true), &first);
    product(&last, &ascii(&|_| true));
    // Words of letters are left to the merges that follow.
    product(&ascii(&|b| !b.is_ascii_alphabetic()), &ascii(&|b| !b.is_ascii_alphabetic()));
    product(&ascii(&|b| !b.is_ascii_alphabetic() && b != b' '), &ascii(&|b| b.is_ascii_alphabetic()));
    product(&ascii(&|b| b.is_ascii_alphabetic()), &ascii(&|b| !b.is_ascii_alphabetic()));
    product(b"0123456789", b"0123456789");
    let mut seen = HashSet::new();
    pairs.retain(|pair| seen.insert(*pair));
    pairs.into_iter().map(|(l, r)| format!("{} {}", spell(l), spell(r))).collect()
}

/// The character of GPT-2's alphabet that stands for a byte.
fn byte_level_character(byte: u8) -> char {
    let plain = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let moved = (0..byte).filter(|b| !plain(b)).count() as u32;
    let code = if plain(&byte) { u32::from(byte) } else { 0x100 + moved };
    char::from_u32(code).unwrap_or_default()
}

/// The usual first tokens, and pieces with random scores, many of which are equal.
fn sentence_piece(merges: &[String]) -> Metadata {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut v = Vocabulary::default();
    v.add("<unk>", UNKNOWN, 0.0);
    v.add("<s>", CONTROL, 0.0);
    v.add("</s>", CONTROL, 0.0);
    for byte in 0..=u8::MAX {
        v.add(&format!("<0x{byte:02X}>"), BYTE, 0.0);
    }
    v.add("<tool>", USER_DEFINED, 0.0);
    let mut score = |length: usize| -((random.next_u32() % 400) as f32) / 4.0 - length as f32;
    for merge in &merges[..PIECES] {
        let text = merge.replace(' ', "").replace('Ġ', "▁");
        if text.chars().all(|c| c == '▁' || c.is_ascii()) {
            v.add(&text, NORMAL, score(text.len()));
        }
    }
    // `~` and `^` are left to the byte tokens.
    for c in
        "▁\n".chars().chain(' '..='}').filter(|c| *c != ' ' && *c != '^').chain("éüßяжمש中文字🦀".chars())
    {
        v.add(&c.to_string(), NORMAL, score(100));
    }
    for text in ["▁中文", "文字", "яж", "▁\n", "\n▁", "é🦀"] {
        v.add(text, NORMAL, score(0));
    }

    let mut m = metadata("SentencePiece with seeded scores");
    m.insert("tokenizer.ggml.model", "llama");
    m.insert("tokenizer.ggml.tokens", v.tokens);
    m.insert("tokenizer.ggml.token_type", v.types);
    m.insert("tokenizer.ggml.scores", v.scores);
    m.insert("tokenizer.ggml.bos_token_id", 1u32);
    m.insert("tokenizer.ggml.eos_token_id", 2u32);
    m.insert("tokenizer.ggml.unknown_token_id", 0u32);
    m
}

fn write(m: &Metadata, path: &Path) -> Result<(), Box<dyn Error>> {
    GgufWriter::new().all_metadata(m).write(path)?;
    println!("{}: {} tokens", path.display(), m.array_str("tokenizer.ggml.tokens")?.len());
    Ok(())
}
