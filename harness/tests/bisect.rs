//! Bisection, end to end: real builds, of which some have one op wrapped wrong by a library of a few lines that stands
//! before the real one and hands everything on; the real library does the rest.

#![cfg(unix)]

mod common;

use common::{command, default_build, run, told};
use ggml_parity::bisect::{Bisection, Finding, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The case of these tests: F32 on the CPU against the oracle, the tightest limits there are.
const CASE: &str = "gen-llama/f32/prefill?n=8@CPU";

/// RoPE with another base, so that every position is turned too far.
const WRONG_ROPE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
typedef void * (*rope)(void *, void *, void *, void *, int, int, int, float, float, float, float, float, float);
void * ggml_rope_ext(void * ctx, void * a, void * b, void * c, int dims, int mode, int ctx_orig, float base,
        float scale, float ext, float attn, float fast, float slow) {
    rope real = (rope) dlsym(RTLD_NEXT, "ggml_rope_ext");
    return real(ctx, a, b, c, dims, mode, ctx_orig, base * 1.5f, scale, ext, attn, fast, slow);
}
"#;

/// The real base library under another name, with the name that it records for itself changed in place.
const REAL: &str = "librgml-base.so";

/// A folder of `n` builds `b01`, `b02`, …; those from `first_bad` on (counted from 0) have the wrong RoPE, those of
/// `broken` do not load. `None` where this machine's build or compiler cannot be used so, which is said.
fn builds(n: usize, first_bad: usize, broken: &[usize]) -> Option<tempfile::TempDir> {
    let real = PathBuf::from(default_build());
    let base = real.join("libggml-base.so");
    if !base.is_file() || cfg!(not(target_os = "linux")) {
        eprintln!("NOT CHECKED: bisection over builds: {} holds no libggml-base.so", real.display());
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let shim = folder.path().join(".shim");
    std::fs::create_dir(&shim).unwrap();
    let mut bytes = std::fs::read(&base).unwrap();
    let own = b"libggml-base.so\0";
    let places: Vec<usize> =
        bytes.windows(own.len()).enumerate().filter(|(_, w)| w == own).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the library records its own name");
    for at in places {
        bytes[at..at + REAL.len()].copy_from_slice(REAL.as_bytes());
    }
    std::fs::write(shim.join(REAL), bytes).unwrap();
    std::fs::write(shim.join("rope.c"), WRONG_ROPE).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o", "libggml-base.so", "rope.c", "-Wl,-soname,libggml-base.so"])
        .args(["-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", REAL])
        .current_dir(&shim)
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("NOT CHECKED: bisection over builds: no C compiler");
        return None;
    }
    let link = |from: &Path, to: PathBuf| std::os::unix::fs::symlink(from, to).unwrap();
    for i in 0..n {
        let build = folder.path().join(format!("b{:02}", i + 1));
        std::fs::create_dir(&build).unwrap();
        for entry in std::fs::read_dir(&real).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            // The CPU is enough here; the manifest would say that these are not the libraries that came.
            if name.starts_with("libggml") && !name.contains("libggml-vulkan") && name != "libggml-base.so" {
                link(&path, build.join(name));
            }
        }
        if broken.contains(&i) {
            std::fs::write(build.join("libggml-base.so"), "no library").unwrap();
        } else if i >= first_bad {
            link(&shim.join("libggml-base.so"), build.join("libggml-base.so"));
            link(&shim.join(REAL), build.join(REAL));
        } else {
            link(&base, build.join("libggml-base.so"));
        }
    }
    Some(folder)
}

fn found(out: &Path) -> Bisection {
    serde_json::from_str(&std::fs::read_to_string(out.join("bisect.json")).unwrap()).unwrap()
}

/// Trials after both ends.
fn between(found: &Bisection) -> usize {
    found.trials.iter().filter(|judged| ![0, found.places.len() - 1].contains(&judged.place)).count()
}

#[test]
fn a_wrong_op_among_sixteen_builds_is_found_in_four_trials_also_after_a_kill() {
    let Some(folder) = builds(16, 10, &[]) else { return };
    let out = folder.path().join(".out");
    let (builds, out_text) = (folder.path().to_str().unwrap(), out.to_str().unwrap());
    let arguments = ["bisect", CASE, "--builds", builds, "--threads", "1", "--out", out_text];

    // It is killed as soon as two trials are in the journal.
    let mut search = command(&arguments).current_dir(folder.path()).spawn().unwrap();
    let lines = || std::fs::read_to_string(out.join("trials.jsonl")).map_or(0, |text| text.lines().count());
    let started = Instant::now();
    while lines() < 3 && search.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(240), "no trials");
        std::thread::sleep(Duration::from_millis(20));
    }
    search.kill().unwrap();
    search.wait().unwrap();
    let before = lines() - 1;
    assert!(!out.join("bisect.json").exists() || before >= 6, "killed before its end");

    let (code, text) = told(&run(&["bisect", "--resume", out_text]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("the first bad one is b11 ("), "{text}");
    assert!(text.matches(" (from the journal)\n").count() >= before.min(2), "{text}");
    let first = found(&out);
    assert_eq!(first.finding, Finding::Found { last_good: 9, first_bad: 10 });
    assert!(between(&first) <= 4, "{text}");
    let bad = first.at(10).unwrap();
    assert!(bad.why.starts_with("diverged: ") && bad.trial.logits_nmse.unwrap() > 1e-9, "{}", bad.why);
    for name in ["bisect.md", "plot.svg", "index.html"] {
        assert!(std::fs::read_to_string(out.join(name)).unwrap().contains("b11"), "{name}");
    }
    assert!(!out.join("captures").exists());

    // The command that the report names.
    let words = shlex::split(first.rerun().unwrap()).unwrap();
    let words: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let (code, text) = told(&run(&[&words[..], &["--threads", "1"]].concat()));
    assert_eq!(code, 1, "{text}");

    // The same trials answer another question; other libraries under the same name do not.
    let (code, text) = told(&run(&[&arguments[..], &["--until", "crash"]].concat()));
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("both ends are good") && text.matches(" (from the journal)").count() == 2,
        "{text}"
    );
    std::fs::write(folder.path().join("b05/libggml-other.so"), "").unwrap();
    let (code, text) = told(&run(&arguments));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("trials.jsonl was begun for range"), "{text}");
}

#[test]
fn builds_that_do_not_load_make_the_answer_a_range_and_git_is_told_to_skip() {
    let Some(folder) = builds(16, 10, &[9, 10, 11]) else { return };
    let out = folder.path().join(".out");
    let (builds, out_text) = (folder.path().to_str().unwrap(), out.to_str().unwrap());
    let (code, text) = told(&run(&["bisect", CASE, "--builds", builds, "--threads", "1", "--out", out_text]));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("the first bad one is among b10, b11, b12, b13"), "{text}");
    let first = found(&out);
    assert_eq!(first.finding, Finding::Found { last_good: 8, first_bad: 12 });
    let skipped: Vec<usize> =
        first.in_order().iter().filter(|j| j.outcome == Outcome::Skip).map(|j| j.place).collect();
    assert_eq!(skipped, [9, 10, 11]);
    assert!(between(&first) <= 4 + 2 * 3, "{text}");

    // One trial, as `git bisect run` reads it.
    let build = |name: &str| folder.path().join(name).display().to_string();
    let code = |case: &str, build: &str| {
        told(&run(&["bisect", "trial", case, "--ggml", build, "--threads", "1", "--no-oracle"]))
    };
    let with_oracle = |build: &str| told(&run(&["bisect", "trial", CASE, "--ggml", build, "--threads", "1"]));
    for (found, wanted, words) in [
        (with_oracle(&build("b01")), 0, "good: pass"),
        (with_oracle(&build("b16")), 1, "bad: diverged: "),
        (with_oracle(&build("b11")), 125, "skip: "),
        (code("gen-llama/f32/prefill@CUDA7", &build("b01")), 125, "no device `CUDA7`"),
        (code("gen-llama/f32/prefil@CPU", &build("b01")), 128, "prefil"),
        (code("gen-lama/f32/prefill@CPU", &build("b01")), 128, "gen-lama"),
        (code("gen-llama/f32/prefill@CPU", "/nowhere"), 128, "/nowhere"),
    ] {
        assert_eq!(found.0, wanted, "{}", found.1);
        assert!(found.1.contains(words), "{}", found.1);
    }
}

#[test]
fn ends_that_say_nothing_are_errors_that_say_why() {
    let Some(folder) = builds(3, 1, &[0]) else { return };
    let builds = folder.path().to_str().unwrap();
    let search = |arguments: &[&str]| {
        let common = ["bisect", CASE, "--builds", builds, "--threads", "1", "--out", "out"];
        told(&run(&[&common[..], arguments].concat()))
    };
    let (code, text) = search(&[]);
    assert!(code == 4 && text.contains("the good end b01 cannot be tried: "), "{code} {text}");
    let (code, text) = search(&["--good", "b02"]);
    assert!(code == 2 && text.contains("both ends are bad, so it came before b02"), "{code} {text}");
    let (code, text) = search(&["--good", "b7"]);
    assert!(code == 2 && text.contains("--good `b7` is none of the builds of"), "{code} {text}");
    let (code, text) = search(&["--skip", "b9"]);
    assert!(code == 2 && text.contains("--skip `b9` is none of"), "{code} {text}");
    let (code, text) = search(&["--until", "nmse"]);
    assert!(code == 2 && text.contains("`nmse` is none of verdict"), "{code} {text}");
    let (code, text) = search(&["--ggml", builds]);
    assert!(code == 2 && text.contains("--ggml: the builds are those of"), "{code} {text}");
}

#[test]
fn a_scan_shows_what_came_and_went() {
    // Good, good, bad, bad, and the first good one again.
    let Some(folder) = builds(4, 2, &[]) else { return };
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir(folder.path().join("b05")).unwrap();
    for entry in std::fs::read_dir(path("b01")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join("b05").join(entry.file_name())).unwrap();
    }
    let out = folder.path().join(".out");
    let (code, text) = told(&run(&[
        "bisect",
        CASE,
        "--builds",
        folder.path().to_str().unwrap(),
        "--scan",
        "--threads",
        "1",
        "--out",
        out.to_str().unwrap(),
    ]));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("not monotonic: bad after b02, good after b04"), "{text}");
    let scan = found(&out);
    // The same libraries give the same numbers; the wrong op changes them and its end changes them back.
    let changed: Vec<usize> = scan.steps().map(|(judged, _)| judged.place).collect();
    assert_eq!(changed, [2, 4], "{text}");
    assert_eq!(
        scan.at(1).unwrap().trial.against_previous.as_ref().map(|change| change.nmse),
        Some(Some(0.0))
    );
}

/// One variable of the CPU backend and types of the cache, each alone: what loses most moves the numbers most.
#[test]
fn the_switch_that_moves_the_numbers_most_is_named() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let (code, text) = told(&run(&[
        "bisect",
        "gen-llama/f32/prefill?n=40@CPU",
        "--over",
        "switches,kv",
        "--ggml",
        &default_build(),
        "--no-oracle",
        "--largest",
        "--threads",
        "1",
        "--out",
        out.to_str().unwrap(),
    ]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("switches kv=q4_0 changes the numbers most"), "{text}");
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("kv=q8_0") && page.contains("kv=f16"), "{page}");
}
