//! A run that kept its captures is judged again under other limits, with no build and no worker.

mod common;

use common::{binary, run, told};
use ggml_parity::report::{Report, json};
use ggml_parity::verdict::Status;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

/// The limits that ship.
const SHIPPED: &str = include_str!("../src/verdict/tolerances.toml");

fn report(folder: &Path) -> Report {
    let text = std::fs::read_to_string(folder.join("report.json")).expect("report.json is there");
    json::parse(&text).unwrap()
}

/// `ggml-parity report` in a place where no build can be found.
fn judge(arguments: &[&str]) -> (i32, String) {
    let empty = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.arg("report").args(arguments).current_dir(empty.path());
    command.env("GGML_PARITY_CACHE", empty.path()).env_remove("GGML_PARITY_GGML");
    let told = told(&command.output().unwrap());
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "nothing is fetched or built");
    told
}

/// Every limit of the table that ships, `factor` times as large.
fn scaled(factor: f64, to: &Path) -> PathBuf {
    let mut table: toml::Table = SHIPPED.parse().unwrap();
    for list in ["logits_nmse", "kv_nmse"] {
        for row in table[list].as_array_mut().unwrap() {
            let limit = row["limit"].as_float().unwrap() * factor;
            row.as_table_mut().unwrap().insert("limit".to_owned(), limit.into());
        }
    }
    std::fs::write(to, table.to_string()).unwrap();
    to.to_owned()
}

#[test]
fn tighter_limits_turn_a_pass_red_without_any_build() {
    let work = tempfile::tempdir().unwrap();
    let first = work.path().join("first");
    let first_name = first.to_str().unwrap();
    let arguments = ["run", "--model", "gen-llama", "--model", "gen-dream", "--mode", "decode"];
    let more =
        ["--mode", "full", "--device", DEVICE, "--threads", "1", "--keep-captures", "--out", first_name];
    let (code, text) = told(&run(&[&arguments[..], &more].concat()));
    assert_eq!(code, 0, "{text}");
    let before = report(&first);
    assert_eq!(before.cells.len(), 2);

    let same = scaled(1.0, &work.path().join("same.toml"));
    let (code, text) = judge(&[first_name, "--tolerances", same.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    let again = report(&first.join("rejudged-same"));
    for (a, b) in again.cells.iter().zip(&before.cells) {
        assert_eq!(
            (&a.metrics, &a.attribution, a.status),
            (&b.metrics, &b.attribution, b.status),
            "{}",
            a.id
        );
        assert!(first.join("rejudged-same").join(&a.captures.as_ref().unwrap().device).is_file());
    }

    let tight = scaled(1e-9, &work.path().join("tight.toml"));
    let out = work.path().join("elsewhere");
    let (code, text) =
        judge(&[first_name, "--tolerances", tight.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(code, 1, "{text}");
    for cell in &report(&out).cells {
        assert_eq!(cell.status, Status::Diverged, "{}", cell.id);
        assert!(cell.reason.starts_with("both off: "), "{}", cell.reason);
        assert!(cell.limits.as_ref().unwrap().logits_nmse.limit <= 1e-12);
    }
    // A report elsewhere still finds its captures, so it can be judged once more.
    let (code, text) = judge(&[out.to_str().unwrap(), "--tolerances", same.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");

    // Written again as it is.
    std::fs::remove_file(first.join("summary.md")).unwrap();
    assert_eq!(judge(&[first_name]).0, 0);
    assert_eq!(report(&first), before);
    assert!(first.join("summary.md").is_file());

    // A capture that is gone is no divergence of the device.
    let lost = first.join(&before.cells[1].captures.as_ref().unwrap().device);
    std::fs::remove_file(&lost).unwrap();
    let (code, text) = judge(&[first_name, "--tolerances", tight.to_str().unwrap()]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains(lost.file_name().unwrap().to_str().unwrap()), "{text}");
}

#[test]
fn cells_without_captures_cannot_be_judged_again_unless_nothing_was_compared() {
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("run");
    let name = folder.to_str().unwrap();
    let same = scaled(1.0, &work.path().join("same.toml"));
    let one = ["run", "--model", "gen-llama", "--mode", "prefill", "--device", DEVICE, "--threads", "1"];
    let (code, text) = told(&run(&[&one[..], &["--no-oracle", "--out", name]].concat()));
    assert_eq!(code, 0, "{text}");
    let (code, text) = judge(&[name, "--tolerances", same.to_str().unwrap()]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("--keep-captures") && text.contains("gen-llama/f32/prefill"), "{text}");

    // What is unsupported, crashed or missing is no matter of limits.
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap();
    let mut found = json::parse(&text).unwrap();
    let cell = &mut found.cells[0];
    (cell.status, cell.reason, cell.metrics) = (Status::Unsupported, "no such op".to_owned(), None);
    std::fs::write(folder.join("report.json"), json::render(&found)).unwrap();
    let (code, text) = judge(&[name, "--tolerances", same.to_str().unwrap()]);
    assert_eq!(code, 3, "{text}");
    assert_eq!(report(&folder.join("rejudged-same")).cells, found.cells);
}

#[test]
fn faulty_limits_are_refused_with_file_and_line() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("mine.toml");
    std::fs::write(&file, SHIPPED.replacen("weights = \"half\"", "weight = \"half\"", 1)).unwrap();
    let (code, text) = told(&run(&[
        "run",
        "--model",
        "gen-llama",
        "--device",
        DEVICE,
        "--tolerances",
        file.to_str().unwrap(),
    ]));
    assert_eq!(code, 2, "{text}");
    let line = 1 + SHIPPED[..SHIPPED.find("weights = \"half\"").unwrap()].lines().count();
    assert!(text.contains("mine.toml") && text.contains(&format!("line {line}, column 1")), "{text}");
    assert!(text.contains("unknown field `weight`"), "{text}");
}
