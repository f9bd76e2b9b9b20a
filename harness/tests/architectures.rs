//! The architectures that came later, end to end: every arm, in every mode that a reader would try first.

mod common;

use common::{run, told};
use ggml_parity::report::{Report, json};
use ggml_parity::verdict::Status;
use std::path::Path;

fn report(folder: &Path) -> Report {
    let text = std::fs::read_to_string(folder.join("report.json")).expect("report.json is there");
    json::parse(&text).expect("report.json is a report")
}

/// Runs `models` in `modes` on a CPU flavour that is not the reference's.
fn cells(models: &[&str], modes: &[&str]) -> Report {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run");
    let device =
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };
    let mut arguments = vec!["run", "--threads", "1", "--device", device, "--out", folder.to_str().unwrap()];
    models.iter().for_each(|model| arguments.extend(["--model", model]));
    modes.iter().for_each(|mode| arguments.extend(["--mode", mode]));
    let (code, text) = told(&run(&arguments));
    assert_eq!(code, 0, "{text}");
    let report = report(&folder);
    assert_eq!(report.cells.len(), models.len() * modes.len(), "{text}");
    for cell in &report.cells {
        assert_eq!(cell.status, Status::Pass, "{}: {}", cell.id, cell.reason);
        assert!(cell.attribution.is_some(), "{}: the oracle has its say", cell.id);
        let (placed, all) = cell.nodes().expect("placement");
        assert!(placed > 0 && placed == all, "{}: {placed} of {all}", cell.id);
    }
    report
}

#[test]
fn qwen3_and_gemma3_pass_in_causal_modes() {
    let report = cells(&["gen-qwen3", "gen-gemma3"], &["prefill", "decode", "generate"]);
    for cell in &report.cells {
        let metrics = cell.metrics.as_ref().expect("figures");
        let layers = if cell.model == "gen-gemma3" { 6 } else { 2 };
        assert_eq!(metrics.kv.as_ref().map(|kv| kv.layers.len()), Some(layers), "{}", cell.id);
        assert_eq!(metrics.experts, None, "{}", cell.id);
    }
}

#[test]
fn experts_are_compared_in_every_masked_mode() {
    let report = cells(&["gen-llada-moe"], &["full", "full-cache", "sparse", "generate"]);
    for cell in &report.cells {
        let sets = cell.metrics.as_ref().and_then(|m| m.experts.as_ref()).expect("sets of experts");
        assert_eq!((sets.ties, sets.real, sets.list.len()), (0, 0, 0), "{}", cell.id);
        assert!(sets.sets >= 48 && sets.smallest_margin > 0.0, "{}: {sets:?}", cell.id);
        assert_eq!(sets.router_nmse.len(), 2, "{}", cell.id);
        assert!(sets.router_nmse.iter().all(|nmse| *nmse <= 1e-10), "{}: {sets:?}", cell.id);
    }
}
