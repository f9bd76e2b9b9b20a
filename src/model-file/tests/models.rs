//! Real and generated models through [`Model::open`].

use std::path::{Path, PathBuf};

use model_file::{
    Architecture, Convention, Experts, GenerateSpec, HyperParams, Model, RopeKind, TensorType, Windowed,
    generate, presets, tensor_table,
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
        block: None,
        windowed: None,
        query_scalar: None,
        logit_softcap: None,
        experts: None,
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
    let small = |architecture, n_layer, n_head_kv, head_dim| HyperParams {
        n_layer,
        n_ff: 96,
        head_dim,
        rope_dim: head_dim,
        ..expected(architecture, 64, 4, n_head_kv)
    };
    let later = [
        HyperParams { causal: true, ..small(Architecture::Qwen3, 2, 2, 32) },
        HyperParams {
            causal: true,
            tied_head: true,
            windowed: Some(Windowed {
                window: 8,
                layers: vec![true, true, true, true, true, false],
                n_head_kv: 1,
                head_dim: 24,
                rope_base: 1e4,
                rope_dim: 24,
            }),
            logit_softcap: Some(30.0),
            ..small(Architecture::Gemma3, 6, 1, 24)
        },
        HyperParams {
            mask_token: Some(2),
            rope_base: 5e4,
            rms_eps: 1e-5,
            experts: Some(Experts { count: 6, used: 2, n_ff: 48, normalised: false }),
            ..small(Architecture::LladaMoe, 2, 4, 16)
        },
    ];
    for h in cases.into_iter().chain(later) {
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

/// The generated models' bytes, the same on every platform. They change only on purpose: captures and golden
/// files made from them must then be made again.
const PRESET_SHA256: &[(&str, &str)] = &[
    ("gen-dream", "2cc499692a633ba4c7c1ea245d23ff8af8e6b301d2eaef6e6d73acaec2017216"),
    ("gen-llada", "d1a2bd6454678d69600a4311ba91a532d1060eda48200b60e6ad0b1ab2526110"),
    ("gen-qwen2", "14d22aa13113d0ac852f1ad02790c08ec11f565278f34961653c81a79a84b3eb"),
    ("gen-qwen2-untied", "53bf5cd16fc1712f528cc7f9e2aeede4292f7eef60a84719d32b6efc5ccc5384"),
    ("gen-llama", "b40e6a1325c3949e528593ace5558b6f52cdab4960d7bd690d0eb186b8260c81"),
    ("gen-llama-tied", "4801849f251a3238df170af12ae286992862219ac5a4ee563e43c0d5fdb5c5f0"),
    ("gen-dream-576", "e26143048f439bdcf59a3c47e54ccce78ede81836cd3b936c08225def8160b04"),
    ("gen-llama-576", "f95fd8944196185038f2c163fe41c612bfd5a1fbc8661987dbf3fbae15c2bc8f"),
    ("gen-llama-8l", "27189c2590d002a5933b084a5a5b2466053356e6fe13c71b6bc8f37b29de5803"),
    ("gen-qwen2-8l", "17fef6274effea26f52c6b6cbce698ce9fb5daa68f383b0c702f149639ba0f30"),
    ("gen-qwen3", "46bbfcb0887fd98d92bbd92a0a13e9e8d8025f6bde015b5f9ac0d054758e909a"),
    ("gen-gemma3", "bd29e71bcd0699f04dbcffd0b0102b73466937a0fcf4de6e14835b172497356f"),
    ("gen-llada-moe", "311e3194533568203787db3bee098d4909fb4ca1bb6c296cdde05dcaf1aaa688"),
    ("gen-llada-moe-300", "cfff6023d58707251780018626446a8e38ca325b25d5db4f41a77ed9d3f226a8"),
    ("adv-kq-range", "4b4b534e41124150ebe76acf24f2ef547248f744513e323d0ef2ff7460dd88de"),
    ("adv-activations", "723387ce61df3b1671c35f62e8be10b6c3206c466786a05864dc3e5900354062"),
    ("adv-head-64", "6873e417bfab173e27c937708699f5f95b4360d4cabb9fe6d6f52391e7d8d3ee"),
    ("adv-head-80", "6d50e1d42a68b3f0c5b4b7f9e1fe3b1c065a22b5e1803fb9fb2e285d372decd6"),
    ("adv-head-96", "5ba00968a0490f152b6ba636aa214a3ddb899d8b3d1801fd3f30683df02db21c"),
    ("adv-head-128", "e897b657bc92cdfb1ba47a8bdaeed412c7ca0c755a32f44c54ae1802a1389cf8"),
    ("adv-head-256", "3a7fb379e643755a9a5f45556063e8839169c39d4849da0eac3ce2bc39169d10"),
    ("adv-gqa-12", "54ca9056aa7cf595fc29b52777c71c63cfe2910b3e65dda5dde35ba2d81a08ac"),
    ("adv-long-keys", "09631afb140b50f2108074d31a6a2f9149579a8c6ff6506fecdaf9cce5a26b18"),
    ("adv-dream-head-64", "46b9819760dea716a7f0e97a7ae031004b6bf04b8827df55ab72e6d5c3c32cdb"),
    ("adv-dream-head-80", "2a994c487ef91098a4a2f47a3f66880776f1fcd440eba5719be41bd37f5165f1"),
    ("adv-dream-head-96", "b3d8c144bf732f127b117e97b0cb45864d6f529bc13ae3a35d13e2a2f6c1fdae"),
    ("adv-dream-head-128", "464c39b648a1d81c0017617b3de0536e686df53538b9297d0796f4195ffe794c"),
    ("adv-dream-head-256", "7515c3c65546fb653233ed44e5da2a61dbb8df3e8fb8ae88e43e1bc58775312b"),
    ("adv-dream-gqa-12", "8de9fd276269874636718edb09818db090c9e22ded396b0771b0bcc9b257e685"),
    ("gen-diffusion-gemma", "a03d79842f40632829bf6dc15be9979850b7e3798399794098e971aa99a65b78"),
    ("gen-diffusion-gemma-c32", "e349820e74461e4cf33e83680f7f4bda626fa2ed40d29834b22b78f0cc0a9d1e"),
    ("gen-diffusion-gemma-e300", "28cd84854b63765eb721634021dcd905c72a9fa582b7d5b59e59250366215971"),
];

#[test]
fn presets_open_as_they_were_asked_for_with_pinned_bytes() {
    let names: Vec<_> = presets().iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, PRESET_SHA256.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let dir = tempfile::tempdir().unwrap();
    let mut others = Vec::new();
    for (spec, (name, sha256)) in presets().iter().zip(PRESET_SHA256) {
        let path = dir.path().join(format!("{name}.gguf"));
        generate(spec, &path).unwrap();
        let model = Model::open(&path).unwrap();
        assert_eq!(model.hparams, spec.hparams(), "{name}");
        assert!(model.unused_tensors().is_empty());
        others.extend(Some((*name, model.file.sha256().unwrap())).filter(|(_, found)| found != sha256));
    }
    assert_eq!(others, [], "other bytes than pinned");
}

fn generated(spec: &GenerateSpec, dir: &Path) -> Model {
    let path = dir.join(format!("{}-{}.gguf", spec.name, spec.head_is_embedding));
    generate(spec, &path).unwrap();
    Model::open(&path).unwrap()
}

fn bytes(model: &Model, name: &str) -> Vec<u8> {
    model.file.map(model.file.tensor(name).unwrap()).unwrap().to_vec()
}

#[test]
fn tied_and_untied_twins_differ_in_the_head_only() {
    let dir = tempfile::tempdir().unwrap();
    for (tied, untied) in [("gen-qwen2", "gen-qwen2-untied"), ("gen-llama-tied", "gen-llama")] {
        let spec = GenerateSpec::preset(untied).unwrap();
        let copied = generated(&GenerateSpec { head_is_embedding: true, ..spec.clone() }, dir.path());
        let untied = generated(&spec, dir.path());
        let tied = generated(&GenerateSpec::preset(tied).unwrap(), dir.path());
        assert!(tied.hparams.tied_head && !untied.hparams.tied_head && !copied.hparams.tied_head);
        for t in tied.file.tensors() {
            assert_eq!(bytes(&tied, &t.name), bytes(&untied, &t.name), "{}", t.name);
            assert_eq!(bytes(&tied, &t.name), bytes(&copied, &t.name), "{}", t.name);
        }
        assert_eq!(untied.file.tensors().len(), tied.file.tensors().len() + 1);
        let embedding = bytes(&tied, "token_embd.weight");
        assert_eq!(bytes(&copied, "output.weight"), embedding);
        assert_ne!(bytes(&untied, "output.weight"), embedding);
    }
}

#[test]
fn generated_numbers_have_the_scale_of_their_place() {
    let dir = tempfile::tempdir().unwrap();
    // Those of block diffusion are in `block.rs`.
    for spec in presets().iter().filter(|spec| spec.block.is_none()) {
        let model = generated(spec, dir.path());
        for (tensor, _) in model.tensors() {
            let values: Vec<f64> = bytes(&model, &tensor.name)
                .chunks_exact(4)
                .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                .collect();
            let (mean, deviation) = spread(&values);
            let fan_in = (tensor.shape[0] as f64).sqrt();
            let name = format!("{} {}", spec.name, tensor.name);
            if tensor.name.ends_with(".bias") {
                let most = 0.11 * factor(spec, &tensor.name);
                assert!(values.iter().all(|&x| x != 0.0 && x.abs() < most), "{name}");
            } else if tensor.name.ends_with("norm.weight") {
                assert!(values.iter().all(|&x| (x - 1.0).abs() < 0.11), "{name}");
            } else if tensor.name == "rope_freqs.weight" {
                assert_eq!((values[0], values[values.len() - 1]), (1.0, 8.0));
            } else {
                let router = tensor.name.ends_with("ffn_gate_inp.weight");
                let expected = if tensor.name.starts_with("blk.") && !router { 1.0 } else { 2.0 } / fan_in;
                let expected = expected * factor(spec, &tensor.name);
                // Few values have a wider spread of their own.
                let most = (4.0 / (values.len() as f64).sqrt()).max(0.03);
                assert!((deviation / expected - 1.0).abs() < most, "{name}: {deviation}");
                assert!(mean.abs() < most * expected, "{name}: {mean}");
            }
        }
    }
}

/// What the spec multiplies a matrix by.
fn factor(spec: &GenerateSpec, name: &str) -> f64 {
    let part = name.rsplit('.').nth(1).unwrap_or(name);
    f64::from(match part {
        "attn_q" => spec.scale_qk / spec.scale_k,
        "attn_k" => spec.scale_qk * spec.scale_k,
        "token_embd" | "attn_output" => spec.scale_residual,
        "ffn_up" => spec.scale_ffn,
        "ffn_down" => spec.scale_residual / spec.scale_ffn,
        _ => 1.0,
    })
}

#[test]
fn layers_with_a_window_have_a_shape_of_their_own() {
    let h = GenerateSpec::preset("gen-gemma3").unwrap().hparams();
    let windows: Vec<_> = (0..h.n_layer).map(|layer| h.layer(layer).window).collect();
    assert_eq!(windows, [Some(16), Some(16), Some(16), Some(16), Some(16), None]);
    assert_eq!((h.layer(0).rope_base, h.layer(5).rope_base), (1e4, 1e6));
    let windowed = h.windowed.map(|w| Windowed { n_head_kv: 1, head_dim: 32, rope_dim: 8, ..w });
    let h = HyperParams { windowed, ..GenerateSpec::preset("gen-gemma3").unwrap().hparams() };
    let (narrow, full) = (h.layer(4), h.layer(5));
    assert_eq!(
        (narrow.kv_width(), narrow.q_width(), narrow.heads_per_kv(), narrow.rope_dim),
        (32, 128, 4, 8)
    );
    assert_eq!((full.kv_width(), full.q_width(), full.heads_per_kv(), full.rope_dim), (128, 256, 2, 64));
    let table = tensor_table(&h);
    let shape = |name: &str| table.iter().find(|t| t.name == name).unwrap().shape.clone();
    assert_eq!(shape("blk.4.attn_k.weight"), [256, 32]);
    assert_eq!(shape("blk.5.attn_k.weight"), [256, 128]);
    assert_eq!(shape("blk.4.attn_q_norm.weight"), [32]);
    assert!(table.iter().any(|t| t.name == "blk.0.post_ffw_norm.weight" && t.required));
    assert!(!table.iter().any(|t| t.name.ends_with(".bias")));
}

#[test]
fn experts_are_one_tensor_a_projection() {
    let h = GenerateSpec::preset("gen-llada-moe").unwrap().hparams();
    let table = tensor_table(&h);
    let shape = |name: &str| table.iter().find(|t| t.name == name).unwrap().shape.clone();
    assert_eq!(shape("blk.1.ffn_gate_inp.weight"), [256, 6]);
    assert_eq!(shape("blk.1.ffn_down_exps.weight"), [256, 256, 6]);
    assert!(!table.iter().any(|t| t.name == "blk.0.ffn_gate.weight"));
}

#[test]
fn factors_multiply_and_change_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["adv-activations", "adv-long-keys"] {
        factors_multiply(&GenerateSpec::preset(name).unwrap(), dir.path());
    }
}

fn factors_multiply(scaled: &GenerateSpec, dir: &Path) {
    let plain = GenerateSpec {
        scale_residual: 1.0,
        scale_ffn: 1.0,
        scale_k: 1.0,
        name: format!("{}-plain", scaled.name),
        ..scaled.clone()
    };
    let (a, b) = (generated(&plain, dir), generated(scaled, dir));
    for (tensor, _) in a.tensors() {
        let floats = |m: &Model| -> Vec<f32> {
            bytes(m, &tensor.name)
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect()
        };
        let by = factor(scaled, &tensor.name) as f32;
        let multiplied: Vec<f32> = floats(&a).iter().map(|x| x * by).collect();
        assert_eq!(multiplied, floats(&b), "{}", tensor.name);
    }
}

fn matrix(model: &Model, name: &str) -> Vec<f64> {
    bytes(model, name).chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
}

/// The normed embedding of every token, `[n_vocab][n_embd]`, as the first layer's `norm` makes it.
fn normed_embeddings(model: &Model, norm: &str) -> Vec<Vec<f64>> {
    let scale = matrix(model, norm);
    matrix(model, "token_embd.weight")
        .chunks_exact(scale.len())
        .map(|x| {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
            x.iter().zip(&scale).map(|(v, s)| v / mean.sqrt() * s).collect()
        })
        .collect()
}

fn times(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, v)| w * v).sum()).collect()
}

/// The largest value of a 16-bit float.
const F16_MAX: f64 = 65_504.0;

/// A query and a key at the same position are rotated alike, so their product is that without RoPE.
#[test]
fn products_of_queries_and_keys_leave_the_range_of_16_bits() {
    let dir = tempfile::tempdir().unwrap();
    let model = generated(&GenerateSpec::preset("adv-kq-range").unwrap(), dir.path());
    let h = &model.hparams;
    let (q, k) = (matrix(&model, "blk.0.attn_q.weight"), matrix(&model, "blk.0.attn_k.weight"));
    let mut largest: f64 = 0.0;
    for x in normed_embeddings(&model, "blk.0.attn_norm.weight") {
        let (q, k) = (times(&q, &x), times(&k, &x));
        for (head, q) in q.chunks_exact(h.head_dim).enumerate() {
            let k = &k[head / h.heads_per_kv() * h.head_dim..][..h.head_dim];
            largest = largest.max(q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>().abs());
        }
    }
    assert!(largest > F16_MAX && largest < 4e5, "{largest}");
}

#[test]
fn long_keys_reach_the_end_of_16_bits_and_their_norms_go_beyond_but_not_their_products() {
    let dir = tempfile::tempdir().unwrap();
    let model = generated(&GenerateSpec::preset("adv-long-keys").unwrap(), dir.path());
    let h = &model.hparams;
    let part = |name: &str| matrix(&model, &format!("blk.0.{name}"));
    let (q, k) = (part("attn_q.weight"), part("attn_k.weight"));
    let (q_bias, k_bias) = (part("attn_q.bias"), part("attn_k.bias"));
    let (mut element, mut norm, mut product): (f64, f64, f64) = (0.0, 0.0, 0.0);
    for x in normed_embeddings(&model, "blk.0.attn_norm.weight") {
        let with = |w: &[f64], bias: &[f64]| -> Vec<f64> {
            times(w, &x).iter().zip(bias).map(|(v, b)| v + b).collect()
        };
        let (q, k) = (with(&q, &q_bias), with(&k, &k_bias));
        element = k.iter().fold(element, |a, v| a.max(v.abs()));
        for (head, q) in q.chunks_exact(h.head_dim).enumerate() {
            let k = &k[head / h.heads_per_kv() * h.head_dim..][..h.head_dim];
            norm = norm.max(k.iter().map(|v| v * v).sum::<f64>().sqrt());
            product = product.max(q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>().abs());
        }
    }
    let reached = element > 0.9 * F16_MAX && element < F16_MAX;
    assert!(reached && norm > 1.5e5 && product < 1e3, "{element} {norm} {product}");
}

#[test]
fn activations_leave_the_range_of_16_bits() {
    let dir = tempfile::tempdir().unwrap();
    let model = generated(&GenerateSpec::preset("adv-activations").unwrap(), dir.path());
    let largest = |values: &[f64]| values.iter().fold(0.0, |a: f64, v| a.max(v.abs()));
    assert!(largest(&matrix(&model, "token_embd.weight")) > F16_MAX);
    let (gate, up) = (matrix(&model, "blk.0.ffn_gate.weight"), matrix(&model, "blk.0.ffn_up.weight"));
    for x in normed_embeddings(&model, "blk.0.ffn_norm.weight") {
        let silu = |v: f64| v / (1.0 + (-v).exp());
        let (gate, up) = (times(&gate, &x), times(&up, &x));
        let hidden: Vec<f64> = gate.into_iter().zip(up).map(|(g, u)| silu(g) * u).collect();
        assert!(largest(&hidden) > F16_MAX, "{}", largest(&hidden));
    }
}

#[test]
fn factors_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let base = GenerateSpec::preset("gen-qwen2").unwrap();
    for (spec, field) in [
        (GenerateSpec { scale_qk: 0.0, ..base.clone() }, "scale_qk"),
        (GenerateSpec { scale_ffn: f32::NAN, ..base.clone() }, "scale_ffn"),
        (GenerateSpec { scale_k: -1.0, ..base.clone() }, "scale_k"),
        (GenerateSpec { scale_residual: 2.0, ..base }, "scale_residual"),
    ] {
        assert_eq!(generate(&spec, &path).unwrap_err().field_name(), Some(field));
    }
}

fn spread(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
}
