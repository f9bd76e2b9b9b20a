//! Placement bisect: which part of a cell's work has to move to the CPU for parity to return.
//!
//! Units are the compute nodes of one op in one layer. A trial is a run of the device's arm with some units pinned to
//! the CPU, judged as `run` judges it, against the captures of the other arms, which are computed once. Delta
//! debugging finds a smallest set of layers first, then of the units in them. A trial that crashes or takes too long
//! has not restored parity.

use super::ddmin::ddmin;
use super::journal::{Journal, JournalError};
use crate::pipeline::{self, Folders, Plan, RunError, capture_path};
use crate::plan::CellId;
use crate::report::{Cell, Run};
use crate::verdict::Status;
use crate::worker::Workplace;
use runtime::{Pins, Unit};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

/// The schema of `pin.json` and of the journal.
pub const SCHEMA: &str = "ggml-parity pin 1";

/// One run of the device's arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was pinned; none where the scheduler placed everything.
    pub pins: Option<Pins>,
    /// What became of the cell.
    pub status: Status,
    /// Why.
    pub reason: String,
    /// Logits NMSE against the reference.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub logits_nmse: Option<f64>,
    /// K/V NMSE against the reference, the worst layer.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub kv_nmse: Option<f64>,
    /// Logits NMSE against the oracle, where it ran.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub oracle_nmse: Option<f64>,
    /// Nodes on the CPU by unit, over all graphs.
    pub pinned: BTreeMap<Unit, u64>,
    /// How long it took.
    pub seconds: f64,
}

impl Trial {
    fn of(pins: Option<Pins>, cell: &Cell, seconds: f64) -> Self {
        let metrics = cell.metrics.as_ref();
        Self {
            pins,
            status: cell.status,
            reason: cell.reason.clone(),
            logits_nmse: metrics.map(|m| m.logits.overall),
            kv_nmse: metrics.and_then(|m| m.kv.as_ref()).map(|kv| kv.worst.nmse),
            oracle_nmse: cell.attribution.as_ref().map(|found| found.device_nmse),
            pinned: cell.placement.as_ref().map(|p| p.pinned.clone()).unwrap_or_default(),
            seconds,
        }
    }

    /// What the exit code of the cell alone needs to know.
    #[must_use]
    pub fn cell_outcome(&self) -> crate::verdict::Outcome {
        let compared = self.logits_nmse.is_some();
        crate::verdict::Outcome { status: self.status, declared: false, compared }
    }

    /// What the search makes of it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self.status {
            Status::Pass | Status::Expected => Outcome::Restored,
            Status::Diverged | Status::Fallback | Status::UnexpectedPass => Outcome::Off,
            Status::Unsupported
            | Status::Crashed
            | Status::Timeout
            | Status::OutOfMemory
            | Status::Missing => Outcome::Unresolved,
        }
    }
}

/// What a trial says of its pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Parity is there.
    Restored,
    /// It is not.
    Off,
    /// The trial has no figures: it crashed, took too long, or the device cannot do it.
    Unresolved,
}

/// What a search has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The cell passes as it is.
    NothingToFind,
    /// It does not pass with everything on the CPU either.
    NotPlacement,
    /// It passes as soon as every node is placed by hand, with none on the CPU: the scheduler's own placement is at
    /// fault.
    Scheduling,
    /// It passes with these units on the CPU, and with none of them left out.
    Smallest(Vec<Unit>),
}

/// The course of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The finding.
    pub finding: Finding,
    /// Every unit of the cell's graphs.
    pub units: Vec<Unit>,
    /// The trials in the order in which the search asked for them.
    pub trials: Vec<Trial>,
}

impl Found {
    /// The trial without pins.
    #[must_use]
    pub fn before(&self) -> Option<&Trial> {
        self.trials.iter().find(|trial| trial.pins.is_none())
    }

    /// The trial of the finding.
    #[must_use]
    pub fn after(&self) -> Option<&Trial> {
        let pins = match &self.finding {
            Finding::NothingToFind => return None,
            Finding::NotPlacement => Pins::All,
            Finding::Scheduling => Pins::These(BTreeSet::new()),
            Finding::Smallest(units) => Pins::These(units.iter().cloned().collect()),
        };
        self.trials.iter().find(|trial| trial.pins.as_ref() == Some(&pins))
    }
}

/// Searches with `trial` as the only way to know anything.
///
/// # Errors
/// Those of `trial`.
pub fn search<E>(mut trial: impl FnMut(Option<Pins>) -> Result<Trial, E>) -> Result<Found, E> {
    let mut trials: Vec<Trial> = Vec::new();
    let mut outcome = |pins: Option<Pins>| -> Result<(Outcome, BTreeMap<Unit, u64>), E> {
        let known = trials.iter().find(|trial| trial.pins == pins);
        let trial = match known {
            Some(trial) => trial.clone(),
            None => {
                trials.push(trial(pins)?);
                trials[trials.len() - 1].clone()
            }
        };
        Ok((trial.outcome(), trial.pinned))
    };
    let mut units = Vec::new();
    let finding = if outcome(None)?.0 == Outcome::Restored {
        Finding::NothingToFind
    } else {
        let (everything, pinned) = outcome(Some(Pins::All))?;
        units.extend(pinned.into_keys());
        if everything != Outcome::Restored {
            Finding::NotPlacement
        } else if outcome(Some(Pins::These(BTreeSet::new())))?.0 == Outcome::Restored {
            Finding::Scheduling
        } else {
            Finding::Smallest(smallest(&units, |set| {
                Ok(outcome(Some(Pins::These(set)))?.0 == Outcome::Restored)
            })?)
        }
    };
    Ok(Found { finding, units, trials })
}

/// A smallest set of units, by whole layers first.
fn smallest<E>(
    units: &[Unit],
    mut restores: impl FnMut(BTreeSet<Unit>) -> Result<bool, E>,
) -> Result<Vec<Unit>, E> {
    let of = |layers: &[usize]| -> Vec<Unit> {
        units.iter().filter(|unit| layers.contains(&unit.layer)).cloned().collect()
    };
    let layers: BTreeSet<usize> = units.iter().map(|unit| unit.layer).collect();
    let layers: Vec<usize> = layers.into_iter().collect();
    let layers = ddmin(&layers, |layers| restores(of(layers).into_iter().collect()))?;
    ddmin(&of(&layers), |units| restores(units.iter().cloned().collect()))
}

/// What a journal is of: trials of anything else say nothing about this cell.
#[derive(Debug, Serialize)]
struct Header<'a> {
    schema: &'a str,
    version: &'a str,
    cell: String,
    model: &'a str,
    build: BTreeMap<&'a str, &'a str>,
    device: String,
    oracle: String,
    inputs: String,
    threads: usize,
}

/// A search that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// As a run's.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The journal's.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// The trials of one cell, the only one of `plan`.
pub struct Trials<'a> {
    plan: &'a Plan,
    workplace: &'a Workplace,
    folders: Folders,
    id: &'a CellId,
}

impl<'a> Trials<'a> {
    /// Trials whose captures go to `folder`.
    ///
    /// # Errors
    /// When the plan has not one cell, or one whose device is the CPU: then nothing can be placed elsewhere.
    pub fn new(plan: &'a Plan, workplace: &'a Workplace, folder: &Path) -> Result<Self, RunError> {
        let [id] = plan.cells.as_slice() else {
            return Err(RunError::Usage(format!("{} cells to pin, where one is wanted", plan.cells.len())));
        };
        if id.device.is_cpu() {
            return Err(RunError::Usage(format!(
                "cell {id}: device {} is the CPU, so nothing of it can be pinned there",
                id.device
            )));
        }
        let captures = folder.join("captures");
        std::fs::create_dir_all(&captures)
            .map_err(|source| RunError::Io { path: captures.clone(), source })?;
        Ok(Self { plan, workplace, folders: Folders { captures }, id })
    }

    /// Runs the cell with `pins`. The other arms are computed first where their captures are not there.
    ///
    /// # Errors
    /// As a run's; what happens to the cell is in the trial.
    pub fn run(&self, pins: Option<Pins>) -> Result<Trial, RunError> {
        let started = Instant::now();
        let reference = capture_path(&self.folders, &self.plan.reference_of(self.id));
        if pins.is_none() || !reference.is_file() {
            let report = pipeline::run(self.plan, self.workplace, &self.folders, Run::default(), |_| {})?;
            let missing = || RunError::Usage(format!("cell {} is in no report", self.id));
            let cell = report.cells.iter().find(|cell| cell.id == *self.id).ok_or_else(missing)?;
            // Without the other arms there is nothing that pins could restore.
            if !cell.status.is_good() && !reference.is_file() {
                return Err(RunError::Environment(format!("cell {}: {}", self.id, cell.reason)));
            }
            if pins.is_none() {
                return Ok(Trial::of(None, cell, started.elapsed().as_secs_f64()));
            }
        }
        let wanted = pins.clone().unwrap_or(Pins::These(BTreeSet::new()));
        let cell = pipeline::run_pinned(self.plan, self.workplace, &self.folders, self.id, wanted)?;
        Ok(Trial::of(pins, &cell, started.elapsed().as_secs_f64()))
    }

    /// Searches, with a journal `trials.jsonl` in `folder`; `tell` hears of each trial, and whether it was known.
    ///
    /// # Errors
    /// When a trial cannot be made, or the journal is of something else.
    pub fn search(&self, folder: &Path, mut tell: impl FnMut(&Trial, bool)) -> Result<Found, PinError> {
        let (mut journal, known) = Journal::<Trial>::open(&folder.join("trials.jsonl"), &self.header())?;
        search(|pins| {
            if let Some(trial) = known.iter().find(|trial| trial.pins == pins) {
                tell(trial, true);
                return Ok(trial.clone());
            }
            let trial = self.run(pins)?;
            journal.add(&trial)?;
            tell(&trial, false);
            Ok(trial)
        })
    }

    fn header(&self) -> Header<'_> {
        let builds = self.plan.builds.iter();
        let files = builds.flat_map(|build| &build.info.files);
        let devices = self.plan.builds.iter().flat_map(|build| &build.probed.devices);
        let device = devices.into_iter().find(|device| device.selector == self.id.device.without_build());
        Header {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            cell: self.id.to_string(),
            model: self.plan.models.first().map_or("", |model| &model.sha256),
            build: files.map(|file| (file.name.as_str(), file.sha256.as_str())).collect(),
            device: device.map_or_else(String::new, |d| {
                format!("{} {}", d.info.description, d.info.driver.as_deref().unwrap_or(""))
            }),
            oracle: format!("{:?}", self.plan.oracle),
            inputs: format!("{:?}", self.plan.wishes),
            threads: self.plan.threads,
        }
    }
}

#[cfg(test)]
#[path = "pin_tests.rs"]
mod tests;
