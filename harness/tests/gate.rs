//! Gate files as people use them: what is declared, what is known to diverge, and what `gate check` says.

mod common;

use common::{run, told};
use ggml_parity::report::{Report, json};
use ggml_parity::verdict::Status;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A gate file with one row and whatever follows.
fn gate(folder: &Path, row: &str, more: &str) -> PathBuf {
    let path = folder.join("gate.toml");
    let text = format!(
        "schema = \"ggml-parity.gate/1\"\n[run]\npreset = \"p\"\nthreads = 1\n[preset.p]\ndescription = \"d\"\n\
         [[preset.p.row]]\n{row}\n{more}"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A device under test that every machine has, and that is not the reference.
fn device() -> &'static str {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" }
}

/// Runs a gate file; exit code, what was printed, and the report.
fn run_gate(path: &Path, more: &[&str]) -> (i32, String, Report) {
    run_gate_to(&path.with_file_name("report"), path, more)
}

fn run_gate_to(out: &Path, path: &Path, more: &[&str]) -> (i32, String, Report) {
    let arguments = ["run", "--gate", path.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let (code, text) = told(&run(&[&arguments, more].concat()));
    let report = std::fs::read_to_string(out.join("report.json")).unwrap_or_else(|_| panic!("{text}"));
    (code, text, json::parse(&report).unwrap())
}

const TIGHT: &str = "[[tolerances.logits_nmse]]\nlimit = 1e-30\nreason = \"so that it diverges\"\n\
    [tolerances.worst_row]\nfactor = 10\nreason = \"\"\n[[tolerances.kv_nmse]]\nlimit = 1\nreason = \"\"\n\
    [[tolerances.kv_stored]]\nfactor = 1\nreason = \"\"\n[tolerances.fallback]\nlimit = 0\nreason = \"\"\n\
    [tolerances.real_mismatches]\nlimit = 0\nreason = \"\"\n";

#[test]
fn a_declared_divergence_is_expected_and_one_that_is_gone_fails() {
    let folder = tempfile::tempdir().unwrap();
    let row = format!("model = \"gen-qwen2\"\nmode = \"prefill\"\ndevice = \"{}\"", device());
    let declared =
        "[[expect]]\nreason = \"measured\"\n[expect.cells]\nmode = \"prefill\"\n[expect.outcome]\n";
    // With limits that nothing meets the cell diverges, by less than the declared bound.
    let bound = format!("{TIGHT}{declared}logits_nmse = 1e-9\nmismatches = 0\n");
    let path = gate(folder.path(), &row, &bound);
    let written = std::fs::read_to_string(&path).unwrap();
    let line = 1 + written.lines().position(|line| line == "[[expect]]").expect("a declaration");
    let (code, text, report) = run_gate(&path, &["--no-oracle"]);
    assert_eq!((code, report.cells.len()), (0, 1), "{text}");
    assert_eq!(report.cells[0].status, Status::Expected, "{text}");
    assert!(
        report.cells[0].declared.as_ref().unwrap().declarations[0]
            .place
            .ends_with(&format!("gate.toml:{line}")),
        "{text}"
    );
    assert!(text.contains("expected: gen-qwen2/f32/prefill") && text.contains("measured"), "{text}");

    let beyond = format!("{TIGHT}{declared}logits_nmse = 1e-29\n");
    let (code, text, report) = run_gate(&gate(folder.path(), &row, &beyond), &["--no-oracle"]);
    assert_eq!((code, report.cells[0].status), (1, Status::Diverged), "{text}");
    assert!(
        text.contains("beyond what is declared (diverged with logits_nmse <= 1e-29: measured)"),
        "{text}"
    );

    // With the usual limits it passes, which the declaration does not.
    let gone = format!("{declared}logits_nmse = 1e-2\n");
    let (code, text, report) = run_gate(&gate(folder.path(), &row, &gone), &["--no-oracle"]);
    assert_eq!((code, report.cells[0].status), (1, Status::UnexpectedPass), "{text}");
}

#[test]
fn a_required_device_that_is_not_there_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let row = format!(
        "model = \"gen-qwen2\"\nmode = \"prefill\"\ndevice = [\"{0}\", \"CUDA9\"]\nrequired = [\"CUDA9\"]",
        device()
    );
    let path = gate(folder.path(), &row, "");
    let (code, text, report) = run_gate(&path, &["--no-oracle"]);
    assert_eq!(code, 3, "{text}");
    assert_eq!(
        report.cells.iter().map(|cell| cell.status).collect::<Vec<_>>(),
        [Status::Pass, Status::Missing]
    );
    assert!(report.cells[1].reason.starts_with("device `CUDA9` is required by the gate"), "{text}");
    // Optional, it makes no cell; and whoever names devices gets those.
    let optional = row.replace("required = [\"CUDA9\"]", "");
    let (code, text, report) = run_gate(&gate(folder.path(), &optional, ""), &["--no-oracle"]);
    assert_eq!((code, report.cells.len()), (0, 1), "{text}");
}

/// Each cell on an absent device is missing in one shard, and in the whole.
#[test]
fn a_required_device_that_is_not_there_is_missing_once_in_shards() {
    let folder = tempfile::tempdir().unwrap();
    let row = format!(
        "model = \"gen-qwen2\"\nmode = \"prefill\"\noptions = {{ n = [7, 9] }}\ndevice = [\"{0}\", \"CUDA9\"]\n\
         required = [\"CUDA9\"]",
        device()
    );
    let path = gate(folder.path(), &row, "");
    let mut folders = Vec::new();
    for shard in ["1/2", "2/2"] {
        let (code, text) = told(&run(&["run", "--list", "--gate", path.to_str().unwrap(), "--shard", shard]));
        assert_eq!((code, text.lines().count()), (3, 2), "{text}");
        assert!(text.lines().nth(1).unwrap().starts_with("missing: gen-qwen2/f32/prefill?n="), "{text}");
        let out = folder.path().join(shard.replace('/', "-of-"));
        let (code, text, report) = run_gate_to(&out, &path, &["--no-oracle", "--shard", shard]);
        assert_eq!((code, report.cells.len()), (3, 2), "{text}");
        folders.push(out);
    }
    let all = folder.path().join("all");
    let [one, two] = [&folders[0], &folders[1]].map(|folder| folder.to_str().unwrap());
    let (code, text) = told(&run(&["merge", one, two, "--out", all.to_str().unwrap()]));
    assert_eq!(code, 3, "{text}");
    let merged = json::parse(&std::fs::read_to_string(all.join("report.json")).unwrap()).unwrap();
    let mut statuses: Vec<Status> = merged.cells.iter().map(|cell| cell.status).collect();
    statuses.sort_by_key(|status| status.name());
    assert_eq!(statuses, [Status::Missing, Status::Missing, Status::Pass, Status::Pass], "{text}");
    assert_eq!(text.matches("is required by the gate").count(), 2, "{text}");
    assert_eq!(merged.gate.unwrap().file, path.display().to_string());
}

/// A kept run under other declarations and other limits: nothing is run, and what the first gate said is gone.
#[test]
fn a_report_is_held_against_another_gate() {
    let folder = tempfile::tempdir().unwrap();
    let row = format!("model = \"gen-qwen2\"\nmode = \"prefill\"\ndevice = \"{}\"", device());
    let declared = format!(
        "[[expect]]\nreason = \"measured\"\n[expect.cells]\ndevice = \"{}\"\n[expect.outcome]\n",
        device()
    );
    let bound = format!("{TIGHT}{declared}logits_nmse = 1e-2\n");
    let path = gate(folder.path(), &row, &bound);
    let out = folder.path().join("kept");
    let (code, text, report) = run_gate_to(&out, &path, &["--no-oracle", "--keep-captures"]);
    assert_eq!((code, report.cells[0].status), (0, Status::Expected), "{text}");
    assert_eq!(report.cells[0].found.as_ref().map(|found| found.status), Some(Status::Diverged));

    let shipped = folder.path().join("shipped.toml");
    std::fs::write(&shipped, include_str!("../src/verdict/tolerances.toml")).unwrap();
    let (shipped, out) = (shipped.to_str().unwrap(), out.to_str().unwrap());
    let other = folder.path().join("other.toml");
    std::fs::write(
        &other,
        std::fs::read_to_string(&path).unwrap().replace("logits_nmse = 1e-2", "logits_nmse = 1e-29"),
    )
    .unwrap();
    for (arguments, wanted) in [
        (&["--gate", other.to_str().unwrap()][..], (1, Status::Diverged)),
        (&["--gate", path.to_str().unwrap()], (0, Status::Expected)),
        (&["--gate", path.to_str().unwrap(), "--tolerances", shipped], (1, Status::UnexpectedPass)),
        // The built-in gate knows nothing of it.
        (&["--tolerances", shipped], (0, Status::Pass)),
        (&[], (0, Status::Expected)),
    ] {
        let to = folder.path().join("again");
        let (code, text) = told(&run(&[&["report", out, "--out", to.to_str().unwrap()], arguments].concat()));
        let text_of_report = std::fs::read_to_string(to.join("report.json")).unwrap();
        let again = json::parse(&text_of_report).unwrap();
        assert_eq!((code, again.cells[0].status), wanted, "{arguments:?}: {text}");
    }
    // A file of limits comes before those of the gate.
    let (code, text, report) = run_gate(&path, &["--no-oracle", "--tolerances", shipped]);
    assert_eq!((code, report.cells[0].status), (1, Status::UnexpectedPass), "{text}");
}

#[test]
fn cells_are_listed_and_none_twice() {
    let folder = tempfile::tempdir().unwrap();
    let row = format!(
        "model = \"gen-qwen2\"\nmode = \"prefill\"\ndevice = \"{}\"\noptions = {{ n = [7, 9] }}",
        device()
    );
    let path = gate(folder.path(), &row, "");
    let name = path.to_str().unwrap();
    let listed = |arguments: &[&str]| told(&run(arguments));
    let (code, text) = listed(&["gate", "check", name, "--list"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((code, lines.len()), (0, 2), "{text}");
    assert!(lines[0].starts_with("gen-qwen2/f32/prefill?n=7@") && lines[0].ends_with(device()), "{text}");
    assert_eq!(listed(&["run", "--gate", name, "--list"]), (0, text));

    let twice = gate(folder.path(), &row, "[[preset.p.row]]\nmodel = \"gen-qwen2\"\noptions = { n = 9 }\n");
    let (code, text) = listed(&["run", "--gate", twice.to_str().unwrap(), "--list"]);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("gate.toml:12: cell gen-qwen2/f32/prefill?n=9@") && text.contains("declared twice"),
        "{text}"
    );

    let lacks = gate(folder.path(), "model = \"gen-qwen2\"\nmode = \"sparse\"", "");
    let (code, text) = listed(&["run", "--gate", lacks.to_str().unwrap(), "--list"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("gate.toml:7: gen-qwen2 (qwen2) has no mode sparse"), "{text}");
}

#[test]
fn a_gate_file_that_is_wrong_is_a_usage_error_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = gate(folder.path(), "modle = \"gen-qwen2\"", "");
    for arguments in [&["gate", "check"][..], &["run", "--gate"]] {
        let (code, text) = told(&run(&[arguments, &[path.to_str().unwrap()]].concat()));
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(&format!("{}:8:1: unknown field `modle`", path.display())), "{text}");
    }
    let (code, text) = told(&run(&["run", "--gate", "nowhere.toml"]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("nowhere.toml"), "{text}");
    let (code, text) = told(&run(&["run", "--preset", "nigthly"]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("did you mean `nightly`?"), "{text}");
    let (code, text) = told(&run(&["gate", "check"]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("preset quick (default)") && text.contains("no fault found"), "{text}");
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_gate() {
    let folder = tempfile::tempdir().unwrap();
    let path = gate(folder.path(), "model = \"gen-qwen2\"\nmode = \"prefill\"\ndevice = \"CPU\"", "");
    // A build that is not there tells which of the three was asked for.
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("threads = 1", "ggml = [\"/gate\"]")).unwrap();
    let asked = |environment: Option<&str>, flags: &[&str]| {
        let mut command = Command::new(common::binary());
        command.args(["run", "--list"]).args(flags).current_dir(folder.path());
        command.env("GGML_PARITY_GATE", &path).env_remove("GGML_PARITY_GGML");
        if let Some(folder) = environment {
            command.env("GGML_PARITY_GGML", folder);
        }
        let (code, text) = told(&command.output().unwrap());
        assert_eq!(code, 4, "{text}");
        text
    };
    assert!(asked(None, &[]).contains("/gate"));
    assert!(asked(Some("/environment"), &[]).contains("/environment"));
    assert!(asked(Some("/environment"), &["--ggml", "/flag"]).contains("/flag"));
    // The environment's gate file gives way to the flag's.
    let other = folder.path().join("other.toml");
    let (code, text) = told(
        &Command::new(common::binary())
            .args(["run", "--list", "--gate", other.to_str().unwrap()])
            .env("GGML_PARITY_GATE", &path)
            .output()
            .unwrap(),
    );
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("other.toml"), "{text}");
    // A limit from the environment that makes no sense names its variable's flag.
    let output =
        Command::new(common::binary()).arg("run").env("GGML_PARITY_TIMEOUT", "soon").output().unwrap();
    let (code, text) = told(&output);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("--timeout"), "{text}");
}
