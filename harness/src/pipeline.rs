//! One run, from the plan to the report: workers compute captures, the reference first, then the oracle along the
//! reference's trajectory and the devices, then the captures are compared, judged and attributed.

mod build;
mod capture;
mod error;

pub use build::Build;
pub use capture::{Captured, capture};
pub use error::RunError;

use crate::builds::catalogue::hex;
use crate::capture::{CaptureReader, DeviceInfo, ModelInfo, ORACLE};
use crate::compare::{CompareError, Expected};
use crate::comparison::{self, Captures};
use crate::keep::{Identity, Keep, Ledger, Parts, trajectory};
use crate::plan::inputs::{Inputs, Wishes, inputs};
use crate::plan::models::ResolvedModel;
use crate::plan::sampler::Dist;
use crate::plan::{Case, CellId, DeviceSelector, Mode};
use crate::planted::{Plant, Planted, Plantings};
use crate::report::{Cell, Environment, Report, Run, pieces};
use crate::verdict::{Key, Tolerances, Verdict};
use crate::worker::{self, Ended, JobCell, Progress, RunJob, Workplace};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

/// Everything a run needs to know before it begins.
pub struct Plan {
    /// The builds.
    pub builds: Vec<Build>,
    /// The models.
    pub models: Vec<ResolvedModel>,
    /// The declared cells; every build and model among those above.
    pub cells: Vec<CellId>,
    /// What the command line says of inputs.
    pub wishes: Wishes,
    /// CPU threads of cells that do not say.
    pub threads: usize,
    /// The limits.
    pub tolerances: Tolerances,
    /// Whether the oracle computes too.
    pub oracle: OracleUse,
    /// What arms are made to do wrong: for tests of the harness.
    pub planted: Plantings,
}

/// Whether the oracle is among the arms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OracleUse {
    /// Never.
    Never,
    /// Where a case costs no more than [`ORACLE_MOST`].
    #[default]
    Affordable,
    /// Whatever it costs.
    Always,
}

/// The dearest case that the oracle computes unasked, in tokens times parameters: about two minutes on two cores.
/// A model of 135 million parameters may see 185 tokens, one of 7 billion three.
pub const ORACLE_MOST: u64 = 25_000_000_000;

/// Where a run keeps its files.
pub struct Folders {
    /// Captures.
    pub captures: PathBuf,
}

/// Runs all cells of `plan`, all anew.
///
/// # Errors
/// When the run cannot begin. What happens to a cell is in the report.
pub fn run(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    header: Run,
    progress: impl FnMut(Progress<'_>),
) -> Result<Report, RunError> {
    run_keeping(plan, workplace, folders, &mut Keep::default(), header, progress)
}

/// Runs all cells of `plan` that the journal does not hold; references and oracles are taken from the store where it
/// has them.
///
/// # Errors
/// When the run cannot begin, or cannot go on because the disk is full. What happens to a cell is in the report.
pub fn run_keeping(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    keep: &mut Keep,
    header: Run,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, RunError> {
    let started = Instant::now();
    let mut ledger = Ledger::open(plan, folders, keep);
    // What nothing is imposed on comes first, then in the order of the builds, so that each reference is there
    // before the cells that follow its trajectory.
    for (free, build) in [true, false].into_iter().flat_map(|free| plan.builds.iter().map(move |b| (free, b)))
    {
        let wanted: BTreeSet<CellId> = plan
            .cells
            .iter()
            .flat_map(|id| [plan.reference_of(id), id.clone()])
            .filter(|id| id.build == build.info.name && plan.is_free(id) == free)
            .filter(|id| !ledger.ended.contains_key(id))
            .collect();
        let devices: BTreeSet<&DeviceSelector> = wanted.iter().map(|id| &id.device).collect();
        for device in devices {
            // With nothing to compare with, a device need not run.
            let follows = |id: &&CellId| free || ledger.captured(&plan.reference_of(id));
            let mine: Vec<CellId> =
                wanted.iter().filter(|id| id.device == *device).filter(follows).cloned().collect();
            let mine = ledger.stored(mine, |id| plan.reference_key(build, id), &mut progress)?;
            let mut tell = |told: Progress<'_>| ledger.tell(told, &mut progress);
            Arm { plan, build, workplace, folders, progress: &mut tell }.compute(device, &mine)?;
            ledger.put(&mine, |id| plan.reference_key(build, id), &mut progress)?;
        }
        if free && build.info.name == last_build(plan) {
            let cells = plan.oracle_cells().into_iter().filter(|id| !ledger.ended.contains_key(id));
            let cells = cells.filter(|id| ledger.captured(&plan.oracle_root(id))).collect();
            let cells = ledger.stored(cells, |id| plan.oracle_key(folders, id), &mut progress)?;
            let mut tell = |told: Progress<'_>| ledger.tell(told, &mut progress);
            compute_oracle(plan, workplace, folders, &cells, &mut tell)?;
            ledger.put(&cells, |id| plan.oracle_key(folders, id), &mut progress)?;
        }
    }
    let (ended, work) = ledger.finish()?;
    // Two at a time: each compares its arms at once, and holds a block of each.
    let mut cells = Vec::with_capacity(plan.cells.len());
    for pair in plan.cells.chunks(2) {
        let of = |i: usize| pair.get(i).map(|id| cell(plan, folders, id, &ended)).transpose();
        let (first, second) = rayon::join(|| of(0), || of(1));
        cells.extend(first?.into_iter().chain(second?));
    }
    pieces::decode(&mut cells, |cell| model_of(plan, &cell.id.case).ok()?.tokenizer().ok());
    let run = Run { seconds: started.elapsed().as_secs_f64(), work, ..header };
    Ok(Report::new(run, environment(plan), &plan.cells, cells))
}

impl Plan {
    /// How many captures the run computes: one for every cell and for every reference.
    #[must_use]
    pub fn captures(&self) -> usize {
        let all: BTreeSet<CellId> =
            self.cells.iter().flat_map(|id| [self.reference_of(id), id.clone()]).collect();
        all.len() + self.oracle_cells().len()
    }

    /// What makes this run the one that was interrupted; `program` is the digest of this program.
    #[must_use]
    pub fn identity(&self, program: &str) -> Identity {
        let libraries = self.builds.iter().flat_map(|build| {
            let name = &build.info.name;
            build.info.files.iter().map(move |file| (format!("{name}/{}", file.name), file.sha256.clone()))
        });
        let models = self.models.iter();
        let wishes = &self.wishes;
        let settings = [
            ("threads", self.threads.to_string()),
            ("oracle", format!("{:?}", self.oracle)),
            ("prompt", format!("{:?}", wishes.prompt)),
            ("generate", format!("{:?}", wishes.generate)),
            ("steps", format!("{:?}", wishes.steps)),
            ("draft", format!("{:?}", wishes.draft)),
            ("sample", wishes.sample.to_string()),
            ("environment", format!("{:?}", worker::switches())),
        ];
        Identity {
            version: format!("{} {}", env!("CARGO_PKG_VERSION"), &program[..program.len().min(16)]),
            cells: self.cells.clone(),
            models: models.map(|m| (format!("{}/{}", m.name, m.weights), m.identity())).collect(),
            libraries: libraries.collect(),
            settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }

    /// What the capture of a reference depends on; `None` for a device under test, and where the inputs are not told
    /// by their hashes.
    fn reference_key(&self, build: &Build, id: &CellId) -> Option<Parts> {
        if !self.is_free(id)
            || self.cells.contains(id)
            || self.planted_in(&id.case).reference != Plant::default()
        {
            return None;
        }
        let model = model_of(self, &id.case).ok()?;
        let inputs = inputs(model, &id.case, &self.wishes).ok().filter(|inputs| inputs.draft.is_none())?;
        let mut environment = worker::switches();
        environment.extend(build.environment.clone());
        let machine = (build.device(&id.device), &build.info.files, self.threads, environment);
        Some(Parts::new(&("reference", &id.case, &model.sha256, inputs, machine)))
    }

    /// What the capture of an oracle depends on: its trajectory, and no build or machine.
    fn oracle_key(&self, folders: &Folders, id: &CellId) -> Option<Parts> {
        if self.planted_in(&id.case).oracle.is_some() {
            return None;
        }
        let model = model_of(self, &id.case).ok()?;
        let inputs = inputs(model, &id.case, &self.wishes).ok()?;
        let values = worker::reads_logits(&id.case, &model.model.hparams);
        let trajectory = trajectory(&capture_path(folders, &self.oracle_root(id)), values).ok()?;
        Some(Parts::new(&("oracle", &id.case, &model.sha256, inputs, trajectory)))
    }

    /// The cell whose trajectory the oracle's cell `id` follows.
    fn oracle_root(&self, id: &CellId) -> CellId {
        self.root_of(&CellId { device: DeviceSelector::cpu(), ..id.clone() })
    }

    /// The oracle's cells, one for each case and trajectory.
    fn oracle_cells(&self) -> BTreeSet<CellId> {
        self.cells.iter().filter_map(|id| self.oracle_of(id).ok()).collect()
    }

    /// The cell whose trajectory `id` follows: its reference, or that one's own.
    fn root_of(&self, id: &CellId) -> CellId {
        let mut root = self.reference_of(id);
        while !self.is_free(&root) {
            root = self.reference_of(&root);
        }
        root
    }

    /// The oracle's cell that `id` is attributed by.
    ///
    /// # Errors
    /// Why there is none.
    pub fn oracle_of(&self, id: &CellId) -> Result<CellId, String> {
        if self.oracle == OracleUse::Never {
            return Err("left out by --no-oracle".to_owned());
        }
        let model = model_of(self, &id.case).map_err(|error| error.to_string())?;
        let inputs = inputs(model, &id.case, &self.wishes).map_err(|error| error.to_string())?;
        if let Some(lacks) = worker::lacks(&id.case, &model.model.hparams, &inputs) {
            return Err(lacks);
        }
        let cost = oracle_cost(model, &id.case, &inputs);
        if self.oracle == OracleUse::Affordable && cost > ORACLE_MOST {
            return Err(format!(
                "{:.0e} tokens x parameters are more than {:.1e}, which --oracle lifts",
                cost as f64, ORACLE_MOST as f64
            ));
        }
        let device = DeviceSelector { base: ORACLE.to_owned(), ..DeviceSelector::cpu() };
        Ok(CellId { device, ..self.root_of(id) })
    }

    /// What the metadata of the capture of `id` must say; `id` may be an oracle's cell.
    ///
    /// # Errors
    /// A cell whose model or build is not in the plan.
    pub fn expected<'a>(&self, id: &'a CellId) -> Result<Expected<'a>, RunError> {
        let build = match self.build(&id.build) {
            _ if id.device.base == ORACLE => worker::oracle_build(),
            Some(build) => build.info.clone(),
            None => return Err(RunError::Usage(format!("cell {id}: no build `{}`", id.build))),
        };
        Ok(Expected { cell: id, model: model_info(model_of(self, &id.case)?), build })
    }

    /// What is planted in the arms of a case.
    #[must_use]
    pub fn planted_in(&self, case: &Case) -> Planted {
        self.planted.get(case).cloned().unwrap_or_default()
    }

    fn build(&self, name: &str) -> Option<&Build> {
        self.builds.iter().find(|build| build.info.name == name)
    }

    /// Whether `id` runs on no other's trajectory: the plain CPU of the first build, and of builds that have
    /// nothing in common with it.
    fn is_free(&self, id: &CellId) -> bool {
        self.reference_of(id) == *id
    }

    /// The cell that a cell is compared with: in the first build its plain CPU, in every further build the same device
    /// of the first one, where that has it.
    #[must_use]
    pub fn reference_of(&self, id: &CellId) -> CellId {
        let cpu = CellId { device: DeviceSelector::cpu(), ..id.clone() };
        match self.builds.first() {
            Some(first) if first.info.name != id.build && first.check(&id.device).is_ok() => {
                CellId { build: first.info.name.clone(), ..id.clone() }
            }
            _ => cpu,
        }
    }
}

/// The file of a cell's capture.
#[must_use]
pub fn capture_path(folders: &Folders, id: &CellId) -> PathBuf {
    let digest = hex(&Sha256::digest(id.to_string().as_bytes()));
    let readable = crate::plan::safe_name(&id.to_string().replace(['/', '?', '@', ':'], "_"));
    let readable: String = readable.chars().take(120).collect();
    folders.captures.join(format!("{readable}-{}.safetensors", &digest[..8]))
}

/// One build of a run, while its workers run.
struct Arm<'a, P: FnMut(Progress<'_>)> {
    plan: &'a Plan,
    build: &'a Build,
    workplace: &'a Workplace,
    folders: &'a Folders,
    progress: &'a mut P,
}

impl<P: FnMut(Progress<'_>)> Arm<'_, P> {
    /// Computes the captures of `cells` on `device`, each along the trajectory of its reference.
    fn compute(&mut self, device: &DeviceSelector, cells: &[CellId]) -> Result<(), RunError> {
        if cells.is_empty() {
            return Ok(());
        }
        let mut job_cells = Vec::new();
        for id in cells {
            let reference = self.plan.reference_of(id);
            let planted = self.plan.planted_in(&id.case);
            let (replay, plant) = match reference == *id {
                true => (None, planted.reference),
                false => (Some(reference), planted.device),
            };
            let cell = job_cell(self.plan, self.folders, id, replay.as_ref(), plant.model)?;
            job_cells.push(JobCell { fault: plant.fault, ..cell });
        }
        let job = run_job(self.plan, self.build, device, job_cells);
        worker::run(self.workplace, &job, &self.build.environment, &mut *self.progress)?;
        Ok(())
    }
}

/// Computes the device's arm of `id` with work pinned to the CPU and judges it as [`run`] does, against the captures of
/// the other arms that an earlier run of the same plan left in `folders`.
///
/// # Errors
/// When the worker cannot be started. What happens to the cell is in the result.
pub fn run_pinned(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    id: &CellId,
    pins: runtime::Pins,
) -> Result<Cell, RunError> {
    run_device(plan, workplace, folders, id, Some(pins), &BTreeMap::new())
}

/// Computes the device's arm of `id` with variables set for its worker alone, and judges it as [`run_pinned`] does.
///
/// # Errors
/// When the worker cannot be started. What happens to the cell is in the result.
pub fn run_switched(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    id: &CellId,
    variables: &BTreeMap<String, String>,
) -> Result<Cell, RunError> {
    run_device(plan, workplace, folders, id, None, variables)
}

fn run_device(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    id: &CellId,
    pins: Option<runtime::Pins>,
    variables: &BTreeMap<String, String>,
) -> Result<Cell, RunError> {
    let no_build = || RunError::Usage(format!("cell {id}: build {} is not in the run", id.build));
    let build = plan.build(&id.build).ok_or_else(no_build)?;
    let reference = Some(plan.reference_of(id)).filter(|reference| reference != id);
    let plant = plan.planted_in(&id.case).device;
    let cell_alone = job_cell(plan, folders, id, reference.as_ref(), plant.model)?;
    let cell_alone = JobCell { fault: plant.fault, pins, ..cell_alone };
    let job = run_job(plan, build, &id.device, vec![cell_alone]);
    let mut environment = build.environment.clone();
    environment.extend(variables.clone());
    let mut ended = worker::run(workplace, &job, &environment, |_| {})?;
    let others = [reference, plan.oracle_of(id).ok()].into_iter().flatten();
    let there = others.filter(|other| capture_path(folders, other).is_file());
    ended.extend(there.map(|other| (other, Ended::Captured)));
    cell(plan, folders, id, &ended)
}

/// A job for a worker of `build`.
pub(crate) fn run_job(
    plan: &Plan,
    build: &Build,
    device: &DeviceSelector,
    mut cells: Vec<JobCell>,
) -> RunJob {
    // Cells of one model and one set of options follow each other, so that it is loaded once.
    cells.sort_by(|a, b| a.path.cmp(&b.path));
    RunJob {
        folder: build.folder.clone(),
        build: build.info.clone(),
        device: device.clone(),
        threads: plan.threads,
        cells,
    }
}

/// What captures say of a model.
pub(crate) fn model_info(model: &ResolvedModel) -> ModelInfo {
    ModelInfo {
        name: model.name.clone(),
        sha256: model.sha256.clone(),
        architecture: model.model.hparams.architecture.name().to_owned(),
    }
}

/// What a worker is told of `id`, which follows the trajectory of `replay` and may read another file.
pub(crate) fn job_cell(
    plan: &Plan,
    folders: &Folders,
    id: &CellId,
    replay: Option<&CellId>,
    planted: Option<PathBuf>,
) -> Result<JobCell, RunError> {
    let model = model_of(plan, &id.case)?;
    Ok(JobCell {
        id: id.clone(),
        path: planted.unwrap_or_else(|| model.path.clone()),
        model: model_info(model),
        inputs: inputs(model, &id.case, &plan.wishes)?,
        replay: replay.map(|id| capture_path(folders, id)),
        capture: capture_path(folders, id),
        lost: None,
        fault: None,
        pins: None,
    })
}

fn last_build(plan: &Plan) -> &str {
    plan.builds.last().map_or("", |build| &build.info.name)
}

/// Computes the oracle's captures of `ids`, whose trajectories are there.
fn compute_oracle(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    ids: &[CellId],
    progress: impl FnMut(Progress<'_>),
) -> Result<(), RunError> {
    let cell = |id: &CellId| {
        job_cell(plan, folders, id, Some(&plan.oracle_root(id)), plan.planted_in(&id.case).oracle)
    };
    let mut cells: Vec<JobCell> = ids.iter().map(cell).collect::<Result<_, _>>()?;
    cells.sort_by(|a, b| a.path.cmp(&b.path));
    worker::compute(workplace, &cells, progress)?;
    Ok(())
}

/// Tokens times parameters of all passes that a case asks of the oracle.
fn oracle_cost(model: &ResolvedModel, case: &Case, inputs: &Inputs) -> u64 {
    let parameters: u64 = model.model.tensors().map(|(_, tensor)| tensor.elements()).sum();
    let diffusion = model.model.hparams.architecture.is_diffusion();
    let sampler = &case.options.sampler;
    let passes = match case.mode {
        // An exponential in f64 is worth some ten products.
        Mode::Sampler => {
            let vocab = sampler.vocab.map_or(model.model.hparams.n_vocab, |n| n as usize);
            let made = sampler.rows() * sampler.canvases();
            let rows = if sampler.dist == Dist::Steps { inputs.follow * inputs.steps } else { made };
            return 10 * (vocab as u64).saturating_mul(rows as u64);
        }
        // One more for the keys and values at the end.
        Mode::Unified | Mode::PromptKv => 2,
        Mode::Generate if model.model.hparams.block.is_some() => inputs.steps + 1,
        Mode::Sparse | Mode::Generate if diffusion => inputs.steps.min(inputs.follow) + 1,
        _ => 1,
    };
    let tokens = (inputs.prompt.len() + inputs.follow).saturating_mul(passes);
    parameters.saturating_mul(tokens as u64)
}

/// The model of a case.
pub(crate) fn model_of<'a>(plan: &'a Plan, case: &Case) -> Result<&'a ResolvedModel, RunError> {
    plan.models.iter().find(|model| model.name == case.model && model.weights == case.weights).ok_or_else(
        || RunError::Usage(format!("case {case}: no model {} of weight type {}", case.model, case.weights)),
    )
}

/// Judges a cell whose captures are all in `folders`, as [`run`] does at its end.
///
/// # Errors
/// A cell that is not of the plan.
pub fn judge_captured(plan: &Plan, folders: &Folders, id: &CellId) -> Result<Cell, RunError> {
    let arms = [plan.reference_of(id), id.clone()].into_iter().chain(plan.oracle_of(id));
    cell(plan, folders, id, &arms.map(|arm| (arm, Ended::Captured)).collect())
}

/// Checks that every capture is of the cell it is taken for. One that cannot be opened is left to the comparison.
fn check_origins(plan: &Plan, folders: &Folders, arms: &[&CellId]) -> Result<Option<Verdict>, RunError> {
    for id in arms {
        let (path, expected) = (capture_path(folders, id), plan.expected(id)?);
        let Ok(capture) = CaptureReader::open(&path) else { continue };
        if let Err(error) = expected.check(&path, capture.meta()) {
            return Ok(Some(Verdict::from(CompareError::from(error))));
        }
    }
    Ok(None)
}

/// What becomes of a cell whose arms have ended.
fn cell(
    plan: &Plan,
    folders: &Folders,
    id: &CellId,
    ended: &BTreeMap<CellId, Ended>,
) -> Result<Cell, RunError> {
    let mut cell = Cell::new(id.clone());
    let reference_id = plan.reference_of(id);
    cell.reference = Some(reference_id.to_string());
    let Some(build) = plan.build(&id.build) else { return Ok(cell) };
    cell.rerun = rerun(plan, id)?;
    let Some(kind) = build.device(&id.device).map(|device| device.kind) else { return Ok(cell) };
    let limits = plan.tolerances.limits(&Key::new(&id.case, kind)?)?;
    let oracle = plan.oracle_of(id);
    cell.without_oracle = oracle.as_ref().err().cloned();
    let oracle = oracle.ok();
    let oracle_ended = oracle.as_ref().map(|oracle| ended.get(oracle).unwrap_or(&Ended::Captured));
    let lost = |ended: &Ended, who| comparison::without_capture(ended, who);
    match (ended.get(&reference_id), ended.get(id), oracle_ended) {
        (Some(Ended::Captured), Some(Ended::Captured), None | Some(Ended::Captured)) => {
            let own = reference_id == *id;
            let all: Vec<&CellId> = [&reference_id, id].into_iter().chain(&oracle).collect();
            if let Some(verdict) = check_origins(plan, folders, &all)? {
                cell.set_verdict(verdict);
                cell.limits = Some(limits);
                return Ok(cell);
            }
            let files = Captures {
                device: capture_path(folders, id),
                reference: (!own).then(|| capture_path(folders, &reference_id)),
                oracle: oracle.as_ref().map(|oracle| capture_path(folders, oracle)),
            };
            if let (true, Some(oracle)) = (own, oracle) {
                cell.reference = Some(oracle.to_string());
            }
            comparison::settle(&mut cell, &files, &limits);
            cell.captures = Some(files);
        }
        (Some(Ended::Captured), Some(Ended::Captured), Some(ended)) => {
            cell.set_verdict(lost(ended, "the oracle: "));
        }
        (Some(Ended::Captured), Some(ended), _) => {
            cell.set_verdict(lost(ended, ""));
            cell.set_own_end(ended);
        }
        (Some(ended), _, _) => cell.set_verdict(lost(ended, "the reference: ")),
        (None, _, _) => {}
    }
    cell.limits = Some(limits);
    Ok(cell)
}

/// The command that runs this cell alone.
fn rerun(plan: &Plan, id: &CellId) -> Result<String, RunError> {
    let model = model_of(plan, &id.case)?;
    let mut words = vec!["ggml-parity".to_owned(), "run".to_owned()];
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    flag("cell", id.to_string());
    flag("model", model.given.clone());
    for given in plan.builds.iter().filter_map(|build| build.given.as_ref()) {
        flag("ggml", given.clone());
    }
    let wishes = &plan.wishes;
    if let Some(prompt) = &wishes.prompt {
        flag("prompt", prompt.clone());
    }
    if let Some(n) = wishes.generate {
        flag("generate", n.to_string());
    }
    if let Some(n) = wishes.steps {
        flag("steps", n.to_string());
    }
    if wishes.sample > 0 {
        flag("sample", wishes.sample.to_string());
    }
    if let Some(path) = &wishes.draft {
        flag("draft", path.display().to_string());
    }
    Ok(shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" ")))
}

/// Where a run ran.
pub(crate) fn environment(plan: &Plan) -> Environment {
    environment_of(&plan.builds, &plan.cells)
}

/// What cells ran on.
pub(crate) fn environment_of<'a>(all: &[Build], cells: impl IntoIterator<Item = &'a CellId>) -> Environment {
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for id in cells {
        let build = all.iter().find(|build| build.info.name == id.build);
        let Some(info) = build.and_then(|build| build.device(&id.device)) else { continue };
        if !devices.contains(info) {
            devices.push(info.clone());
        }
    }
    let mut switches = worker::switches();
    for build in all {
        switches.extend(build.environment.clone());
    }
    let cpu = all.iter().find_map(|build| build.device(&DeviceSelector::cpu()));
    Environment {
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        cpu: cpu.map(|device| device.description.clone()),
        builds: all.iter().map(|build| build.info.clone()).collect(),
        devices,
        switches,
    }
}
