//! The binary as people use it: what it prints, the files it writes, and what it says when something is wrong.

mod common;

use common::{run, told};
use ggml_parity::report::{Report, json};
use ggml_parity::verdict::Status;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// The report in a folder.
fn report(folder: &Path) -> Report {
    let text = std::fs::read_to_string(folder.join("report.json")).expect("report.json is there");
    json::parse(&text).expect("report.json is a report")
}

#[test]
fn a_run_writes_figures_for_every_cell() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("first");
    let out = folder.to_str().unwrap();
    let device =
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };
    let models = ["gen-dream", "gen-llada", "gen-qwen2", "gen-llama"];
    let mut arguments = vec!["run", "--device", device, "--out", out];
    for model in &models {
        arguments.extend(["--model", model]);
    }
    let (code, text) = told(&run(&arguments));
    assert_eq!(code, 0, "{text}");
    let report = report(&folder);
    assert_eq!(
        report.cells.len(),
        14,
        "full, full-cache and sparse for two models; prefill, decode, batch and lifecycle for two"
    );
    for cell in &report.cells {
        assert_eq!(cell.status, Status::Pass, "{}: {}", cell.id, cell.reason);
        let metrics = cell.metrics.as_ref().expect("figures");
        assert!(metrics.logits.overall <= 1e-9, "{}", cell.id);
        assert_eq!(metrics.kv.as_ref().map(|kv| kv.layers.len()), Some(2), "{}", cell.id);
        let (placed, all) = cell.nodes().expect("placement");
        assert!(placed > 0 && placed == all, "{}: {placed} of {all}", cell.id);
        assert!(cell.rerun.contains(&cell.id.to_string()), "{}", cell.rerun);
    }
    for file in ["report.json", "cells.csv", "tensors.csv", "junit.xml", "summary.md", "index.html"] {
        assert!(folder.join(file).metadata().is_ok_and(|m| m.len() > 0), "{file}");
    }
    let rows = std::fs::read_to_string(folder.join("cells.csv")).unwrap().lines().count();
    assert_eq!(rows, 1 + report.cells.len());

    // The command that the report gives runs that cell alone.
    let words = shlex::split(&report.cells[2].rerun).expect("shell words");
    let again = folder.with_file_name("again");
    let mut arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    arguments.extend(["--out", again.to_str().unwrap()]);
    let (code, text) = told(&run(&arguments));
    assert_eq!(code, 0, "{text}");
    let again = self::report(&again);
    assert_eq!(again.cells.len(), 1);
    assert_eq!(again.cells[0].metrics, report.cells[2].metrics, "the same figures, bit for bit");
}

#[test]
fn an_unknown_device_lists_the_names_there_are() {
    let (code, text) = told(&run(&["run", "--device", "Vulkan7"]));
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("`Vulkan7`") && text.contains("CPU"), "{text}");
}

#[test]
fn devices_are_listed_with_exact_names() {
    let output = run(&["devices", "--json"]);
    assert!(output.status.success(), "{}", told(&output).1);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let devices = document["devices"].as_array().unwrap();
    assert_eq!(devices.iter().filter(|d| d["selector"] == "CPU").count(), 1);
    for device in devices {
        assert!(["CPU", "GPU", "integrated", "accelerator"].contains(&device["kind"].as_str().unwrap()));
        assert!(device["description"].is_string());
    }
    assert!(document["build"]["files"].as_array().is_some_and(|files| files.len() >= 3));
}

#[test]
fn a_folder_that_is_no_build_is_an_environment_error() {
    let empty = tempfile::tempdir().unwrap();
    let (code, text) = told(&run(&["devices", "--ggml", empty.path().to_str().unwrap()]));
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("libggml-base") && text.contains(empty.path().to_str().unwrap()), "{text}");
}

/// A copy of the default build's small libraries, without its manifest, to be spoilt.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn copy_of_the_build() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(common::default_build()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.contains("libggml") && !name.contains("vulkan.so") && !name.contains("cuda") {
            std::fs::copy(&path, folder.path().join(name)).unwrap();
        }
    }
    folder
}

/// What `devices` says of a folder; it must be an environment error that names the folder.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn refused_build(folder: &Path) -> String {
    let (code, text) = told(&run(&["devices", "--ggml", folder.to_str().unwrap()]));
    assert_eq!(code, 4, "{text}");
    assert!(text.contains(folder.to_str().unwrap()), "{text}");
    text
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn spoilt_builds_are_environment_errors_that_say_what_is_wrong() {
    let names = |folder: &Path| -> Vec<std::path::PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    // Whole, it is a build.
    let whole = copy_of_the_build();
    let (code, text) = told(&run(&["devices", "--ggml", whole.path().to_str().unwrap()]));
    assert_eq!(code, 0, "{text}");

    let no_base = copy_of_the_build();
    for path in names(no_base.path()).iter().filter(|path| path.to_str().unwrap().contains("libggml-base")) {
        std::fs::remove_file(path).unwrap();
    }
    assert!(refused_build(no_base.path()).contains("no libggml-base"));

    let no_cpu = copy_of_the_build();
    for path in names(no_cpu.path()).iter().filter(|path| path.to_str().unwrap().contains("libggml-cpu")) {
        std::fs::remove_file(path).unwrap();
    }
    let text = refused_build(no_cpu.path());
    assert!(text.contains("no device") || text.contains("0 cpu devices"), "{text}");

    // Byte 18 of an ELF file is its machine; 183 is aarch64.
    let foreign = copy_of_the_build();
    for path in names(foreign.path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[18] = 183;
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(refused_build(foreign.path()).contains("built for aarch64"));

    let mixed = copy_of_the_build();
    std::fs::copy(
        Path::new(&common::default_build()).join("ggml-parity-build.json"),
        mixed.path().join("ggml-parity-build.json"),
    )
    .expect("the default build has a manifest");
    let base = mixed.path().join("libggml-base.so");
    let mut bytes = std::fs::read(&base).unwrap();
    bytes.push(0);
    std::fs::write(&base, bytes).unwrap();
    assert!(refused_build(mixed.path()).contains("libggml-base.so is not the one"));
}

#[test]
fn two_builds_are_compared_on_the_same_device() {
    let builds = common::all_builds();
    let Some(other) = builds.iter().find(|name| **name != builds[0]) else {
        eprintln!("NOT CHECKED: only one ggml build is here");
        return;
    };
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("report");
    let arguments = ["run", "--ggml", &builds[0], "--ggml", other, "--device", "CPU", "--model", "gen-qwen2"];
    let (code, text) = told(&run(&[&arguments[..], &["--out", out.to_str().unwrap()]].concat()));
    assert_eq!(code, 0, "{text}");
    let report = report(&out);
    let cell = report.cells.iter().find(|cell| cell.build == *other).expect("the second build has cells");
    assert_eq!(
        cell.reference.as_deref(),
        Some(cell.id.to_string().replace(other.as_str(), &builds[0])).as_deref()
    );
    assert!(cell.metrics.as_ref().is_some_and(|metrics| metrics.logits.overall <= 1e-9));
}

/// Runs a model file that is wrong and returns what was said.
fn refused(name: &str, content: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    let (code, text) = told(&run(&["run", "--model", path.to_str().unwrap()]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains(path.to_str().unwrap()), "the file is named: {text}");
    text
}

#[test]
fn model_files_that_are_wrong_are_refused() {
    let whole = std::fs::read(common::anchor("qwen2-anchor.gguf")).unwrap();
    let truncated = refused("truncated.gguf", &whole[..whole.len() - 1]);
    assert!(truncated.contains("blk.1.ffn_down.weight"), "the field is named: {truncated}");
    let page = refused("page.gguf", b"<!DOCTYPE html><html><body>Sign in to download</body></html>");
    assert!(page.contains("web page"), "{page}");
    // A name that is no longer what the architecture asks for.
    let mut renamed = whole;
    let at = renamed.windows(17).position(|w| w == b"blk.1.attn_v.bias").unwrap();
    renamed[at + 11] = b'x';
    let missing = refused("renamed.gguf", &renamed);
    assert!(missing.contains("blk.1.attn_v.bias"), "{missing}");
}

#[test]
fn a_mode_that_the_architecture_lacks_is_a_usage_error() {
    let (code, text) = told(&run(&["run", "--model", "gen-qwen2", "--mode", "full"]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("qwen2") && text.contains("full"), "{text}");
}

/// Children of a process that are workers.
#[cfg(target_os = "linux")]
fn workers_of(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            after.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()) == Some(parent)
        })
        .collect()
}

/// A run of three cells whose worker gets `signal` in the middle of the second one; its exit code and report.
#[cfg(target_os = "linux")]
fn run_with_a_worker_hit_by(signal: &str) -> (Option<i32>, Report) {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("report");
    let mut run = common::command(&["run", "--model", "dream-arith", "--mode", "full", "--mode", "generate"])
        .args(["--model", "gen-dream", "--device", "CPU@x64", "--out"])
        .arg(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    for line in lines {
        // The generation is next, and takes seconds with these kernels.
        if line.contains("dream-arith/f16/full@") && line.contains("CPU@x64 computed") {
            for pid in workers_of(run.id()) {
                assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
            }
        }
    }
    (run.wait().unwrap().code(), report(&folder))
}

/// The cell whose id holds `part`.
#[cfg(target_os = "linux")]
fn cell<'a>(report: &'a Report, part: &str) -> &'a ggml_parity::report::Cell {
    report.cells.iter().find(|cell| cell.id.to_string().contains(part)).expect("declared")
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_killed_in_the_middle_costs_only_its_cell() {
    let (code, report) = run_with_a_worker_hit_by("-KILL");
    assert_eq!(code, Some(5));
    let crashed = cell(&report, "dream-arith/f16/generate");
    assert_eq!(crashed.status, Status::Crashed);
    assert!(crashed.reason.contains("signal 9 (SIGKILL)"), "{}", crashed.reason);
    assert_eq!(cell(&report, "dream-arith/f16/full").status, Status::Pass);
    assert_eq!(cell(&report, "gen-dream/f32/full").status, Status::Pass);
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_crashes_once_is_tried_again_and_the_report_says_so() {
    let (code, report) = run_with_a_worker_hit_by("-ABRT");
    assert_eq!(code, Some(0));
    let again = cell(&report, "dream-arith/f16/generate");
    assert_eq!(again.status, Status::Pass);
    assert!(again.retried.as_ref().is_some_and(|how| how.contains("SIGABRT")), "{:?}", again.retried);
    assert_eq!(cell(&report, "dream-arith/f16/full").retried, None);
    assert!(ggml_parity::report::console::render(&report, false).contains("on the second try"));
}

#[test]
fn a_time_limit_ends_a_cell_and_not_the_run() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("report");
    // The reference needs longer than a second for as many steps.
    let arguments =
        ["run", "--model", "dream-arith", "--mode", "generate", "--steps", "5000", "--generate", "5000"];
    let arguments =
        [&arguments[..], &["--device", "CPU", "--timeout", "1", "--out", out.to_str().unwrap()]].concat();
    let (code, text) = told(&run(&arguments));
    assert_eq!(code, 5, "{text}");
    assert_eq!(report(&out).cells[0].status, Status::Timeout);
}

#[test]
fn loading_keeps_little_of_the_file_in_host_memory() {
    let bench = common::Bench::open(&common::default_build());
    let path = bench.folder().join("large.gguf");
    let preset = model_file::GenerateSpec::preset("gen-llama").unwrap();
    let spec = model_file::GenerateSpec {
        n_embd: 1024,
        n_ff: 4096,
        n_vocab: 40_000,
        n_head: 8,
        n_head_kv: 4,
        head_dim: 128,
        ..preset
    };
    model_file::generate(&spec, &path).unwrap();
    let file = path.metadata().unwrap().len();
    assert!(file > 400 << 20, "the file is larger than the limit: {file}");
    let capture =
        bench.capture("CPU", &path, ggml_parity::plan::Mode::Prefill, &common::tokens(&[1, 2, 3], 0));
    let meta = capture.meta();
    let buffers: u64 = meta.bytes.iter().map(|b| b.bytes).sum();
    assert!(buffers >= file - (16 << 20), "the weights are in ggml's buffers: {buffers}");
    if let Some(peak) = meta.peak_rss_bytes {
        let rest = peak.saturating_sub(buffers);
        assert!(rest <= 256 << 20, "{} MiB beside ggml's buffers", rest >> 20);
        eprintln!("peak {} MiB, ggml's buffers {} MiB", peak >> 20, buffers >> 20);
    }
}
