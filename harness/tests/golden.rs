//! Goldens: a device alone is held to what the oracle once put out, and a folder in which something does not fit is
//! refused.

mod common;

use common::{binary, run, told};
use ggml_parity::golden::manifest::Manifest;
use ggml_parity::report::{Arm, Report, json};
use ggml_parity::verdict::Status;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

/// The golden that the tests of this file edit.
const CASE: &str = "gen-llama/f32/prefill";

fn goldens() -> PathBuf {
    common::root().join("golden")
}

/// A copy of the goldens that may be spoilt.
fn copy() -> tempfile::TempDir {
    let work = tempfile::tempdir().unwrap();
    std::fs::create_dir(work.path().join("cases")).unwrap();
    std::fs::copy(goldens().join("cases.toml"), work.path().join("cases.toml")).unwrap();
    for entry in std::fs::read_dir(goldens().join("cases")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, work.path().join("cases").join(path.file_name().unwrap())).unwrap();
    }
    work
}

/// `golden check` of a folder: exit code, what it said, and the report where there is one.
fn check(folder: &Path, arguments: &[&str]) -> (i32, String, Option<Report>) {
    let out = tempfile::tempdir().unwrap();
    let report = out.path().join("report");
    let start = ["golden", "check", "--golden", folder.to_str().unwrap(), "--threads", "1", "--out"];
    let (code, text) = told(&run(&[&start[..], &[report.to_str().unwrap()], arguments].concat()));
    let found =
        std::fs::read_to_string(report.join("report.json")).ok().map(|text| json::parse(&text).unwrap());
    (code, text, found)
}

#[test]
fn the_cpu_passes_every_golden_and_no_reference_runs() {
    let (code, text, report) = check(&goldens(), &["--device", "CPU", "--device", DEVICE]);
    assert_eq!(code, 0, "{text}");
    let report = report.unwrap();
    assert_eq!(report.cells.iter().filter(|cell| cell.device.to_string() == "CPU").count(), 26);
    for cell in &report.cells {
        let found = cell.attribution.as_ref().unwrap_or_else(|| panic!("{}", cell.id));
        assert_eq!((cell.status, found.verdict), (Status::Pass, Arm::Agree), "{}: {}", cell.id, cell.reason);
        assert!(found.device_nmse > 0.0, "{}: a golden has other bits than F32 arithmetic", cell.id);
        assert!(cell.reference.as_ref().unwrap().ends_with("@golden:oracle"), "{:?}", cell.reference);
        let steps = matches!(cell.mode.name(), "decode" | "generate" | "sparse");
        assert_eq!(
            cell.metrics.as_ref().unwrap().greedy.is_some(),
            steps,
            "{}: the free run counts",
            cell.id
        );
    }
    // One worker a device: the reference's and the oracle's cells are not among those computed.
    assert_eq!(text.lines().filter(|line| line.ends_with(" computed")).count(), report.cells.len());
}

#[test]
fn the_verdict_is_that_of_a_run_with_all_arms() {
    let golden = check(&goldens(), &["--device", DEVICE, "--case", "gen-dream/f32/sparse"]).2.unwrap();
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("run");
    let mut arguments = vec!["run", "--threads", "1", "--out", folder.to_str().unwrap()];
    let ids: Vec<String> = golden.cells.iter().map(|cell| cell.id.to_string()).collect();
    assert_eq!(ids.len(), 2);
    ids.iter().for_each(|id| arguments.extend(["--cell", id]));
    let (code, text) = told(&run(&arguments));
    assert_eq!(code, 0, "{text}");
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap();
    for (a, b) in golden.cells.iter().zip(&json::parse(&text).unwrap().cells) {
        let (x, y) = (a.attribution.as_ref().unwrap(), b.attribution.as_ref().unwrap());
        assert_eq!((a.status, x.verdict, &a.limits), (b.status, y.verdict, &b.limits));
        let ratio = x.device_nmse / y.device_nmse;
        assert!((0.25..4.0).contains(&ratio), "rounding to F32 is below the noise: {ratio}");
        assert!(a.metrics.as_ref().unwrap().greedy.is_some());
    }
}

#[test]
fn vulkan_passes_goldens_that_no_gpu_had_a_part_in() {
    let bench = common::Bench::open(&common::default_build());
    if !bench.offers("Vulkan0") {
        eprintln!("NOT CHECKED: no Vulkan device is here");
        return;
    }
    // Software drivers die at random now and then: once is forgiven, by the harness and here.
    let mut told = String::new();
    for _ in 0..2 {
        let (code, text, report) =
            check(&goldens(), &["--device", "Vulkan0", "--case", "gen-dream/f32/full", "--case", CASE]);
        told = text;
        if code == 0 {
            assert_eq!(report.unwrap().cells.len(), 2);
            return;
        }
        assert_eq!(code, 5, "{told}");
    }
    panic!("{told}");
}

/// Changes one value of a golden: the bit `bit` of the byte `at` in `tensor`.
fn edit(folder: &Path, tensor: &str, at: usize, bit: u8) -> PathBuf {
    let manifest = Manifest::read(folder).unwrap();
    let path = folder.join(&manifest.entry(&CASE.parse().unwrap()).unwrap().file);
    let mut bytes = std::fs::read(&path).unwrap();
    let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let first = document[tensor]["data_offsets"][0].as_u64().unwrap();
    bytes[8 + header + usize::try_from(first).unwrap() + at] ^= 1 << bit;
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Writes the hash that an edited file has into the manifest, as somebody would who means to deceive.
fn cover_up(folder: &Path, path: &Path) {
    let mut manifest = Manifest::read(folder).unwrap();
    let digest = Sha256::digest(std::fs::read(path).unwrap());
    let entry = manifest.case.iter_mut().find(|entry| folder.join(&entry.file) == path).unwrap();
    entry.sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    manifest.write(folder).unwrap();
}

#[test]
fn a_golden_edited_by_one_value_fails_and_names_tensor_and_row() {
    // K and V: 33 positions of 2 heads x 64 values; logits: 33 rows of 130.
    for (tensor, row, width) in [("v.1", 20, 128), ("k.0", 0, 128), ("logits", 32, 130), ("tokens", 7, 1)] {
        let folder = copy();
        // The lowest bit of the row's last value.
        edit(folder.path(), tensor, 4 * (row * width + width - 1), 0);
        let (code, text, report) = check(folder.path(), &["--device", "CPU", "--case", "gen-dream/f32/full"]);
        assert_eq!(code, 2, "{text}");
        assert!(
            text.contains(&format!("golden {CASE}: edited, first in tensor {tensor} row {row}: ")),
            "{text}"
        );
        assert!(report.is_none(), "nothing is run");
    }
}

#[test]
fn an_edit_whose_hash_was_edited_too_is_found_by_the_device_and_by_the_oracle() {
    let folder = copy();
    // The exponent of a value of V.
    let path = edit(folder.path(), "v.1", 4 * 20 * 128 + 3, 0);
    cover_up(folder.path(), &path);
    let arguments = ["--device", "CPU", "--case", CASE];
    let (code, text, report) = check(folder.path(), &arguments);
    assert_eq!(code, 1, "{text}");
    let cell = &report.unwrap().cells[0];
    assert_eq!(cell.attribution.as_ref().unwrap().verdict, Arm::Device);
    assert!(cell.reason.contains("NMSE of v.1 ") && cell.reason.contains("position 20"), "{}", cell.reason);
    let (code, text, _) = check(folder.path(), &[&arguments[..], &["--verify"]].concat());
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("first in tensor v.1 row 20"), "{text}");
    // A small one is beyond what the device's noise shows.
    let folder = copy();
    let path = edit(folder.path(), "logits", 4 * 130 * 3 + 1, 0);
    cover_up(folder.path(), &path);
    let (code, text, _) = check(folder.path(), &[&arguments[..], &["--verify"]].concat());
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("first in tensor logits row 3"), "{text}");
}

#[test]
fn the_oracle_still_puts_out_what_the_goldens_hold() {
    let (code, text, _) = check(
        &goldens(),
        &["--device", "CPU", "--verify", "--case", "gen-llama/f32", "--case", "gen-dream/f32/sparse"],
    );
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("the oracle puts out what the 10 goldens hold"), "{text}");
}

#[test]
fn orphans_missing_files_and_stale_goldens_are_errors() {
    let refused = |spoil: &dyn Fn(&Path, &mut Manifest), wanted: &str| {
        let folder = copy();
        let mut manifest = Manifest::read(folder.path()).unwrap();
        spoil(folder.path(), &mut manifest);
        manifest.write(folder.path()).unwrap();
        let (code, text, report) = check(folder.path(), &["--device", "CPU"]);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(wanted) && report.is_none(), "{wanted}: {text}");
    };
    let manifest = Manifest::read(&goldens()).unwrap();
    let at = manifest.case.iter().position(|entry| entry.id.to_string() == CASE).unwrap();
    refused(
        &|folder, _| std::fs::write(folder.join("cases/old.safetensors"), "").unwrap(),
        "old.safetensors: orphan",
    );
    refused(&|folder, m| std::fs::remove_file(folder.join(&m.case[3].file)).unwrap(), "missing: ");
    refused(&|folder, m| drop((m.case.remove(at), folder)), "golden gen-llama/f32/prefill: missing: ");
    refused(&|_, m| m.case[at].model_sha256 = "0".repeat(64), "stale: the model's sha256 is ");
    refused(&|_, m| m.case[at].inputs_sha256 = "0".repeat(64), "stale: the inputs' sha256 is ");
    refused(&|_, m| m.case[at].oracle = 0, "stale: the oracle's revision is ");
    refused(
        &|_, m| m.case[at].capture = "ggml-parity.capture/0".to_owned(),
        "stale: the schema of captures is ",
    );
    refused(&|_, m| m.case[at].id = "gen-llama/f32/prefill?n=2".parse().unwrap(), "orphan: no such case");
    refused(&|_, m| m.case[at].file = "../../x".to_owned(), "file `../../x` lies outside the folder");
}

#[test]
fn without_goldens_the_error_says_how_to_name_them() {
    let (code, text) = told(&run(&["golden", "check", "--device", "CPU"]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("--golden DIR"), "{text}");
    let (code, text, _) = check(&goldens(), &["--case", "gen-llama/f64"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("`gen-llama/f64`") && text.contains(CASE), "{text}");
}

fn bless(folder: &Path, arguments: &[&str], ci: bool) -> (i32, String) {
    let mut command = Command::new(binary());
    command.args(["golden", "bless", "--golden", folder.to_str().unwrap()]).args(arguments);
    if ci {
        command.env("CI", "true")
    } else {
        command.env_remove("CI")
    };
    told(&command.output().unwrap())
}

#[test]
fn blessing_keeps_what_did_not_change_and_is_refused_in_ci() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = bless(folder.path(), &["--case", CASE], true);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("CI"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let (code, text) = bless(folder.path(), &["--case", CASE, "--case", "gen-dream/f32/full"], false);
    assert_eq!(code, 0, "{text}");
    let first = Manifest::read(folder.path()).unwrap();
    assert_eq!(first.case.len(), 2);
    let (code, text) = bless(folder.path(), &["--case", CASE], false);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("unchanged") && !text.contains("written"), "{text}");
    assert_eq!(Manifest::read(folder.path()).unwrap(), first, "the provenance too");

    // A file that was edited is made whole.
    let path = edit(folder.path(), "k.1", 0, 0);
    assert_eq!(bless(folder.path(), &["--case", CASE], false).0, 0);
    let (code, text, _) = check(folder.path(), &["--device", "CPU", "--case", CASE]);
    assert_eq!(code, 0, "{text}");
    assert!(path.is_file());
}
