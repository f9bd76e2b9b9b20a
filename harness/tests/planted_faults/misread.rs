//! What a model file says, read wrong: by one arm, which the oracle names, and by all arms, which agree and pass; the
//! anchors, which no code of this project has made, are what catches that.

use crate::common::{Bench, anchor, default_build, nmse, root, tokens};
use crate::files::{MISREADINGS, rewritten, with_keys, with_tensor};
use crate::gate::{Wanted, Where, hold};
use ggml_parity::capture::CaptureReader;
use ggml_parity::plan::Mode;
use ggml_parity::plan::models::resolve;
use ggml_parity::planted::Plant;
use ggml_parity::report::Arm;
use std::path::PathBuf;

/// What tests hold the runtime to against the anchors.
const ANCHOR_LIMIT: f64 = 1e-11;

/// A case in which each architecture's misreadings show.
fn case(architecture: &str) -> &'static str {
    match architecture {
        "dream" => "gen-dream/f32/sparse",
        "llada" => "gen-llada/f32/full-cache",
        "qwen2" => "gen-qwen2/f32/decode",
        _ => "gen-llama/f32/prefill",
    }
}

fn file(path: PathBuf) -> Plant {
    Plant { model: Some(path), fault: None }
}

#[test]
fn one_arm_that_reads_a_file_wrong_is_blamed_and_all_of_them_pass() {
    let work = tempfile::tempdir().unwrap();
    let mut wanted = Vec::new();
    for (i, misreading) in MISREADINGS.iter().enumerate() {
        for architecture in misreading.architectures {
            let case = case(architecture);
            let model = resolve(case.split('/').next().unwrap(), work.path()).unwrap().path;
            let wrong = work.path().join(format!("{architecture}-{i}.gguf"));
            let plant = file((misreading.write)(&model, &wrong));
            if misreading.shapes {
                wanted.push(Wanted::misshapen(misreading.what, case, &plant));
            } else {
                wanted.extend(Wanted::blamed(misreading.what, case, &plant));
            }
            wanted.push(Wanted::new(misreading.what, case, &plant, Where::All, Arm::Agree));
        }
    }
    let model = resolve("gen-dream", work.path()).unwrap().path;
    let wrong = work.path().join("norm.gguf");
    let plant =
        file(with_tensor(&model, "blk.0.ffn_norm.weight", &wrong, |i, v| if i == 3 { v * 1.1 } else { v }));
    wanted.extend(Wanted::blamed("one value of a norm", "gen-dream/f32/sparse", &plant));
    hold(&wanted, work.path());
}

#[test]
fn what_all_arms_read_wrong_is_not_what_the_anchors_say() {
    let work = tempfile::tempdir().unwrap();
    let bench = Bench::open(&default_build());
    for (i, misreading) in MISREADINGS.iter().enumerate() {
        for architecture in misreading.architectures {
            let what = format!("{} of {architecture}", misreading.what);
            let right = anchor(&format!("{architecture}-anchor.gguf"));
            let wrong = (misreading.write)(&right, &work.path().join(format!("{architecture}-{i}.gguf")));
            let mut outside =
                CaptureReader::open_foreign(&anchor(&format!("{architecture}-anchor.f64.safetensors")))
                    .unwrap();
            let inputs = tokens(outside.tokens(), 0);
            let rows = inputs.prompt.len();
            let mut truth = Vec::new();
            outside.logits(0, rows, &mut truth).unwrap();
            let mut runtime = Vec::new();
            bench.capture("CPU", &wrong, Mode::Full, &inputs).logits(0, rows, &mut runtime).unwrap();
            let network = oracle::Network::open(&model_file::Model::open(&wrong).unwrap()).unwrap();
            let oracle = network.full(&inputs.prompt, oracle::Rows::All).unwrap();
            // The arms cannot see it ...
            let apart = nmse(&runtime, oracle.logits.values());
            assert!(apart <= ANCHOR_LIMIT, "{what}: the arms are {apart:.1e} apart");
            // ... and each of them is over the limit from what others have computed.
            for found in [nmse(&runtime, &truth), nmse(oracle.logits.values(), &truth)] {
                assert!(found > ANCHOR_LIMIT, "{what}: {found:.1e} from the anchor");
            }
            println!("{what}: {:.1e} from the anchor", nmse(&runtime, &truth));
        }
    }
}

#[test]
fn a_shift_of_logits_that_is_misread_changes_what_a_trained_model_answers() {
    let work = tempfile::tempdir().unwrap();
    let bench = Bench::open(&default_build());
    let right = root().join("corpus/models/dream-arith-4.8m-f16.gguf");
    let change = |m: &mut model_file::Metadata| m.insert("diffusion.shift_logits", false);
    let wrong = rewritten(&right, &work.path().join("unshifted.gguf"), change, |_| true);
    let prompt = tokens(&[3, 3, 9, 13, 20, 10, 11, 22], 32);
    let [right, wrong] =
        [right, wrong].map(|model| bench.capture("CPU", &model, Mode::Generate, &prompt).meta().text.clone());
    assert_eq!(right.as_deref(), Some("15*20+15*3=300+45=345"));
    assert_ne!(wrong, right);
}

#[test]
fn heads_that_do_not_fit_the_tensors_are_refused() {
    let work = tempfile::tempdir().unwrap();
    let wrong = with_keys(&anchor("qwen2-anchor.gguf"), &work.path().join("m.gguf"), |h, set| {
        set("attention.head_count_kv", u32::try_from(h.n_head).unwrap().into());
    });
    let error = model_file::Model::open(&wrong).unwrap_err().to_string();
    assert!(error.contains("blk.0.attn_k") && error.contains("m.gguf"), "{error}");
    // Where RoPE has factors, their number tells the size of a head.
    let wrong = with_keys(&anchor("llama-anchor.gguf"), &work.path().join("m.gguf"), |h, set| {
        set("rope.dimension_count", u32::try_from(h.rope_dim / 2).unwrap().into());
    });
    let error = model_file::Model::open(&wrong).unwrap_err().to_string();
    assert!(error.contains("rope_freqs.weight") && error.contains("m.gguf"), "{error}");
}
