//! The placement bisect, end to end: on a device that multiplies F32 matrices in 16 bits, activations of 1e5 overflow,
//! and parity returns when the right products go to the CPU.

mod common;

use common::{Bench, default_build, run, told};
use ggml_parity::trace::pin::{Finding, Outcome};
use ggml_parity::trace::pin_report::PinReport;
use ggml_parity::verdict::Status;
use std::path::Path;

fn report(out: &Path) -> PinReport {
    serde_json::from_str(&std::fs::read_to_string(out.join("pin.json")).unwrap()).unwrap()
}

#[test]
fn products_that_overflow_are_found_and_a_second_search_runs_nothing() {
    let bench = Bench::open(&default_build());
    if !bench.offers("Vulkan0") {
        eprintln!("NOT CHECKED: no Vulkan0 here");
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("pins");
    let cell = format!("adv-activations/f32/prefill?n=17@{}:Vulkan0", bench.build.info.name);
    let build = default_build();
    let arguments =
        ["pin", &cell, "--ggml", &build, "--threads", "1", "--no-oracle", "--out", out.to_str().unwrap()];
    let mut text = String::new();
    // Software drivers crash now and then, and a search goes on without such a trial: once more then.
    for _ in 0..3 {
        let (code, told) = told(&run(&arguments));
        text = told;
        if code == 0 && report(&out).found.trials.iter().all(|trial| trial.outcome() != Outcome::Unresolved) {
            break;
        }
        eprintln!("a trial was lost: {text}");
        std::fs::remove_dir_all(&out).unwrap();
    }
    let first = report(&out);
    let before = first.found.before().unwrap();
    if before.status == Status::Pass {
        eprintln!("NOT CHECKED: this device multiplies F32 in 32 bits");
        return;
    }
    let Finding::Smallest(units) = &first.found.finding else { panic!("{text}") };
    assert!(units.iter().all(|unit| unit.op == "MUL_MAT"), "{text}");
    let after = first.found.after().unwrap();
    assert_eq!((after.outcome(), after.pinned.len()), (Outcome::Restored, units.len()), "{text}");
    assert!(after.logits_nmse.unwrap() <= 3e-5, "{text}");
    assert!(text.contains("parity returns with") && text.contains("  before: diverged"), "{text}");

    let (code, again) = told(&run(&arguments));
    assert_eq!(code, 0, "{again}");
    assert_eq!(again.matches(" (from the journal)\n").count(), first.found.trials.len(), "{again}");
    assert_eq!(report(&out).found.finding, first.found.finding);

    // The command that the report names.
    let words = shlex::split(first.rerun.as_deref().unwrap()).unwrap();
    let words: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let (code, text) = told(&run(&words));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(": pass, logits NMSE "), "{text}");

    // The same folder for another cell.
    let other = cell.replace("n=17", "n=18");
    let (code, text) =
        told(&run(&["pin", &other, "--ggml", &build, "--no-oracle", "--out", out.to_str().unwrap()]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("trials.jsonl was begun for cell"), "{text}");
}

#[test]
fn what_cannot_be_pinned_is_said() {
    let build = default_build();
    let name = Bench::open(&build).build.info.name;
    let cell = format!("gen-llama/f32/prefill@{name}:CPU");
    let (code, text) = told(&run(&["pin", &cell, "--ggml", &build]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("device CPU is the CPU"), "{text}");
    let (code, text) = told(&run(&["pin", &cell, "--at", "MUL_MAT"]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("`MUL_MAT` is no op and layer"), "{text}");
}
