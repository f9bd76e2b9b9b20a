//! One run, from the plan to the report: workers compute captures, the reference first, then the oracle along the
//! reference's trajectory and the devices, then the captures are compared, judged and attributed.

use crate::builds::{self, Manifest};
use crate::capture::{BuildFile, BuildInfo, CaptureReader, DeviceInfo, ModelInfo, ORACLE};
use crate::compare::{CompareError, compare};
use crate::plan::inputs::{Inputs, Wishes, inputs};
use crate::plan::models::{ModelError, ResolvedModel};
use crate::plan::{Case, CellId, DeviceSelector, Mode};
use crate::report::{Cell, Environment, Report, Run};
use crate::verdict::{
    ExitCode, Finding, Key, Limits, Status, ToleranceError, Tolerances, Verdict, attribute, judge,
    reference_fault, with_checks,
};
use crate::worker::{self, Ended, Failure, FailureKind, Fault, JobCell, Probed, Progress, RunJob, Workplace};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A run that cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A build cannot be found.
    #[error(transparent)]
    Build(#[from] builds::BuildError),
    /// A build does not load, or a device is not there.
    #[error("{0}")]
    Environment(String),
    /// No limit applies to a case.
    #[error(transparent)]
    Tolerance(#[from] ToleranceError),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl RunError {
    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Model(_) | Self::Tolerance(_) | Self::Io { .. } => ExitCode::Usage,
            Self::Build(_) | Self::Environment(_) => ExitCode::Environment,
        }
    }
}

impl From<crate::gate::GateError> for RunError {
    fn from(error: crate::gate::GateError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            FailureKind::Input => Self::Usage(failure.message),
            _ => Self::Environment(failure.message),
        }
    }
}

/// A build that was asked what it offers.
pub struct Build {
    /// Its folder.
    pub folder: PathBuf,
    /// What `--ggml` was given, to be repeated in re-run commands.
    pub given: Option<String>,
    /// For captures and reports.
    pub info: BuildInfo,
    /// What it offers.
    pub probed: Probed,
    /// Variables to set for its workers.
    pub environment: BTreeMap<String, String>,
}

impl Build {
    /// Finds the build that `--ggml` names (the default one where nothing is given) and asks it what it offers.
    ///
    /// # Errors
    /// When there is none, or it does not load.
    pub fn open(given: Option<&str>, workplace: &Workplace) -> Result<Self, RunError> {
        let folder = builds::resolve(given)?;
        let (probed, environment) = worker::probe(workplace, &folder)?;
        let mut files = Vec::new();
        for file in probed.files.iter().filter(|file| file.skipped.is_none()) {
            let bytes = std::fs::read(&file.path)
                .map_err(|source| RunError::Io { path: file.path.clone(), source })?;
            let name = file.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            files.push(BuildFile { name, sha256: hex(&Sha256::digest(&bytes)) });
        }
        check_manifest(&folder, &files)?;
        let info = BuildInfo {
            name: build_name(&folder, &probed, &files),
            version: probed.version.clone(),
            commit: probed.commit.clone(),
            files,
        };
        Ok(Self { folder, given: given.map(str::to_owned), info, probed, environment })
    }

    /// Every selector this build answers to here: its devices, and its CPU variants.
    #[must_use]
    pub fn selectors(&self) -> Vec<DeviceSelector> {
        let variants = self.probed.cpu_variants.iter().filter(|_| self.probed.cpu_variants.len() > 1);
        let variants = variants.map(|v| DeviceSelector { variant: Some(v.clone()), ..DeviceSelector::cpu() });
        self.probed.devices.iter().map(|device| device.selector.clone()).chain(variants).collect()
    }

    /// Checks that `selector` is one of them.
    ///
    /// # Errors
    /// An error that lists the names there are.
    pub fn check(&self, selector: &DeviceSelector) -> Result<(), RunError> {
        let known = self.selectors();
        if known.contains(&selector.without_build()) {
            return Ok(());
        }
        let names: Vec<String> = known.iter().map(ToString::to_string).collect();
        Err(RunError::Environment(format!(
            "no device `{selector}` in build {} on this machine; there are: {}",
            self.info.name,
            names.join(", ")
        )))
    }

    /// Whether a matrix of `model` can lie where `selector` wants it: extra buffer types take some types only.
    #[must_use]
    pub fn takes(&self, selector: &DeviceSelector, model: &ResolvedModel) -> bool {
        let probed = self.probed.devices.iter().find(|device| device.selector == *selector);
        let types = probed.and_then(|device| device.takes.as_ref());
        types
            .is_none_or(|types| model.matrix_types.iter().any(|ty| types.contains(&ty.name().to_lowercase())))
    }

    fn device(&self, selector: &DeviceSelector) -> Option<&DeviceInfo> {
        let same = |d: &&worker::ProbedDevice| d.selector == *selector;
        let base = |d: &&worker::ProbedDevice| d.selector.base == selector.base;
        let devices = &self.probed.devices;
        devices.iter().find(same).or_else(|| devices.iter().find(base)).map(|device| &device.info)
    }
}

/// A build that came through `ggml fetch` or `ggml build` must still hold the libraries it came with.
fn check_manifest(folder: &Path, files: &[BuildFile]) -> Result<(), RunError> {
    let Some(manifest) = Manifest::read(folder) else { return Ok(()) };
    for file in files {
        let listed = manifest.files.iter().find(|entry| Path::new(&entry.name).ends_with(&file.name));
        if listed.is_none_or(|entry| entry.sha256 != file.sha256) {
            return Err(RunError::Environment(format!(
                "{}: {} is not the one that build {} came with: libraries of several builds are mixed",
                folder.display(),
                file.name,
                manifest.name
            )));
        }
    }
    Ok(())
}

/// The name in the manifest, or one made of version and content.
fn build_name(folder: &Path, probed: &Probed, files: &[BuildFile]) -> String {
    if let Some(manifest) = Manifest::read(folder) {
        return manifest.name;
    }
    let all: String = files.iter().map(|file| file.sha256.as_str()).collect();
    let hash = hex(&Sha256::digest(all.as_bytes()));
    let version = probed.version.as_deref().unwrap_or("unversioned");
    crate::plan::safe_name(&format!("ggml-{version}-{}", &hash[..8]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

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
    let digest = hex(&Sha256::digest(id.to_string().as_bytes()));
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

/// What a worker is told of `id`, which follows the trajectory of `replay` and may read another file.
fn job_cell(
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
        model: ModelInfo {
            name: model.name.clone(),
            sha256: model.sha256.clone(),
            architecture: model.model.hparams.architecture.name().to_owned(),
        },
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
    match (ended.get(&reference_id), ended.get(id)) {
        (Some(Ended::Captured), Some(Ended::Captured)) => {
            let arms = Arms { folders, reference: &reference_id, device: id, limits: &limits };
            let done = match oracle.as_ref().map(|oracle| (oracle, ended.get(oracle))) {
                None if reference_id == *id => arms.alone(&mut cell),
                None => arms.compare(&mut cell),
                Some((oracle, Some(Ended::Captured))) => arms.attribute(&mut cell, oracle),
                Some((_, Some(ended))) => Ok(verdict(ended, "the oracle: ")),
                Some((_, None)) => Ok(verdict(&Ended::Captured, "the oracle: ")),
            };
            cell.set_verdict(done.unwrap_or_else(Verdict::from));
        }
        (Some(Ended::Captured), Some(ended)) => {
            cell.set_verdict(verdict(ended, ""));
            cell.findings.clear();
            if let Ended::Crashed(death) = ended {
                cell.death = Some(death.clone());
            }
        }
        (Some(ended), _) => cell.set_verdict(verdict(ended, "the reference: ")),
        (None, _) => {}
    }
    cell.limits = Some(limits);
    Ok(cell)
}

/// The captures of one cell, to be compared.
struct Arms<'a> {
    folders: &'a Folders,
    reference: &'a CellId,
    device: &'a CellId,
    limits: &'a Limits,
}

impl Arms<'_> {
    fn open(&self, id: &CellId) -> Result<CaptureReader, CompareError> {
        Ok(CaptureReader::open(&capture_path(self.folders, id))?)
    }

    /// The device against the reference.
    fn compare(&self, cell: &mut Cell) -> Result<Verdict, CompareError> {
        let (mut reference, mut test) = (self.open(self.reference)?, self.open(self.device)?);
        cell.set_capture(test.meta());
        let metrics = compare(&mut reference, &mut test, self.limits)?;
        let judged = self.checked(judge(&metrics, &test.meta().placement, self.limits, self.is_cpu()), &test);
        let judged = with_checks(judged, "the reference: ", &reference.meta().checks, self.limits);
        cell.metrics = Some(metrics);
        Ok(self.reference_fault(&reference).unwrap_or(judged))
    }

    /// A device that is its own reference, without the oracle: only what it was found to do against itself counts.
    fn alone(&self, cell: &mut Cell) -> Result<Verdict, CompareError> {
        let test = self.open(self.device)?;
        if !test.meta().checks.is_empty() {
            return self.compare(cell);
        }
        cell.set_capture(test.meta());
        let reason = "it is its own reference, and the oracle is not there to compare it with".to_owned();
        Ok(Verdict::new(Status::Missing, reason))
    }

    /// The device against the reference, and both against the oracle; against the oracle alone where the device is
    /// its own reference.
    fn attribute(&self, cell: &mut Cell, oracle_id: &CellId) -> Result<Verdict, CompareError> {
        let own = self.reference == self.device;
        let judged = if own { None } else { Some(self.compare(cell)?) };
        let mut oracle = self.open(oracle_id)?;
        let mut test = self.open(self.device)?;
        let against = |error: CompareError| error.of("the device against the oracle");
        let device = compare(&mut oracle, &mut test, self.limits).map_err(against)?;
        let on_oracle = judge(&device, &test.meta().placement, self.limits, self.is_cpu());
        let on_oracle = self.checked(on_oracle, &test);
        let mut reference = self.open(self.reference)?;
        let against = |error: CompareError| error.of("the reference against the oracle");
        let of_reference = match &judged {
            None => None,
            Some(_) => Some(compare(&mut oracle, &mut reference, self.limits).map_err(against)?),
        };
        let (attribution, verdict) = attribute(
            of_reference.as_ref(),
            &device,
            self.limits,
            judged.unwrap_or_else(|| on_oracle.clone()),
            on_oracle,
        );
        cell.attribution = Some(attribution);
        if own {
            cell.set_capture(test.meta());
            cell.reference = Some(oracle_id.to_string());
            cell.metrics = Some(device);
        }
        Ok(self.reference_fault(&reference).unwrap_or(verdict))
    }

    fn is_cpu(&self) -> bool {
        self.device.device.is_cpu()
    }

    fn checked(&self, judged: Verdict, test: &CaptureReader) -> Verdict {
        with_checks(judged, "", &test.meta().checks, self.limits)
    }

    fn reference_fault(&self, reference: &CaptureReader) -> Option<Verdict> {
        reference_fault(&reference.meta().placement)
            .filter(|_| self.reference.device == DeviceSelector::cpu())
    }
}

/// The verdict on an arm that has no capture.
fn verdict(ended: &Ended, who: &str) -> Verdict {
    let (status, reason) = match ended {
        Ended::Captured => (Status::Missing, "its capture is gone".to_owned()),
        Ended::Crashed(death) => (death.status(), death.to_string()),
        Ended::TimedOut(limit) => (Status::Timeout, format!("no result within {} s", limit.as_secs())),
        Ended::Failed(failure) => {
            let status = match failure.kind {
                FailureKind::Unsupported => Status::Unsupported,
                FailureKind::OutOfMemory => Status::OutOfMemory,
                FailureKind::Fault | FailureKind::Environment => Status::Crashed,
                FailureKind::Input => Status::Missing,
            };
            (status, failure.message.clone())
        }
    };
    let reason = format!("{who}{reason}");
    // No declaration about a device forgives what became of another arm; the device's own end is one.
    let findings = vec![Finding::unforgivable(reason.clone())];
    Verdict { findings, ..Verdict::new(status, reason) }
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
    if let Some(path) = &wishes.draft {
        flag("draft", path.display().to_string());
    }
    Ok(shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" ")))
}

fn environment(plan: &Plan) -> Environment {
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
