//! Sound GGUF files that hold no sound model: each is refused with the field, the value and the place.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use model_file::{
    Convention, Error, ErrorKind, GenerateSpec, GgufFile, GgufWriter, Metadata, Model, RopeKind, TensorType,
    Tokenizer, Value, generate,
};
use proptest::prelude::*;

static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.gguf");
    generate(&small("gen-dream"), &path).unwrap();
    std::fs::read(path).unwrap()
});

/// A preset shrunk to a few kilobytes.
fn small(preset: &str) -> GenerateSpec {
    GenerateSpec {
        n_embd: 16,
        n_ff: 24,
        head_dim: 4,
        n_vocab: 12,
        n_ctx: 64,
        ..GenerateSpec::preset(preset).unwrap()
    }
}

/// A generated model to be changed and written again.
struct Edited {
    dir: tempfile::TempDir,
    metadata: Metadata,
    tensors: Vec<(String, Vec<u64>, TensorType, Vec<u8>)>,
}

impl Edited {
    fn new(spec: &GenerateSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("original.gguf");
        generate(spec, &path).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let tensors = file
            .tensors()
            .iter()
            .map(|t| (t.name.clone(), t.shape.clone(), t.ty, file.map(t).unwrap().to_vec()))
            .collect();
        Self { metadata: file.metadata().clone(), dir, tensors }
    }

    fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(key, value);
        self
    }

    fn unset(mut self, key: &str) -> Self {
        let mut metadata = Metadata::new();
        for (k, v) in self.metadata.iter().filter(|(k, _)| *k != key) {
            metadata.insert(k, v.clone());
        }
        self.metadata = metadata;
        self
    }

    fn drop_tensors(mut self, prefix: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|t| !t.0.starts_with(prefix));
        assert!(self.tensors.len() < before, "{prefix}");
        self
    }

    fn tensor(mut self, name: &str, shape: &[u64], ty: TensorType) -> Self {
        self.tensors.retain(|t| t.0 != name);
        let n: u64 = shape[1..].iter().product();
        let bytes = ty.row_bytes(shape[0]).unwrap() * n;
        self.tensors.push((name.to_string(), shape.to_vec(), ty, vec![0; bytes as usize]));
        self
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("edited.gguf")
    }

    fn write(&self) -> &Self {
        let mut writer = GgufWriter::new().all_metadata(&self.metadata);
        for (name, shape, ty, bytes) in &self.tensors {
            writer = writer.tensor_bytes(name, shape, *ty, bytes.clone());
        }
        writer.write(&self.path()).unwrap();
        self
    }

    fn open(&self) -> Result<Model, Error> {
        Model::open(&self.write().path())
    }
}

fn dream() -> Edited {
    Edited::new(&small("gen-dream"))
}

fn llama() -> Edited {
    Edited::new(&small("gen-llama"))
}

fn gemma() -> Edited {
    Edited::new(&small("gen-gemma3"))
}

fn moe() -> Edited {
    Edited::new(&small("gen-llada-moe"))
}

#[test]
fn contradicting_hyper_parameters_are_refused() {
    use ErrorKind::{Metadata as M, Tensor as T, Unsupported as U};
    let head_count = "dream.attention.head_count";
    let head_count_kv = "dream.attention.head_count_kv";
    let cases: Vec<(Edited, ErrorKind, &str, &str, &str)> = vec![
        (dream().set(head_count, 0u32), M, head_count, "0", "must be above 0"),
        (dream().set(head_count_kv, 0u32), M, head_count_kv, "0", "must be above 0"),
        (dream().set(head_count_kv, 3u32), M, head_count_kv, "3", "must divide the head count 4"),
        (
            dream().set(head_count, 5u32).set(head_count_kv, 1u32),
            M,
            head_count,
            "5",
            "must divide the embedding length 16",
        ),
        (dream().set(head_count, vec![4i32, 4]), M, head_count, "2 array of i32", "must be u32"),
        (dream().set("dream.block_count", 0u32), M, "dream.block_count", "0", "must be above 0"),
        (
            dream().set("dream.block_count", 3u32),
            T,
            "dream.block_count",
            "3",
            "no tensor of blk.2 is in the file, which has 2",
        ),
        (
            dream().set("dream.block_count", u32::MAX),
            T,
            "dream.block_count",
            "4294967295",
            "no tensor of blk.2",
        ),
        (dream().set("dream.block_count", 1u32), T, "dream.block_count", "1", "also has tensors of blk.1"),
        (dream().drop_tensors("blk.0."), T, "dream.block_count", "2", "no tensor of blk.0"),
        (dream().set("dream.embedding_length", 0u32), M, "dream.embedding_length", "0", "must be above 0"),
        (
            dream().set("dream.embedding_length", 32u32),
            T,
            "token_embd.weight",
            "[16, 12] F32",
            "asks for shape [32, 12]",
        ),
        (
            dream().set("dream.feed_forward_length", 25u32),
            T,
            "blk.0.ffn_gate.weight",
            "[16, 24] F32",
            "asks for shape [16, 25]",
        ),
        (
            dream().set("dream.vocab_size", 13u32),
            M,
            "dream.vocab_size",
            "13",
            "tokenizer.ggml.tokens has 12 entries",
        ),
        (dream().set("dream.vocab_size", 0u32), M, "dream.vocab_size", "0", "must be above 0"),
        (
            dream().set("dream.vocab_size", 13u32).unset("tokenizer.ggml.tokens"),
            T,
            "token_embd.weight",
            "[16, 12] F32",
            "asks for shape [16, 13]",
        ),
        (
            dream().set("tokenizer.ggml.tokens", Vec::<String>::new()).unset("dream.vocab_size"),
            M,
            "tokenizer.ggml.tokens",
            "0 array of string",
            "the token list is empty",
        ),
        (
            dream().set("dream.attention.key_length", 8u32).set("dream.attention.value_length", 4u32),
            M,
            "dream.attention.value_length",
            "4",
            "must equal the size of K's heads, 8",
        ),
        (
            dream().set("dream.attention.key_length", 8u32),
            T,
            "blk.0.attn_q.weight",
            "[16, 16] F32",
            "asks for shape [16, 32]",
        ),
        (
            dream().set("dream.attention.layer_norm_rms_epsilon", 0.0f32),
            M,
            "dream.attention.layer_norm_rms_epsilon",
            "0.0",
            "between 0 and 1",
        ),
        (
            dream().set("dream.attention.layer_norm_rms_epsilon", f32::NAN),
            M,
            "dream.attention.layer_norm_rms_epsilon",
            "NaN",
            "between 0 and 1",
        ),
        (
            dream().set("dream.rope.freq_base", -1.0f32),
            M,
            "dream.rope.freq_base",
            "-1.0",
            "above 0 and finite",
        ),
        (
            dream().set("dream.rope.freq_base", f32::INFINITY),
            M,
            "dream.rope.freq_base",
            "inf",
            "above 0 and finite",
        ),
        (
            dream().set("dream.rope.freq_base", 1e6f64),
            M,
            "dream.rope.freq_base",
            "1000000.0",
            "is of type f64, must be f32",
        ),
        (
            dream().set("dream.rope.dimension_count", 6u32),
            M,
            "dream.rope.dimension_count",
            "6",
            "at most the head's size 4",
        ),
        (
            dream().set("dream.rope.dimension_count", 3u32),
            M,
            "dream.rope.dimension_count",
            "3",
            "must be even",
        ),
        (dream().set("diffusion.shift_logits", 1u32), M, "diffusion.shift_logits", "1", "must be bool"),
        (
            dream().set("tokenizer.ggml.mask_token_id", 12u32),
            M,
            "tokenizer.ggml.mask_token_id",
            "12",
            "outside the vocabulary of 12",
        ),
        (
            dream().set("tokenizer.ggml.bos_token_id", u32::MAX),
            M,
            "tokenizer.ggml.bos_token_id",
            "4294967295",
            "outside the vocabulary",
        ),
        (
            dream().set("tokenizer.ggml.eos_token_id", 99u32),
            M,
            "tokenizer.ggml.eos_token_id",
            "99",
            "outside the vocabulary",
        ),
        (
            dream().set("tokenizer.ggml.padding_token_id", 99u32),
            M,
            "tokenizer.ggml.padding_token_id",
            "99",
            "outside the vocabulary",
        ),
        (
            dream().set("general.architecture", "gemma4"),
            U,
            "general.architecture",
            "\"gemma4\"",
            "dream, llada, qwen2, llama, qwen3, gemma3, llada-moe, diffusion-gemma are",
        ),
        (dream().set("general.architecture", 3u32), M, "general.architecture", "3", "must be string"),
        (
            llama().set("llama.rope.scaling.type", "yarn"),
            U,
            "llama.rope.scaling.type",
            "\"yarn\"",
            "RoPE scaling \"yarn\"",
        ),
        (
            llama().set("llama.rope.scaling.factor", 4.0f32),
            U,
            "llama.rope.scaling.factor",
            "4.0",
            "not implemented",
        ),
        (llama().set("llama.expert_count", 8u32), U, "llama.expert_count", "8", "mixture of experts"),
        (
            moe().set("llada-moe.expert_used_count", 7u32),
            M,
            "llada-moe.expert_used_count",
            "7",
            "at most the 6",
        ),
        (moe().set("llada-moe.expert_count", 0u32), M, "llada-moe.expert_count", "0", "above 0"),
        (
            moe().set("llada-moe.expert_gating_func", 2u32),
            U,
            "llada-moe.expert_gating_func",
            "2",
            "only soft-max",
        ),
        (
            moe().set("llada-moe.expert_weights_scale", 2.5f32),
            U,
            "llada-moe.expert_weights_scale",
            "2.5",
            "not implemented",
        ),
        (
            moe().tensor("blk.0.ffn_up_exps.weight", &[16, 32, 5], TensorType::F32),
            T,
            "blk.0.ffn_up_exps.weight",
            "[16, 32, 5] F32",
            "asks for shape [16, 256, 6]",
        ),
        (
            gemma().set("gemma3.rope.freq_base_swa", -1.0f32),
            M,
            "gemma3.rope.freq_base_swa",
            "-1.0",
            "above 0",
        ),
        (
            gemma().set("gemma3.final_logit_softcapping", f32::INFINITY),
            M,
            "gemma3.final_logit_softcapping",
            "inf",
            "finite",
        ),
        (
            llama().set("llama.final_logit_softcapping", 30.0f32),
            U,
            "llama.final_logit_softcapping",
            "30.0",
            "not implemented for llama",
        ),
        (
            llama().tensor("rope_freqs.weight", &[3], TensorType::F32),
            T,
            "rope_freqs.weight",
            "[3] F32",
            "asks for shape [2]",
        ),
        (
            llama().tensor("output_norm.weight", &[16], TensorType::I32),
            T,
            "output_norm.weight",
            "[16] I32",
            "weights cannot have this type",
        ),
    ];
    for (edited, kind, field, value, says) in cases {
        let e = edited.open().expect_err(says);
        assert!(e.message().contains(says), "{e}\n  should say {says}");
        assert_eq!(e.kind(), kind, "{e}");
        assert_eq!(e.field_name(), Some(field), "{e}");
        assert_eq!(e.field_value(), Some(value), "{e}");
        assert!(e.file_offset().is_some(), "{e}");
        assert_eq!(e.path(), Some(edited.path().as_path()), "{e}");
    }
}

#[test]
fn missing_keys_and_tensors_are_named() {
    for key in [
        "general.architecture",
        "dream.block_count",
        "dream.context_length",
        "dream.embedding_length",
        "dream.feed_forward_length",
        "dream.attention.head_count",
        "dream.attention.layer_norm_rms_epsilon",
    ] {
        let e = dream().unset(key).open().expect_err(key);
        assert_eq!((e.kind(), e.field_name()), (ErrorKind::Metadata, Some(key)), "{e}");
    }
    for name in [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_norm.weight",
        "blk.1.attn_k.bias",
        "blk.1.ffn_down.weight",
    ] {
        let e = dream().drop_tensors(name).open().expect_err(name);
        assert_eq!((e.kind(), e.field_name()), (ErrorKind::Tensor, Some(name)), "{e}");
        assert!(e.message().contains("the tensor is missing"), "{e}");
    }
}

#[test]
fn defaults_and_options_are_read() {
    let h = dream().unset("dream.rope.freq_base").unset("diffusion.shift_logits").open().unwrap().hparams;
    assert_eq!((h.rope_base, h.shift_logits), (10_000.0, true));
    let h = dream().set("diffusion.shift_logits", false).open().unwrap().hparams;
    assert!(!h.shift_logits);
    let h = Edited::new(&small("gen-llada"))
        .unset("llada.attention.head_count_kv")
        .unset("llada.rope.dimension_count")
        .unset("diffusion.shift_logits")
        .open()
        .unwrap()
        .hparams;
    assert_eq!((h.n_head_kv, h.rope_dim, h.shift_logits), (4, 4, false));
    let h = dream().unset("dream.vocab_size").unset("tokenizer.ggml.tokens").open().unwrap().hparams;
    assert_eq!(h.n_vocab, 12);

    // A head and a vocabulary that the metadata does not tie together.
    let h = dream().drop_tensors("output.weight").open().unwrap().hparams;
    assert!(h.tied_head);
    let h = llama().drop_tensors("rope_freqs").open().unwrap().hparams;
    assert!(!h.has_rope_freqs);
    let model = llama().tensor("blk.0.attn_q.bias", &[16], TensorType::F32).open().unwrap();
    assert!(model.unused_tensors().is_empty());
    assert!(llama().set("llama.rope.scaling.type", "none").open().is_ok());

    // Embedding and head sizes apart.
    let spec = GenerateSpec { head_dim: 8, ..small("gen-llama") };
    let h = Edited::new(&spec).open().unwrap().hparams;
    assert_eq!((h.head_dim, h.q_width(), h.kv_width(), h.n_embd), (8, 32, 16, 16));
}

#[test]
fn unknown_tensors_are_listed() {
    let model = dream()
        .tensor("blk.0.attn_rot_embd.weight", &[4], TensorType::F32)
        .tensor("rope_freqs.weight", &[2], TensorType::F32)
        .open()
        .unwrap();
    let names: Vec<_> = model.unused_tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["blk.0.attn_rot_embd.weight", "rope_freqs.weight"]);
}

#[test]
fn the_second_converters_files_open_with_neox_rope() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    for preset in ["gen-dream", "gen-llada"] {
        let spec = GenerateSpec { convention: Convention::Diffuse, ..small(preset) };
        generate(&spec, &path).unwrap();
        let model = Model::open(&path).unwrap();
        assert_eq!(model.hparams, spec.hparams());
        assert_eq!(model.hparams.rope_kind, RopeKind::Neox);
        assert_eq!(model.hparams.mask_token, Some(2));
    }

    let spec = GenerateSpec { convention: Convention::Diffuse, ..small("gen-llada") };
    let edited = || Edited::new(&spec);
    // Its files carry no tokenizer: the mask token is under its own key.
    let h = edited().unset("tokenizer.ggml.mask_token_id").open().unwrap().hparams;
    assert_eq!(h.mask_token, Some(2));
    for (edited, field) in [
        (edited().set("diffuse.model_type", "llada2_moe"), "diffuse.model_type"),
        (edited().unset("diffuse.model_type"), "diffuse.model_type"),
        (edited().unset("diffuse.rope.freq_base"), "diffuse.rope.freq_base"),
        (edited().set("diffuse.mask_token_id", 12u32), "diffuse.mask_token_id"),
        (edited().set("tokenizer.ggml.mask_token_id", 4u32), "tokenizer.ggml.mask_token_id"),
        (edited().set("diffuse.block_count", 9u32), "diffuse.block_count"),
    ] {
        let e = edited.open().expect_err(field);
        assert_eq!(e.field_name(), Some(field), "{e}");
    }
}

#[test]
fn impossible_specs_are_refused_by_field() {
    let dream = || small("gen-dream");
    let llama = || small("gen-llama");
    for (spec, field) in [
        (GenerateSpec { n_head_kv: 3, ..dream() }, "n_head_kv"),
        (GenerateSpec { n_head: 0, ..dream() }, "n_head"),
        (GenerateSpec { head_dim: 3, ..dream() }, "head_dim"),
        (GenerateSpec { n_vocab: 7, ..dream() }, "n_vocab"),
        (GenerateSpec { n_layer: usize::MAX, ..dream() }, "n_layer"),
        (GenerateSpec { rope_freqs: true, ..dream() }, "rope_freqs"),
        (GenerateSpec { tied: true, head_is_embedding: true, ..llama() }, "head_is_embedding"),
        (GenerateSpec { convention: Convention::Diffuse, ..llama() }, "convention"),
        (GenerateSpec { window: Some(4), ..llama() }, "window"),
        (GenerateSpec { window: Some(0), ..small("gen-gemma3") }, "window"),
        (GenerateSpec { experts: None, ..small("gen-llada-moe") }, "experts"),
        (GenerateSpec { experts: small("gen-llada-moe").experts, ..llama() }, "experts"),
    ] {
        let e = generate(&spec, Path::new("unused.gguf")).unwrap_err();
        assert_eq!((e.kind(), e.field_name()), (ErrorKind::Request, Some(field)), "{e}");
    }
    assert!(!Path::new("unused.gguf").exists());
}

#[test]
fn files_that_are_none_are_io_errors() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.gguf");
    for path in [missing.as_path(), dir.path()] {
        let e = Model::open(path).unwrap_err();
        assert_eq!((e.kind(), e.path()), (ErrorKind::Io, Some(path)), "{e}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Whatever a changed header says: an answer, no panic, and if the model opens, its tensors can be mapped.
    #[test]
    fn mutated_models_never_panic(
        changes in prop::collection::vec((0usize..3500, any::<u8>()), 1..5),
    ) {
        let mut bytes = SMALL.clone();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(file) = GgufFile::open(&path) {
            let _ = Tokenizer::from_gguf(&file).map(|t| t.encode("a <eos>"));
            if let Ok(model) = Model::from_file(file) {
                for (spec, info) in model.tensors() {
                    let mapped = model.file.map(info).unwrap();
                    prop_assert_eq!(mapped.len() as u64, info.bytes, "{}", spec.name);
                }
            }
        }
    }
}
