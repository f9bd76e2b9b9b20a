//! What becomes of a pair of captures.
//!
//! Two captures of ours are held to what a run holds them to. A capture of another runtime may lack K/V and the free
//! run, and tells nothing of its model's hash and of where its work was placed: what one arm lacks is named in the
//! cell's reason, also where the cell passes. Logits must be there.

use super::Pair;
use crate::capture::{CaptureReader, DeviceKind, KvSet};
use crate::compare::{CompareError, Metrics, compare};
use crate::plan::{Case, DeviceSelector};
use crate::report::Cell;
use crate::verdict::{
    self, Key, Limits, Status, ToleranceError, Tolerances, Verdict, attribute, judge_figures,
    reference_fault, with_checks,
};

/// What pairs are held to.
pub struct Held<'a> {
    /// The table of limits.
    pub tolerances: &'a Tolerances,
    /// The weight type whose limits apply, where it is not that of the case.
    pub weights: Option<&'a str>,
    /// The kind of device whose limits apply where neither capture tells it.
    pub kind: DeviceKind,
}

impl Held<'_> {
    /// The limits of a pair: those of its case on a GPU where either capture is of one, else on the test's kind of
    /// device, or on the reference's where the test's is not known.
    fn limits(&self, pair: &Pair) -> Result<Limits, ToleranceError> {
        let weights = self.weights.unwrap_or(&pair.id.case.weights).to_owned();
        let case = Case { weights, ..pair.id.case.clone() };
        let known = [&pair.test, &pair.reference].into_iter().flatten();
        let known = known.filter(|entry| !entry.foreign && !entry.oracle).map(|entry| entry.device.kind);
        let stated = if known.clone().next().is_none() { Some(self.kind) } else { None };
        let kinds: Vec<DeviceKind> = known.chain(stated).collect();
        let kind = kinds.iter().find(|kind| kind.is_gpu()).or(kinds.first()).copied();
        self.tolerances.limits(&Key::new(&case, kind.unwrap_or(self.kind))?)
    }
}

/// Compares and judges one pair; captures that cannot be compared have diverged.
///
/// # Errors
/// When no limit applies to its case.
pub fn judge(pair: &Pair, held: &Held<'_>) -> Result<Cell, ToleranceError> {
    let mut cell = Cell::new(pair.id.clone());
    let (Some(reference), Some(_)) = (&pair.reference, &pair.test) else {
        let (arm, lone) = match &pair.reference {
            Some(entry) => ("the test", entry),
            None => {
                ("the reference", pair.test.as_ref().unwrap_or_else(|| unreachable!("a pair has an arm")))
            }
        };
        let reason = format!("no capture of this case by {arm}; {} has no partner", lone.path.display());
        cell.set_verdict(Verdict::new(Status::Missing, reason));
        return Ok(cell);
    };
    let named = reference.cell().filter(|_| !reference.foreign).map(|id| id.to_string());
    cell.reference = Some(named.unwrap_or_else(|| reference.path.display().to_string()));
    let limits = held.limits(pair)?;
    let done = captures(pair, &limits, &mut cell);
    cell.set_verdict(done.unwrap_or_else(Verdict::from));
    cell.limits.get_or_insert(limits);
    Ok(cell)
}

/// Compares the captures of a pair whose arms are both there.
fn captures(pair: &Pair, limits: &Limits, cell: &mut Cell) -> Result<Verdict, CompareError> {
    let open = |entry: &Option<super::Entry>| {
        entry.as_ref().map(|entry| CaptureReader::open_foreign(&entry.path)).transpose()
    };
    let (Some(mut reference), Some(mut test)) = (open(&pair.reference)?, open(&pair.test)?) else {
        unreachable!("both arms are there");
    };
    if !test.is_foreign() {
        cell.set_capture(test.meta());
    }
    if !test.is_foreign() && reference.meta() == test.meta() {
        let reason =
            "the test is a copy of the reference's capture, down to the time it took: nothing was compared";
        return Ok(Verdict::new(Status::Missing, reason));
    }
    let mut limits = limits.clone();
    let lacks = leave_out(&reference, &test, &mut limits);
    cell.limits = Some(limits.clone());
    let metrics = compare(&mut reference, &mut test, &limits)?;
    let judged = |metrics: &Metrics, capture: &CaptureReader| {
        let verdict = if capture.is_foreign() || capture.meta().is_oracle() {
            judge_figures(metrics, &limits)
        } else {
            verdict::judge(metrics, &capture.meta().placement, &limits, pair.id.device.is_cpu())
        };
        with_checks(verdict, "", &capture.meta().checks, &limits)
    };
    let mut found =
        with_checks(judged(&metrics, &test), "the reference: ", &reference.meta().checks, &limits);
    cell.metrics = Some(metrics);
    if let Some(mut oracle) = open(&pair.oracle)? {
        let device =
            compare(&mut oracle, &mut test, &limits).map_err(|e| e.of("the test against the oracle"))?;
        let of_reference = compare(&mut oracle, &mut reference, &limits)
            .map_err(|e| e.of("the reference against the oracle"))?;
        let on_oracle = judged(&device, &test);
        let (attribution, verdict) = attribute(Some(&of_reference), &device, &limits, found, on_oracle);
        cell.attribution = Some(attribution);
        found = verdict;
    }
    let plain = reference.meta().device.selector == DeviceSelector::cpu().to_string();
    let fault = reference_fault(&reference.meta().placement).filter(|_| plain && !reference.is_foreign());
    let mut verdict = fault.unwrap_or(found);
    if !lacks.is_empty() {
        let before = if verdict.reason.is_empty() { String::new() } else { format!("{}; ", verdict.reason) };
        verdict.reason = format!("{before}not compared: {}", lacks.join(", "));
    }
    Ok(verdict)
}

/// Takes out of `limits` what a capture of another runtime lacks, and says what that is.
fn leave_out(reference: &CaptureReader, test: &CaptureReader, limits: &mut Limits) -> Vec<String> {
    let mut lacks = Vec::new();
    if !reference.is_foreign() && !test.is_foreign() {
        return lacks;
    }
    let mut absent = |what: &str, in_reference: bool, in_test: bool| {
        let place = match (in_reference, in_test) {
            (true, true) => return false,
            (false, true) => "in the reference",
            (true, false) => "in the test",
            (false, false) => "in both",
        };
        lacks.push(format!("{what} (absent {place})"));
        true
    };
    let has = |capture: &CaptureReader, set| capture.layers_of(set) > 0;
    if absent("K/V", has(reference, KvSet::Stored), has(test, KvSet::Stored)) {
        limits.kv_nmse = None;
    }
    if limits.kv_before_storing_nmse.is_some()
        && absent("K/V before storing", has(reference, KvSet::BeforeStoring), has(test, KvSet::BeforeStoring))
    {
        limits.kv_before_storing_nmse = None;
    }
    let free_runs = (reference.greedy().is_some(), test.greedy().is_some());
    if free_runs != (false, false) {
        absent("the free run", free_runs.0, free_runs.1);
    }
    absent("the model's hash", !reference.is_foreign(), !test.is_foreign());
    lacks
}
