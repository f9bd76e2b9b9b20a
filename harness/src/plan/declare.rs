//! Which cells a run declares: rows x builds x devices.

use super::matrix::{self, Row};
use super::models::ResolvedModel;
use super::{Case, CellId, DeviceSelector, Mode};
use crate::capture::DeviceKind;
use crate::pipeline::{Build, RunError};
use std::collections::BTreeMap;

/// What is declared of rows, builds and devices.
pub struct Declaring<'a> {
    /// The rows.
    pub rows: &'a [Row],
    /// The builds, the one whose CPU is the reference first.
    pub builds: &'a [Build],
    /// The models of the rows; a row whose model is not among them is left out.
    pub models: &'a [ResolvedModel],
    /// The devices that the command line names; those of the rows where it names none.
    pub devices: &'a [DeviceSelector],
    /// Whether the command line names the models, which must then fit on the devices that it names.
    pub models_named: bool,
    /// Whether the command line changed what the rows say, so that they may overlap and lack modes.
    pub changed: bool,
    /// Whether the oracle may be what a plain CPU is compared with.
    pub oracle: bool,
}

/// The cells of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredCells {
    /// Those that can run.
    pub cells: Vec<CellId>,
    /// Those on required devices that are not there.
    pub absent: Vec<CellId>,
}

/// Declares the cells.
///
/// # Errors
/// A device that the command line names and that is not there, a mode that a model lacks, a cell that two rows declare.
pub fn declare(declaring: &Declaring<'_>) -> Result<DeclaredCells, RunError> {
    let mut declared = DeclaredCells::default();
    let mut by: BTreeMap<CellId, Option<&str>> = BTreeMap::new();
    for row in declaring.rows {
        let Some(model) = declaring.models.iter().find(|model| model.given == row.model) else { continue };
        let place = row.place.as_deref();
        for case in cases(declaring, row, model)? {
            for (i, build) in declaring.builds.iter().enumerate() {
                // A sampler has no weights: an extra buffer type would run the CPU's again, and an accelerator has
                // none of its ops. A device that somebody names is tested all the same.
                let device_named = !declaring.devices.is_empty() || !row.devices.is_empty();
                let samples = case.mode == Mode::Sampler && !device_named;
                let plain = |device: &DeviceSelector| {
                    let kind = build.device(device).map(|device| device.kind);
                    device.buft.is_none() && kind != Some(DeviceKind::Accelerator)
                };
                let tested = |device: &DeviceSelector| !samples || plain(device);
                let here = devices(declaring, row, build, model, i > 0)?;
                let here = here.into_iter().filter(tested).map(|d| (d, true));
                let absent = absent(declaring, row, build).into_iter().map(|d| (d, false));
                for (device, there) in here.chain(absent) {
                    let id = CellId::new(case.clone(), &build.info.name, &device);
                    match by.insert(id.clone(), place) {
                        None => if there { &mut declared.cells } else { &mut declared.absent }.push(id),
                        // What the command line makes of rows may be the same cell twice.
                        Some(_) if declaring.changed || !declaring.devices.is_empty() || place.is_none() => {}
                        Some(first) => {
                            let (place, first) = (place.unwrap_or_default(), first.unwrap_or_default());
                            return Err(RunError::Usage(format!(
                                "{place}: cell {id} is declared twice, first by the row at {first}"
                            )));
                        }
                    }
                }
            }
        }
    }
    Ok(declared)
}

/// The cases of one row.
fn cases(declaring: &Declaring<'_>, row: &Row, model: &ResolvedModel) -> Result<Vec<Case>, RunError> {
    let modes = if row.modes.is_empty() { matrix::default_modes(model) } else { row.modes.clone() };
    let architecture = model.model.hparams.architecture.name();
    // A gate file declares what it says: a row that lost a cell would be a hole in the gate.
    if let Some(place) = row.place.as_ref().filter(|_| !declaring.changed) {
        if let Some(mode) = modes.iter().find(|mode| !matrix::has_mode(model, **mode)) {
            return Err(RunError::Usage(format!(
                "{place}: {} ({architecture}) has no mode {mode}",
                row.model
            )));
        }
        let all =
            modes.iter().flat_map(|&mode| row.options.iter().map(move |&o| matrix::case(model, mode, o)));
        let all: Vec<Case> = all.collect();
        return match all.iter().find_map(|case| Some((case, case.check().err()?))) {
            Some((case, error)) if !row.modes.is_empty() => {
                Err(RunError::Usage(format!("{place}: case {case}: {error}")))
            }
            _ => Ok(all.into_iter().filter(|case| case.check().is_ok()).collect()),
        };
    }
    // With several models a mode applies to those that have it; a single one must. Of the default modes those
    // count to which the options mean something.
    let takes = |case: &Case| !row.modes.is_empty() || case.check().is_ok();
    let fitting: Vec<Case> = modes
        .iter()
        .filter(|&&mode| matrix::has_mode(model, mode))
        .flat_map(|&mode| row.options.iter().map(move |&options| matrix::case(model, mode, options)))
        .filter(takes)
        .collect();
    if fitting.is_empty() && declaring.rows.len() == 1 {
        let modes: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
        return Err(RunError::Usage(format!(
            "model {}: architecture {architecture} has no mode {} that these options apply to",
            model.name,
            modes.join(", ")
        )));
    }
    Ok(fitting)
}

/// The devices of `build` on which `model` is tested. In a further build the plain CPU is one of them, since
/// there it is compared with the first build's.
fn devices(
    declaring: &Declaring<'_>,
    row: &Row,
    build: &Build,
    model: &ResolvedModel,
    further: bool,
) -> Result<Vec<DeviceSelector>, RunError> {
    let mine = |d: &&DeviceSelector| d.build.as_ref().is_none_or(|name| *name == build.info.name);
    if !declaring.devices.is_empty() {
        let named = declaring.devices.iter().filter(mine).map(DeviceSelector::without_build);
        let named: Vec<_> = named.collect();
        named.iter().try_for_each(|device| build.check(device))?;
        // A ready-made matrix holds models that an extra buffer type does not take; a named model must fit.
        let fits = |device: &DeviceSelector| declaring.models_named || build.takes(device, model);
        return Ok(named.into_iter().filter(fits).collect());
    }
    if !row.devices.is_empty() {
        let named = row.devices.iter().filter(mine).map(DeviceSelector::without_build);
        return Ok(named.filter(|d| build.check(d).is_ok() && build.takes(d, model)).collect());
    }
    let offered: Vec<DeviceSelector> =
        build.probed.devices.iter().map(|device| device.selector.clone()).collect();
    let in_use = build.probed.cpu_variant.as_deref();
    let all = matrix::default_devices(&offered, &build.probed.cpu_variants, in_use);
    let all = further.then(DeviceSelector::cpu).into_iter().chain(all);
    let devices: Vec<DeviceSelector> = all.filter(|device| build.takes(device, model)).collect();
    // A machine that has nothing but the plain CPU holds it against the oracle.
    let only_cpu = offered.iter().all(|device| *device == DeviceSelector::cpu());
    Ok(if devices.is_empty() && only_cpu && declaring.oracle { vec![DeviceSelector::cpu()] } else { devices })
}

/// The devices that a row requires of `build` and that are not there; none where the command line names devices,
/// which then are those that count.
fn absent(declaring: &Declaring<'_>, row: &Row, build: &Build) -> Vec<DeviceSelector> {
    if !declaring.devices.is_empty() {
        return Vec::new();
    }
    let mine = |d: &&DeviceSelector| d.build.as_ref().is_none_or(|name| *name == build.info.name);
    let required = row.required.iter().filter(mine).map(DeviceSelector::without_build);
    required.filter(|device| build.check(device).is_err()).collect()
}
