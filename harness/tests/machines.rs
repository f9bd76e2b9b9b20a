//! Work spread over machines: shards and their merging, captures made apart and compared, captures by others.

mod common;

use common::{anchor, run, told};
use ggml_parity::capture::CaptureReader;
use ggml_parity::report::{Cell, Report, json};
use ggml_parity::verdict::Status;
use model_file::{GgufWriter, TensorType};
use std::path::Path;
use std::process::Command;

/// A device under test that every machine has.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

fn report(folder: &Path) -> Report {
    let text = std::fs::read_to_string(folder.join("report.json")).expect("report.json is there");
    json::parse(&text).expect("report.json is a report")
}

/// Runs the binary and expects this exit code; what it said.
fn expect(code: i32, arguments: &[&str]) -> String {
    let (found, text) = told(&run(arguments));
    assert_eq!(found, code, "{arguments:?}\n{text}");
    text
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A report's cells as JSON, without what differs from run to run.
fn cells(report: &Report) -> String {
    let strip = |cell: &Cell| {
        let cell = Cell { timings: Default::default(), peak_rss_bytes: None, ..cell.clone() };
        serde_json::to_string_pretty(&cell).unwrap()
    };
    report.cells.iter().map(strip).collect::<Vec<_>>().join(",\n")
}

#[test]
fn shards_run_apart_and_merged_give_the_report_of_one_run() {
    let out = tempfile::tempdir().unwrap();
    let path = |name: &str| out.path().join(name);
    let matrix = [
        "run",
        "--model",
        "gen-qwen2",
        "--model",
        "gen-dream",
        "--device",
        DEVICE,
        "--threads",
        "1",
        "--out",
    ];
    expect(0, &[&matrix[..], &[text(&path("whole"))]].concat());
    for shard in ["1/2", "2/2"] {
        let folder = path(&format!("shard-{}", &shard[..1]));
        expect(0, &[&matrix[..], &[text(&folder), "--shard", shard]].concat());
    }
    let (whole, first, second) = (report(&path("whole")), report(&path("shard-1")), report(&path("shard-2")));
    assert!(first.cells.len() >= 3 && second.cells.len() >= 3);
    assert_eq!(first.cells.len() + second.cells.len(), whole.cells.len());

    let all = path("all");
    expect(0, &["merge", text(&path("shard-2")), text(&path("shard-1")), "--out", text(&all)]);
    let merged = report(&all);
    assert_eq!(cells(&merged), cells(&whole));
    let part = merged.part_of(&second.cells[0].id).expect("the run of each cell is known");
    assert_eq!(part.run.name, "shard-2");
    assert_eq!(merged.environment.builds, whole.environment.builds);
    assert_eq!(merged.environment.devices, whole.environment.devices);
    assert!(std::fs::read_to_string(all.join("summary.md")).unwrap().contains("shard 2/2"));

    // A shard that is not there is named, and red.
    let said = expect(3, &["merge", text(&path("shard-1")), "--out", text(&path("half"))]);
    assert!(said.contains("shard 2/2") && said.contains("missing"), "{said}");
    let half = report(&path("half"));
    assert_eq!(half.cells.len(), whole.cells.len());
    let missing = half.cells.iter().filter(|cell| cell.status == Status::Missing).count();
    assert_eq!(missing, second.cells.len());

    // The same cells with other figures are a conflict, which --prefer decides.
    let changed = path("changed");
    let mut spoilt = whole.clone();
    spoilt.cells[1].status = Status::Diverged;
    spoilt.cells[1].reason = "spoilt".to_owned();
    ggml_parity::report::write(&changed, &spoilt).unwrap();
    let (before, out) = (path("whole"), path("both"));
    let both = ["merge", text(&before), text(&changed), "--out", text(&out)];
    let said = expect(2, &both);
    assert!(said.contains(&spoilt.cells[1].id.to_string()) && said.contains("diverged in whole"), "{said}");
    assert!(!said.contains(&spoilt.cells[2].id.to_string()), "{said}");
    expect(1, &[&both[..], &["--prefer", "worst"]].concat());

    let said = expect(2, &[&matrix[..], &[text(&path("none")), "--shard", "99/99"]].concat());
    assert!(said.contains("--shard 99/99") && said.contains("7 cases"), "{said}");
}

#[test]
fn captures_made_apart_are_judged_as_a_run_judges_them() {
    let out = tempfile::tempdir().unwrap();
    let path = |name: &str| out.path().join(name);
    let cases = ["gen-qwen2/f32/decode", "gen-dream/f32/generate?cache=sparse", "gen-llama/f32/prefill?n=7"];
    let (reference, device) = (path("reference"), path("device"));
    expect(0, &[&["capture"], &cases[..], &["--threads", "1", "--out", text(&reference)]].concat());
    let replay = ["capture", "--replay", text(&reference), "--device", DEVICE, "--threads", "1", "--out"];
    expect(0, &[&replay[..], &[text(&device)]].concat());
    let compared = path("compared");
    let said = expect(0, &["compare", text(&reference), text(&device), "--out", text(&compared)]);
    assert!(said.contains("3 cells: 3 pass"), "{said}");

    let whole = path("whole");
    let ids: Vec<String> = report(&compared).cells.iter().map(|cell| cell.id.to_string()).collect();
    let mut arguments =
        vec!["run", "--threads", "1", "--no-oracle", "--keep-captures", "--out", text(&whole)];
    arguments.extend(ids.iter().flat_map(|id| ["--cell", id.as_str()]));
    expect(0, &arguments);
    for cell in report(&whole).cells {
        let apart = report(&compared).cells.into_iter().find(|other| other.id == cell.id).unwrap();
        assert_eq!((apart.metrics, apart.limits), (cell.metrics, cell.limits), "{}", cell.id);
        assert_eq!((apart.status, apart.reference), (cell.status, cell.reference), "{}", cell.id);
        // The command of the report compares that pair alone.
        let words = shlex::split(&apart.rerun).unwrap();
        expect(0, &words[1..].iter().map(String::as_str).collect::<Vec<_>>());
    }
    // The names are those of a run, and a run's folder is an arm.
    let name = |folder: &Path| {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    assert!(name(&device).is_subset(&name(&whole.join("captures"))));
    expect(0, &["compare", text(&whole), text(&device)]);

    // A capture without a partner is missing; limits of one's own are read from a file.
    let lost = std::fs::read_dir(&device).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(lost).unwrap();
    let said = expect(3, &["compare", text(&reference), text(&device)]);
    assert!(said.contains("no capture of this case by the test"), "{said}");
    let strict = path("strict.toml");
    let table = std::fs::read_to_string(common::root().join("harness/src/verdict/tolerances.toml")).unwrap();
    std::fs::write(&strict, table.replace("limit = 1e-10", "limit = 1e-30")).unwrap();
    let arguments = ["compare", text(&reference), text(&device), "--tolerances", text(&strict)];
    assert!(expect(3, &arguments).contains("> 1e-30"));
    std::fs::write(&strict, "limit = 3").unwrap();
    assert!(expect(2, &arguments).contains("strict.toml"));
}

#[test]
fn a_trajectory_of_another_model_is_not_followed() {
    let out = tempfile::tempdir().unwrap();
    let path = |name: &str| out.path().join(name);
    let references = path("references");
    expect(0, &["capture", "gen-qwen2/f32/prefill", "--out", text(&references)]);
    let other = path("gen-qwen2.gguf");
    let spec = model_file::GenerateSpec::preset("gen-qwen2").unwrap();
    model_file::generate(&model_file::GenerateSpec { seed: spec.seed + 1, ..spec }, &other).unwrap();
    let device = path("device");
    let replay = ["capture", "--replay", text(&references), "--out", text(&device)];
    let said = expect(2, &[&replay[..], &["--model", text(&other)]].concat());
    assert!(said.contains("model.sha256") && said.contains("gen-qwen2_f32_prefill"), "{said}");
    let said = expect(2, &[&replay[..], &["gen-llama/f32/prefill"]].concat());
    assert!(said.contains("gen-llama/f32/prefill") && said.contains("--replay"), "{said}");
}

/// Our own capture of an anchor's model and tokens.
fn ours(model: &str, folder: &Path) -> std::path::PathBuf {
    let reference = CaptureReader::open_foreign(&anchor(&format!("{model}-anchor.f64.safetensors"))).unwrap();
    let bench = common::Bench::open(&common::default_build());
    let inputs = common::tokens(reference.tokens(), 0);
    let made = bench.capture(
        "CPU",
        &anchor(&format!("{model}-anchor.gguf")),
        ggml_parity::plan::Mode::Full,
        &inputs,
    );
    let path = folder.join("ours.safetensors");
    std::fs::copy(made.path(), &path).unwrap();
    path
}

#[test]
fn a_file_of_llama_results_is_compared_with_ours() {
    let folder = tempfile::tempdir().unwrap();
    let ours = ours("qwen2", folder.path());
    // What llama.cpp computed, in the container and with the extents that its tool writes.
    let mut outside = CaptureReader::open_foreign(&anchor("qwen2-anchor.llamacpp.safetensors")).unwrap();
    let (rows, vocab) = (outside.rows(), outside.vocab());
    let mut logits = Vec::new();
    outside.logits(0, rows, &mut logits).unwrap();
    let write = |logits: &[f64], path: &Path| {
        let tokens: Vec<u8> = outside.tokens().iter().flat_map(|t| t.to_le_bytes()).collect();
        let logits: Vec<u8> = logits.iter().flat_map(|&z| (z as f32).to_le_bytes()).collect();
        GgufWriter::new()
            .metadata("path_model", "qwen2-anchor.gguf")
            .tensor_bytes("tokens", &[rows as u64], TensorType::I32, tokens)
            .tensor_bytes("logits", &[rows as u64, vocab as u64], TensorType::F32, logits)
            .write(path)
            .unwrap();
    };
    let results = folder.path().join("results.gguf");
    write(&logits, &results);
    let said = expect(0, &["compare", text(&ours), text(&results)]);
    assert!(said.contains("K/V (absent in the test)"), "{said}");
    // Two rows swapped.
    let (a, b) = logits.split_at_mut(vocab);
    a.swap_with_slice(&mut b[..vocab]);
    write(&logits, &results);
    assert!(expect(1, &["compare", text(&ours), text(&results)]).contains("logits NMSE"));
}

/// Python with what the documented example needs; a line says that it is not here.
fn python() -> Option<String> {
    let has = Command::new("python3").args(["-c", "import numpy, safetensors"]).output();
    let found = has.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("NOT CHECKED: the Python example: python3 with numpy and safetensors is not here");
    }
    found.then(|| "python3".to_owned())
}

#[test]
fn a_capture_by_the_documented_python_example_is_compared_with_ours() {
    let Some(python) = python() else { return };
    let example = common::root().join("ci/examples/capture_transformers.py");
    let folder = tempfile::tempdir().unwrap();
    // An anchor stands for the model: its arrays, in the shapes that transformers has, go through the example's own
    // function. Models of the architecture llama turn pairs of neighbours where transformers turns halves.
    let script = r#"
import runpy, sys
import numpy as np
from safetensors.numpy import load_file
example, anchor, out, pairs, spoil = sys.argv[1:]
write_capture = runpy.run_path(example)["write_capture"]
arrays = load_file(anchor)
def states(name):
    x = np.swapaxes(arrays[name], 0, 1)
    if pairs == "pairs" and name[0] == "k":
        x = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    return x
caches = [[states(f"{c}.{layer}") for c in "kv"] for layer in range(2)]
if spoil == "spoil":
    caches[1][0][0] *= 1.01
write_capture(out, arrays["tokens"], arrays["logits"], caches, "m/f32/full?n=1", pairs == "pairs")
"#;
    for (model, pairs) in [("qwen2", "halves"), ("llama", "pairs")] {
        let ours = ours(model, folder.path());
        let theirs = folder.path().join(format!("{model}.safetensors"));
        let anchor = anchor(&format!("{model}-anchor.f64.safetensors"));
        let write = |pairs: &str, spoil: &str| {
            let mut python = Command::new(&python);
            python.args(["-c", script, text(&example), text(&anchor), text(&theirs), pairs, spoil]);
            let (code, said) = told(&python.output().unwrap());
            assert_eq!(code, 0, "{said}");
        };
        write(pairs, "whole");
        let out = folder.path().join(format!("{model}-report"));
        expect(0, &["compare", text(&theirs), text(&ours), "--out", text(&out)]);
        let cell = &report(&out).cells[0];
        let metrics = cell.metrics.as_ref().unwrap();
        // The anchor's own limit, far below the one that the case has.
        assert!(metrics.logits.overall <= 1e-11, "{:e}", metrics.logits.overall);
        let kv = metrics.kv.as_ref().expect("K/V were compared");
        assert!(kv.layers.len() == 2 && kv.worst.nmse <= 1e-11, "{:e}", kv.worst.nmse);
        write(pairs, "spoil");
        assert!(expect(1, &["compare", text(&theirs), text(&ours)]).contains("k.1"), "{model}");
    }
}

#[test]
fn the_document_of_the_format_shows_the_example_as_it_is() {
    let root = common::root();
    let document = std::fs::read_to_string(root.join("harness/src/capture/SCHEMA.md")).unwrap();
    let example = std::fs::read_to_string(root.join("ci/examples/capture_transformers.py")).unwrap();
    assert!(
        document.contains(&format!("```python\n{example}```\n")),
        "the example was changed in one place only"
    );
    for tensor in ["logits", "positions", "step", "tokens", "k.N", "k_raw.N", "greedy.margin", "unmask.step"]
    {
        assert!(document.contains(&format!("`{tensor}`")), "{tensor}");
    }
}
