//! Faults that ggml had or has, as cases that find them, and the same work done in the way that was right.

mod common;

use common::{run, told};
use ggml_parity::builds;
use ggml_parity::report::{Cell, json};
use ggml_parity::verdict::Status;

/// The cells of `options` on one device of a build. A software Vulkan driver ends the process now and then, so that a
/// cell that crashed is computed again; one with wrong figures is not.
fn cell(build: &str, device: &str, mode: &str, options: &str) -> Option<Cell> {
    for attempt in 1..=3 {
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("run");
        let output = run(&[
            "run",
            "--ggml",
            build,
            "--model",
            "gen-llama",
            "--mode",
            mode,
            "--options",
            options,
            "--device",
            device,
            "--threads",
            "1",
            "--no-oracle",
            "--out",
            folder.to_str().unwrap(),
        ]);
        let (code, text) = told(&output);
        if code == 4 {
            eprintln!("NOT CHECKED: {build} has no {device} here");
            return None;
        }
        let report = std::fs::read_to_string(folder.join("report.json")).unwrap_or_else(|_| panic!("{text}"));
        let cell = json::parse(&report).unwrap().cells.remove(0);
        if !matches!(cell.status, Status::Crashed | Status::Timeout) {
            return Some(cell);
        }
        eprintln!("attempt {attempt}: {}", cell.reason);
    }
    panic!("{build}:{device} {mode}?{options} crashed three times");
}

/// The builds of this list that are on this machine.
fn present(names: &[&'static str]) -> Vec<&'static str> {
    let here: Vec<String> =
        builds::list().unwrap().into_iter().filter(|b| b.path.is_some()).map(|b| b.name).collect();
    let (found, missing): (Vec<_>, Vec<_>) =
        names.iter().partition(|name| here.iter().any(|here| here == *name));
    if !missing.is_empty() {
        eprintln!("NOT CHECKED: {missing:?} are not here; `ggml-parity ggml fetch NAME` gets them");
    }
    found
}

/// Rows of 136 bytes in blocks of 8 bits: 23 of them end off a multiple of 16 bytes, 22 do not.
#[test]
fn cpy_into_a_quantised_cache_at_an_odd_offset_is_wrong_on_vulkan() {
    for build in present(&["npm-3.21.1", "npm-3.18.0", "npm-3.14.0"]) {
        let status = |device, options| cell(build, device, "batch", options).map(|cell| cell.status);
        let Some(wrong) = cell(build, "Vulkan0", "batch", "kv=q8_0&n=35&store=cpy") else { continue };
        assert_eq!(wrong.status, Status::Diverged, "{build}: {}", wrong.reason);
        // The cache is wrong from the first layer on, in the rows of the second graph.
        let kv = wrong.metrics.unwrap().kv.unwrap();
        assert_eq!(kv.first_bad.unwrap().layer, 0, "{build}");
        assert_eq!(status("Vulkan0", "kv=q8_0&n=35"), Some(Status::Pass), "{build}: set_rows");
        if build == "npm-3.21.1" {
            assert_eq!(status("Vulkan0", "kv=q8_0&n=33&store=cpy"), Some(Status::Pass), "an even offset");
            assert_eq!(status("Vulkan0", "kv=q4_0&n=35&store=cpy"), Some(Status::Diverged), "Q4_0");
            assert_eq!(status("CPU@haswell", "kv=q8_0&n=35&store=cpy"), Some(Status::Pass), "the CPU");
        }
    }
}

/// On b5640: 33 and 40 positions are wrong, 64 and 256 are right.
#[test]
fn flash_attention_of_odd_lengths_is_wrong_on_vulkan_of_b5640() {
    for build in present(&["npm-3.10.0"]) {
        let Some(wrong) = cell(build, "Vulkan0", "prefill", "attn=flash&kv=f16&n=33") else { continue };
        assert_eq!(wrong.status, Status::Diverged, "{}", wrong.reason);
        let right = cell(build, "Vulkan0", "prefill", "attn=flash&kv=f16&n=64").unwrap();
        assert_eq!(right.metrics.map(|found| found.logits.overall < 1e-4), Some(true), "{}", right.reason);
    }
}
