//! One cell from its captures: compared, judged and attributed. Nothing is run, so that a cell can be judged again
//! under other limits as long as its captures are there.

use crate::capture::CaptureReader;
use crate::compare::{CompareError, Metrics, compare};
use crate::plan::DeviceSelector;
use crate::report::Cell;
use crate::verdict::{Finding, Limits, Status, Verdict, attribute, judge, reference_fault, with_checks};
use crate::worker::{Ended, FailureKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The captures of one cell. In a report that keeps them their paths are relative to its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Captures {
    /// Of the device under test.
    pub device: PathBuf,
    /// Of the reference; `None` where the device is its own.
    pub reference: Option<PathBuf>,
    /// Of the oracle; `None` where it did not run.
    pub oracle: Option<PathBuf>,
}

impl Captures {
    /// The same files with `change` applied to each path.
    ///
    /// # Errors
    /// The first that `change` returns.
    pub fn map<E>(&self, mut change: impl FnMut(&Path) -> Result<PathBuf, E>) -> Result<Self, E> {
        let mut maybe = |path: &Option<PathBuf>| path.as_deref().map(&mut change).transpose();
        let (reference, oracle) = (maybe(&self.reference)?, maybe(&self.oracle)?);
        Ok(Self { device: change(&self.device)?, reference, oracle })
    }

    /// What the device is compared with where there is no oracle.
    fn reference(&self) -> &Path {
        self.reference.as_deref().unwrap_or(&self.device)
    }
}

/// The figures between the arms of one cell.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The device against the reference; `None` where it is its own.
    pub device: Option<Metrics>,
    /// The device against the oracle; `None` where that did not run.
    pub device_on_oracle: Option<Metrics>,
    /// The reference against the oracle; `None` where that did not run or the device is its own reference.
    pub reference_on_oracle: Option<Metrics>,
}

/// Compares every pair of arms, all at once.
///
/// # Errors
/// As [`compare`]; the pair is named where the oracle is one of them.
pub fn figures(files: &Captures, limits: &Limits) -> Result<Figures, CompareError> {
    let pair = |reference: &Path, test: &Path| compare(&mut open(reference)?, &mut open(test)?, limits);
    let (reference, oracle) = (files.reference.as_deref(), files.oracle.as_deref());
    let on_reference = || reference.map(|reference| pair(reference, &files.device)).transpose();
    let on_oracle = || {
        let found = oracle.map(|oracle| pair(oracle, &files.device)).transpose();
        found.map_err(|error| error.of("the device against the oracle"))
    };
    let of_reference = || {
        let found = oracle.zip(reference).map(|(oracle, reference)| pair(oracle, reference)).transpose();
        found.map_err(|error| error.of("the reference against the oracle"))
    };
    // Of the errors there may be the first counts, whichever was found first.
    let (device, (device_on_oracle, reference_on_oracle)) =
        rayon::join(on_reference, || rayon::join(on_oracle, of_reference));
    Ok(Figures {
        device: device?,
        device_on_oracle: device_on_oracle?,
        reference_on_oracle: reference_on_oracle?,
    })
}

/// Compares the captures of `cell` and sets its figures, attribution, limits and verdict. Captures that cannot be
/// compared have diverged.
pub fn settle(cell: &mut Cell, files: &Captures, limits: &Limits) {
    cell.metrics = None;
    cell.attribution = None;
    let verdict = verdict(cell, files, limits).unwrap_or_else(Verdict::from);
    cell.set_verdict(verdict);
    cell.limits = Some(limits.clone());
}

fn open(path: &Path) -> Result<CaptureReader, CompareError> {
    Ok(CaptureReader::open(path)?)
}

fn verdict(cell: &mut Cell, files: &Captures, limits: &Limits) -> Result<Verdict, CompareError> {
    let (reference, test) = (open(files.reference())?, open(&files.device)?);
    cell.set_capture(test.meta());
    cell.reference_text = files.reference.as_ref().and_then(|_| reference.meta().text.clone());
    let found = match figures(files, limits) {
        Ok(found) => found,
        Err(error) => {
            // The oracle's capture may be the one that does not fit: what the others say is kept.
            let reference = files.reference.as_deref();
            cell.metrics = reference
                .and_then(|path| compare(&mut open(path).ok()?, &mut open(&files.device).ok()?, limits).ok());
            return Err(error);
        }
    };
    let is_cpu = cell.device.is_cpu();
    let judged = |metrics: &Metrics| {
        let verdict = judge(metrics, &test.meta().placement, limits, is_cpu);
        with_checks(verdict, "", &test.meta().checks, limits)
    };
    let with_reference = |verdict| with_checks(verdict, "the reference: ", &reference.meta().checks, limits);
    let on_reference = found.device.as_ref().map(|metrics| with_reference(judged(metrics)));
    let verdict = match (&found.device_on_oracle, on_reference) {
        (Some(on_oracle), on_reference) => {
            let judged_on_oracle = judged(on_oracle);
            let judged = on_reference.unwrap_or_else(|| judged_on_oracle.clone());
            let (attribution, verdict) =
                attribute(found.reference_on_oracle.as_ref(), on_oracle, limits, judged, judged_on_oracle);
            cell.attribution = Some(attribution);
            verdict
        }
        (None, Some(verdict)) => verdict,
        // A device that is its own reference, without the oracle: only what it was found to do against itself counts.
        (None, None) if test.meta().checks.is_empty() => {
            let reason = "it is its own reference, and the oracle is not there to compare it with".to_owned();
            return Ok(Verdict::new(Status::Missing, reason));
        }
        (None, None) => {
            let metrics = compare(&mut open(&files.device)?, &mut open(&files.device)?, limits)?;
            let verdict = with_reference(judged(&metrics));
            cell.metrics = Some(metrics);
            verdict
        }
    };
    // What a sampler is held to is the contract in f64, so those figures are told where they are there.
    let contract = found.device_on_oracle.as_ref().and_then(|metrics| metrics.sampler.clone());
    if let Some(metrics) = found.device.or(found.device_on_oracle) {
        let sampler = contract.or(metrics.sampler);
        cell.metrics = Some(Metrics { sampler, ..metrics });
    }
    let plain_cpu = reference.meta().device.selector == DeviceSelector::cpu().to_string();
    let fault = reference_fault(&reference.meta().placement).filter(|_| plain_cpu);
    Ok(fault.unwrap_or(verdict))
}

/// The verdict on an arm that has no capture; `who` begins the reason. No declaration about a device forgives what became
/// of another arm; where the arm is the device under test, whoever asks takes the finding away.
#[must_use]
pub fn without_capture(ended: &Ended, who: &str) -> Verdict {
    let (status, reason) = match ended {
        Ended::Captured => (Status::Missing, "its capture is gone".to_owned()),
        Ended::Crashed(death) => (death.status(), death.to_string()),
        Ended::TimedOut(limit) => (Status::Timeout, format!("no result within {} s", limit.as_secs())),
        Ended::Failed(failure) => {
            let status = match failure.kind {
                FailureKind::Unsupported => Status::Unsupported,
                FailureKind::OutOfMemory => Status::OutOfMemory,
                FailureKind::Fault | FailureKind::Environment | FailureKind::Storage => Status::Crashed,
                FailureKind::Input => Status::Missing,
            };
            (status, failure.message.clone())
        }
    };
    let reason = format!("{who}{reason}");
    let findings = vec![Finding::unforgivable(reason.clone())];
    Verdict { findings, ..Verdict::new(status, reason) }
}
