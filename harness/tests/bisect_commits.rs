//! Bisection over commits of a checkout. It compiles ggml's CPU backend, which takes minutes, so it is not among the tests
//! that always run:
//!
//! ```text
//! ggml-parity ggml build --backend cpu     # gets the sources
//! cargo nextest run --release -p ggml-parity --test bisect_commits --run-ignored all
//! ```

#![cfg(unix)]

mod common;

use common::{binary, command, run, told};
use ggml_parity::bisect::{Bisection, Finding};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const CASE: &str = "gen-llama/f32/prefill?n=8@CPU";

fn git(folder: &Path, words: &[&str]) -> String {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
    let output = Command::new("git").arg("-C").arg(folder).args(identity).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// ggml's sources, as cargo unpacked them for `ggml build`.
fn sources() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))?;
    let registries = std::fs::read_dir(home.join("registry/src")).ok()?.flatten();
    let folder =
        registries.map(|r| r.path().join("llama-cpp-sys-2-0.1.161/llama.cpp/ggml")).find(|f| f.is_dir());
    if folder.is_none() {
        eprintln!(
            "NOT CHECKED: ggml's sources are not here; `ggml-parity ggml build --backend cpu` gets them"
        );
    }
    folder
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        // Of the backends the CPU's is enough.
        let backend = path.is_dir() && name.to_string_lossy().starts_with("ggml-") && name != "ggml-cpu";
        match (path.is_dir(), backend) {
            (true, true) => {}
            (true, false) => copy(&path, &to.join(name)),
            (false, _) => drop(std::fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

/// A checkout with eight commits: four that change nothing that is computed, one that does not build, one that turns RoPE
/// wrong, two more. The good end, the bad one, and the first bad one.
fn checkout(folder: &Path) -> Option<[String; 3]> {
    copy(&sources()?, folder);
    git(folder, &["init", "--quiet"]);
    let commit = |words: &str| {
        git(folder, &["add", "--all", "--force"]);
        git(folder, &["commit", "--quiet", "--message", words]);
        git(folder, &["rev-parse", "HEAD"])
    };
    let ops = folder.join("src/ggml-cpu/ops.cpp");
    let change = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&ops).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(&ops, text.replacen(from, to, 1)).unwrap();
    };
    let note = |n: usize| std::fs::write(folder.join("src/ggml-cpu/note.txt"), n.to_string()).unwrap();
    let good = commit("the sources as they came");
    for n in 1..4 {
        note(n);
        commit("a note");
    }
    change("#include \"ops.h\"", "#include \"ops.h\"\n#error broken");
    commit("broken");
    change("\n#error broken", "");
    let right = "const float theta_scale = powf(freq_base, -2.0f/n_dims);";
    change(right, "const float theta_scale = powf(freq_base * 1.5f, -2.0f/n_dims);");
    let first_bad = commit("another base of RoPE");
    note(5);
    commit("a note");
    note(6);
    Some([good, commit("a note"), first_bad])
}

#[test]
#[ignore = "compiles ggml, which takes minutes"]
fn a_bad_commit_is_found_after_a_kill_and_git_bisect_run_ends_at_the_same() {
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("ggml");
    let Some([good, bad, first_bad]) = checkout(&folder) else { return };
    let (folder_text, out) = (folder.to_str().unwrap(), work.path().join("out"));
    let out_text = out.to_str().unwrap();
    let arguments = [
        "bisect",
        CASE,
        "--checkout",
        folder_text,
        "--good",
        &good,
        "--bad",
        &bad,
        "--threads",
        "1",
        "--out",
        out_text,
    ];
    let before = git(&folder, &["status", "--porcelain"]) + &git(&folder, &["rev-parse", "HEAD"]);
    let mut search = command(&arguments).current_dir(work.path()).spawn().unwrap();
    let lines = || std::fs::read_to_string(out.join("trials.jsonl")).map_or(0, |text| text.lines().count());
    let started = Instant::now();
    while lines() < 3 && search.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(1800), "no trials");
        std::thread::sleep(Duration::from_millis(50));
    }
    search.kill().unwrap();
    search.wait().unwrap();
    let (code, text) = told(&run(&["bisect", "--resume", out_text]));
    assert!(text.contains(" (from the journal)\n"), "{text}");
    let found: Bisection =
        serde_json::from_str(&std::fs::read_to_string(out.join("bisect.json")).unwrap()).unwrap();
    let change = found.change().unwrap();
    assert_eq!(found.places[change.1], first_bad[..12], "{text}");
    // The commit that does not build lies just before: whether it was bad cannot be known.
    assert_eq!((code, change), (3, (3, 5)), "{text}");
    assert!(matches!(found.finding, Finding::Found { .. }));
    assert!(text.contains("another base of RoPE"), "{text}");
    let after = git(&folder, &["status", "--porcelain"]) + &git(&folder, &["rev-parse", "HEAD"]);
    assert_eq!(before, after, "the user's working tree is as it was");
    assert_eq!(git(&folder, &["worktree", "list"]).lines().count(), 1);

    git(&folder, &["bisect", "start", &bad, &good]);
    let binary = binary();
    let trial = ["bisect", "run", binary.to_str().unwrap(), "bisect", "trial", CASE, "--threads", "1"];
    let output = Command::new("git").arg("-C").arg(&folder).args(trial).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // git ends with "There are only 'skip'ped commits left to test" and names both.
    assert!(text.contains("skip") && text.contains(&first_bad), "{text}");
}
