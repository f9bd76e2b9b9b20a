//! Calibration on a tiny set: it proposes limits that a run takes, and the same ones twice.

mod common;

use common::{run, told};
use ggml_parity::verdict::Tolerances;
use std::path::Path;

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

fn calibrate(out: &Path, arguments: &[&str]) -> (i32, String, serde_json::Value) {
    let start = ["calibrate", "--device", DEVICE, "--threads", "1", "--out", out.to_str().unwrap()];
    let (code, text) = told(&run(&[&start[..], arguments].concat()));
    let document =
        std::fs::read_to_string(out.join("calibrate.json")).unwrap_or_else(|e| panic!("{e}: {text}"));
    (code, text, serde_json::from_str(&document).unwrap())
}

#[test]
fn twice_on_one_machine_gives_limits_within_a_factor_of_two() {
    let work = tempfile::tempdir().unwrap();
    let models = ["--model", "gen-llama", "--mode", "prefill", "--seeds", "2"];
    let once = |name: &str| {
        let (code, text, found) = calibrate(&work.path().join(name), &models);
        assert_eq!(code, 0, "{text}");
        found
    };
    let (first, second) = (once("a"), once("b"));
    let limits = |found: &serde_json::Value| -> Vec<(String, f64)> {
        let rows = found["proposals"].as_array().unwrap().iter();
        let key = |row: &serde_json::Value| format!("{} {} {}", row["metric"], row["weights"], row["kv"]);
        rows.map(|row| (key(row), row["limit"].as_f64().unwrap())).collect()
    };
    let (a, b) = (limits(&first), limits(&second));
    assert_eq!(a.len(), 8, "two tables, four types of cache: {a:?}");
    for ((name, a), (other, b)) in a.iter().zip(&b) {
        assert_eq!(name, other);
        assert!(a / b <= 2.0 + 1e-9 && b / a <= 2.0 + 1e-9, "{name}: {a:e} {b:e}");
    }
    // Two draws and one repeat of twelve variations.
    assert_eq!(first["judged"], 36);
    let steady = &first["steadiness"];
    assert!(steady["repeated"].as_u64().unwrap() >= 12 * 6, "{steady}");
    assert_eq!(steady["changing"], 0, "a CPU with fixed threads computes the same each time");
    for row in first["proposals"].as_array().unwrap() {
        let (max, p50) = (row["max"].as_f64().unwrap(), row["p50"].as_f64().unwrap());
        assert!(max > 0.0 && p50 <= max && row["samples"].as_u64().unwrap() >= 9, "{row}");
    }

    // The proposed table is one that a run takes, and the run that it was measured on passes under it.
    let table = work.path().join("a/calibrated.toml");
    std::fs::read_to_string(&table).unwrap().parse::<Tolerances>().unwrap();
    let out = work.path().join("run");
    let arguments =
        ["run", "--model", "gen-llama", "--mode", "prefill", "--device", DEVICE, "--threads", "1"];
    let more = ["--tolerances", table.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let (code, text) = told(&run(&[&arguments[..], &more].concat()));
    assert_eq!(code, 0, "{text}");
    let summary = std::fs::read_to_string(work.path().join("a/calibrate.md")).unwrap();
    assert!(summary.contains("| logits | f32 | q4_0 |") && summary.contains("0 alarms"), "{summary}");
}

#[test]
fn repeats_of_a_gate_count_what_does_not_pass() {
    let work = tempfile::tempdir().unwrap();
    let plain = ["--model", "gen-dream", "--mode", "full", "--plain", "--seeds", "1", "--repeats", "3"];
    let (code, text, found) = calibrate(&work.path().join("good"), &plain);
    assert_eq!((code, &found["judged"]), (0, &serde_json::json!(3)), "{text}");
    assert!(text.contains("3 cells judged, 0 alarms"), "{text}");

    // Under limits that nothing keeps, each repeat is an alarm, and the proposals are above the limits in use.
    let tight = work.path().join("tight.toml");
    let shipped = include_str!("../src/verdict/tolerances.toml");
    let scaled: Vec<String> = shipped
        .lines()
        .map(|line| match line.strip_prefix("limit = ").and_then(|v| v.parse::<f64>().ok()) {
            Some(limit) if limit > 0.0 => format!("limit = {:e}", limit * 1e-9),
            _ => line.to_owned(),
        })
        .collect();
    std::fs::write(&tight, scaled.join("\n")).unwrap();
    let arguments = [&plain[..], &["--tolerances", tight.to_str().unwrap()]].concat();
    let (code, text, found) = calibrate(&work.path().join("bad"), &arguments);
    assert_eq!(code, 1, "{text}");
    assert_eq!(found["alarms"].as_array().unwrap().len(), 3);
    assert!(text.contains("ABOVE"), "{text}");
    let table = std::fs::read_to_string(work.path().join("bad/calibrated.toml")).unwrap();
    assert!(table.contains("ABOVE THE LIMIT IN USE"), "{table}");
    let rerun = found["alarms"][0]["rerun"].as_str().unwrap();
    assert!(rerun.contains("gen-dream/f32/full"), "{rerun}");
}
