//! DiffusionGemma's files: what they must hold, and what is refused.

use std::path::{Path, PathBuf};

use model_file::{
    BlockSpec, EntropyBound, Experts, GenerateSpec, GgufFile, GgufWriter, Model, Value, WeightMix, Windowed,
    generate, requantize_model, tensor_table,
};

fn preset() -> GenerateSpec {
    GenerateSpec::preset("gen-diffusion-gemma").unwrap()
}

fn written(spec: &GenerateSpec, dir: &Path) -> PathBuf {
    let path = dir.join(format!("{}.gguf", spec.name));
    generate(spec, &path).unwrap();
    path
}

/// The file with metadata changed: none removes a key.
fn changed(path: &Path, key: &str, value: Option<Value>) -> Result<Model, model_file::Error> {
    let file = GgufFile::open(path).unwrap();
    let mut writer = GgufWriter::new();
    for (k, v) in file.metadata().iter().filter(|(k, _)| *k != key) {
        writer = writer.metadata(k, v.clone());
    }
    if let Some(value) = value {
        writer = writer.metadata(key, value);
    }
    for t in file.tensors() {
        let bytes = file.map(t).unwrap().to_vec();
        writer = writer.tensor_bytes(&t.name, &t.shape, t.ty, bytes);
    }
    let other = path.with_extension("changed");
    writer.write(&other).unwrap();
    Model::open(&other)
}

/// The published model: 30 layers, of which every sixth sees everything.
#[test]
fn the_published_model_has_692_tensors() {
    let spec = preset();
    let block = spec.block.clone().unwrap();
    let layers: Vec<bool> = (0..30).map(|i| i % 6 < 5).collect();
    let windowed = Windowed { window: 1024, layers, n_head_kv: 8, head_dim: 256, ..block.windowed };
    let spec = GenerateSpec {
        n_layer: 30,
        n_embd: 2816,
        n_ff: 2112,
        n_head: 16,
        n_head_kv: 2,
        head_dim: 512,
        n_vocab: 262_144,
        experts: Some(Experts { count: 128, used: 8, n_ff: 704, normalised: true }),
        block: Some(BlockSpec { windowed, ..block }),
        ..spec
    };
    let table = tensor_table(&spec.hparams());
    assert_eq!(table.iter().filter(|t| t.required).count(), 692);
    let shape = |name: &str| table.iter().find(|t| t.name == name).map(|t| t.shape.clone());
    assert_eq!(shape("blk.4.attn_v.weight").unwrap(), [2816, 2048]);
    assert_eq!(shape("blk.5.attn_v.weight"), None);
    assert_eq!(shape("blk.5.attn_k.weight").unwrap(), [2816, 1024]);
    assert_eq!(shape("blk.0.ffn_gate_up_exps.weight").unwrap(), [2816, 1408, 128]);
    assert_eq!(shape("rope_freqs.weight").unwrap(), [256]);
    assert_eq!(shape("self_cond_down.weight").unwrap(), [2112, 2816]);
}

#[test]
fn layers_have_the_shapes_of_their_kind() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::open(&written(&preset(), dir.path())).unwrap();
    let h = &model.hparams;
    let shapes = [0, 1].map(|i| h.layer(i)).map(|l| (l.window, l.n_head_kv, l.head_dim, l.rope_base));
    assert_eq!(shapes, [(Some(16), 2, 64, 1e4), (None, 1, 128, 1e6)]);
    let block = h.block.unwrap();
    assert_eq!((block.canvas, block.sampler, h.logit_softcap), (8, EntropyBound::default(), Some(30.0)));
    assert_eq!((h.query_scalar, h.experts.unwrap().used, h.tied_head), (Some(1), 2, true));
}

#[test]
fn generated_numbers_have_the_scale_of_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::open(&written(&preset(), dir.path())).unwrap();
    let values = |name: &str| -> Vec<f32> {
        let bytes = model.file.map(model.file.tensor(name).unwrap()).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let within = |name: &str, middle: f32, reach: f32| {
        let all = values(name);
        assert!(all.iter().all(|x| (x - middle).abs() <= reach * 1.001), "{name}: {:?}", &all[..1]);
    };
    let factors = values("rope_freqs.weight");
    assert_eq!((factors.len(), factors[15], factors[16]), (64, 1.0, 1e30));
    within("blk.1.attn_k_norm.weight", 1.5 / 128f32.sqrt(), 0.15 / 128f32.sqrt());
    within("blk.0.ffn_gate_inp.scale", 16.0, 1.6);
    within("blk.0.post_ffw_norm_1.weight", 1.0, 0.1);
    let phases = ["blk.0.layer_output_scale.weight", "blk.0.enc_layer_output_scale.weight"].map(values);
    assert!(phases[0] != phases[1], "the phases must be told apart");
}

#[test]
fn routers_keep_their_type_and_experts_get_another() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::open(&written(&preset(), dir.path())).unwrap();
    let path = dir.path().join("q.gguf");
    requantize_model(&model, WeightMix::Q4_K_M, &path).unwrap();
    let model = Model::open(&path).unwrap();
    let of = |name: &str| model.file.tensor(name).unwrap().ty.name();
    assert_eq!(of("blk.1.ffn_gate_inp.weight"), "F32");
    assert_eq!(of("blk.1.ffn_gate_up_exps.weight"), "Q4_K");
    assert_eq!(of("token_embd.weight"), "Q6_K");
    assert_eq!(of("self_cond_up.weight"), "Q4_K");
}

#[test]
fn what_cannot_be_is_refused_with_its_key() {
    use model_file::Array;
    let dir = tempfile::tempdir().unwrap();
    let path = written(&preset(), dir.path());
    let own = |name: &str| format!("diffusion-gemma.{name}");
    let list = |list: &[i32]| Some(Value::Array(Array::I32(list.to_vec())));
    let bools = |list: &[bool]| Some(Value::Array(Array::Bool(list.to_vec())));
    for (key, value) in [
        ("diffusion.canvas_length".to_owned(), None),
        ("diffusion.canvas_length".to_owned(), Some(Value::U32(0))),
        ("diffusion.eb_entropy_bound".to_owned(), Some(Value::F32(f32::NAN))),
        ("diffusion.eb_t_max".to_owned(), Some(Value::F32(0.1))),
        (own("attention.head_count_kv"), list(&[2, 1, 2])),
        (own("attention.head_count_kv"), list(&[2, 1, 1, 1])),
        (own("attention.head_count_kv"), list(&[3, 1, 3, 1])),
        (own("attention.head_count_kv"), list(&[-2, 1, -2, 1])),
        (own("attention.sliding_window_pattern"), bools(&[true, false])),
        (own("attention.sliding_window_pattern"), None),
        (own("attention.value_length_swa"), Some(Value::U32(32))),
        (own("attention.shared_kv_layers"), Some(Value::U32(1))),
        (own("rope.dimension_count"), Some(Value::U32(64))),
        (own("expert_used_count"), Some(Value::U32(7))),
        (own("final_logit_softcapping"), Some(Value::F32(-1.0))),
    ] {
        let error = changed(&path, &key, value).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&key), "{key}: {error}");
    }
    // With a window everywhere it is the heads that contradict each other.
    let all = changed(&path, &own("attention.sliding_window_pattern"), bools(&[true; 4]));
    let error = all.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("attention.head_count_kv"), "{error}");
    assert!(changed(&path, "diffusion.eb_t_min", None).is_ok(), "the sampler has defaults");
}

#[test]
fn specs_that_contradict_themselves_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let block = preset().block.unwrap();
    let with = |change: &dyn Fn(&mut BlockSpec)| {
        let mut block = block.clone();
        change(&mut block);
        GenerateSpec { block: Some(block), ..preset() }
    };
    for (spec, field) in [
        (GenerateSpec { block: None, rope_freqs: false, ..preset() }, "block"),
        (GenerateSpec { block: preset().block, ..GenerateSpec::preset("gen-llama").unwrap() }, "block"),
        (with(&|b| b.diffusion.canvas = 0), "block"),
        (with(&|b| b.windowed.layers = vec![true; 4]), "block.windowed.layers"),
        (with(&|b| b.windowed.n_head_kv = 3), "block.windowed.n_head_kv"),
        (with(&|b| b.windowed.head_dim = 63), "block.windowed.head_dim"),
    ] {
        let error = generate(&spec, &dir.path().join("x.gguf")).unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}
