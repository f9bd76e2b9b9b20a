//! A run that is interrupted goes on, and a run after another takes references and oracles from the store.

mod common;

use common::{binary, default_build, told};
use ggml_parity::report::{Report, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A second flavour of the CPU on this machine.
const DEVICE: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "CPU@x64" } else { "CPU+repack" };

/// `ggml-parity run` of two models with a cache of its own.
fn command(cache: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env("GGML_PARITY_CACHE", cache).arg("run").args(arguments);
    command
}

/// What is run in these tests: 14 cells.
fn matrix(out: &Path) -> Vec<String> {
    let words = ["--threads", "1", "--device", DEVICE, "--model", "gen-llama", "--model", "gen-dream"];
    let mut words: Vec<String> = words.map(str::to_owned).into();
    words.extend(["--ggml".to_owned(), default_build(), "--out".to_owned(), out.display().to_string()]);
    words
}

fn run(cache: &Path, out: &Path, more: &[&str]) -> Report {
    let words = matrix(out);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let (code, text) = told(&command(cache, &words).output().unwrap());
    assert_eq!(code, 0, "{text}");
    report(out)
}

fn report(folder: &Path) -> Report {
    json::parse(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}

/// The report without what differs between two runs of the same.
fn settled(report: &Report) -> String {
    let mut report = report.clone();
    report.run.name.clear();
    report.run.started.clear();
    report.run.command.clear();
    report.run.seconds = 0.0;
    for cell in &mut report.cells {
        cell.timings.clear();
        cell.peak_rss_bytes = None;
    }
    json::render(&report)
}

#[test]
fn a_second_run_computes_no_reference_and_no_oracle() {
    let (cache, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = run(cache.path(), &out.path().join("first"), &[]);
    let (computed, stored) = (first.run.work.computed, first.run.work.stored);
    assert!(computed.reference > 0 && computed.oracle > 0, "{computed:?}");
    assert_eq!((stored.reference, stored.oracle, stored.device), (0, 0, 0));

    let second = run(cache.path(), &out.path().join("second"), &[]);
    assert_eq!((second.run.work.computed.reference, second.run.work.computed.oracle), (0, 0));
    assert_eq!(second.run.work.stored.reference, computed.reference);
    assert_eq!(second.run.work.stored.oracle, computed.oracle);
    assert_eq!(second.run.work.computed.device, computed.device, "the device under test is always run");
    let figures = |report: &Report| report.cells.iter().map(|cell| cell.metrics.clone()).collect::<Vec<_>>();
    assert_eq!(figures(&second), figures(&first), "bit for bit");

    // Other inputs are other captures, and whoever wants none of the store gets none.
    let other = run(cache.path(), &out.path().join("other"), &["--mode", "prefill", "--options", "n=9"]);
    assert_eq!((other.run.work.stored.reference, other.run.work.stored.oracle), (0, 0));
    let anew = run(cache.path(), &out.path().join("anew"), &["--no-cache"]);
    assert_eq!(anew.run.work, first.run.work);

    let listed = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        let output = command.env("GGML_PARITY_CACHE", cache.path()).arg("cache").args(arguments).output();
        told(&output.unwrap()).1
    };
    let all = computed.reference
        + computed.oracle
        + other.run.work.computed.reference
        + other.run.work.computed.oracle;
    assert!(listed(&["list"]).starts_with(&format!("{all} captures, ")), "{}", listed(&["list"]));
    assert!(listed(&["prune"]).starts_with(&format!("{all} captures, ")));
    assert!(listed(&["list"]).starts_with("0 captures, 0 B"), "{}", listed(&["list"]));
}

#[test]
fn a_stored_capture_that_was_changed_is_computed_anew() {
    let (cache, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let few = ["--mode", "prefill"];
    let first = run(cache.path(), &out.path().join("first"), &few);
    let stored = std::fs::read_dir(cache.path().join("captures")).unwrap().map(|entry| entry.unwrap().path());
    for path in stored.filter(|path| path.extension().is_some_and(|e| e == "safetensors")) {
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let second = run(cache.path(), &out.path().join("second"), &few);
    assert_eq!(settled(&second), settled(&first));
}

#[test]
fn a_run_that_was_killed_goes_on_and_ends_as_if_nothing_had_been() {
    let (cache, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let undisturbed = run(cache.path(), &out.path().join("undisturbed"), &["--no-cache"]);

    let folder = out.path().join("killed");
    let words = matrix(&folder);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--no-cache"]).collect();
    let mut child =
        command(cache.path(), &words).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let before = lines.filter(|line| line.ends_with("computed")).take(5).count();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(before, 5, "it was killed on the way");
    assert!(!folder.join("report.json").exists());
    let journal = std::fs::read_to_string(folder.join("journal.jsonl")).unwrap();
    assert!(journal.lines().count() > before, "{journal}");

    // From anywhere: the journal knows where it was started. A capture that is gone is computed again.
    let capture = std::fs::read_dir(folder.join("captures")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&capture).unwrap();
    let output = command(cache.path(), &["--resume", folder.to_str().unwrap()])
        .current_dir(cache.path())
        .output()
        .unwrap();
    let (code, text) = told(&output);
    assert_eq!(code, 0, "{text}");
    let computed = text.lines().filter(|line| line.ends_with("computed")).count();
    let resumed = report(&folder);
    let all = resumed.run.work.computed;
    assert!(computed as u64 <= all.reference + all.oracle + all.device - 4, "{computed} of {all:?}");
    assert_eq!(settled(&resumed), settled(&undisturbed));
    for gone in ["journal.jsonl", "captures", "work"] {
        assert!(!folder.join(gone).exists(), "{gone}");
    }
    let (code, text) =
        told(&command(cache.path(), &["--resume", folder.to_str().unwrap()]).output().unwrap());
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("no interrupted run"), "{text}");
}

/// A file system that holds the two models and half of the captures, where this process may mount one.
#[cfg(target_os = "linux")]
struct Small(tempfile::TempDir);

#[cfg(target_os = "linux")]
impl Small {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=11m", "none"]).arg(folder.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(folder))
    }

    fn grow(&self) {
        let path = self.0.path();
        let mount = Command::new("mount").args(["-o", "remount,size=64m"]).arg(path).status().unwrap();
        assert!(mount.success());
    }
}

#[cfg(target_os = "linux")]
impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_error_and_the_run_goes_on_when_there_is_space() {
    let Some(disk) = Small::mount() else {
        eprintln!("NOT CHECKED: a full disk: no file system may be mounted here");
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    let folder = disk.0.path().join("run");
    let words = matrix(&folder);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--no-cache"]).collect();
    let (code, text) = told(&command(cache.path(), &words).output().unwrap());
    assert_eq!(code, 4, "{text}");
    assert_eq!(text.matches("No space left").count(), 1, "{text}");
    assert!(text.contains("run --resume"), "{text}");

    disk.grow();
    let (code, text) =
        told(&command(cache.path(), &["--resume", folder.to_str().unwrap()]).output().unwrap());
    assert_eq!(code, 0, "{text}");
    let out = tempfile::tempdir().unwrap();
    let undisturbed = run(cache.path(), &out.path().join("undisturbed"), &["--no-cache"]);
    assert_eq!(settled(&report(&folder)), settled(&undisturbed));
}

/// Declarations decide about the outcome as much as limits do. The environment's settings are no arguments.
#[test]
fn a_run_goes_on_under_the_gate_that_it_began_with_and_under_no_other() {
    let (cache, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (folder, gate) = (out.path().join("run"), out.path().join("gate.toml"));
    let text = "schema = \"ggml-parity.gate/1\"\n[run]\npreset = \"p\"\n[preset.p]\ndescription = \"d\"\n\
                [[preset.p.row]]\nmodel = \"gen-llama\"\nmode = [\"prefill\", \"decode\"]\n";
    std::fs::write(&gate, text).unwrap();
    let build = default_build();
    let words = ["--device", DEVICE, "--no-cache", "--ggml", &build, "--out", folder.to_str().unwrap()];
    let with_gate = |words: &[&str]| {
        let mut command = command(cache.path(), words);
        command.env("GGML_PARITY_GATE", &gate).env("GGML_PARITY_THREADS", "1");
        command
    };
    let mut child = with_gate(&words).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();

    let resume = ["--resume", folder.to_str().unwrap()];
    std::fs::write(&gate, format!("{text}# changed\n")).unwrap();
    let (code, told_of) = told(&with_gate(&resume).output().unwrap());
    assert_eq!(code, 2, "{told_of}");
    assert!(told_of.contains("cannot go on: setting gate was "), "{told_of}");
    std::fs::write(&gate, text).unwrap();
    let (code, told_of) = told(&with_gate(&[&resume[..], &["--quiet"]].concat()).output().unwrap());
    assert_eq!(code, 2, "{told_of}");
    assert!(told_of.contains("--resume takes no other argument, and there is --quiet"), "{told_of}");
    let (code, told_of) = told(&with_gate(&resume).output().unwrap());
    assert_eq!(code, 0, "{told_of}");
    let report = report(&folder);
    assert_eq!((report.cells.len(), report.gate.unwrap().file), (2, gate.display().to_string()));
}

#[test]
fn another_run_does_not_go_on() {
    let (cache, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = out.path().join("run");
    let model = out.path().join("model.gguf");
    let made = |preset: &str| {
        let words = ["model", "generate", preset, "--out", model.to_str().unwrap()];
        let (code, text) = told(&Command::new(binary()).args(words).output().unwrap());
        assert_eq!(code, 0, "{text}");
    };
    made("gen-llama");
    let build = default_build();
    let words = ["--threads", "1", "--device", DEVICE, "--mode", "prefill", "--no-cache", "--ggml", &build];
    let mut command = command(cache.path(), &words);
    command.arg("--model").arg(&model).arg("--out").arg(&folder);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    made("gen-qwen2");
    let again = self::command(cache.path(), &["--resume", folder.to_str().unwrap()]).output().unwrap();
    let (code, text) = told(&again);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("cannot go on: model model/f32 was "), "{text}");
}
