//! One bisection, from its range to its record.

use super::bench::Bench;
use super::range::Range;
use super::record::{Bisection, Finding, Judged, SCHEMA};
use super::search::{Outcome, search, stretches};
use super::trial::Trial;
use super::until::Until;
use crate::pipeline::{Plan, RunError};
use crate::trace::journal::{Journal, JournalError};
use crate::worker;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

/// What is asked, and of which places not.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The question.
    pub until: Until,
    /// Whether every place is tried.
    pub scan: bool,
    /// Places that are not to be tried.
    pub skip: BTreeSet<String>,
    /// What is bisected, as it was given.
    pub subject: String,
    /// The command line.
    pub command: String,
}

/// A bisection that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum BisectError {
    /// As a run's.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The journal's.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl From<super::range::RangeError> for BisectError {
    fn from(error: super::range::RangeError) -> Self {
        Self::Run(error.into())
    }
}

/// What a journal is of: trials of anything else say nothing here.
#[derive(Debug, Serialize)]
struct Header<'a> {
    schema: &'a str,
    version: &'a str,
    subject: &'a str,
    model: &'a str,
    oracle: String,
    inputs: String,
    threads: usize,
    environment: BTreeMap<String, String>,
    good: &'a str,
    range: BTreeMap<&'a str, &'a str>,
}

impl<'a> Header<'a> {
    fn new(subject: &'a str, plan: &'a Plan, range: &'a Range) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            subject,
            model: plan.models.first().map_or("", |model| &model.sha256),
            oracle: format!("{:?}", plan.oracle),
            inputs: format!("{:?}", plan.wishes),
            threads: plan.threads,
            environment: worker::switches(),
            good: range.labels.first().map_or("", String::as_str),
            range: range.identity(),
        }
    }
}

/// Trials as they are made, and those that the journal has.
struct Trials<'a, 'b, T: FnMut(&Judged, usize)> {
    range: &'a mut Range,
    bench: &'a mut Bench<'b>,
    journal: Journal<Trial>,
    known: BTreeMap<String, Trial>,
    scope: &'a Scope,
    judged: Vec<Judged>,
    tell: T,
}

impl<T: FnMut(&Judged, usize)> Trials<'_, '_, T> {
    /// The outcome at a place, by a trial where it is not known.
    fn outcome(&mut self, place: usize) -> Result<Outcome, BisectError> {
        if let Some(judged) = self.judged.iter().find(|judged| judged.place == place) {
            return Ok(judged.outcome);
        }
        let label = self.range.labels[place].clone();
        let (trial, known) = match self.known.get(&label) {
            Some(trial) => (trial.clone(), true),
            None => {
                let trial = self.make(place, &label)?;
                self.journal.add(&trial)?;
                (trial, false)
            }
        };
        let good = self.judged.iter().find(|judged| judged.place == 0).map(|judged| &judged.trial);
        let (outcome, why) = self.scope.until.judge(&trial, good.or(Some(&trial)));
        // The good end differs from nothing: it is what others are held against.
        let (outcome, why) = match (place, self.scope.until.is_relative(), trial.status) {
            (0, true, Some(_)) if outcome == Outcome::Skip && trial.compute_seconds.is_some() => {
                (Outcome::Good, "what others are compared with".to_owned())
            }
            _ => (outcome, why),
        };
        let figure = self.scope.until.figure(&trial, good.or(Some(&trial)));
        let judged = Judged { place, outcome, why, figure, known, trial };
        (self.tell)(&judged, self.range.labels.len());
        self.judged.push(judged);
        Ok(outcome)
    }

    fn make(&mut self, place: usize, label: &str) -> Result<Trial, BisectError> {
        if self.scope.skip.contains(label) {
            return Ok(Trial::unusable(label, "left out by --skip"));
        }
        let good = self.range.labels[0].clone();
        // Where the search goes on, the good end's capture may be gone: its figures stand, its numbers are needed again.
        if place > 0 && self.known.contains_key(&good) && self.bench.capture(&good).is_none() {
            let usable = self.known[&good].compute_seconds.is_some();
            if let (true, Ok(folder)) = (usable, self.range.obtain(0)?) {
                self.bench.run(&good, &folder, None, None)?;
            }
        }
        let before = self.range.labels[..place].iter().rev();
        let previous = before.clone().find(|label| self.bench.capture(label).is_some()).cloned();
        match self.range.obtain(place)? {
            Ok(folder) => Ok(self.bench.run(label, &folder, Some(&good), previous.as_deref())?),
            Err(why) => Ok(Trial::unusable(label, why)),
        }
    }
}

/// Searches `range`, or scans it, with a journal `trials.jsonl` in `folder`; `tell` hears of each trial and of how many
/// places there are.
///
/// # Errors
/// When a trial cannot be made for a reason that is not its build's, or the journal is of something else.
pub fn run(
    scope: &Scope,
    range: &mut Range,
    bench: &mut Bench<'_>,
    folder: &Path,
    tell: impl FnMut(&Judged, usize),
) -> Result<Bisection, BisectError> {
    let started = Instant::now();
    if let Some(unknown) = scope.skip.iter().find(|label| !range.labels.contains(label)) {
        let why = format!("--skip `{unknown}` is none of {}: {}", range.what, range.labels.join(", "));
        return Err(RunError::Usage(why).into());
    }
    let path = folder.join("trials.jsonl");
    let (journal, trials) = Journal::<Trial>::open(&path, &Header::new(&scope.subject, bench.plan(), range))?;
    let known = trials.into_iter().map(|trial| (trial.label.clone(), trial)).collect();
    let n = range.labels.len();
    let mut trials = Trials { range, bench, journal, known, scope, judged: Vec::new(), tell };
    let finding = if scope.scan {
        for place in 0..n {
            trials.outcome(place)?;
        }
        let outcomes: BTreeMap<usize, Outcome> =
            trials.judged.iter().map(|judged| (judged.place, judged.outcome)).collect();
        Finding::Scanned { stretches: stretches(outcomes) }
    } else {
        let ends = [trials.outcome(0)?, trials.outcome(n - 1)?];
        match ends {
            [Outcome::Good, Outcome::Bad] => {
                let answer = search(n, |place| trials.outcome(place))?;
                Finding::Found { last_good: answer.last_good, first_bad: answer.first_bad }
            }
            [Outcome::Skip, _] => Finding::UnusableEnd { place: 0 },
            [_, Outcome::Skip] => Finding::UnusableEnd { place: n - 1 },
            [Outcome::Good, Outcome::Good] => Finding::BothGood,
            [Outcome::Bad, Outcome::Bad] => Finding::BothBad,
            [Outcome::Bad, Outcome::Good] => Finding::Swapped,
        }
    };
    let judged = trials.judged;
    let plan = bench.plan();
    Ok(Bisection {
        schema: SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        subject: scope.subject.clone(),
        model_sha256: plan.models.first().map_or_else(String::new, |model| model.sha256.clone()),
        until: scope.until.to_string(),
        what: scope.until.what().to_owned(),
        limit: scope.until.limit(),
        range: range.what.clone(),
        places: range.labels.clone(),
        details: range.details(),
        identities: range.identities.clone(),
        command: scope.command.clone(),
        seconds: started.elapsed().as_secs_f64(),
        finding,
        trials: judged,
    })
}
