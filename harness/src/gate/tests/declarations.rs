//! Declarations against what cells did.

use super::{expect, read, text};
use crate::capture::{BackendNodes, BuildInfo, DeviceInfo, DeviceKind, Fallback, Placement};
use crate::gate::{Declaration, GateUse};
use crate::plan::CellId;
use crate::report::{Cell, Environment, Report, Run, json};
use crate::verdict::{ExitCode, Finding, FindingKind, Limits, Status, Verdict};
use crate::worker::{Cause, Death};
use proptest::prelude::*;

const CELL: &str = "gen-qwen2/q4_1/decode?kv=f16@b:CUDA0";

fn cell(id: &str) -> Cell {
    let mut cell = Cell::new(id.parse().unwrap());
    cell.set_verdict(Verdict::new(Status::Pass, ""));
    cell.limits = Some(Limits::uniform(1e-5));
    cell
}

/// A cell with these findings.
fn red(id: &str, findings: &[(FindingKind, f64)]) -> Cell {
    let mut cell = cell(id);
    let fell_back = findings.iter().all(|(figure, _)| *figure == FindingKind::Fallback);
    cell.status = if fell_back { Status::Fallback } else { Status::Diverged };
    cell.reason = "what was found".to_owned();
    cell.findings = findings.iter().map(|&(figure, value)| Finding::new(figure, value, "x")).collect();
    let ops = Fallback { op: "GET_ROWS iq4_nl".to_owned(), node: "embd".to_owned(), count: 1 };
    let backend = |name: &str| BackendNodes {
        name: name.to_owned(),
        compute_nodes: 1,
        view_nodes: 0,
        ops: [("GET_ROWS iq4_nl".to_owned(), 1)].into(),
    };
    let backends = vec![backend("CPU")];
    let fallbacks = vec![ops];
    cell.placement =
        fell_back.then(|| Placement { graphs: 1, splits: 2, backends, fallbacks, ..Placement::default() });
    cell
}

fn dead(signal: i32) -> Cell {
    let mut cell = cell(CELL);
    cell.set_verdict(Verdict::new(Status::Crashed, "signal"));
    cell.death = Some(Death {
        cause: Cause::Abort,
        evidence: String::new(),
        signal: Some(signal),
        exit_code: None,
        seconds: 0.0,
        memory_limit: None,
        last_lines: Vec::new(),
    });
    cell
}

fn report(cells: Vec<Cell>) -> Report {
    let ids: Vec<CellId> = cells.iter().map(|cell| cell.id.clone()).collect();
    let environment = Environment {
        builds: vec![BuildInfo {
            name: "b".to_owned(),
            version: Some("0.26.1-dev".to_owned()),
            commit: None,
            files: Vec::new(),
        }],
        devices: vec![DeviceInfo {
            selector: "CUDA0".to_owned(),
            name: "CUDA0".to_owned(),
            kind: DeviceKind::Gpu,
            description: "NVIDIA H200".to_owned(),
            driver: Some("NVIDIA 580.1".to_owned()),
            memory_total: None,
        }],
        ..Environment::default()
    };
    Report::new(Run::default(), environment, &ids, cells)
}

/// `cell` after these declarations, on 1 June 2027, and the gate's part of the report.
fn after(cell: Cell, declarations: &[String]) -> (Cell, GateUse) {
    let gate = read(&text(&declarations.concat())).unwrap();
    let mut report = report(vec![cell]);
    gate.apply(&mut report, "2027-06-01");
    (report.cells.remove(0), report.gate.unwrap())
}

fn status(cell: Cell, cells: &str, outcome: &str) -> Status {
    after(cell, &[expect(cells, outcome, "")]).0.status
}

#[test]
fn selectors() {
    let declared = |cells: &str| {
        let (cell, gate) =
            after(red(CELL, &[(FindingKind::Mismatches, 1.0)]), &[expect(cells, "mismatches = 1", "")]);
        assert_eq!(gate.unused.is_empty(), cell.status == Status::Expected, "{cells}");
        cell.status == Status::Expected
    };
    for matching in [
        "device = \"CUDA0\"",
        "device = [\"CPU\", \"CUDA*\"]",
        "kind = \"GPU\"",
        "driver = \"H200\"",
        "driver = \"NVIDIA 580\"",
        "build = \"b\"",
        "ggml = \">=0.26, <0.27\"",
        "model = [\"gen-llama\", \"gen-qwen2\"]",
        "weights = \"Q4_1\"",
        "mode = \"decode\"",
        "options = { kv = [\"q8_0\", \"f16\"] }",
        "options = { attn = \"explicit\", n = \"none\" }",
    ] {
        assert!(declared(matching), "{matching}");
        assert!(!declared(&format!("{matching}\n{}", other(matching))), "{matching}");
    }
    for not in [
        "device = \"CUDA1\"",
        "device = \"CUDA\"",
        "kind = \"CPU\"",
        "driver = \"h200\"",
        "ggml = \"<0.26\"",
        "options = { kv = \"f32\" }",
        "options = { kv = \"f16\", n = 7 }",
    ] {
        assert!(!declared(not), "{not}");
    }
}

/// A field beside `field` that does not match.
fn other(field: &str) -> &'static str {
    if field.starts_with("build") { "mode = \"prefill\"" } else { "build = \"c\"" }
}

#[test]
fn inside_its_bound_it_is_expected_and_beyond_it_red() {
    use Status::{Diverged, Expected, Fallback, UnexpectedPass};
    let any = "device = \"CUDA0\"";
    let nmse = |value| red(CELL, &[(FindingKind::Logits, value)]);
    assert_eq!(status(nmse(1e-2), any, "logits_nmse = 1e-2"), Expected);
    assert_eq!(status(nmse(1.1e-2), any, "logits_nmse = 1e-2"), Diverged);
    assert_eq!(status(nmse(f64::NAN), any, "logits_nmse = 1e-2"), Diverged);
    assert_eq!(status(nmse(f64::INFINITY), any, "logits_nmse = 1e-2"), Diverged);
    assert_eq!(status(cell(CELL), any, "logits_nmse = 1e-2"), UnexpectedPass);
    // Every finding must be declared; the worst row may grow as all logits do, ten times as much here.
    let two = |row| red(CELL, &[(FindingKind::Logits, 1e-3), (FindingKind::Row, row)]);
    assert_eq!(status(two(0.1), any, "logits_nmse = 1e-2"), Expected);
    assert_eq!(status(two(0.11), any, "logits_nmse = 1e-2"), Diverged);
    assert_eq!(status(two(0.11), any, "logits_nmse = 1e-2\nrow_nmse = 0.2"), Expected);
    assert_eq!(status(two(0.1), any, "row_nmse = 0.2"), Diverged);
    let kv = red(CELL, &[(FindingKind::Logits, 1e-3), (FindingKind::Kv, 1e-3)]);
    assert_eq!(status(kv, any, "logits_nmse = 1e-2"), Diverged);
    // A NaN needs its own declaration, and spoils the sums.
    let nan = || red(CELL, &[(FindingKind::NonFinite, 2.0), (FindingKind::Logits, f64::NAN)]);
    assert_eq!(status(nan(), any, "logits_nmse = 1e-2\nnonfinite = 2"), Expected);
    assert_eq!(status(nan(), any, "logits_nmse = 1e-2\nnonfinite = 1"), Diverged);
    assert_eq!(status(nan(), any, "logits_nmse = 1e-2"), Diverged);
    // Of a greedy run so many tokens must be equal.
    let greedy = || red(CELL, &[(FindingKind::Greedy, 11.0)]);
    assert_eq!(status(greedy(), any, "greedy = 11"), Expected);
    assert_eq!(status(greedy(), any, "greedy = 12"), Diverged);
    // What no declaration forgives.
    let unforgivable = red(CELL, &[(FindingKind::Logits, 1e-3), (FindingKind::Unforgivable, f64::NAN)]);
    assert_eq!(status(unforgivable, any, "logits_nmse = 1e-2"), Diverged);
    let unexplained = red(CELL, &[]);
    let was = unexplained.status;
    assert_eq!(status(unexplained, any, "logits_nmse = 1e-2"), was);
    let fallback = |nodes| red(CELL, &[(FindingKind::Fallback, nodes)]);
    for (nodes, outcome, wanted) in [
        (1.0, "nodes = 1", Expected),
        (2.0, "nodes = 1", Fallback),
        (1.0, "nodes = 1\nops = [\"GET_ROWS\"]", Expected),
        (1.0, "nodes = 1\nops = [\"GET_ROWS iq4_nl\", \"ROPE\"]", Expected),
        (1.0, "nodes = 1\nops = [\"GET_ROWS q4_0\"]", Fallback),
        (1.0, "nodes = 1\nops = [\"GET\"]", Fallback),
    ] {
        let outcome = format!("status = \"fallback\"\n{outcome}");
        assert_eq!(status(fallback(nodes), any, &outcome), wanted, "{outcome}");
    }
}

#[test]
fn crashes_and_gaps_are_declared_with_what_tells_them() {
    let any = "device = \"CUDA0\"";
    for (signal, wanted) in [
        ("signal = \"SIGABRT\"", Status::Expected),
        ("signal = \"6\"", Status::Expected),
        ("signal = \"SIGSEGV\"", Status::Crashed),
        ("", Status::Expected),
    ] {
        assert_eq!(status(dead(6), any, &format!("status = \"crashed\"\n{signal}")), wanted, "{signal}");
    }
    assert_eq!(status(dead(6), any, "logits_nmse = 1e-2"), Status::Crashed);
    assert_eq!(status(cell(CELL), any, "status = \"crashed\""), Status::UnexpectedPass);
    let nmse = red(CELL, &[(FindingKind::Logits, 1e-3)]);
    assert_eq!(status(nmse, any, "status = \"crashed\""), Status::Diverged);

    let ended = |status, findings: &[Finding]| {
        let mut cell = cell(CELL);
        cell.set_verdict(Verdict { findings: findings.to_vec(), ..Verdict::new(status, "no ggml_set_rows") });
        cell
    };
    let timeout = "status = \"timeout\"";
    assert_eq!(status(ended(Status::Timeout, &[]), any, timeout), Status::Expected);
    // The reference or the oracle took too long: that is not the device's.
    let other_arm = [Finding::unforgivable("the oracle: no result")];
    assert_eq!(status(ended(Status::Timeout, &other_arm), any, timeout), Status::Timeout);
    assert_eq!(status(ended(Status::OutOfMemory, &[]), any, timeout), Status::OutOfMemory);

    // What is unsupported stays so, declared or not, and the exit code knows the difference.
    for (lacks, declared, code) in
        [("ggml_set_rows", true, ExitCode::Success), ("ggml_cumsum", false, ExitCode::Incomplete)]
    {
        let gate =
            read(&text(&expect(any, &format!("status = \"unsupported\"\nlacks = \"{lacks}\""), ""))).unwrap();
        let mut good = cell("gen-llama/f32/decode@b:CPU");
        good.metrics = None;
        let mut report = report(vec![ended(Status::Unsupported, &[])]);
        gate.apply(&mut report, "2027-06-01");
        assert_eq!(report.cells[0].status, Status::Unsupported);
        let outcome = report.cells[0].outcome();
        assert_eq!(outcome.declared, declared);
        let compared = crate::verdict::Outcome { status: Status::Pass, declared: false, compared: true };
        assert_eq!(crate::verdict::exit_code([outcome, compared]), code);
    }
}

#[test]
fn a_cell_that_did_not_run_stays_missing() {
    let missing = Cell::new(CELL.parse().unwrap());
    let (found, gate) = after(missing, &[expect("device = \"CUDA0\"", "mismatches = 1", "")]);
    assert_eq!((found.status, found.declared), (Status::Missing, None));
    assert!(gate.unused.is_empty());
}

#[test]
fn several_declarations_must_all_agree_and_all_be_met() {
    let any = "device = \"CUDA0\"";
    let run = |findings: &[(FindingKind, f64)], outcomes: &[&str]| {
        let all: Vec<String> = outcomes.iter().map(|outcome| expect(any, outcome, "")).collect();
        after(red(CELL, findings), &all).0
    };
    let logits = (FindingKind::Logits, 5e-3);
    // Of two bounds the smaller one counts.
    assert_eq!(run(&[logits], &["logits_nmse = 1e-2", "logits_nmse = 1e-3"]).status, Status::Diverged);
    assert_eq!(run(&[logits], &["logits_nmse = 1e-2", "logits_nmse = 6e-3"]).status, Status::Expected);
    // Each may forgive its part.
    let both = [logits, (FindingKind::Fallback, 1.0)];
    let fallback = "status = \"fallback\"\nnodes = 1";
    assert_eq!(run(&both, &["logits_nmse = 1e-2"]).status, Status::Diverged);
    // One that finds nothing any more is told though the other holds.
    let half = run(&[logits], &["logits_nmse = 1e-2", fallback]);
    assert_eq!(half.status, Status::UnexpectedPass);
    assert!(
        half.reason.contains("no longer as declared (fallback of at most 1 nodes: r)"),
        "{}",
        half.reason
    );
    assert_eq!(half.declared.unwrap().declarations.len(), 2);
}

#[test]
fn an_expired_declaration_counts_as_absent_and_the_report_says_so() {
    for (expires, wanted) in
        [("2027-05-31", Status::Diverged), ("2027-06-01", Status::Expected), ("2028-01-01", Status::Expected)]
    {
        let declaration = expect("device = \"CUDA0\"", "mismatches = 1", &format!("expires = {expires}"));
        let (found, gate) = after(red(CELL, &[(FindingKind::Mismatches, 1.0)]), &[declaration]);
        assert_eq!(found.status, wanted, "{expires}");
        let expired = wanted == Status::Diverged;
        assert_eq!(found.reason.ends_with("; a declaration has expired: ci/gate.toml:9"), expired);
        assert_eq!(gate.expired.len(), usize::from(expired));
        let notes = gate.notes().concat();
        assert_eq!(
            notes.starts_with(&format!("ci/gate.toml:9: expired after {expires}")),
            expired,
            "{notes}"
        );
    }
}

#[test]
fn reasons_say_what_was_declared() {
    let declaration = expect("device = \"CUDA0\"", "logits_nmse = 1e-2", "link = \"https://example.org/1\"");
    let (found, _) = after(red(CELL, &[(FindingKind::Logits, 5e-3)]), std::slice::from_ref(&declaration));
    let words = "diverged with logits_nmse <= 0.01: r (https://example.org/1)";
    assert_eq!(found.reason, format!("as declared ({words}): what was found"));
    let (found, _) = after(red(CELL, &[(FindingKind::Logits, 0.5)]), &[declaration]);
    assert_eq!(found.reason, format!("beyond what is declared ({words}): what was found"));
    let unused = expect("device = \"Vulkan0\"", "mismatches = 1", "");
    let (_, gate) = after(cell(CELL), &[unused]);
    let words = "1 declarations are of other devices or stale, since they matched no cell of this run: ci/gate.toml:9";
    assert_eq!(GateUse { whole: true, ..gate.clone() }.notes(), [words]);
    // Of chosen cells it says nothing.
    assert!(gate.notes().is_empty(), "{gate:?}");
}

/// A report may be held against another gate later, or against the same.
#[test]
fn what_an_earlier_gate_made_of_a_cell_is_taken_back() {
    let report = |cells| Report::new(Run::default(), Environment::default(), &[], cells);
    let subject = || red(CELL, &[(FindingKind::Logits, 5e-3)]);
    let gate = |outcome: &str, more: &str| read(&text(&expect("device = \"CUDA0\"", outcome, more))).unwrap();
    let gates = [
        gate("logits_nmse = 1e-2", ""),
        gate("logits_nmse = 1e-3", ""),
        gate("mismatches = 1", ""),
        gate("logits_nmse = 1e-2", "expires = 2027-01-01"),
    ];
    let alone = gates.each_ref().map(|gate| {
        let mut once = report(vec![subject()]);
        gate.apply(&mut once, "2027-06-01");
        once
    });
    let statuses = alone.each_ref().map(|once| once.cells[0].status);
    assert_eq!(statuses, [Status::Expected, Status::Diverged, Status::Diverged, Status::Diverged]);
    let mut again = report(vec![subject()]);
    for i in [0, 0, 1, 2, 3, 3, 0, 2, 1] {
        gates[i].apply(&mut again, "2027-06-01");
        // As text: findings may hold NaN.
        assert_eq!(json::render(&again), json::render(&alone[i]), "{i}");
    }
    let found = again.cells[0].found.as_ref().expect("its reason was changed");
    assert_eq!((found.status, found.reason.as_str()), (Status::Diverged, "what was found"));
}

/// A declaration is used where any of the merged runs used it.
#[test]
fn gates_of_merged_runs_are_put_together() {
    let declaration = |place: &str| Declaration {
        expected: "crashed".to_owned(),
        reason: "r".to_owned(),
        link: None,
        expires: None,
        place: place.to_owned(),
    };
    let gate = |file: &str, unused: &[&str]| GateUse {
        file: file.to_owned(),
        whole: false,
        unused: unused.iter().map(|place| declaration(place)).collect(),
        expired: vec![declaration("old:1")],
    };
    let all = [gate("a", &["a:1", "a:2"]), gate("a", &["a:2", "a:3"]), gate("b", &["b:1"])];
    let merged = GateUse::merged(&all).unwrap();
    let places: Vec<&str> = merged.unused.iter().map(|declaration| declaration.place.as_str()).collect();
    assert_eq!(
        (merged.file.as_str(), places.as_slice(), merged.expired.len()),
        ("a, b", ["a:2", "b:1"].as_slice(), 1)
    );
    assert_eq!(GateUse::merged([]), None);
}

proptest! {
    #[test]
    fn the_order_of_declarations_never_matters(
        chosen in proptest::sample::subsequence((0..12_usize).collect::<Vec<_>>(), 1..6),
        seed in any::<u64>(),
        which in 0..5_usize,
    ) {
        let outcomes = [
            "logits_nmse = 1e-2", "logits_nmse = 1e-4", "kv_nmse = 1e-2", "mismatches = 2", "nonfinite = 1",
            "status = \"fallback\"\nnodes = 1", "status = \"fallback\"\nnodes = 3\nops = [\"ROPE\"]",
            "status = \"crashed\"", "status = \"crashed\"\nsignal = \"SIGSEGV\"", "status = \"timeout\"",
            "logits_nmse = 1e-2\nmismatches = 1", "greedy = 3",
        ];
        let cells = ["device = \"CUDA0\"", "mode = \"decode\"", "kind = \"GPU\"", "device = \"CPU\""];
        let subject = || match which {
            0 => cell(CELL),
            1 => red(CELL, &[(FindingKind::Logits, 1e-3)]),
            2 => red(CELL, &[(FindingKind::Logits, 1e-3), (FindingKind::Mismatches, 1.0)]),
            3 => red(CELL, &[(FindingKind::Fallback, 1.0)]),
            _ => dead(11),
        };
        let all: Vec<String> = chosen
            .iter()
            .map(|&i| {
                let expires = if i % 5 == 4 { "expires = 2027-01-01" } else { "" };
                // The reason tells them apart wherever they stand.
                expect(cells[i % 4], outcomes[i], expires).replace("\"r\"", &format!("\"r{i}\""))
            })
            .collect();
        let mut other = all.clone();
        let n = other.len();
        for i in 0..n {
            other.swap(i, (seed >> (8 * (i % 8))) as usize % n);
        }
        let places = |cell: Cell| {
            let declared = cell.declared.map(|d| d.declarations.into_iter().map(|d| (d.expected, d.reason)).collect::<Vec<_>>());
            let reason = cell.reason.split("; a declaration has expired").next().map(str::to_owned);
            (cell.status, reason, declared)
        };
        let reasons = |declarations: &[Declaration]| {
            declarations.iter().map(|d| d.reason.clone()).collect::<Vec<_>>()
        };
        let ((one, one_gate), (two, two_gate)) = (after(subject(), &all), after(subject(), &other));
        prop_assert_eq!(places(one), places(two));
        prop_assert_eq!(reasons(&one_gate.unused), reasons(&two_gate.unused));
        prop_assert_eq!(reasons(&one_gate.expired), reasons(&two_gate.expired));
    }
}
