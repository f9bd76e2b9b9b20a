//! The parent's side of a trace: both arms note their graphs, one graph is chosen, both walk through it, and what
//! they spooled is compared.

use super::compare::Comparison;
use super::graph::Kind;
use super::limits::NodeLimits;
use super::model::{Finding, GraphReport, NodeReport, SCHEMA, Trace};
use super::spool::{Case, SpoolError, Walked};
use super::summary::{groups, layers, worse};
use super::windows;
use crate::compare::Nmse;
use crate::pipeline::{Build, Folders, Plan, RunError, job_cell, model_of};
use crate::plan::models::ResolvedModel;
use crate::plan::{CellId, Mode};
use crate::planted::Plant;
use crate::verdict::{DeviceClass, ExitCode, Key, Limits};
use crate::worker::{self, Ended, FailureKind, Job, JobCell, RunJob, TraceJob, TraceStage, Workplace};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

/// Which graph of a case is walked through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GraphChoice {
    /// The first that is over a limit, else the worst.
    #[default]
    FirstBad,
    /// The worst.
    Worst,
    /// The last.
    Last,
    /// That of this number, from 0.
    Number(usize),
}

impl FromStr for GraphChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "first-bad" => Ok(Self::FirstBad),
            "first" => Ok(Self::Number(0)),
            "worst" => Ok(Self::Worst),
            "last" => Ok(Self::Last),
            number => number
                .parse()
                .map(Self::Number)
                .map_err(|_| "`first-bad`, `first`, `worst`, `last` or a number from 0 is wanted".to_owned()),
        }
    }
}

/// A trace that came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It could not begin.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An arm failed.
    #[error("{who}: {why}")]
    Arm {
        /// Which, and at what.
        who: String,
        /// What happened.
        why: String,
        /// What the process ends with.
        code: ExitCode,
    },
    /// What a worker left cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// A model file cannot be read.
    #[error(transparent)]
    Model(#[from] model_file::Error),
}

impl TraceError {
    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Run(error) => error.exit_code(),
            Self::Arm { code, .. } => *code,
            Self::Model(_) => ExitCode::Usage,
            Self::Spool(_) => ExitCode::Worker,
        }
    }

    /// The error of an arm that did not end well.
    pub(crate) fn of(who: &str, ended: Ended) -> Result<(), Self> {
        let (why, code) = match ended {
            Ended::Captured => return Ok(()),
            Ended::Crashed(death) => (death.to_string(), ExitCode::Worker),
            Ended::TimedOut(limit) => (format!("no result within {} s", limit.as_secs()), ExitCode::Worker),
            Ended::Failed(failure) => {
                let code = match failure.kind {
                    FailureKind::Input => ExitCode::Usage,
                    FailureKind::Environment => ExitCode::Environment,
                    FailureKind::Unsupported => ExitCode::Incomplete,
                    FailureKind::OutOfMemory | FailureKind::Fault => ExitCode::Worker,
                    FailureKind::Storage => ExitCode::Environment,
                };
                (failure.message, code)
            }
        };
        Err(Self::Arm { who: who.to_owned(), why, code })
    }
}

/// One arm of a trace.
struct Arm<'a> {
    who: &'static str,
    build: &'a Build,
    workplace: &'a Workplace,
    job: RunJob,
}

impl Arm<'_> {
    fn run(&self, what: &str, stage: TraceStage) -> Result<(), TraceError> {
        let job = |run| Job::Trace(Box::new(TraceJob { run, stage: stage.clone() }));
        let ended = worker::one(self.workplace, &self.job, &self.build.environment, job);
        TraceError::of(&format!("the {}, {what}", self.who), ended.map_err(RunError::from)?)
    }
}

/// Where a trace keeps what it works with, and who is told how far it is.
pub struct Bench<'a> {
    /// Starts workers.
    pub workplace: &'a Workplace,
    /// A folder for spools.
    pub work: &'a Path,
    /// Told of each step.
    pub tell: &'a dyn Fn(&str),
}

/// The spools of a trace, for who wants to look further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spools {
    /// The reference's walk.
    pub reference: PathBuf,
    /// The device's, from the reference's values.
    pub forced: PathBuf,
}

/// Traces the one cell of `plan`; a fault or other files that the plan plants are the device's, as in a run.
///
/// # Errors
/// When the case cannot be traced, or an arm fails.
pub fn trace(plan: &Plan, choice: GraphChoice, bench: &Bench<'_>) -> Result<(Trace, Spools), TraceError> {
    let started = Instant::now();
    let usage = |text: String| TraceError::Run(RunError::Usage(text));
    let [id] = &plan.cells[..] else {
        return Err(usage(format!("{} cells; one is traced at a time", plan.cells.len())));
    };
    traceable(id).map_err(usage)?;
    let model = model_of(plan, &id.case)?;
    let reference_id = plan.reference_of(id);
    let folder = |name: &str| bench.work.join(name);
    let folders = Folders { captures: folder("captures") };
    let made = std::fs::create_dir_all(&folders.captures);
    made.map_err(|source| RunError::Io { path: folders.captures.clone(), source })?;
    let arm = |who, id: &CellId, replay, plant: Plant| -> Result<Arm<'_>, TraceError> {
        let build = plan.builds.iter().find(|build| build.info.name == id.build).ok_or_else(|| {
            TraceError::Run(RunError::Environment(format!("cell {id}: no build `{}`", id.build)))
        })?;
        let cell = job_cell(plan, &folders, id, replay, plant.model)?;
        // A device that is its own reference leaves a capture of its own.
        let capture = folders.captures.join(format!("{who}.safetensors"));
        let replay = cell.replay.as_ref().map(|_| folders.captures.join("reference.safetensors"));
        let job = RunJob {
            folder: build.folder.clone(),
            build: build.info.clone(),
            device: id.device.clone(),
            threads: plan.threads,
            cells: vec![JobCell { fault: plant.fault, capture, replay, ..cell }],
        };
        Ok(Arm { who, build, workplace: bench.workplace, job })
    };
    let planted = plan.planted_in(&id.case);
    let reference = arm("reference", &reference_id, None, planted.reference)?;
    let device = arm("device", id, Some(&reference_id), planted.device)?;

    let notes = ["reference-graphs", "device-graphs"].map(folder);
    for (arm, into) in [&reference, &device].into_iter().zip(&notes) {
        (bench.tell)(&format!("{}: the case as ever", arm.who));
        arm.run("running the case", TraceStage::Record { into: into.clone() })?;
    }
    let kind = device.build.device(&id.device).map_or(crate::capture::DeviceKind::Gpu, |d| d.kind);
    let limits = plan.tolerances.limits(&Key::new(&id.case, kind).map_err(RunError::from)?);
    let limits = limits.map_err(RunError::from)?;
    let (mut theirs, mut ours) = (Case::open(&notes[0])?, Case::open(&notes[1])?);
    let graphs = compare_graphs(&mut theirs, &mut ours, &limits)?;
    let graph = choose(choice, &graphs).map_err(usage)?;

    let mut trace = Trace {
        schema: SCHEMA.to_owned(),
        cell: id.clone(),
        reference: reference_id,
        graph,
        finding: Finding::Clean,
        inputs: Vec::new(),
        nodes: Vec::new(),
        unmatched: Vec::new(),
        groups: Vec::new(),
        layers: Vec::new(),
        placement: BTreeMap::new(),
        rerun: String::new(),
        seconds: 0.0,
        graphs,
    };
    let spools = Spools { reference: folder("reference"), forced: folder("forced") };
    if let Some(what) = &trace.graphs[graph].differs {
        trace.finding = Finding::Structure(format!("graph {graph}: {what}"));
        trace.seconds = started.elapsed().as_secs_f64();
        return Ok((trace, spools));
    }
    (bench.tell)(&format!("reference: graph {graph} node by node"));
    let (recorded, own) = (|i: usize| notes[i].clone(), folder("own"));
    let walk = |recorded, into, force| TraceStage::Walk { recorded, graph, into, force };
    reference.run("walking through the graph", walk(recorded(0), spools.reference.clone(), None))?;
    (bench.tell)(&format!("device: graph {graph} node by node"));
    let force = Some((spools.reference.clone(), spools.forced.clone()));
    device.run("walking through the graph", walk(recorded(1), own.clone(), force))?;

    (bench.tell)("comparing");
    let mut walks = [Walked::open(&spools.reference)?, Walked::open(&own)?, Walked::open(&spools.forced)?];
    let class = if kind.is_gpu() { DeviceClass::Gpu } else { DeviceClass::Cpu };
    let table = NodeLimits::embedded();
    assemble(&mut trace, model, &mut walks, &table, class)?;
    trace.finding = find(&trace, &limits, &walks[0]);
    if trace.finding == Finding::FusedOrScheduling(None) {
        (bench.tell)("device: nodes together");
        let into = folder("windows");
        let made = std::fs::create_dir_all(&into);
        made.map_err(|source| RunError::Io { path: into.clone(), source })?;
        let stage = TraceStage::Windows {
            recorded: recorded(1),
            graph,
            reference: spools.reference.clone(),
            limits: trace.nodes.iter().map(|node| node.limit).collect(),
            into: into.clone(),
        };
        device.run("computing nodes together", stage)?;
        let path = into.join(windows::DOCUMENT);
        let text = std::fs::read(&path).map_err(|source| RunError::Io { path: path.clone(), source })?;
        let found = serde_json::from_slice(&text)
            .map_err(|error| SpoolError::Malformed { path, why: error.to_string() })?;
        trace.finding = Finding::FusedOrScheduling(found);
    }
    trace.seconds = started.elapsed().as_secs_f64();
    Ok((trace, spools))
}

/// Why a case cannot be repeated graph by graph.
fn traceable(id: &CellId) -> Result<(), String> {
    let why = match id.case.mode {
        Mode::Speculative => "two models take turns in it",
        Mode::Lifecycle => "it moves and restores caches between graphs",
        Mode::Sampler => "it has no layers to walk through",
        _ => return Ok(()),
    };
    Err(format!("mode {} cannot be traced: {why}; trace prefill, batch or decode instead", id.case.mode))
}

/// Each graph of the case, computed whole on both arms. Where a mode also runs free, which the device does after it has
/// followed the reference, its further graphs have no counterpart.
fn compare_graphs(
    theirs: &mut Case,
    ours: &mut Case,
    limits: &Limits,
) -> Result<Vec<GraphReport>, SpoolError> {
    let (reference, device) = (theirs.document.clone(), ours.document.clone());
    let mut all = Vec::new();
    for (i, r) in reference.iter().enumerate() {
        let mut report = GraphReport {
            tokens: r.request.tokens.len(),
            position: r.request.positions.first().copied().unwrap_or(0),
            cached: r.request.cached,
            logits: None,
            kv: None,
            over: false,
            differs: None,
        };
        match device.get(i) {
            None => report.differs = Some("the device computes fewer graphs".to_owned()),
            Some(d) if d.request != r.request => {
                report.differs = Some(unlike(&r.request, &d.request));
            }
            Some(d) => {
                let mut nmse = |r, d| -> Result<f64, SpoolError> {
                    let (r, x) = (theirs.read_f32(r)?, ours.read_f32(d)?);
                    Ok(if r.len() == x.len() { Nmse::of(&r, &x).value() } else { f64::NAN })
                };
                if r.logits.len > 0 {
                    report.logits = Some(nmse(r.logits, d.logits)?);
                }
                for (r, d) in r.kv.iter().flatten().zip(d.kv.iter().flatten()) {
                    let of_layer = nmse(*r, *d)?;
                    if !report.kv.is_some_and(|worst| of_layer <= worst || worst.is_nan()) {
                        report.kv = Some(of_layer);
                    }
                }
                let holds = |bound: &crate::verdict::Bound, nmse| bound.holds(nmse);
                report.over = report.logits.is_some_and(|nmse| !holds(&limits.logits_nmse, nmse))
                    || limits
                        .kv_nmse
                        .as_ref()
                        .zip(report.kv)
                        .is_some_and(|(bound, nmse)| !holds(bound, nmse))
                    || r.kv.len() != d.kv.len();
            }
        }
        all.push(report);
    }
    Ok(all)
}

/// What differs between two requests.
fn unlike(r: &runtime::GraphRequest, d: &runtime::GraphRequest) -> String {
    let mut words = Vec::new();
    if r.tokens != d.tokens || r.positions != d.positions {
        let lost: Vec<usize> = r.positions.iter().filter(|p| !d.positions.contains(p)).copied().collect();
        let more: Vec<usize> = d.positions.iter().filter(|p| !r.positions.contains(p)).copied().collect();
        words.push(match (lost.is_empty(), more.is_empty()) {
            (true, true) => "other tokens".to_owned(),
            (false, true) => format!("positions {lost:?} are left out"),
            (true, false) => format!("positions {more:?} are computed too"),
            (false, false) => format!("positions {more:?} instead of {lost:?}"),
        });
    }
    if r.rows != d.rows && words.is_empty() {
        words.push("other rows of logits are wanted".to_owned());
    }
    if r.cached != d.cached {
        words.push(format!("{:?} positions are read of the cache instead of {:?}", d.cached, r.cached));
    }
    if r.skip != d.skip {
        words.push(format!("layers {:?} are left out instead of {:?}", d.skip, r.skip));
    }
    if r.phase != d.phase {
        words.push(format!("{:?} instead of {:?}", d.phase, r.phase));
    }
    if words.is_empty() {
        words.push("something else is read after it".to_owned());
    }
    format!("the device is asked for something else: {}", words.join(", "))
}

/// The number of the graph that is meant.
pub(super) fn choose(choice: GraphChoice, graphs: &[GraphReport]) -> Result<usize, String> {
    // Whatever cannot be ordered is the worst.
    let badness = |g: &GraphReport| {
        let worst = worse(g.logits, g.kv).unwrap_or(0.0);
        if g.differs.is_some() || worst.is_nan() { f64::INFINITY } else { worst }
    };
    let order = |a: &usize, b: &usize| badness(&graphs[*a]).total_cmp(&badness(&graphs[*b])).then(b.cmp(a));
    let worst = || (0..graphs.len()).max_by(order);
    let found = match choice {
        GraphChoice::Number(n) => Some(n).filter(|&n| n < graphs.len()),
        GraphChoice::Last => graphs.len().checked_sub(1),
        GraphChoice::Worst => worst(),
        GraphChoice::FirstBad => graphs.iter().position(|g| g.over || g.differs.is_some()).or_else(worst),
    };
    found.ok_or_else(|| match choice {
        GraphChoice::Number(n) => format!("graph {n}: the case has {} graphs", graphs.len()),
        _ => "the case computes no graph".to_owned(),
    })
}

/// Fills in what the walks of the reference, of the device and of the device from the reference's values tell.
fn assemble(
    trace: &mut Trace,
    model: &ResolvedModel,
    walks: &mut [Walked; 3],
    limits: &NodeLimits,
    device: DeviceClass,
) -> Result<(), TraceError> {
    let [reference, own, forced] = walks;
    let (theirs, ours) = (&reference.document, &forced.document);
    let lists = |graph: &super::graph::GraphInfo| -> Vec<String> {
        graph.computed().map(|i| graph.tensors[i].key.clone()).collect()
    };
    let (r, d) = (lists(theirs), lists(ours));
    let only = |a: &[String], b: &[String], who: &str| -> Vec<String> {
        a.iter().filter(|key| !b.contains(key)).map(|key| format!("{key}: only the {who} has it")).collect()
    };
    trace.unmatched = [only(&r, &d, "reference"), only(&d, &r, "device")].concat();
    let inputs: Vec<(String, _, _)> = theirs
        .tensors
        .iter()
        .filter(|t| t.kind == Kind::Input)
        .map(|t| (t.key.clone(), t.value, ours.find(&t.key).and_then(|at| ours.tensors[at].value)))
        .collect();
    for (name, theirs, ours) in inputs {
        let same = match (theirs, ours) {
            (Some(a), Some(b)) => reference.read(a)? == forced.read(b)?,
            _ => false,
        };
        if !same {
            trace.inputs.push(format!("input `{name}` is another than the reference's"));
        }
    }
    let comparison = Comparison { hparams: &model.model.hparams, limits, device, file: &model.model.file };
    trace.nodes = comparison.nodes(reference, own, forced)?;
    for backend in trace.nodes.iter().filter_map(|node| node.backend.clone()) {
        *trace.placement.entry(backend).or_default() += 1;
    }
    trace.groups = groups(&trace.nodes);
    trace.layers = layers(&trace.nodes);
    Ok(())
}

/// What the figures come to.
fn find(trace: &Trace, limits: &Limits, reference: &Walked) -> Finding {
    // A node that the device has not, or has in another way, comes before what follows from it.
    let unmatched =
        |node: &NodeReport| trace.unmatched.iter().any(|u| u.starts_with(&format!("{}:", node.name)));
    if let Some(node) = trace.nodes.iter().find(|node| node.is_bad()) {
        if unmatched(node) {
            return Finding::Structure(format!("node {} is missing on the device", node.name));
        }
        return Finding::Node(node.number);
    }
    if let Some(what) = trace.unmatched.first().or(trace.inputs.first()) {
        return Finding::Structure(what.clone());
    }
    if !trace.graphs[trace.graph].over {
        return Finding::Clean;
    }
    // The same graph on the same inputs, node by node.
    let graph = &reference.document;
    let over = trace.nodes.iter().any(|node| {
        let Some(i) = graph.find(&node.name).filter(|&i| graph.tensors[i].output || graph.is_store(i)) else {
            return false;
        };
        let is_logits = graph.tensors[i].name.starts_with("logits");
        let bound = if is_logits { Some(&limits.logits_nmse) } else { limits.kv_nmse.as_ref() };
        let total = node.total.as_ref().map_or(f64::NAN, |figures| figures.nmse);
        bound.is_some_and(|bound| !bound.holds(total))
    });
    if over { Finding::Accumulated } else { Finding::FusedOrScheduling(None) }
}
