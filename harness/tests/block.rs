//! Block diffusion from end to end: the modes on real builds, held to the outside anchor, to the oracle and to each
//! other.

mod common;

use common::{Bench, anchor, nmse, run, told};
use ggml_parity::plan::Mode;
use ggml_parity::plan::inputs::Inputs;
use ggml_parity::report::{Report, json};
use ggml_parity::verdict::Status;
use std::path::Path;

fn report(folder: &Path) -> Report {
    let text = std::fs::read_to_string(folder.join("report.json")).expect("report.json is there");
    json::parse(&text).expect("report.json is a report")
}

/// Every mode of the generated model on another CPU variant passes, with the oracle as judge.
#[test]
fn the_modes_agree_with_the_reference_and_the_oracle() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run");
    let device =
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };
    let mut arguments = vec!["run", "--device", device, "--out", folder.to_str().unwrap(), "--steps", "4"];
    arguments.extend(["--model", "gen-diffusion-gemma"]);
    for mode in ["unified", "prompt-kv", "generate"] {
        arguments.extend(["--mode", mode]);
    }
    let (code, text) = told(&run(&arguments));
    assert_eq!(code, 0, "{text}");
    let report = report(&folder);
    assert_eq!(report.cells.len(), 3);
    for cell in &report.cells {
        assert_eq!(cell.status, Status::Pass, "{}: {}", cell.id, cell.reason);
        let metrics = cell.metrics.as_ref().expect("figures");
        println!("{}: logits {:.1e}", cell.id, metrics.logits.overall);
        let kv = metrics.kv.as_ref().expect("keys and values");
        assert_eq!(kv.layers.len(), 4, "{}", cell.id);
        let steps = metrics.steps.as_ref().expect("steps").list.len();
        let experts = metrics.experts.as_ref().expect("experts");
        assert_eq!((experts.real, steps >= 2), (0, true), "{}", cell.id);
        assert!(experts.sets > 0 && experts.ties * 100 <= experts.sets, "{}: {experts:?}", cell.id);
        assert_eq!(metrics.greedy.is_some(), cell.id.case.mode == Mode::Generate, "{}", cell.id);
    }
}

/// The phases of the outside anchor on every build: its own canvases, so no run of ours decides what is computed.
#[test]
fn the_prompt_of_the_anchor_is_encoded_as_transformers_does() {
    let file = anchor("diffusion-gemma-anchor.f64.safetensors");
    let bytes = std::fs::read(file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ints = |name: &str| -> Vec<u32> {
        let data = tensors.tensor(name).unwrap().data();
        data.chunks_exact(4).map(|c| i32::from_le_bytes(c.try_into().unwrap()) as u32).collect()
    };
    let floats = |name: &str| -> Vec<f64> {
        let data = tensors.tensor(name).unwrap().data();
        data.chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect()
    };
    let inputs = Inputs { prompt: ints("prompt.tokens"), follow: 8, steps: 2, ..Inputs::none() };
    let model = anchor("diffusion-gemma-anchor.gguf");
    let mut held = 0;
    for build in common::all_builds() {
        let bench = Bench::open(&build);
        for mode in [Mode::Unified, Mode::PromptKv] {
            let mut capture = bench.capture("CPU", &model, mode, &inputs);
            assert_eq!(capture.tokens().len(), inputs.prompt.len() + 8);
            let mut values = Vec::new();
            for layer in 0..4 {
                for (cache, part) in
                    [(ggml_parity::capture::Cache::K, "k"), (ggml_parity::capture::Cache::V, "v")]
                {
                    // The prompt's rows do not depend on the canvas after them.
                    capture.kv(cache, layer, 0, inputs.prompt.len(), &mut values).unwrap();
                    let figure = nmse(&values, &floats(&format!("prompt.{part}.{layer}")));
                    assert!(figure <= 1e-6, "{build} {mode} {part}.{layer}: {figure:e}");
                    held += 1;
                }
            }
        }
    }
    assert!(held >= 16);
}

#[test]
fn modes_of_other_architectures_are_refused() {
    let (code, text) =
        told(&run(&["run", "--model", "gen-diffusion-gemma", "--mode", "prefill", "--device", "CPU"]));
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("prefill"), "{text}");
}
