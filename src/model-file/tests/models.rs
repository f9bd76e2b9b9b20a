//! Real and generated models through [`Model::open`].

use std::path::{Path, PathBuf};

use model_file::{
    Architecture, Convention, GenerateSpec, GgufFile, HyperParams, Model, RopeKind, TensorType, generate,
    presets, tensor_table,
};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn anchor(name: &str) -> PathBuf {
    repository("golden/anchors").join(format!("{name}-anchor.gguf"))
}

#[test]
fn the_anchors_open_with_their_hyper_parameters() {
    let expected = |architecture, n_embd, n_head, n_head_kv| HyperParams {
        architecture,
        convention: Convention::LlamaCpp,
        n_layer: 2,
        n_embd,
        n_ff: 256,
        n_head,
        n_head_kv,
        head_dim: n_embd / n_head,
        n_vocab: 160,
        n_ctx_train: 256,
        rms_eps: 1e-6,
        rope_base: 1e6,
        rope_dim: n_embd / n_head,
        rope_kind: RopeKind::Neox,
        causal: false,
        shift_logits: false,
        mask_token: None,
        bos_token: Some(3),
        eos_token: Some(1),
        pad_token: Some(0),
        tied_head: false,
        has_rope_freqs: false,
    };
    let cases = [
        HyperParams { mask_token: Some(2), shift_logits: true, ..expected(Architecture::Dream, 128, 8, 2) },
        HyperParams {
            mask_token: Some(2),
            rope_kind: RopeKind::Norm,
            rope_base: 5e5,
            rms_eps: 1e-5,
            ..expected(Architecture::Llada, 128, 4, 4)
        },
        HyperParams { causal: true, tied_head: true, ..expected(Architecture::Qwen2, 128, 8, 2) },
        HyperParams {
            causal: true,
            rope_kind: RopeKind::Norm,
            rope_base: 5e5,
            rms_eps: 1e-5,
            has_rope_freqs: true,
            ..expected(Architecture::Llama, 144, 9, 3)
        },
    ];
    for h in cases {
        let model = Model::open(&anchor(h.architecture.name())).unwrap();
        assert_eq!(model.hparams, h);
        assert!(model.unused_tensors().is_empty());
        assert_eq!(model.tensors().count(), model.file.tensors().len());
    }
}

#[test]
fn the_trained_model_opens() {
    let model = Model::open(&repository("corpus/models/dream-arith-4.8m-f16.gguf")).unwrap();
    let h = &model.hparams;
    assert_eq!((h.n_layer, h.n_embd, h.n_head, h.n_head_kv, h.head_dim, h.n_vocab), (6, 256, 4, 2, 64, 64));
    assert_eq!(model.file.tensors().len(), 75);
    assert_eq!(model.file.tensor("output.weight").unwrap().ty, TensorType::F16);
    let elements: u64 = model.file.tensors().iter().map(|t| t.elements()).sum();
    assert_eq!(elements, 4_757_760);
}

/// The published count of Dream 7B: 28 layers of 12 tensors and 3 others.
#[test]
fn dream_7b_has_339_tensors() {
    let spec = GenerateSpec {
        n_layer: 28,
        n_embd: 3584,
        n_ff: 18_944,
        n_head: 28,
        n_head_kv: 4,
        head_dim: 128,
        n_vocab: 152_064,
        ..GenerateSpec::preset("gen-dream").unwrap()
    };
    let table = tensor_table(&spec.hparams());
    assert_eq!(table.len(), 339);
    let k = table.iter().find(|t| t.name == "blk.27.attn_k.weight").unwrap();
    assert_eq!(k.shape, [3584, 512]);
}

#[test]
fn presets_open_as_they_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    for spec in presets() {
        let path = dir.path().join(format!("{}.gguf", spec.name));
        generate(spec, &path).unwrap();
        let model = Model::open(&path).unwrap();
        assert_eq!(model.hparams, spec.hparams(), "{}", spec.name);
        assert!(model.unused_tensors().is_empty());
        println!("{} {}", spec.name, model.file.sha256().unwrap());
    }
    assert!(GgufFile::open(dir.path()).is_err());
}
