//! One record in every rendering, and what each finding says and ends with.

use super::*;
use crate::bisect::search::Stretch;
use crate::bisect::trial::Trial;
use crate::capture::{BackendNodes, Placement};
use crate::verdict::{ExitCode, Status};
use std::collections::BTreeMap;

fn placement(device: u64, cpu: u64) -> Option<Placement> {
    let backend = |name: &str, nodes: u64| BackendNodes {
        name: name.to_owned(),
        compute_nodes: nodes,
        ops: BTreeMap::from([("MUL_MAT q4_K".to_owned(), nodes)]),
        ..BackendNodes::default()
    };
    let backends = vec![backend("Vulkan0", device), backend("CPU", cpu)];
    Some(Placement { backends, ..Placement::default() })
}

fn judged(place: usize, outcome: Outcome, nmse: Option<f64>, why: &str) -> Judged {
    let bad = outcome == Outcome::Bad;
    let change = |from: &str| Change {
        from: from.to_owned(),
        nmse: Some(if bad { 2e-3 } else { 0.0 }),
        kv_nmse: Some(if bad { 1e-4 } else { 0.0 }),
        mismatches: u64::from(bad),
        same_tokens: None,
        why: None,
    };
    let usable = outcome != Outcome::Skip;
    let trial = Trial {
        label: format!("b{place}"),
        unusable: (!usable).then(|| why.to_owned()),
        build: usable.then(|| format!("npm-{place}")),
        version: usable.then(|| format!("0.{place}.0")),
        status: usable.then_some(if bad { Status::Diverged } else { Status::Pass }),
        logits_nmse: nmse,
        limit: usable.then_some(1e-3),
        against_previous: (usable && place > 0).then(|| change(&format!("b{}", place - 1))),
        placement: placement(if bad { 6 } else { 7 }, u64::from(bad)).filter(|_| usable),
        rerun: usable.then(|| format!("ggml-parity run --cell 'm/q4_k/prefill@npm-{place}:Vulkan0'")),
        seconds: 1.5,
        ..Trial::default()
    };
    Judged { place, outcome, why: why.to_owned(), figure: nmse, known: place == 0, trial }
}

fn record(finding: Finding) -> Bisection {
    let names = |prefix: &str| (0..6).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
    Bisection {
        schema: crate::bisect::SCHEMA.to_owned(),
        version: "0.1.0".to_owned(),
        subject: "m/q4_k/prefill@Vulkan0".to_owned(),
        model_sha256: "5a".repeat(32),
        until: "verdict".to_owned(),
        what: "logits NMSE".to_owned(),
        limit: None,
        range: "the builds of builds".to_owned(),
        places: names("b"),
        details: names("npm-"),
        identities: names("hash"),
        command: "ggml-parity bisect m/q4_k/prefill@Vulkan0 --builds builds".to_owned(),
        seconds: 9.0,
        finding,
        trials: vec![
            judged(0, Outcome::Good, Some(1e-6), "pass"),
            judged(5, Outcome::Bad, Some(f64::NAN), "diverged: 3 NaN | first in logits <row 0>"),
            judged(2, Outcome::Good, Some(0.0), "pass"),
            judged(4, Outcome::Bad, Some(2e-3), "diverged: logits NMSE 2.0e-3 > 1e-3"),
            judged(3, Outcome::Skip, None, "no libggml-base\nin it"),
        ],
    }
}

#[test]
fn a_range_in_every_rendering() {
    let record = record(Finding::Found { last_good: 2, first_bad: 4 });
    insta::assert_snapshot!("bisect_console", record.text());
    insta::assert_snapshot!("bisect_markdown", record.markdown());
    let page = record.page();
    for words in [
        "Found",
        "b3 (npm-3), b4 (ggml",
        "MUL_MAT q4_K",
        "no libggml-base in it",
        "limit 1.0e-3",
        "plot.svg",
        "* made by",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("<row 0>") && page.contains("&lt;row 0&gt;"));
    assert!(record.plot().file().starts_with("<?xml"));
    assert_eq!(record.exit_code(), ExitCode::Incomplete);
    assert_eq!(line(&record.trials[0]), "b0: good (pass) (from the journal)");
}

#[test]
fn what_findings_say_and_end_with() {
    use Outcome::{Bad, Good};
    let stretch = |outcome, first, last| Stretch { outcome, first, last };
    let scanned = |stretches: &[Stretch]| Finding::Scanned { stretches: stretches.to_vec() };
    for (finding, words, code, change) in [
        (
            Finding::Found { last_good: 3, first_bad: 4 },
            "the first bad one is b4 (ggml 0.4.0; npm-4); the last good one is b3 (npm-3)",
            ExitCode::Success,
            Some((3, 4)),
        ),
        (Finding::BothGood, "there is nothing to find between b0 (pass)", ExitCode::Usage, None),
        (Finding::BothBad, "so it came before b0", ExitCode::Usage, None),
        (Finding::Swapped, "exchange them to find what made it good", ExitCode::Usage, None),
        (
            Finding::UnusableEnd { place: 5 },
            "the bad end b5 cannot be tried: diverged",
            ExitCode::Environment,
            None,
        ),
        (
            scanned(&[stretch(Good, 0, 1), stretch(Bad, 2, 2), stretch(Good, 4, 5)]),
            "not monotonic: bad after b1, good after b2",
            ExitCode::Diverged,
            Some((1, 2)),
        ),
        (scanned(&[stretch(Good, 0, 5)]), "2 good, 2 bad, 1 skipped", ExitCode::Success, None),
        (scanned(&[]), "5 builds", ExitCode::Incomplete, None),
    ] {
        let record = record(finding);
        assert!(record.sentence().contains(words), "{}", record.sentence());
        assert_eq!((record.exit_code(), record.change()), (code, change), "{words}");
        // Nothing panics on the way to any file.
        assert!(!record.page().is_empty() && record.markdown().contains(words));
    }
}

#[test]
fn the_json_is_read_back_with_what_is_not_a_number() {
    let record = record(Finding::Found { last_good: 2, first_bad: 4 });
    let text = serde_json::to_string(&record).unwrap();
    let read: Bisection = serde_json::from_str(&text).unwrap();
    assert_eq!((read.markdown(), read.page()), (record.markdown(), record.page()));
    assert!(read.at(5).unwrap().figure.unwrap().is_nan());
}
