//! The runtime against the anchors from outside: logits and K/V of f64 forwards in numpy and in transformers and of
//! llama.cpp, made without any code of this project. Every ggml build on this machine is held to them.

mod common;

use common::{Bench, anchor, nmse, tokens};
use ggml_parity::capture::{Cache, CaptureReader};
use ggml_parity::compare::compare;
use ggml_parity::plan::Mode;
use ggml_parity::verdict::Limits;
use std::path::Path;

/// Of the F32 models against either anchor. Measured: 1e-14 to 6e-14.
const F32_LIMIT: f64 = 1e-11;
/// Of a model with GELU, which ggml's CPU reads from a table in 16 bits.
const GELU_LIMIT: f64 = 1e-6;

/// Opens an anchor and checks that it is there.
fn outside(name: &str) -> CaptureReader {
    CaptureReader::open_foreign(&anchor(name)).unwrap_or_else(|e| panic!("{e}"))
}

/// Every F32 anchor on `device` of every build that offers it, in every mode that gives all rows.
fn hold_f32_models_on(device: &str) {
    let mut held = 0;
    for build in common::all_builds() {
        let bench = Bench::open(&build);
        if !bench.offers(device) {
            eprintln!("build {build} offers no {device} here");
            continue;
        }
        for model in ["dream", "llada", "qwen2", "llama", "qwen3", "gemma3", "llada-moe"] {
            let path = anchor(&format!("{model}-anchor.gguf"));
            let modes: &[Mode] = if ["dream", "llada", "llada-moe"].contains(&model) {
                &[Mode::Full, Mode::FullCache]
            } else {
                &[Mode::Full, Mode::Prefill]
            };
            let by_llamacpp = ["dream", "llada", "qwen2", "llama"].contains(&model);
            let limit = if model == "gemma3" { GELU_LIMIT } else { F32_LIMIT };
            for &mode in modes {
                let inputs = tokens(outside(&format!("{model}-anchor.f64.safetensors")).tokens(), 0);
                let mut test = bench.capture(device, &path, mode, &inputs);
                for other in ["f64", "llamacpp"].into_iter().filter(|other| *other == "f64" || by_llamacpp) {
                    let mut reference = outside(&format!("{model}-anchor.{other}.safetensors"));
                    let limits = Limits {
                        kv_nmse: (other == "f64").then(|| Limits::uniform(limit).logits_nmse),
                        ..Limits::uniform(limit)
                    };
                    let metrics = compare(&mut reference, &mut test, &limits).unwrap();
                    let what = format!("{model} {mode} on {build}:{device} against {other}");
                    println!("{what}: {:.1e}", metrics.logits.overall);
                    assert!(metrics.logits.overall <= limit, "{what}: {:?}", metrics.logits);
                    assert_eq!(metrics.top_token.mismatches, 0, "{what}");
                    if let Some(kv) = metrics.kv {
                        assert!(kv.first_bad.is_none(), "{what}: {kv:?}");
                        assert_eq!(kv.layers.len(), if model == "gemma3" { 6 } else { 2 }, "{what}");
                    }
                    // Two layers of 24 tokens.
                    let sets = metrics.experts.map(|e| (e.sets, e.ties, e.real));
                    assert_eq!(sets, (model == "llada-moe").then_some((48, 0, 0)), "{what}");
                    held += 1;
                }
            }
        }
    }
    assert!(held > 0, "no build offers {device}");
}

#[test]
fn f32_models_on_the_best_cpu_variant() {
    hold_f32_models_on("CPU");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn f32_models_on_the_plainest_cpu_variant() {
    hold_f32_models_on("CPU@x64");
}

#[test]
fn decoding_gives_the_rows_of_a_full_pass() {
    let bench = Bench::open(&common::default_build());
    for model in ["qwen2", "llama"] {
        let mut reference = outside(&format!("{model}-anchor.f64.safetensors"));
        let all = reference.tokens().to_vec();
        let path = anchor(&format!("{model}-anchor.gguf"));
        // Greedy decoding feeds its own tokens, so each row is held to a full pass over what was fed.
        let mut decoded = bench.capture("CPU", &path, Mode::Decode, &tokens(&all[..10], 14));
        let fed = decoded.tokens().to_vec();
        let mut full = bench.capture("CPU", &path, Mode::Full, &tokens(&fed, 0));
        let (mut a, mut b) = (Vec::new(), Vec::new());
        decoded.logits(0, 15, &mut a).unwrap();
        full.logits(9, 15, &mut b).unwrap();
        assert!(nmse(&a, &b) <= F32_LIMIT, "{model}: {:e}", nmse(&a, &b));
        for cache in [Cache::K, Cache::V] {
            let rows = decoded.kv_shape(cache, 1)[0];
            assert_eq!(rows, 24);
            decoded.kv(cache, 1, 0, rows, &mut a).unwrap();
            full.kv(cache, 1, 0, rows, &mut b).unwrap();
            assert!(nmse(&a, &b) <= F32_LIMIT, "{model} {cache}: {:e}", nmse(&a, &b));
        }
        // The prompt's rows are the anchor's own.
        let mut anchor_row = Vec::new();
        reference.logits(9, 1, &mut anchor_row).unwrap();
        decoded.logits(0, 1, &mut a).unwrap();
        assert!(nmse(&a, &anchor_row) <= F32_LIMIT, "{model}");
    }
}

/// The model kept in the repository.
fn dream_arith() -> std::path::PathBuf {
    common::root().join("corpus/models/dream-arith-4.8m-f16.gguf")
}

#[test]
fn dream_arith_against_llama_cpp() {
    for build in common::all_builds() {
        let bench = Bench::open(&build);
        let mut reference = outside("dream-arith-f16.llamacpp.safetensors");
        let limits = Limits { kv_nmse: None, ..Limits::uniform(1e-6) };
        let mut test = bench.capture("CPU", &dream_arith(), Mode::Full, &tokens(reference.tokens(), 0));
        let metrics = compare(&mut reference, &mut test, &limits).unwrap();
        assert!(metrics.logits.overall <= 1e-6, "{build}: {:?}", metrics.logits);
    }
}

#[test]
fn dream_arith_answers_with_its_steps_on_every_device() {
    let default = Bench::open(&common::default_build()).build.info.name;
    for build in common::all_builds() {
        let bench = Bench::open(&build);
        // A new build's shaders take minutes to compile on llvmpipe; one build shows what there is to show.
        let devices: &[&str] = if bench.build.info.name == default { &["CPU", "Vulkan0"] } else { &["CPU"] };
        for device in devices.iter().filter(|device| bench.offers(device)) {
            let prompt = tokens(&[3, 3, 9, 13, 20, 10, 11, 22], 32);
            let capture = bench.capture(device, &dream_arith(), Mode::Generate, &prompt);
            let text = capture.meta().text.as_deref();
            assert_eq!(text, Some("15*20+15*3=300+45=345"), "{build}:{device}");
        }
    }
}

#[test]
fn dream_arith_solves_493_of_500_held_out_problems() {
    let bench = Bench::open(&common::default_build());
    let text = std::fs::read_to_string(common::root().join("corpus/arithmetic-heldout.jsonl")).unwrap();
    let problems: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(problems.len(), 500);
    let model = model_file::Model::open(&dream_arith()).unwrap();
    let tokenizer = model_file::tokenizer::Tokenizer::from_gguf(&model.file).unwrap();
    let inputs: Vec<_> = problems
        .iter()
        .map(|problem| {
            let mut prompt = vec![3; 8];
            let ids = tokenizer.encode(problem["prompt"].as_str().unwrap()).unwrap();
            prompt.splice(8 - ids.len().., ids.iter().map(|&id| i32::try_from(id).unwrap()));
            tokens(&prompt, 32)
        })
        .collect();
    let captures = bench.captures("CPU", &dream_arith(), Mode::Generate, &inputs);
    let right = captures
        .iter()
        .zip(&problems)
        .filter(|(capture, problem)| capture.meta().text.as_deref() == problem["answer"].as_str())
        .count();
    assert!((492..=494).contains(&right), "{right} of 500");
}

#[test]
fn smollm2_against_llama_cpp() {
    let Some(path) = common::smollm2() else { return };
    let bench = Bench::open(&common::default_build());
    let anchor = Anchor::read(&anchor("smollm2-135m-q4_1.llamacpp.safetensors"));

    let mut prefill = bench.capture("CPU", &path, Mode::Prefill, &tokens(&anchor.tokens, 0));
    let vocab = prefill.vocab();
    let (mut ours, mut row) = (Vec::new(), Vec::new());
    for &r in &anchor.rows {
        prefill.logits(usize::try_from(r).unwrap(), 1, &mut row).unwrap();
        ours.extend_from_slice(&row);
    }
    assert_eq!(anchor.logits.len(), anchor.rows.len() * vocab);
    let overall = nmse(&ours, &anchor.logits);
    assert!(overall <= 1e-3, "{overall:e}");

    // Greedy tokens agree up to the first margin that noise of this size explains.
    let decode = bench.capture("CPU", &path, Mode::Decode, &tokens(&anchor.tokens, 32));
    let greedy = decode.greedy().expect("a free run");
    let mean_square = anchor.logits.iter().map(|z| z * z).sum::<f64>() / anchor.logits.len() as f64;
    let noise = 6.0 * (1e-3 * mean_square).sqrt();
    let required = anchor.margin.iter().position(|&m| m < noise).unwrap_or(32);
    assert!(required > 0, "no margin is above the noise");
    assert_eq!(greedy[..required], anchor.greedy[..required], "margins {:?}", anchor.margin);
    let text = decode.meta().text.clone().expect("text");
    assert!(text.starts_with(" Rome."), "{text}");
}

/// The SmolLM2 anchor, whose logits are of some rows only.
struct Anchor {
    tokens: Vec<i32>,
    rows: Vec<i32>,
    logits: Vec<f64>,
    greedy: Vec<i32>,
    margin: Vec<f64>,
}

impl Anchor {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Vec<[u8; 4]> {
            let data = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec();
            data.chunks_exact(4).map(|c| c.try_into().unwrap()).collect()
        };
        let ints = |name| words(name).into_iter().map(i32::from_le_bytes).collect::<Vec<_>>();
        let floats = |name| words(name).into_iter().map(|w| f64::from(f32::from_le_bytes(w))).collect();
        Self {
            tokens: ints("tokens"),
            rows: ints("rows"),
            logits: floats("logits"),
            greedy: ints("greedy"),
            margin: floats("greedy_margin"),
        }
    }
}
