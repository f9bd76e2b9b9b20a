//! What a run tells of the oracle: which cells it attributes, and what it leaves out. That it names the arm that is
//! off is shown by the planted faults.

mod common;

use common::{run, told};
use ggml_parity::report::{Arm, Report, json};
use ggml_parity::verdict::Status;

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

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
