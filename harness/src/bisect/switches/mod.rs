//! Bisection over options: which switches of one build restore parity, or change the numbers most.
//!
//! A trial is one run of the case with some switches set: variables only in the device's worker, against the other arms'
//! captures, which are computed once; another attention, cache or library as a case of its own with its own reference.
//! Where the cell does not pass, delta debugging finds a smallest set with which it does. Where it passes, or the table is
//! asked for, every switch is tried alone, and what is told is how far the device's numbers move.

mod known;
mod report;

pub use known::{Kind, Switch, apply};
pub use report::SwitchReport;
pub(crate) use report::line;

use super::bench::Subject;
use super::run::BisectError;
use super::trial::Change;
use crate::keep::{CaptureStore, Keep};
use crate::pipeline::{self, Build, Folders, Plan, RunError, capture_path};
use crate::plan::CellId;
use crate::report::{Cell, Run};
use crate::trace::ddmin::ddmin;
use crate::trace::journal::Journal;
use crate::verdict::Status;
use crate::worker::{self, Workplace};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The schema of `switches.json` and of the journal.
pub const SCHEMA: &str = "ggml-parity switches 1";

/// One run with some switches set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwitchTrial {
    /// What was set.
    pub set: Vec<Switch>,
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
    /// How the device's numbers differ from those without any switch.
    pub change: Option<Change>,
    /// Seconds of computing.
    pub compute_seconds: Option<f64>,
    /// How long the trial took.
    pub seconds: f64,
}

impl SwitchTrial {
    /// Whether parity is there. A trial without figures has not restored it.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.status.is_good()
    }

    /// How far the numbers moved, for an order: what cannot be compared moved farthest, what has no figures not at all.
    #[must_use]
    pub fn distance(&self) -> f64 {
        match &self.change {
            None => -1.0,
            Some(change) if change.why.is_some() => f64::INFINITY,
            Some(change) => change.nmse.map_or(0.0, |nmse| if nmse.is_nan() { f64::INFINITY } else { nmse }),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The cell passes with these switches set, and with none of them left out.
    Smallest(Vec<Switch>),
    /// No set that was tried restores parity.
    NotSwitches,
    /// Every switch was tried alone; this one changes the numbers most, where any does.
    Largest(Option<Switch>),
}

/// The course of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The finding.
    pub finding: Finding,
    /// Every switch that there is.
    pub offered: Vec<Switch>,
    /// The trials in the order in which the search asked for them; the first has no switch set.
    pub trials: Vec<SwitchTrial>,
}

/// Searches with `trial` as the only way to know anything. With `table`, or where the cell passes as it is, every switch
/// is tried alone.
///
/// # Errors
/// Those of `trial`.
pub fn search<E>(
    offered: &[Switch],
    table: bool,
    mut trial: impl FnMut(&[Switch]) -> Result<SwitchTrial, E>,
) -> Result<Found, E> {
    let mut trials: Vec<SwitchTrial> = Vec::new();
    let mut ask = |set: &[Switch]| -> Result<SwitchTrial, E> {
        if let Some(known) = trials.iter().find(|trial| trial.set == set) {
            return Ok(known.clone());
        }
        trials.push(trial(set)?);
        Ok(trials[trials.len() - 1].clone())
    };
    let passes = ask(&[])?.passes();
    let finding = if table || passes {
        let mut largest: Option<(f64, Switch)> = None;
        for switch in offered {
            let distance = ask(std::slice::from_ref(switch))?.distance();
            if distance > 0.0 && largest.as_ref().is_none_or(|(most, _)| distance > *most) {
                largest = Some((distance, switch.clone()));
            }
        }
        Finding::Largest(largest.map(|(_, switch)| switch))
    } else if offered.is_empty() {
        Finding::NotSwitches
    } else if ask(offered)?.passes() {
        Finding::Smallest(ddmin(offered, |set| Ok(ask(set)?.passes()))?)
    } else {
        // All at once may get in each other's way.
        let mut alone = None;
        for switch in offered {
            if alone.is_none() && ask(std::slice::from_ref(switch))?.passes() {
                alone = Some(switch.clone());
            }
        }
        alone.map_or(Finding::NotSwitches, |switch| Finding::Smallest(vec![switch]))
    };
    Ok(Found { finding, offered: offered.to_vec(), trials })
}

#[derive(Debug, Serialize)]
struct Header<'a> {
    schema: &'a str,
    version: &'a str,
    subject: String,
    model: &'a str,
    build: BTreeMap<&'a str, &'a str>,
    oracle: String,
    inputs: String,
    threads: usize,
    environment: BTreeMap<String, String>,
}

/// Trials of one subject on one build.
pub struct Switches<'a> {
    subject: &'a Subject,
    build: String,
    plan: Plan,
    workplace: &'a Workplace,
    captures: PathBuf,
    keep: Keep,
    offered: Vec<Switch>,
}

impl<'a> Switches<'a> {
    /// Trials of `subject` on `build`, with switches of `kinds`; captures go to `captures`.
    ///
    /// # Errors
    /// A device that the build has not, and libraries that cannot be read.
    pub fn new(
        subject: &'a Subject,
        build: Build,
        mut plan: Plan,
        workplace: &'a Workplace,
        captures: PathBuf,
        store: Option<CaptureStore>,
        kinds: &BTreeSet<Kind>,
    ) -> Result<Self, RunError> {
        build.check(&subject.device)?;
        std::fs::create_dir_all(&captures)
            .map_err(|source| RunError::Io { path: captures.clone(), source })?;
        let offered = known::offered(&build, subject, kinds)?;
        let name = build.info.name.clone();
        plan.builds = vec![build];
        let keep = Keep { journal: None, store };
        Ok(Self { subject, build: name, plan, workplace, captures, keep, offered })
    }

    /// Searches, with a journal `trials.jsonl` in `folder`; `tell` hears of each trial, and whether it was known.
    ///
    /// # Errors
    /// When a trial cannot be made, or the journal is of something else.
    pub fn search(
        &mut self,
        table: bool,
        folder: &Path,
        mut tell: impl FnMut(&SwitchTrial, bool),
    ) -> Result<Found, BisectError> {
        let path = folder.join("trials.jsonl");
        let (mut journal, known) = Journal::<SwitchTrial>::open(&path, &self.header())?;
        let offered = self.offered.clone();
        search(&offered, table, |set| {
            if let Some(trial) = known.iter().find(|trial| trial.set == set) {
                tell(trial, true);
                return Ok(trial.clone());
            }
            let trial = self.run(set)?;
            journal.add(&trial)?;
            tell(&trial, false);
            Ok(trial)
        })
    }

    fn header(&self) -> Header<'_> {
        let files = self.plan.builds.iter().flat_map(|build| &build.info.files);
        Header {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            subject: self.subject.to_string(),
            model: self.plan.models.first().map_or("", |model| &model.sha256),
            build: files.map(|file| (file.name.as_str(), file.sha256.as_str())).collect(),
            oracle: format!("{:?}", self.plan.oracle),
            inputs: format!("{:?}", self.plan.wishes),
            threads: self.plan.threads,
            environment: worker::switches(),
        }
    }

    /// One trial.
    fn run(&mut self, set: &[Switch]) -> Result<SwitchTrial, RunError> {
        let started = Instant::now();
        let (subject, environment) = apply(self.subject, set);
        let base = self.captures.join("base.safetensors");
        if !set.is_empty() && !base.is_file() {
            // The search goes on, and its captures are gone.
            self.run(&[])?;
        }
        let id = CellId::new(subject.case.clone(), &self.build, &subject.device);
        self.plan.cells = vec![id.clone()];
        let same = subject == *self.subject;
        let folder = self.captures.join(if same { "same" } else { "other" });
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| RunError::Io { path, source }
        };
        std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        let folders = Folders { captures: folder };
        let made = capture_path(&folders, &id);
        // One of an earlier trial must not stand for this one's.
        match std::fs::remove_file(&made) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(at(&made)(source)),
            _ => {}
        }
        let cell = if same && !set.is_empty() {
            pipeline::run_switched(&self.plan, self.workplace, &folders, &id, &environment)?
        } else {
            let plain: Vec<_> = self.plan.builds.iter().map(|build| build.environment.clone()).collect();
            for build in &mut self.plan.builds {
                build.environment.extend(environment.clone());
            }
            let report = pipeline::run_keeping(
                &self.plan,
                self.workplace,
                &folders,
                &mut self.keep,
                Run::default(),
                |_| {},
            );
            for (build, plain) in self.plan.builds.iter_mut().zip(plain) {
                build.environment = plain;
            }
            let lost = || RunError::Usage(format!("cell {id} is in no report"));
            report?.cells.into_iter().next().ok_or_else(lost)?
        };
        if set.is_empty() && made.is_file() {
            std::fs::copy(&made, &base).map_err(at(&base))?;
        }
        let trial = self.told(set, &cell, &base, &made);
        Ok(SwitchTrial { seconds: started.elapsed().as_secs_f64(), ..trial })
    }

    fn told(&self, set: &[Switch], cell: &Cell, base: &Path, made: &Path) -> SwitchTrial {
        let metrics = cell.metrics.as_ref();
        let limits = cell.limits.as_ref().filter(|_| !set.is_empty() && base.is_file() && made.is_file());
        SwitchTrial {
            set: set.to_vec(),
            status: cell.status,
            reason: cell.reason.clone(),
            logits_nmse: metrics.map(|m| m.logits.overall),
            kv_nmse: metrics.and_then(|m| m.kv.as_ref()).map(|kv| kv.worst.nmse),
            oracle_nmse: cell.attribution.as_ref().map(|found| found.device_nmse),
            change: limits.map(|limits| Change::between("without a switch", base, made, limits)),
            compute_seconds: cell.timings.get("compute").copied(),
            seconds: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn switch(name: &str) -> Switch {
        let (name, value) = (name.to_owned(), "1".to_owned());
        Switch { kind: Kind::Environment, name, value, what: String::new() }
    }

    fn trial(set: &[Switch], passes: bool, moved: Option<f64>) -> SwitchTrial {
        let change = moved.map(|nmse| Change {
            from: String::new(),
            nmse: Some(nmse),
            kv_nmse: None,
            mismatches: 0,
            same_tokens: None,
            why: None,
        });
        SwitchTrial {
            set: set.to_vec(),
            status: if passes { Status::Pass } else { Status::Diverged },
            reason: String::new(),
            logits_nmse: None,
            kv_nmse: None,
            oracle_nmse: None,
            change,
            compute_seconds: None,
            seconds: 0.0,
        }
    }

    #[test]
    fn a_smallest_set_restores_parity() {
        let offered: Vec<Switch> = "ABCDEFGH".chars().map(|c| switch(&c.to_string())).collect();
        let needed = [switch("C"), switch("F")];
        let found = search(&offered, false, |set| {
            Ok::<_, Infallible>(trial(set, needed.iter().all(|s| set.contains(s)), None))
        });
        assert_eq!(found.unwrap().finding, Finding::Smallest(needed.to_vec()));
    }

    #[test]
    fn where_all_at_once_do_not_help_one_alone_may() {
        let offered = [switch("A"), switch("B")];
        let alone = |set: &[Switch]| Ok::<_, Infallible>(trial(set, set == [switch("B")], None));
        assert_eq!(search(&offered, false, alone).unwrap().finding, Finding::Smallest(vec![switch("B")]));
        let never = |set: &[Switch]| Ok::<_, Infallible>(trial(set, false, None));
        assert_eq!(search(&offered, false, never).unwrap().finding, Finding::NotSwitches);
        assert_eq!(search(&[], false, never).unwrap().finding, Finding::NotSwitches);
    }

    #[test]
    fn the_table_names_what_moves_the_numbers_most() {
        let offered = [switch("A"), switch("B"), switch("C"), switch("D")];
        let moved = |set: &[Switch]| {
            let far = set.first().map(|s| ["A", "B", "C", "D"].iter().position(|n| *n == s.name).unwrap());
            let moved = far.map(|far| [0.0, 2e-6, f64::NAN, 1.0][far]);
            Ok::<_, Infallible>(trial(set, true, moved))
        };
        let found = search(&offered[..2], false, moved).unwrap();
        assert_eq!((found.finding, found.trials.len()), (Finding::Largest(Some(switch("B"))), 3));
        // What is not a number moved farthest.
        assert_eq!(search(&offered, true, moved).unwrap().finding, Finding::Largest(Some(switch("C"))));
        assert_eq!(search(&offered[..1], true, moved).unwrap().finding, Finding::Largest(None));
    }
}
