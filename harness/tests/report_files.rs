//! The files of a report: real runs, green and red, against the published schema, and what a run prints.

mod common;

use common::{command, root, run, told};
use ggml_parity::report::schema;
use serde_json::Value;
use std::path::Path;

/// A device of every machine that the tests run on: a second flavour of the CPU.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

fn validator() -> jsonschema::Validator {
    let text =
        std::fs::read_to_string(root().join("reports/report.schema.json")).expect("the published schema");
    let schema: Value = serde_json::from_str(&text).expect("the schema is JSON");
    jsonschema::draft202012::meta::validate(&schema).unwrap_or_else(|error| panic!("{error}"));
    jsonschema::draft202012::new(&schema).unwrap_or_else(|error| panic!("{error}"))
}

/// Every place where a report is not what the schema says.
fn faults(report: &Value) -> Vec<String> {
    validator().iter_errors(report).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_published_schema_is_that_of_the_code() {
    let published = read(&root().join("reports/report.schema.json"));
    assert!(
        published == schema::render(),
        "reports/report.schema.json is another: cargo run --release --example report_schema > reports/report.schema.json"
    );
}

#[test]
fn a_real_run_writes_what_the_schema_says_and_prints_where_the_page_is() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("green");
    let (code, text) = told(&run(&[
        "run",
        "--model",
        "gen-llama",
        "--mode",
        "decode",
        "--device",
        DEVICE,
        "--out",
        out.to_str().unwrap(),
    ]));
    assert_eq!(code, 0, "{text}");
    let last = text.lines().rfind(|line| line.starts_with("report: ")).expect("where the report is");
    assert_eq!(last, format!("report: {}", out.join("index.html").display()));
    let report: Value = serde_json::from_str(&read(&out.join("report.json"))).unwrap();
    assert_eq!(faults(&report), Vec::<String>::new());
}

#[test]
fn a_red_run_tells_a_machine_github_and_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let (out, summary) = (folder.path().join("red"), folder.path().join("summary.md"));
    // A second has passed long before a model is loaded and run through a hundred steps.
    let arguments =
        ["run", "--model", "dream-arith", "--mode", "generate", "--device", DEVICE, "--timeout", "1"];
    let ended = command(&arguments)
        .args(["--no-oracle", "--json", "--out", out.to_str().unwrap()])
        .env("GITHUB_ACTIONS", "true")
        .env("GITHUB_STEP_SUMMARY", &summary)
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(5), "{}", told(&ended).1);
    // Standard output holds the report and nothing else.
    let printed: Value = serde_json::from_slice(&ended.stdout).expect("JSON alone");
    assert_eq!(printed, serde_json::from_str::<Value>(&read(&out.join("report.json"))).unwrap());
    assert_eq!(faults(&printed), Vec::<String>::new());
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(errors.lines().any(|line| line.starts_with("::error title=timeout%3A dream-arith/")), "{errors}");
    let summary = read(&summary);
    assert!(summary.contains("## Failed") && summary.contains("no result within 1 s"), "{summary}");
}

#[test]
fn quiet_is_two_lines_and_no_progress() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("quiet");
    let ended = run(&[
        "run",
        "--model",
        "gen-llama",
        "--mode",
        "prefill",
        "--device",
        DEVICE,
        "--quiet",
        "--out",
        out.to_str().unwrap(),
    ]);
    let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(printed.lines().count(), 2, "{printed}");
    assert!(printed.starts_with("1 cells: 1 pass; exit 0"), "{printed}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

#[test]
fn what_is_no_report_is_none_to_the_schema() {
    let text = read(&root().join("reports/sample/report.json"));
    let good: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(faults(&good), Vec::<String>::new());
    let spoil = |pointer: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        faults(&bad)
    };
    for (pointer, value) in [
        ("/schema", "ggml-parity.report/2".into()),
        ("/cells/0/status", "green".into()),
        ("/cells/0/metrics/logits/overall", "NaN".into()),
        ("/cells/0/metrics/top_token/rows", (-1).into()),
        ("/cells/0/id", Value::Null),
    ] {
        assert_ne!(spoil(pointer, value), Vec::<String>::new(), "{pointer}");
    }
    // The three names of what JSON cannot write are figures.
    assert_eq!(spoil("/cells/0/metrics/logits/overall", "nan".into()), Vec::<String>::new());
}
