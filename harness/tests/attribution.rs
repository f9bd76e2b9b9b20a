//! The oracle names the arm that is off: planted differences, which one arm alone reads, through the real pipeline.

mod common;

use common::{run, told};
use ggml_parity::pipeline::{self, Build, Folders, OracleUse, Plan, PlantedFiles};
use ggml_parity::plan::inputs::Wishes;
use ggml_parity::plan::models::resolve;
use ggml_parity::plan::{CellId, DeviceSelector, Mode, Options, matrix};
use ggml_parity::report::{Arm, Cell, Report, Run, json};
use ggml_parity::verdict::{Status, Tolerances};
use ggml_parity::worker::Workplace;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

/// Copies a model file with one tensor changed: `change` gets its values, which are F32.
fn planted(model: &Path, tensor: &str, to: &Path, change: impl Fn(usize, f32) -> f32) -> PathBuf {
    let file = model_file::Model::open(model).unwrap().file;
    let info = file.tensor(tensor).unwrap_or_else(|| panic!("no {tensor}")).clone();
    assert_eq!(info.ty, model_file::TensorType::F32, "{tensor}");
    let mut bytes = std::fs::read(model).unwrap();
    let first = usize::try_from(info.offset).unwrap();
    let values = &mut bytes[first..first + usize::try_from(info.bytes).unwrap()];
    for (i, value) in values.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *value = change(i, f32::from_le_bytes(*value)).to_le_bytes();
    }
    std::fs::write(to, bytes).unwrap();
    to.to_owned()
}

/// Which arm reads the changed file.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    Nowhere,
    Reference,
    Device,
    /// ggml's arms, which agree with each other: an error that both share.
    Shared,
}

/// `mode` of `model` on a CPU device of the default build with a change that some arms read.
fn cell(model: &str, mode: Mode, arms: Where, change: impl Fn(&Path, &Path) -> PathBuf) -> Cell {
    let work = tempfile::tempdir().unwrap();
    let workplace = Workplace {
        binary: common::binary(),
        folder: work.path().to_owned(),
        time_limit: Duration::from_secs(240),
        memory: None,
    };
    let build = Build::open(Some(&common::default_build()), &workplace).unwrap();
    let device: DeviceSelector = DEVICE.parse().unwrap();
    let model = resolve(model, work.path()).unwrap();
    let file = Some(change(&model.path, &work.path().join("planted.gguf")));
    let (right, wrong) = (None, file);
    let planted = match arms {
        Where::Nowhere => PlantedFiles::default(),
        Where::Reference => PlantedFiles { reference: wrong, ..PlantedFiles::default() },
        Where::Device => PlantedFiles { device: wrong, ..PlantedFiles::default() },
        Where::Shared => PlantedFiles { reference: wrong.clone(), device: wrong, oracle: right },
    };
    let case = matrix::case(&model, mode, Options::default());
    let plan = Plan {
        cells: vec![CellId::new(case, &build.info.name, &device)],
        builds: vec![build],
        models: vec![model],
        wishes: Wishes::default(),
        threads: 1,
        tolerances: Tolerances::embedded(),
        fault: None,
        oracle: OracleUse::Affordable,
        planted,
    };
    let folders = Folders { captures: work.path().to_owned() };
    let report = pipeline::run(&plan, &workplace, &folders, Run::default(), |_| {}).unwrap();
    report.cells.into_iter().next().unwrap()
}

fn arm(cell: &Cell) -> Arm {
    let found = cell.attribution.as_ref().unwrap_or_else(|| panic!("no attribution: {}", cell.reason));
    found.verdict
}

/// One changed file on every arm: each time the oracle names it.
fn blames_the_right_arm(model: &str, mode: Mode, change: impl Fn(&Path, &Path) -> PathBuf + Copy) {
    let right = cell(model, mode, Where::Nowhere, change);
    assert_eq!((arm(&right), right.status), (Arm::Agree, Status::Pass), "{}", right.reason);

    let device = cell(model, mode, Where::Device, change);
    assert_eq!((arm(&device), device.status), (Arm::Device, Status::Diverged), "{}", device.reason);
    assert!(device.reason.starts_with("device off: "), "{}", device.reason);

    // The device agrees with the oracle: it is not blamed, and the report says who is wrong.
    let reference = cell(model, mode, Where::Reference, change);
    assert_eq!((arm(&reference), reference.status), (Arm::Reference, Status::Pass), "{}", reference.reason);
    assert!(reference.reason.starts_with("reference off: "), "{}", reference.reason);

    // Two arms that agree on a wrong result pass each other; with the oracle the cell is red.
    let shared = cell(model, mode, Where::Shared, change);
    assert_eq!((arm(&shared), shared.status), (Arm::Both, Status::Diverged), "{}", shared.reason);
    assert!(shared.metrics.unwrap().logits.overall <= 1e-9, "the arms agree with each other");
}

#[test]
fn a_bias_that_is_zero_in_a_prefill() {
    blames_the_right_arm("gen-qwen2", Mode::Prefill, |model, to| {
        planted(model, "blk.1.attn_k.bias", to, |_, _| 0.0)
    });
}

#[test]
fn one_head_of_keys_scaled_in_decoding() {
    blames_the_right_arm("gen-llama", Mode::Decode, |model, to| {
        let h = model_file::Model::open(model).unwrap().hparams;
        let head = h.n_embd * h.head_dim;
        planted(model, "blk.1.attn_k.weight", to, move |i, v| if i < head { v * 1.01 } else { v })
    });
}

#[test]
fn a_norm_that_is_off_in_sparse_steps() {
    blames_the_right_arm("gen-dream", Mode::Sparse, |model, to| {
        planted(model, "blk.0.ffn_norm.weight", to, |i, v| if i == 3 { v * 1.1 } else { v })
    });
}

/// The report of a run of the binary.
fn report(arguments: &[&str], code: i32) -> (Report, String) {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run");
    let arguments = [&["run", "--out", folder.to_str().unwrap()], arguments].concat();
    let (found, text) = told(&run(&arguments));
    assert_eq!(found, code, "{text}");
    let json_text = std::fs::read_to_string(folder.join("report.json")).expect("report.json is there");
    (json::parse(&json_text).unwrap(), text)
}

#[test]
fn every_mode_that_the_oracle_computes_is_attributed_and_agrees() {
    let models = ["gen-dream", "gen-llada", "gen-qwen2", "gen-llama"];
    for (modes, options, limit) in [
        (&["full", "full-cache", "sparse", "prefill", "batch", "decode", "generate"][..], "", 1e-10),
        (&["generate"], "cache=full&schedule=cosine", 1e-10),
        (&["generate"], "cache=sparse&keep=1&refresh=3&schedule=block&block=4", 1e-10),
        (&["generate"], "remask=entropy-exit&schedule=timestep", 1e-10),
        (&["decode", "prefill"], "window=7", 1e-10),
        (&["decode", "full-cache"], "kv=f16", 1e-6),
        (&["decode"], "kv=q8_0", 3e-3),
        (&["decode"], "kv=q4_0", 3e-2),
    ] {
        let mut arguments = vec!["--device", DEVICE];
        models.iter().for_each(|model| arguments.extend(["--model", model]));
        modes.iter().for_each(|mode| arguments.extend(["--mode", mode]));
        if !options.is_empty() {
            arguments.extend(["--options", options]);
        }
        let takes_window = options == "window=7";
        if takes_window || options.contains('=') && modes == ["generate"] {
            // Masked options mean nothing to causal models, a window nothing to the others.
            let causal = ["gen-qwen2", "gen-llama"];
            arguments.retain(|word| !models.contains(word) && *word != "--model");
            let fitting = models.iter().filter(|model| causal.contains(model) == takes_window);
            fitting.for_each(|model| arguments.extend(["--model", model]));
        }
        let (report, text) = report(&arguments, 0);
        assert!(!report.cells.is_empty());
        for cell in &report.cells {
            let found = cell.attribution.as_ref().unwrap_or_else(|| panic!("{}: {text}", cell.id));
            assert_eq!(found.verdict, Arm::Agree, "{}: {}", cell.id, cell.reason);
            for nmse in [found.reference_nmse, found.device_nmse] {
                assert!(nmse > 0.0 && nmse <= limit, "{}: {nmse:e}", cell.id);
            }
            assert!(found.device_kv_nmse.is_some(), "{}", cell.id);
        }
    }
}

#[test]
fn what_the_oracle_does_not_compute_is_told() {
    let (report, text) = report(
        &[
            "--device",
            DEVICE,
            "--model",
            "gen-llama",
            "--mode",
            "lifecycle",
            "--mode",
            "prefill",
            "--no-oracle",
        ],
        0,
    );
    assert!(report.cells.iter().all(|cell| cell.attribution.is_none()));
    assert!(text.contains("without the oracle: 2 cells: left out by --no-oracle"), "{text}");
    let (report, text) =
        self::report(&["--device", DEVICE, "--model", "gen-llama", "--mode", "lifecycle"], 0);
    assert!(report.cells[0].attribution.is_none());
    assert!(text.contains("1 cells: mode lifecycle is not computed by the oracle"), "{text}");
}

#[test]
fn the_plain_cpu_alone_is_held_against_the_oracle() {
    let arguments = ["--device", "CPU", "--model", "gen-llama", "--mode", "decode"];
    let (with, _) = report(&arguments, 0);
    let cell = &with.cells[0];
    assert!(cell.reference.as_ref().unwrap().ends_with(":oracle"), "{:?}", cell.reference);
    let nmse = cell.metrics.as_ref().unwrap().logits.overall;
    assert!(nmse > 0.0 && nmse <= 1e-10, "{nmse:e}");
    // With nothing to compare it with, nothing is claimed.
    let (without, _) = report(&[&arguments[..], &["--no-oracle"]].concat(), 3);
    assert_eq!(without.cells[0].status, Status::Missing);
}
