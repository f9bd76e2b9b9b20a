//! The parent's side: starts workers, follows what they say, and turns their deaths into results of cells.

use super::death::{self, Death, Remains};
use super::memory::MemoryLimit;
use super::protocol::{Event, Failure, FailureKind, Job, JobCell, RunJob};
use crate::plan::CellId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Where and how workers are started.
#[derive(Debug, Clone)]
pub struct Workplace {
    /// The binary, which is this one.
    pub binary: PathBuf,
    /// A folder for their standard error.
    pub folder: PathBuf,
    /// How long one cell may take.
    pub time_limit: Duration,
    /// How much memory a worker that runs cells may take.
    pub memory: Option<MemoryLimit>,
}

/// How a cell ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// Its capture is written.
    Captured,
    /// The worker said why it could not.
    Failed(Failure),
    /// The worker died.
    Crashed(Death),
    /// It took longer than the limit.
    TimedOut(Duration),
}

/// What is told while workers run, of cells or of other tasks.
#[derive(Debug)]
pub enum Progress<'a, I = CellId> {
    /// A cell begins.
    Started(&'a I),
    /// A cell has ended.
    Ended(&'a I, &'a Ended),
    /// Something that costs time and changes no result.
    Warning(&'a str),
}

/// What a worker does one after the other, each with a result of its own.
pub(super) trait Task: Clone {
    /// What tells it from the others of its job.
    type Id: Clone + Ord + Serialize + DeserializeOwned + Send + 'static;

    /// Its id.
    fn id(&self) -> &Self::Id;

    /// How the worker before died at it, where this is the second try.
    fn lost(&mut self) -> &mut Option<String>;
}

impl Task for JobCell {
    type Id = CellId;

    fn id(&self) -> &CellId {
        &self.id
    }

    fn lost(&mut self) -> &mut Option<String> {
        &mut self.lost
    }
}

/// Runs all cells of `job`. A worker that hangs or is killed ends the cell it was at; another goes on with
/// the cells that are left. One that dies by its own fault is given a second try at that cell, alone at first,
/// which tells a crash that comes every time from one that does not; the report shows both.
///
/// # Errors
/// When a worker cannot be started, or says that build or device are not to be had.
pub fn run(
    workplace: &Workplace,
    job: &RunJob,
    environment: &BTreeMap<String, String>,
    progress: impl FnMut(Progress<'_>),
) -> Result<BTreeMap<CellId, Ended>, Failure> {
    let part = |cells| Job::Run(Box::new(RunJob { cells, ..job.clone() }));
    follow(workplace, &job.cells, part, environment, progress)
}

/// Computes all `cells` by the oracle, as [`run`] does by a build.
///
/// # Errors
/// When a worker cannot be started.
pub fn compute(
    workplace: &Workplace,
    cells: &[JobCell],
    progress: impl FnMut(Progress<'_>),
) -> Result<BTreeMap<CellId, Ended>, Failure> {
    follow(workplace, cells, Job::Oracle, &BTreeMap::new(), progress)
}

/// Does a job that concerns the one cell of `run`, as [`run`] does: with a time limit, and a second try after a crash.
///
/// # Errors
/// When a worker cannot be started, or says that build or device are not to be had.
pub fn one(
    workplace: &Workplace,
    run: &RunJob,
    environment: &BTreeMap<String, String>,
    job: impl Fn(RunJob) -> Job,
) -> Result<Ended, Failure> {
    let part = |cells| job(RunJob { cells, ..run.clone() });
    let mut ended = follow(workplace, &run.cells, part, environment, |_| {})?;
    let lost = || {
        let message = "the worker ended without a word about its cell".to_owned();
        Ended::Failed(Failure { kind: FailureKind::Fault, message })
    };
    Ok(ended.pop_first().map_or_else(lost, |(_, ended)| ended))
}

/// Starts workers until every task has ended; `part` makes the job of those that are left.
pub(super) fn follow<T: Task>(
    workplace: &Workplace,
    tasks: &[T],
    part: impl Fn(Vec<T>) -> Job,
    environment: &BTreeMap<String, String>,
    mut progress: impl FnMut(Progress<'_, T::Id>),
) -> Result<BTreeMap<T::Id, Ended>, Failure> {
    let mut ended = BTreeMap::new();
    let mut left = tasks.to_vec();
    while !left.is_empty() {
        let part = part(left.clone());
        let mut worker = Worker::start(workplace, &part, environment)?;
        let mut current: Option<T::Id> = None;
        let mut fatal = None;
        let stop = loop {
            match worker.next(workplace.time_limit) {
                Said::Event(event) => match *event {
                    Event::Started(id) => {
                        progress(Progress::Started(&id));
                        current = Some(id);
                    }
                    Event::Finished(id) => {
                        current = None;
                        end(&mut ended, &mut progress, id, Ended::Captured);
                    }
                    // The next cell would find no more space.
                    Event::Failed(_, failure) if failure.kind == FailureKind::Storage => return Err(failure),
                    Event::Failed(id, failure) => {
                        current = None;
                        end(&mut ended, &mut progress, id, Ended::Failed(failure));
                    }
                    Event::Fatal(failure) => fatal = Some(failure),
                    Event::Probed(_) => {}
                },
                Said::Nothing => {
                    worker.kill();
                    break Ended::TimedOut(workplace.time_limit);
                }
                Said::End => break Ended::Crashed(worker.how_it_died()),
            }
        };
        if let Some(failure) = fatal {
            return Err(failure);
        }
        // A worker that dies between cells has died at the next one; so every worker ends at least one cell.
        let at = current.or_else(|| left.iter().map(Task::id).find(|id| !ended.contains_key(*id)).cloned());
        left.retain(|task| !ended.contains_key(task.id()));
        let Some(id) = at else { continue };
        let again = left.iter_mut().find(|task| *task.id() == id).map(Task::lost);
        match (stop, again) {
            (Ended::Crashed(death), Some(lost @ None)) if death.may_be_chance() => {
                *lost = Some(death.to_string());
            }
            (stop, _) => {
                end(&mut ended, &mut progress, id.clone(), stop);
                left.retain(|task| *task.id() != id);
            }
        }
    }
    Ok(ended)
}

/// Records how a task ended.
fn end<I: Ord>(
    ended: &mut BTreeMap<I, Ended>,
    progress: &mut impl FnMut(Progress<'_, I>),
    id: I,
    how: Ended,
) {
    progress(Progress::Ended(&id, &how));
    ended.insert(id, how);
}

/// Does a job that has one answer.
pub(super) fn ask(
    workplace: &Workplace,
    job: &Job,
    environment: &BTreeMap<String, String>,
) -> Result<Event, Failure> {
    let mut worker: Worker<CellId> = Worker::start(workplace, job, environment)?;
    match worker.next(workplace.time_limit) {
        Said::Event(event) => Ok(*event),
        Said::Nothing => {
            worker.kill();
            let message = format!("a worker said nothing for {} s", workplace.time_limit.as_secs());
            Err(Failure { kind: FailureKind::Environment, message })
        }
        Said::End => {
            Err(Failure { kind: FailureKind::Environment, message: worker.how_it_died().to_string() })
        }
    }
}

/// What a worker said, or that it said nothing in time, or that it is gone.
enum Said<I> {
    Event(Box<Event<I>>),
    Nothing,
    End,
}

struct Worker<I> {
    child: Child,
    events: Receiver<Event<I>>,
    stderr: PathBuf,
    started: Instant,
    memory_limit: Option<u64>,
    oom_kills: Option<u64>,
}

impl<I: DeserializeOwned + Send + 'static> Worker<I> {
    fn start(
        workplace: &Workplace,
        job: &Job,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
        let fault = |what: &str, error: std::io::Error| Failure {
            kind: FailureKind::Fault,
            message: format!("{what}: {error}"),
        };
        let log = tempfile::Builder::new()
            .prefix("worker-")
            .suffix(".stderr")
            .tempfile_in(&workplace.folder)
            .map_err(|error| fault("a file for a worker's standard error", error))?;
        let (file, stderr) =
            log.keep().map_err(|error| fault("a file for a worker's standard error", error.error))?;
        // What a build offers is asked without a limit: loading every driver takes what it takes.
        let limited = !matches!(job, Job::Probe(_));
        let memory_limit = workplace.memory.filter(|_| limited).map(MemoryLimit::bytes);
        let oom_kills = death::oom_kills();
        let mut child = Command::new(&workplace.binary)
            .arg("worker")
            .args(memory_limit.map(|bytes| format!("--memory={bytes}B")))
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(|error| fault(&format!("starting {}", workplace.binary.display()), error))?;
        let line = serde_json::to_string(job).expect("jobs are plain data");
        // A worker that is dead already says so through its output.
        if let Some(stdin) = &mut child.stdin {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
        let (send, events) = channel();
        let stdout = child.stdout.take().expect("standard output is piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Drivers print to standard output too; what is no event is theirs.
                if let Ok(event) = serde_json::from_str::<Event<I>>(&line)
                    && send.send(event).is_err()
                {
                    break;
                }
            }
        });
        Ok(Self { child, events, stderr, started: Instant::now(), memory_limit, oom_kills })
    }

    fn next(&mut self, limit: Duration) -> Said<I> {
        match self.events.recv_timeout(limit) {
            Ok(event) => Said::Event(Box::new(event)),
            Err(RecvTimeoutError::Timeout) => Said::Nothing,
            Err(RecvTimeoutError::Disconnected) => Said::End,
        }
    }

    /// How a worker that is gone has died.
    fn how_it_died(&mut self) -> Death {
        let status = self.child.wait().ok();
        let bytes = std::fs::read(&self.stderr).unwrap_or_default();
        let oom_kills = death::oom_kills().zip(self.oom_kills);
        Death::of(&Remains {
            status,
            stderr: &String::from_utf8_lossy(&bytes),
            after: self.started.elapsed(),
            memory_limit: self.memory_limit,
            oom_kills: oom_kills.map(|(now, before)| now.saturating_sub(before)),
        })
    }
}

impl<I> Worker<I> {
    fn kill(&mut self) {
        // It may have ended by itself in the meantime.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<I> Drop for Worker<I> {
    fn drop(&mut self) {
        self.kill();
        // Kept only while it may be quoted.
        let _ = std::fs::remove_file(&self.stderr);
    }
}
