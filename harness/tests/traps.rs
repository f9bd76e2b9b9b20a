//! Traps that other tools fell into, and in which this one must turn red: one test each, through the public interface
//! and, where it is about exit codes, the binary. Where they were seen is in each test's comment.

mod common;

use common::{run, told};
use ggml_parity::capture::{
    BackendNodes, BuildInfo, Cache, CaptureMeta, CaptureReader, CaptureWriter, DeviceInfo, DeviceKind,
    ModelInfo, Placement, SCHEMA,
};
use ggml_parity::compare::{Metrics, compare};
use ggml_parity::plan::{Case, CellId};
use ggml_parity::report::{Cell, Environment, Report, Run, csv, json};
use ggml_parity::verdict::{ExitCode, Key, Limits, Outcome, Status, Tolerances, Verdict, exit_code, judge};
use std::collections::BTreeMap;

const COLUMNS: usize = 32;
const SHAPE: [usize; 3] = [3, 2, 4];

/// The tensors of a capture of one layer.
#[derive(Clone)]
struct Tensors {
    logits: Vec<Vec<f32>>,
    k: Vec<f32>,
    v: Option<Vec<f32>>,
}

/// Values between -2 and 2 that look like nothing in particular.
fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| 2.0 * ((seed * 131 + i * 37) as f32 * 0.7).sin()).collect()
}

fn tensors(rows: usize) -> Tensors {
    let size = SHAPE.iter().product();
    Tensors {
        logits: (0..rows).map(|row| values(row, COLUMNS)).collect(),
        k: values(90_001, size),
        v: Some(values(90_002, size)),
    }
}

/// The same with one change.
fn changed(tensors: &Tensors, change: impl FnOnce(&mut Tensors)) -> Tensors {
    let mut copy = tensors.clone();
    change(&mut copy);
    copy
}

fn placement() -> Placement {
    let cpu = BackendNodes { name: "CPU".to_owned(), compute_nodes: 9, ..BackendNodes::default() };
    Placement { graphs: 1, splits: 1, backends: vec![cpu], ..Placement::default() }
}

fn meta() -> CaptureMeta {
    CaptureMeta {
        schema: SCHEMA.to_owned(),
        case: "m/f32/prefill".to_owned(),
        model: ModelInfo { name: "m".to_owned(), sha256: "5a".repeat(32), architecture: "llama".to_owned() },
        build: BuildInfo { name: "b".to_owned(), ..BuildInfo::default() },
        device: DeviceInfo {
            selector: "CPU@x64".to_owned(),
            name: "CPU".to_owned(),
            kind: DeviceKind::Cpu,
            description: String::new(),
            driver: None,
            memory_total: None,
        },
        features: BTreeMap::new(),
        environment: BTreeMap::new(),
        placement: placement(),
        traffic: None,
        bytes: Vec::new(),
        peak_rss_bytes: None,
        threads: 1,
        timings: BTreeMap::new(),
        text: None,
        retried: None,
        notes: Vec::new(),
        checks: Vec::new(),
        sampler: None,
    }
}

/// Writes the tensors as a worker does, and opens the file.
fn open(tensors: &Tensors) -> Result<CaptureReader, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.safetensors");
    let mut writer = CaptureWriter::new(COLUMNS);
    for (row, logits) in (0..).zip(&tensors.logits) {
        writer.row(row, 0, logits);
    }
    writer.tokens(&[1, 2, 3]);
    match &tensors.v {
        Some(v) => writer.layer(&tensors.k, SHAPE, v, SHAPE),
        None => writer.layer(&tensors.k, SHAPE, &tensors.k, SHAPE),
    }
    writer.write(&path, &meta()).unwrap();
    if tensors.v.is_none() {
        // A writer of another make that leaves a tensor out: its name is changed to one that readers ignore.
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(5).position(|window| window == b"\"v.0\"").unwrap();
        bytes[at + 1] = b'w';
        std::fs::write(&path, bytes).unwrap();
    }
    CaptureReader::open(&path).map_err(|error| error.to_string())
}

fn metrics(reference: &Tensors, test: &Tensors, limits: &Limits) -> Result<Metrics, Verdict> {
    compare(&mut open(reference).unwrap(), &mut open(test).unwrap(), limits).map_err(Verdict::from)
}

/// The verdict on `test`.
fn verdict_at(reference: &Tensors, test: &Tensors, limits: &Limits) -> Verdict {
    match metrics(reference, test, limits) {
        Ok(metrics) => judge(&metrics, &placement(), limits, true),
        Err(verdict) => verdict,
    }
}

/// Asserts that `test` is red under `limits` and that the reason has `wanted`.
fn red_at(reference: &Tensors, test: &Tensors, limits: &Limits, wanted: &str) {
    let verdict = verdict_at(reference, test, limits);
    assert_eq!(verdict.status, Status::Diverged, "{wanted}");
    assert!(verdict.reason.contains(wanted), "{}", verdict.reason);
    let outcome = Outcome { status: verdict.status, declared: false, compared: true };
    assert_eq!(exit_code([outcome]), ExitCode::Diverged);
}

fn red(reference: &Tensors, test: &Tensors, wanted: &str) {
    red_at(reference, test, &Limits::uniform(1e-9), wanted);
}

/// Without a fault everything passes: the tests below are about their faults.
#[test]
fn equal_captures_pass() {
    let verdict = verdict_at(&tensors(9), &tensors(9), &Limits::uniform(1e-9));
    assert_eq!(verdict, Verdict::new(Status::Pass, ""));
}

/// `NaN > limit` is false, so a test that fails on excess passes a NaN (test-backend-ops, test-llama-archs).
#[test]
fn nan_is_not_within_a_limit() {
    let (right, wide) = (tensors(9), Limits { max_real_mismatches: 9, ..Limits::uniform(f64::INFINITY) });
    let in_logits = changed(&right, |t| t.logits[4][3] = f32::NAN);
    let in_cache = changed(&right, |t| t.k[5] = f32::NAN);
    for limits in [Limits::uniform(1e-9), wide] {
        red_at(&right, &in_logits, &limits, "first in logits row 4 column 3");
        red_at(&right, &in_cache, &limits, "first in k.0 row 0 column 5");
        // In both arms, and in the reference alone.
        red_at(&in_logits, &in_logits, &limits, "2 NaN");
        red_at(&in_logits, &right, &limits, "1 NaN");
    }
}

/// An infinity that both arms hold makes the error of its row `inf - inf`, a NaN, after which nothing in the row can
/// fail (test-backend-ops, early llama-results).
#[test]
fn a_matched_infinity_does_not_hide_its_row() {
    let right = changed(&tensors(9), |t| t.logits[4][3] = f32::INFINITY);
    assert_eq!(verdict_at(&right, &right, &Limits::uniform(1e-9)).status, Status::Pass);
    let wrong =
        changed(&right, |t| t.logits[4].iter_mut().filter(|v| v.is_finite()).for_each(|v| *v *= -1000.0));
    red(&right, &wrong, "worst row 4 of 9 with 1.0e6");
    let opposite = changed(&right, |t| t.logits[4][3] = f32::NEG_INFINITY);
    red(&right, &opposite, "1 unmatched infinities");
}

/// An error divided by the tested arm's energy is at most 1 however large the result is.
#[test]
fn a_blown_up_result_is_not_measured_by_itself() {
    let right = tensors(9);
    let wrong = changed(&right, |t| t.logits.iter_mut().flatten().for_each(|v| *v *= 1e6));
    let found = metrics(&right, &wrong, &Limits::uniform(1e-9)).unwrap();
    assert!((found.logits.overall / 1e12 - 1.0).abs() < 1e-3, "{}", found.logits.overall);
    // Even a limit of 1, which the error over the result's own energy would be within.
    red_at(&right, &wrong, &Limits::uniform(1.0), "logits NMSE 1.0e12 > 1e0");
    let wrong = changed(&right, |t| t.k.iter_mut().for_each(|v| *v *= 1e6));
    red_at(&right, &wrong, &Limits::uniform(1.0), "NMSE of k.0 1.0e12");
}

/// With no GPU, or a mistyped filter, zero tests run and the exit code is 0 (test-backend-ops).
#[test]
fn nothing_compared_is_not_success() {
    assert_eq!(exit_code([]), ExitCode::Incomplete);
    let empty = Report::new(Run::default(), Environment::default(), &[], Vec::new());
    assert_eq!(empty.exit_code(), ExitCode::Incomplete);
    assert!(empty.summary().contains("nothing compared"), "{}", empty.summary());
    let build = common::default_build();
    let code = |arguments: &[&str]| {
        let common = ["run", "--model", "gen-llama", "--ggml", &build, "--threads", "1", "--out", "out"];
        told(&run(&[&common[..], arguments].concat()))
    };
    // The reference against itself is no comparison.
    let (found, text) = code(&["--device", "CPU", "--no-oracle", "--mode", "prefill"]);
    assert!(found == 3 && text.contains("missing"), "{found} {text}");
    let (found, text) = code(&["--device", "Vulcan0"]);
    assert!(found == 4 && text.contains("no device `Vulcan0`"), "{found} {text}");
    let (found, text) = code(&["--mode", "prefil"]);
    assert!(found == 2 && text.contains("prefil"), "{found} {text}");
    let (found, text) = code(&["--mode", "sparse"]);
    assert!(found == 2 && text.contains("has no mode sparse"), "{found} {text}");
}

/// An output that one arm lacks is left out of the comparison, which then passes (Polygraphy).
#[test]
fn an_output_that_one_arm_lacks_is_a_divergence() {
    let right = tensors(9);
    let fewer = changed(&right, |t| drop(t.logits.pop()));
    red(&right, &fewer, "rows of logits: 9 in the reference, 8 in the test");
    red(&fewer, &right, "rows of logits: 8 in the reference, 9 in the test");
    let error = open(&changed(&right, |t| t.v = None)).err().expect("a capture without V is none");
    assert!(error.ends_with("`v.0` is missing"), "{error}");
    // And a cell whose capture never came is red as well.
    let id: CellId = "m/f32/prefill@b:Vulkan0".parse().unwrap();
    let report = Report::new(Run::default(), Environment::default(), std::slice::from_ref(&id), Vec::new());
    assert_eq!((report.cells[0].status, report.exit_code()), (Status::Missing, ExitCode::Incomplete));
}

/// A mean and a 99 % quantile both forgive one row in a thousand that is five times too large.
#[test]
fn one_row_in_a_thousand_does_not_vanish_in_an_aggregate() {
    let right = tensors(1000);
    let wrong = changed(&right, |t| t.logits[617].iter_mut().for_each(|v| *v *= 5.0));
    let limits = Limits::uniform(3e-2);
    let found = metrics(&right, &wrong, &limits).unwrap();
    assert!(limits.logits_nmse.holds(found.logits.overall) && limits.logits_nmse.holds(found.logits.p99));
    assert_eq!(found.top_token.mismatches, 0);
    red_at(&right, &wrong, &limits, "NMSE of row 617 of 1000");
}

/// The report of one cell in which one row is wrong.
fn report() -> Report {
    let (right, limits) = (tensors(9), Limits::uniform(1e-9));
    let wrong = changed(&right, |t| t.logits[4].iter_mut().for_each(|v| *v *= 2.0));
    let id: CellId = "m/f32/prefill@b:CPU@x64".parse().unwrap();
    let mut cell = Cell::new(id.clone());
    let found = metrics(&right, &wrong, &limits).unwrap();
    cell.set_verdict(judge(&found, &placement(), &limits, true));
    (cell.metrics, cell.limits) = (Some(found), Some(limits));
    Report::new(Run::default(), Environment::default(), &[id], vec![cell])
}

/// Output is text that scripts must parse (test-backend-ops, compare-logits): here a machine reads the same figures,
/// and the same verdict, that people do.
#[test]
fn a_machine_reads_the_figures_without_parsing_text() {
    let report = report();
    let back = json::parse(&json::render(&report)).unwrap();
    assert_eq!(back, report);
    let metrics = back.cells[0].metrics.as_ref().unwrap();
    assert_eq!((metrics.logits.worst.place.row, metrics.logits.worst.nmse), (4, 1.0));
    assert_eq!(metrics.kv.as_ref().map(|kv| kv.worst.cache), Some(Cache::K));
    assert_eq!(back.exit_code(), ExitCode::Diverged);
}

/// A table without the error value says that something failed and not by how much (test-backend-ops' CSV).
#[test]
fn a_table_holds_the_error_value() {
    let report = report();
    let text = csv::render(&report);
    let mut table = ::csv::Reader::from_reader(text.as_bytes());
    let heading = table.headers().unwrap().clone();
    let cell = table.records().next().unwrap().unwrap();
    let column =
        |name: &str| heading.iter().position(|field| field == name).unwrap_or_else(|| panic!("{text}"));
    let metrics = report.cells[0].metrics.as_ref().unwrap();
    let value: f64 = cell[column("logits_nmse")].parse().unwrap();
    assert_eq!(value, metrics.logits.overall);
    assert_eq!(&cell[column("status")], "diverged");
}

/// A program that measures a divergence and ends with 0 (llama-perplexity --kl-divergence, compare-logits) stops no
/// one. `tests/planted_faults.rs` and `tests/attribution.rs` do the same with real arms.
#[test]
fn a_divergence_is_not_success() {
    assert_eq!(report().exit_code().code(), 1);
    // One red cell among many that pass.
    let outcome = |status| Outcome { status, declared: false, compared: true };
    let mut outcomes = vec![outcome(Status::Pass); 999];
    assert_eq!(exit_code(outcomes.clone()).code(), 0);
    for (status, code) in
        [(Status::Diverged, 1), (Status::Fallback, 1), (Status::Missing, 3), (Status::Crashed, 5)]
    {
        outcomes.insert(500, outcome(status));
        assert_eq!(exit_code(outcomes.clone()).code(), code, "{status}");
        outcomes.remove(500);
    }
}

/// A reference that is kept as 16-bit log-probabilities (perplexity) hides every error below its own rounding.
#[test]
fn a_reference_is_kept_in_full() {
    let right = tensors(9);
    let rounded = changed(&right, |t| {
        t.logits.iter_mut().flatten().for_each(|v| *v = half::f16::from_f32(*v).to_f32());
    });
    red(&right, &rounded, "logits NMSE ");
    let next = changed(&right, |t| t.logits[4][3] = f32::from_bits(t.logits[4][3].to_bits() + 1));
    let found = metrics(&right, &next, &Limits::uniform(1e-9)).unwrap();
    assert!(found.logits.overall > 0.0 && found.logits.worst.column == Some(3), "{:?}", found.logits);
}

/// One tolerance for all (test-llama-archs, compare-logits) is too wide for F32 or too narrow for Q4_0: the same error
/// is red for one and within the other's limits.
#[test]
fn a_tolerance_belongs_to_types_and_devices() {
    let right = tensors(9);
    let wrong = changed(&right, |t| t.logits.iter_mut().flatten().for_each(|v| *v *= 1.001));
    let limits = |case: &str, kind| {
        let case: Case = case.parse().unwrap();
        Tolerances::embedded().limits(&Key::new(&case, kind).unwrap()).unwrap()
    };
    red_at(&right, &wrong, &limits("m/f32/prefill", DeviceKind::Cpu), "logits NMSE 1.0e-6 > 1e-10");
    let passes = |case: &str, kind| verdict_at(&right, &wrong, &limits(case, kind)).status == Status::Pass;
    assert!(passes("m/q4_0/prefill", DeviceKind::Cpu) && passes("m/f16/prefill", DeviceKind::Cpu));
    assert!(passes("m/f32/prefill", DeviceKind::Gpu));
    assert!(passes("m/f32/prefill?kv=q8_0", DeviceKind::Cpu));
}
