//! The device's arm alone, along the trajectory of a golden; and the oracle's, to see whether it still says the same.

use super::folder::Opened;
use super::tensors::Tensors;
use super::{GoldenError, cases};
use crate::capture::ORACLE;
use crate::comparison::{self, Captures};
use crate::pipeline::{self, Folders, Plan, RunError, capture_path, job_cell, run_job};
use crate::plan::models::ResolvedModel;
use crate::plan::{CellId, DeviceSelector, matrix};
use crate::report::{Cell, Report, Run};
use crate::verdict::Key;
use crate::worker::{self, Ended, JobCell, Progress, Workplace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What a golden is called where reports name a reference.
const GOLDEN: &str = "golden";

/// The cells of a check: every golden on every device of every build. With no device named: all that a build offers
/// here, the plain CPU among them.
///
/// # Errors
/// A device that is not there, or none at all.
pub fn cells(
    opened: &Opened,
    builds: &[pipeline::Build],
    wanted: &[DeviceSelector],
) -> Result<Vec<CellId>, RunError> {
    let mut cells = Vec::new();
    for build in builds {
        let mine = |d: &&DeviceSelector| d.build.as_ref().is_none_or(|name| *name == build.info.name);
        let named: Vec<_> = wanted.iter().filter(mine).map(DeviceSelector::without_build).collect();
        named.iter().try_for_each(|device| build.check(device))?;
        let offered: Vec<_> = build.probed.devices.iter().map(|device| device.selector.clone()).collect();
        let in_use = build.probed.cpu_variant.as_deref();
        let all = || {
            let others = matrix::default_devices(&offered, &build.probed.cpu_variants, in_use);
            std::iter::once(DeviceSelector::cpu()).chain(others).collect()
        };
        let devices: Vec<DeviceSelector> = if wanted.is_empty() { all() } else { named };
        for golden in opened.goldens.iter().map(|golden| &golden.golden) {
            let model = cases::model_of(golden, &opened.models);
            let fitting = devices.iter().filter(|device| build.takes(device, model));
            cells.extend(fitting.map(|device| CellId::new(golden.case.clone(), &build.info.name, device)));
        }
    }
    if cells.is_empty() {
        return Err(RunError::Environment("no device takes any of these goldens".to_owned()));
    }
    Ok(cells)
}

/// Runs the cells of `plan` along their goldens, which are in `files` by case, and judges them against these.
///
/// # Errors
/// When the run cannot begin. What happens to a cell is in the report.
pub fn run(
    plan: &Plan,
    files: &BTreeMap<String, PathBuf>,
    rerun: impl Fn(&CellId) -> String,
    workplace: &Workplace,
    folders: &Folders,
    header: Run,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, RunError> {
    let started = Instant::now();
    let golden = |id: &CellId| &files[&id.case.to_string()];
    let mut ended: BTreeMap<CellId, Ended> = BTreeMap::new();
    for build in &plan.builds {
        let mine = || plan.cells.iter().filter(|id| id.build == build.info.name);
        let devices: BTreeSet<&DeviceSelector> = mine().map(|id| &id.device).collect();
        for device in devices {
            let mut cells = Vec::new();
            for id in mine().filter(|id| id.device == *device) {
                let plant = plan.planted_in(&id.case).device;
                let cell = job_cell(plan, folders, id, None, plant.model)?;
                cells.push(JobCell { replay: Some(golden(id).clone()), fault: plant.fault, ..cell });
            }
            let job = run_job(plan, build, device, cells);
            ended.extend(worker::run(workplace, &job, &build.environment, &mut progress)?);
        }
    }
    let mut cells = Vec::new();
    for id in &plan.cells {
        let mut cell = Cell::new(id.clone());
        cell.rerun = rerun(id);
        cell.reference = Some(of_golden(id).to_string());
        let build = plan.builds.iter().find(|build| build.info.name == id.build);
        let Some(device) = build.and_then(|build| build.device(&id.device)) else {
            cells.push(cell);
            continue;
        };
        let limits = plan.tolerances.limits(&Key::new(&id.case, device.kind)?)?;
        cell.limits = Some(limits.clone());
        match ended.get(id) {
            Some(Ended::Captured) => {
                let oracle = Some(golden(id).clone());
                let files = Captures { device: capture_path(folders, id), reference: None, oracle };
                comparison::settle(&mut cell, &files, &limits);
            }
            Some(ended) => {
                cell.set_verdict(comparison::without_capture(ended, ""));
                cell.set_own_end(ended);
            }
            None => {}
        }
        cells.push(cell);
    }
    let run = Run { seconds: started.elapsed().as_secs_f64(), ..header };
    Ok(Report::new(run, pipeline::environment(plan), &plan.cells, cells))
}

/// The golden of a cell as a cell of its own.
fn of_golden(id: &CellId) -> CellId {
    let device = DeviceSelector { base: ORACLE.to_owned(), ..DeviceSelector::cpu() };
    CellId { case: id.case.clone(), build: GOLDEN.to_owned(), device }
}

/// Computes the oracle's arm of every golden again.
///
/// # Errors
/// [`GoldenError::Unfit`] with the first tensor and row of each golden that is not what the oracle puts out now.
pub fn verify(opened: &Opened, workplace: &Workplace, work: &Path) -> Result<(), GoldenError> {
    let mut cells = Vec::new();
    for (i, golden) in opened.goldens.iter().enumerate() {
        let model: &ResolvedModel = cases::model_of(&golden.golden, &opened.models);
        let id = CellId {
            case: golden.golden.case.clone(),
            build: GOLDEN.to_owned(),
            device: DeviceSelector::cpu(),
        };
        cells.push(JobCell {
            path: model.path.clone(),
            model: pipeline::model_info(model),
            inputs: crate::plan::inputs::inputs(model, &id.case, &Default::default())?,
            replay: Some(golden.file.clone()),
            capture: work.join(format!("verify-{i}.safetensors")),
            lost: None,
            fault: None,
            pins: None,
            id: of_golden(&id),
        });
    }
    let ended = worker::compute(workplace, &cells, |_| {}).map_err(RunError::from)?;
    let mut wrong = Vec::new();
    for (golden, cell) in opened.goldens.iter().zip(&cells) {
        let why = match ended.get(&cell.id) {
            Some(Ended::Captured) => {
                let mut now = Tensors::read(&cell.capture)?;
                now.round();
                let place = Tensors::read(&golden.file)?.first_difference(&now);
                place.map(|place| format!("the oracle now puts out something else, first in {place}"))
            }
            Some(ended) => Some(comparison::without_capture(ended, "the oracle: ").reason),
            None => Some("the oracle did not compute it".to_owned()),
        };
        wrong.extend(why.map(|why| format!("golden {}: {why}", golden.golden.case)));
    }
    if wrong.is_empty() { Ok(()) } else { Err(GoldenError::Unfit(wrong)) }
}
