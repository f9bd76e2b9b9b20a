//! Mode `sampler` end to end: the graph on this machine's devices, and a backend, built here from our own source, that
//! brings a sampler of its own.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;

use common::{default_build, run, told};
use ggml_parity::report::{Cell, Report};
use ggml_parity::verdict::{FindingKind, Status};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The default build with a further backend in it: `Test0`, compiled with this macro.
fn build_with(folder: &Path, define: Option<&str>) -> PathBuf {
    let into = folder.join(define.unwrap_or("sound"));
    std::fs::create_dir_all(&into).unwrap();
    let mut linked: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(default_build()).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        let is_library = name.starts_with("libggml") && name.contains(".so");
        if !is_library || name.starts_with("libggml-vulkan") {
            continue;
        }
        symlink(&entry, into.join(&name)).unwrap();
        if name.starts_with("libggml-base.") || name.starts_with("libggml.") {
            linked.push(entry);
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sampler/backend.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]);
    compiler.args(define.map(|define| format!("-D{define}")));
    compiler.arg(source).args(linked).args(["-lm", "-o"]).arg(into.join("libggml-test.so"));
    let done = compiler.output().expect("a C compiler: this test builds a backend of its own");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    into
}

/// The cells of one run, its exit code and what it printed.
fn cells(build: &str, device: &str, options: &str) -> (Vec<Cell>, i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let arguments = ["run", "--ggml", build, "--model", "gen-dream", "--mode", "sampler", "--device", device];
    let rest = ["--options", options, "--no-cache", "--out", out.to_str().unwrap()];
    let (code, text) = told(&run(&[&arguments[..], &rest[..]].concat()));
    let report = std::fs::read(out.join("report.json")).unwrap_or_else(|error| panic!("{error}: {text}"));
    let report: Report = serde_json::from_slice(&report).unwrap();
    (report.cells, code, text)
}

#[test]
fn a_backends_own_sampler_is_found_called_and_held_to_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let options = "dist=ties&vocab=1000&steps=2";
    let with = |define| build_with(folder.path(), define).to_str().unwrap().to_owned();

    let (sound, code, text) = cells(&with(None), "Test0", options);
    let figures = sound[0].metrics.as_ref().and_then(|m| m.sampler.as_ref()).expect(&text);
    assert_eq!((code, sound[0].status), (0, Status::Pass), "{text}");
    let own = figures.own.as_ref().expect("it was found and called");
    assert_eq!((own.yields, own.argmax, own.real, figures.rows), (0, 0, 0, 16));
    assert!(own.entropy_max <= 1e-5, "{}", own.entropy_max);
    let cost = figures.cost.as_ref().unwrap();
    assert_eq!(cost.own.as_deref(), Some("ggml_backend_test_diffusion_sample"));
    assert_eq!((cost.device_bytes, cost.host_bytes), (8 * 16, 8 * 1000 * 4));
    assert!(
        cost.own_seconds.is_some()
            && text.contains("ggml_backend_test_diffusion_sample: argmax differs in 0")
    );

    let (wrong, code, text) = cells(&with(Some("MISTAKE")), "Test0", options);
    assert_eq!((code, wrong[0].status), (1, Status::Diverged), "{text}");
    let finding = &wrong[0].findings[0];
    assert_eq!(finding.figure, FindingKind::SamplerArgmax);
    assert!(
        finding.value > 8.0 && finding.text.contains("ggml_backend_test_diffusion_sample: another argmax")
    );
    let figures = wrong[0].metrics.as_ref().and_then(|m| m.sampler.as_ref()).unwrap();
    assert_eq!(figures.graph.argmax, 0, "the graph beside it is right");

    // One that says that it cannot has made no mistake.
    let (refused, code, text) = cells(&with(Some("REFUSE")), "Test0", options);
    let figures = refused[0].metrics.as_ref().and_then(|m| m.sampler.as_ref()).unwrap();
    assert_eq!((code, &figures.own), (0, &None), "{text}");
    assert!(figures.cost.as_ref().unwrap().own.is_some());
}

#[test]
fn a_models_own_steps_are_the_same_for_every_arm() {
    let (cells, code, text) = cells(&default_build(), "CPU@x64", "temp=0.8");
    let figures = cells[0].metrics.as_ref().and_then(|m| m.sampler.as_ref()).expect(&text);
    assert_eq!((code, cells[0].status), (0, Status::Pass), "{text}");
    // 17 masks of 33 tokens, some fewer at each step.
    assert!(figures.rows > 17 && figures.own.is_none(), "{figures:?}");
    assert_eq!(cells[0].attribution.as_ref().map(|found| found.verdict.name()), Some("agree"));
}
