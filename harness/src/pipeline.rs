//! One run, from the plan to the report: workers compute captures, the reference first, then the oracle along the
//! reference's trajectory and the devices, then the captures are compared, judged and attributed.

mod build;
mod error;

pub use build::Build;
pub use error::RunError;

use crate::capture::{DeviceInfo, ModelInfo, ORACLE};
use crate::comparison::{self, Captures};
use crate::plan::inputs::{Inputs, Wishes, inputs};
use crate::plan::models::ResolvedModel;
use crate::plan::{Case, CellId, DeviceSelector, Mode};
use crate::report::{Cell, Environment, Report, Run};
use crate::verdict::{Key, Tolerances};
use crate::worker::{self, Ended, Fault, JobCell, Progress, RunJob, Workplace};
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
    /// A fault to plant in every device under test, never in the reference: for tests of the harness.
    pub fault: Option<Fault>,
    /// Whether the oracle computes too.
    pub oracle: OracleUse,
    /// Other model files for one arm each: for tests of the harness.
    pub planted: PlantedFiles,
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

/// Model files that an arm reads in place of the case's, which the others and the captures keep to: a difference
/// that only this arm sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlantedFiles {
    /// For references.
    pub reference: Option<PathBuf>,
    /// For devices under test.
    pub device: Option<PathBuf>,
    /// For the oracle.
    pub oracle: Option<PathBuf>,
}

/// Where a run keeps its files.
pub struct Folders {
    /// Captures.
    pub captures: PathBuf,
}

/// Runs all cells of `plan`.
///
/// # Errors
/// When the run cannot begin. What happens to a cell is in the report.
pub fn run(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    header: Run,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, RunError> {
    let started = Instant::now();
    let mut ended: BTreeMap<CellId, Ended> = BTreeMap::new();
    // What nothing is imposed on comes first, then in the order of the builds, so that each reference is there
    // before the cells that follow its trajectory.
    for (free, build) in [true, false].into_iter().flat_map(|free| plan.builds.iter().map(move |b| (free, b)))
    {
        let mut arm = Arm { plan, build, workplace, folders, progress: &mut progress };
        let wanted: BTreeSet<CellId> = plan
            .cells
            .iter()
            .flat_map(|id| [plan.reference_of(id), id.clone()])
            .filter(|id| id.build == build.info.name && plan.is_free(id) == free)
            .filter(|id| !ended.contains_key(id))
            .collect();
        let devices: BTreeSet<&DeviceSelector> = wanted.iter().map(|id| &id.device).collect();
        for device in devices {
            // With nothing to compare with, a device need not run.
            let follows = |id: &&CellId| free || ended.get(&plan.reference_of(id)) == Some(&Ended::Captured);
            let mine: Vec<CellId> =
                wanted.iter().filter(|id| id.device == *device).filter(follows).cloned().collect();
            let these = arm.compute(device, &mine)?;
            ended.extend(these);
        }
        if free && build.info.name == last_build(plan) {
            let these = compute_oracle(plan, workplace, folders, &ended, &mut progress)?;
            ended.extend(these);
        }
    }
    let cells = plan.cells.iter().map(|id| cell(plan, folders, id, &ended)).collect::<Result<_, _>>()?;
    let run = Run { seconds: started.elapsed().as_secs_f64(), ..header };
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
    let digest = build::hex(&Sha256::digest(id.to_string().as_bytes()));
    let readable = crate::plan::safe_name(&id.to_string().replace(['/', '?', '@', ':'], "_"));
    let readable: String = readable.chars().take(120).collect();
    folders.captures.join(format!("{readable}-{}.safetensors", &digest[..8]))
}

/// One build of a run, while its workers run.
struct Arm<'a, P> {
    plan: &'a Plan,
    build: &'a Build,
    workplace: &'a Workplace,
    folders: &'a Folders,
    progress: &'a mut P,
}

impl<P: FnMut(Progress<'_>)> Arm<'_, P> {
    /// Computes the captures of `cells` on `device`, each along the trajectory of its reference.
    fn compute(
        &mut self,
        device: &DeviceSelector,
        cells: &[CellId],
    ) -> Result<BTreeMap<CellId, Ended>, RunError> {
        if cells.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut job_cells = Vec::new();
        for id in cells {
            let reference = self.plan.reference_of(id);
            let planted = &self.plan.planted;
            let (replay, planted, fault) = if reference == *id {
                (None, &planted.reference, None)
            } else {
                (Some(reference), &planted.device, self.plan.fault)
            };
            let cell = job_cell(self.plan, self.folders, id, replay.as_ref(), planted.as_ref())?;
            job_cells.push(JobCell { fault, ..cell });
        }
        // Cells of one model and one set of options follow each other, so that it is loaded once.
        job_cells.sort_by(|a, b| a.path.cmp(&b.path));
        let job = RunJob {
            folder: self.build.folder.clone(),
            build: self.build.info.clone(),
            device: device.clone(),
            threads: self.plan.threads,
            cells: job_cells,
        };
        Ok(worker::run(self.workplace, &job, &self.build.environment, &mut *self.progress)?)
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
    planted: Option<&PathBuf>,
) -> Result<JobCell, RunError> {
    let model = model_of(plan, &id.case)?;
    Ok(JobCell {
        id: id.clone(),
        path: planted.unwrap_or(&model.path).clone(),
        model: model_info(model),
        inputs: inputs(model, &id.case, &plan.wishes)?,
        replay: replay.map(|id| capture_path(folders, id)),
        capture: capture_path(folders, id),
        lost: None,
        fault: None,
    })
}

fn last_build(plan: &Plan) -> &str {
    plan.builds.last().map_or("", |build| &build.info.name)
}

/// Computes the oracle's captures of the trajectories that are there.
fn compute_oracle(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    ended: &BTreeMap<CellId, Ended>,
    progress: impl FnMut(Progress<'_>),
) -> Result<BTreeMap<CellId, Ended>, RunError> {
    let mut cells = Vec::new();
    for id in plan.oracle_cells() {
        let root = plan.root_of(&CellId { device: DeviceSelector::cpu(), ..id.clone() });
        if ended.get(&root) == Some(&Ended::Captured) {
            cells.push(job_cell(plan, folders, &id, Some(&root), plan.planted.oracle.as_ref())?);
        }
    }
    cells.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(worker::compute(workplace, &cells, progress)?)
}

/// Tokens times parameters of all passes that a case asks of the oracle.
fn oracle_cost(model: &ResolvedModel, case: &Case, inputs: &Inputs) -> u64 {
    let parameters: u64 = model.model.tensors().map(|(_, tensor)| tensor.elements()).sum();
    let diffusion = model.model.hparams.architecture.is_diffusion();
    let passes = match case.mode {
        // One more for the keys and values at the end.
        Mode::Sparse | Mode::Generate if diffusion => inputs.steps.min(inputs.follow) + 1,
        _ => 1,
    };
    let tokens = (inputs.prompt.len() + inputs.follow).saturating_mul(passes);
    parameters.saturating_mul(tokens as u64)
}

fn model_of<'a>(plan: &'a Plan, case: &Case) -> Result<&'a ResolvedModel, RunError> {
    plan.models.iter().find(|model| model.name == case.model && model.weights == case.weights).ok_or_else(
        || RunError::Usage(format!("case {case}: no model {} of weight type {}", case.model, case.weights)),
    )
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
        (Some(Ended::Captured), Some(ended), _) => cell.set_verdict(lost(ended, "")),
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
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for id in &plan.cells {
        let build = plan.builds.iter().find(|build| build.info.name == id.build);
        let Some(info) = build.and_then(|build| build.device(&id.device)) else { continue };
        if !devices.contains(info) {
            devices.push(info.clone());
        }
    }
    let mut switches = worker::switches();
    for build in &plan.builds {
        switches.extend(build.environment.clone());
    }
    let cpu = plan.builds.iter().find_map(|build| build.device(&DeviceSelector::cpu()));
    Environment {
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        cpu: cpu.map(|device| device.description.clone()),
        builds: plan.builds.iter().map(|build| build.info.clone()).collect(),
        devices,
        switches,
    }
}
