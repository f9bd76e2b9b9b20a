//! Items of a corpus on one device, with one model that stays loaded.
//!
//! Each task is an item on an arm. The arm answers freely; what it computes on the way is compared, row by row and as it
//! happens, with the logits that its references have kept. Where the free run takes the trajectory of a reference, as
//! it does on most items, it *is* the run along that trajectory. Where it parts from it, the arm runs once more, along the
//! reference's tokens or order of unmasking. Nothing but a reference's own logits is ever written to disk.

mod agreement;
mod causal;
mod figures;
mod kept;
mod masked;
mod scoring;
mod watch;

pub use agreement::{Parted, answer_of};
pub use kept::{is_kept, remove as remove_kept};
pub use scoring::{Window, windows};

use super::dispatch::{Ended, Progress, Task, Workplace, follow};
use super::execute::session_options;
use super::protocol::{Event, Failure, Job};
use crate::capture::{BuildInfo, ModelInfo, Placement};
use crate::plan::{CellId, DeviceSelector};
use crate::sweep::result::{LogitFigures, Loss};
use ggml_sys::Ggml;
use kept::Generated;
use model_file::Model;
use runtime::generate::masked::Schedule;
use runtime::{DeviceRequest, Session};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watch::Watch;

/// An item on an arm.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskId {
    /// The arm.
    pub arm: CellId,
    /// The item.
    pub item: String,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.item, self.arm)
    }
}

/// Items to answer with one model on one device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SweepJob {
    /// The folder of the build.
    pub folder: PathBuf,
    /// The build, for captures.
    pub build: BuildInfo,
    /// The device; its `build` is empty.
    pub device: DeviceSelector,
    /// CPU threads of arms that do not say.
    pub threads: usize,
    /// The model file.
    pub path: PathBuf,
    /// The model, for captures.
    pub model: ModelInfo,
    /// Tokens that end an answer.
    pub end: Vec<u32>,
    /// What is to be done, in order.
    pub tasks: Vec<SweepTask>,
}

/// One item on one arm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SweepTask {
    /// Which.
    pub id: TaskId,
    /// What to compute on.
    pub input: TaskInput,
    /// What the references have kept, in the order of the arm's pairings; `None` for one whose own row failed.
    pub references: Vec<Option<PathBuf>>,
    /// Where this arm keeps its logits, if it is a reference itself.
    pub keep: Option<PathBuf>,
    /// Where the [`TaskResult`] goes, as JSON.
    pub result: PathBuf,
    /// How the worker before died at this task, where this is the second try.
    pub lost: Option<String>,
}

impl Task for SweepTask {
    type Id = TaskId;

    fn id(&self) -> &TaskId {
        &self.id
    }

    fn lost(&mut self) -> &mut Option<String> {
        &mut self.lost
    }
}

/// What an item is in tokens of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskInput {
    /// The prompt, or the text that is scored.
    pub tokens: Vec<u32>,
    /// How the tokens are scored, if they are.
    pub scoring: Option<Scoring>,
    /// Masks after them, or tokens to generate at most; 0 generates nothing.
    pub follow: usize,
    /// Steps of a masked generation.
    pub steps: usize,
    /// Masks a step.
    pub schedule: Schedule,
}

/// How a text is scored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scoring {
    /// Each token after those before it, in windows.
    Forward {
        /// Tokens of a window.
        context: usize,
        /// Tokens by which windows follow each other.
        stride: usize,
    },
    /// These tokens, masked all at once, window after window.
    Masked {
        /// Tokens of a window.
        context: usize,
        /// Positions of the masked tokens, rising.
        masks: Vec<usize>,
    },
}

/// What a task gave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// The new tokens of the free run, up to the one that ends the answer; `None` where nothing is generated.
    pub tokens: Option<Vec<u32>>,
    /// Whether the last of them ends it.
    pub ended: bool,
    /// How many decisions the free run made.
    pub decisions: u64,
    /// The likelihood of the text, where it is scored.
    pub loss: Option<Loss>,
    /// Figures against each reference that was there; the first is its index among [`SweepTask::references`].
    pub against: Vec<(usize, Found)>,
    /// Values that are not finite among all logits that were computed.
    pub nonfinite: u64,
    /// Compute nodes on the device, and all of them.
    pub nodes: [u64; 2],
    /// What is wrong with the placement.
    pub fallback: Option<String>,
    /// Seconds of the free run and of scoring, without comparing.
    pub seconds: f64,
    /// Seconds of runs along references, and of comparing.
    pub forced_seconds: f64,
    /// How the worker before died at this task.
    pub retried: Option<String>,
}

/// Figures against one reference.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Whether the answers are the same; `None` where nothing is generated.
    pub exact: Option<bool>,
    /// Where they part.
    pub parted: Option<Parted>,
    /// Logits along the reference's trajectory.
    pub logits: Option<LogitFigures>,
}

/// Does all tasks of `job`; one that crashes its worker costs no other, as in [`super::run`].
///
/// # Errors
/// When a worker cannot be started, or says that build or device are not to be had, or no space is left.
pub fn answer(
    workplace: &Workplace,
    job: &SweepJob,
    environment: &BTreeMap<String, String>,
    progress: impl FnMut(Progress<'_, TaskId>),
) -> Result<BTreeMap<TaskId, Ended>, Failure> {
    let part = |tasks| Job::Sweep(Box::new(SweepJob { tasks, ..job.clone() }));
    follow(workplace, &job.tasks, part, environment, progress)
}

/// Reads what a task gave.
///
/// # Errors
/// A file that cannot be read, or is no result.
pub fn read_result(path: &Path) -> std::io::Result<TaskResult> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// The worker's side: does the tasks in order.
pub(super) fn execute(
    ggml: &'static Ggml,
    job: &SweepJob,
    say: impl Fn(&Event<TaskId>),
) -> Result<(), Failure> {
    let model = Model::open(&job.path).map_err(|error| failed(error.into()))?;
    let mut loaded: Option<Loaded> = None;
    for task in &job.tasks {
        say(&Event::Started(task.id.clone()));
        match compute(ggml, job, task, &model, &mut loaded).and_then(|result| write(&task.result, &result)) {
            Ok(()) => say(&Event::Finished(task.id.clone())),
            Err(failure) => say(&Event::Failed(task.id.clone(), failure)),
        }
    }
    Ok(())
}

fn failed(error: runtime::Error) -> Failure {
    Failure::from(&error)
}

fn write(path: &Path, result: &TaskResult) -> Result<(), Failure> {
    let text = serde_json::to_vec(result).expect("a result is plain data");
    kept::place(path, &text)
}

/// A session that stays while the tasks that follow need it.
struct Loaded {
    options: runtime::Options,
    session: Session,
}

fn compute(
    ggml: &'static Ggml,
    job: &SweepJob,
    task: &SweepTask,
    model: &Model,
    loaded: &mut Option<Loaded>,
) -> Result<TaskResult, Failure> {
    let session = ready(ggml, job, task, model, loaded)?;
    session.renew().map_err(failed)?;
    // What a task before has left, had it failed.
    let _ = (session.take_placement(), session.take_traffic(), session.take_recorded());
    let mut watch = Watch::open(session, job, task)?;
    let mut result = TaskResult { retried: task.lost.clone(), ..TaskResult::default() };

    let started = Instant::now();
    if let Some(how) = &task.input.scoring {
        result.loss = Some(scoring::score(session, task, how, &mut watch)?);
        watch.scored()?;
    }
    let mut free = None;
    if task.input.follow > 0 {
        if task.input.scoring.is_some() {
            session.renew().map_err(failed)?;
        }
        free = Some(generate(session, job, task, None, &mut watch)?);
    }
    let looked = watch.take_seconds();
    result.seconds = started.elapsed().saturating_sub(looked).as_secs_f64();

    let began = Instant::now();
    watch.keep(&task.input.tokens, free.as_ref())?;
    if let Some(free) = &free {
        let (tokens, ended) = answer_of(&free.tokens, &job.end);
        (result.tokens, result.ended) = (Some(tokens), ended);
        result.decisions = free.tokens.len() as u64;
        for index in watch.off_track(free) {
            session.renew().map_err(failed)?;
            let mut along = watch.along(index)?;
            let given = along.trajectory()?;
            generate(session, job, task, Some(&given), &mut along)?;
            watch.take_back(index, along)?;
        }
    }
    result.against = watch.found(free.as_ref(), task.input.tokens.len(), &job.end);
    result.nonfinite = watch.nonfinite();
    let placement = session.take_placement();
    (result.nodes, result.fallback) = placed(&placement, job.device.is_cpu());
    result.forced_seconds = (looked + began.elapsed()).as_secs_f64();
    Ok(result)
}

/// The session of a task: the one that is there, where it has the same options.
fn ready<'a>(
    ggml: &'static Ggml,
    job: &SweepJob,
    task: &SweepTask,
    model: &Model,
    loaded: &'a mut Option<Loaded>,
) -> Result<&'a mut Session, Failure> {
    let options = session_options(&task.id.arm.case.options, job.threads);
    if !loaded.as_ref().is_some_and(|loaded| loaded.options == options) {
        // The memory of the session before goes back first.
        *loaded = None;
        let request = DeviceRequest { name: job.device.base.clone(), buffer: job.device.buft.clone() };
        let mut session = Session::open(ggml, &request, model, options.clone()).map_err(failed)?;
        // One cache for all tasks.
        let most = job.tasks.iter().map(|task| task.input.room()).max().unwrap_or(0);
        session.reset_cache(most).map_err(failed)?;
        *loaded = Some(Loaded { options, session });
    }
    Ok(&mut loaded.as_mut().expect("just loaded").session)
}

impl TaskInput {
    /// The positions that a cache needs.
    fn room(&self) -> usize {
        let scored = match &self.scoring {
            Some(Scoring::Forward { context, .. } | Scoring::Masked { context, .. }) => {
                self.tokens.len().min(*context)
            }
            None => 0,
        };
        let generated = if self.follow > 0 { self.tokens.len() + self.follow } else { 0 };
        scored.max(generated)
    }
}

/// A run after the prompt: free, or along what a reference generated.
fn generate(
    session: &mut Session,
    job: &SweepJob,
    task: &SweepTask,
    given: Option<&Generated>,
    watch: &mut Watch,
) -> Result<Generated, Failure> {
    let generated = if session.hparams().architecture.is_diffusion() {
        masked::generate(session, task, given, watch)
    } else {
        causal::generate(session, task, &job.end, given, watch)
    };
    let generated = generated.map_err(failed)?;
    watch.check()?;
    Ok(generated)
}

/// Compute nodes on the device and in all, and what is wrong with them.
fn placed(placement: &Placement, is_cpu: bool) -> ([u64; 2], Option<String>) {
    let (off, total) = (placement.off_cpu(), placement.total());
    let on_device = if is_cpu { placement.on_cpu() } else { off };
    let fault = match (total, on_device) {
        (0, _) => Some("no compute node was counted".to_owned()),
        (_, 0) => Some(format!("the selected device got none of {total} compute nodes")),
        (_, on) if is_cpu && on < total => Some(format!("{off} of {total} compute nodes off the CPU")),
        _ => None,
    };
    ([on_device, total], fault)
}

/// A duration since `started`, added to `sum`.
fn add_since(sum: &mut Duration, started: Instant) {
    *sum += started.elapsed();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::BackendNodes;

    fn placement(nodes: &[(&str, u64)]) -> Placement {
        let backends = nodes.iter().map(|&(name, compute_nodes)| BackendNodes {
            name: name.to_owned(),
            compute_nodes,
            ..BackendNodes::default()
        });
        Placement { backends: backends.collect(), ..Placement::default() }
    }

    #[test]
    fn a_device_without_a_node_has_fallen_back() {
        assert_eq!(placed(&placement(&[("Vulkan0", 5), ("CPU", 1)]), false), ([5, 6], None));
        let (nodes, fault) = placed(&placement(&[("Vulkan0", 0), ("CPU", 7)]), false);
        assert_eq!(
            (nodes, fault.as_deref()),
            ([0, 7], Some("the selected device got none of 7 compute nodes"))
        );
        assert_eq!(placed(&placement(&[("CPU", 7)]), true), ([7, 7], None));
        let (_, fault) = placed(&placement(&[("CPU", 7), ("BLAS", 1)]), true);
        assert_eq!(fault.as_deref(), Some("1 of 8 compute nodes off the CPU"));
        assert!(placed(&Placement::default(), true).1.is_some());
    }

    #[test]
    fn a_cache_holds_a_window_or_a_whole_generation() {
        let input = |tokens, scoring, follow| TaskInput {
            tokens: vec![1; tokens],
            scoring,
            follow,
            steps: 1,
            schedule: Schedule::default(),
        };
        let forward = Some(Scoring::Forward { context: 64, stride: 32 });
        assert_eq!(input(200, forward.clone(), 0).room(), 64);
        assert_eq!(input(20, forward.clone(), 0).room(), 20);
        assert_eq!(input(200, forward, 16).room(), 216);
        assert_eq!(input(8, None, 32).room(), 40);
    }
}
