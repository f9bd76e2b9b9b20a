//! The figures of a run's cells, each with what moves it.

use crate::capture::CheckBound;
use crate::compare::Metrics;
use crate::comparison::{self, Figures};
use crate::named::named_enum;
use crate::plan::calibration::shape_class;
use crate::plan::inputs::{Wishes, inputs};
use crate::plan::models::ResolvedModel;
use crate::plan::{Attention, CellId, KvType, Mode};
use crate::report::Cell;
use crate::verdict::{DeviceClass, Limits, Tolerances, WeightClass};
use serde::Serialize;

named_enum! {
    /// What a figure is held to.
    pub enum Metric as "metric" {
        /// NMSE of logits.
        Logits = "logits",
        /// NMSE of K and V.
        Kv = "kv",
    }
}

named_enum! {
    /// Whose distance a figure is.
    pub enum Pair as "pair" {
        /// The device from the reference.
        DeviceReference = "device to reference",
        /// The device from the oracle.
        DeviceOracle = "device to oracle",
        /// The reference from the oracle.
        ReferenceOracle = "reference to oracle",
        /// The device from itself, as its worker checked it.
        Itself = "device to itself",
    }
}

/// What moves the noise floor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The class of the weights.
    pub weights: WeightClass,
    /// The type of the cache.
    pub kv: KvType,
    /// The kind of attention.
    pub attn: Attention,
    /// The mode.
    pub mode: Mode,
    /// The size class of the widest product, in columns.
    pub shape: &'static str,
    /// The class of the device.
    pub class: DeviceClass,
    /// Build and device.
    pub device: String,
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What moves it.
    pub place: Place,
    /// What it is held to.
    pub metric: Metric,
    /// Whose distance it is.
    pub pair: Pair,
    /// The figure, in units of the row's own limit: a worst row's NMSE over the factor that worst rows are allowed, that
    /// of a stored cache over the factor of its type.
    pub value: f64,
    /// The cell.
    pub cell: CellId,
    /// The draw of tokens.
    pub seed: u32,
    /// Which repeat of it.
    pub repeat: u32,
    /// The limit that the tolerances in use have for it.
    pub in_use: f64,
}

/// What a calibration knows of its runs.
pub struct Source<'a> {
    /// The models.
    pub models: &'a [ResolvedModel],
    /// What the command line says of inputs.
    pub wishes: &'a Wishes,
    /// The limits in use.
    pub tolerances: &'a Tolerances,
    /// The draw of tokens.
    pub seed: u32,
    /// Which repeat of it.
    pub repeat: u32,
}

/// The figures of a cell that was compared: none where it was not.
#[must_use]
pub fn of(cell: &Cell, class: DeviceClass, source: &Source<'_>) -> Vec<Sample> {
    let (Some(files), Some(limits)) = (&cell.captures, &cell.limits) else { return Vec::new() };
    let Ok(figures) = comparison::figures(files, limits) else { return Vec::new() };
    let Some(place) = place(cell, class, source) else { return Vec::new() };
    values(&figures, cell, limits, source.tolerances)
        .into_iter()
        .map(|(metric, pair, value)| Sample {
            place: place.clone(),
            metric,
            pair,
            value,
            cell: cell.id.clone(),
            seed: source.seed,
            repeat: source.repeat,
            in_use: match metric {
                Metric::Logits => limits.logits_nmse.limit,
                Metric::Kv => kv_limit(cell, limits, source.tolerances),
            },
        })
        .collect()
}

fn place(cell: &Cell, class: DeviceClass, source: &Source<'_>) -> Option<Place> {
    let case = &cell.id.case;
    let model = source.models.iter().find(|m| m.name == case.model && m.weights == case.weights)?;
    let inputs = inputs(model, case, source.wishes).ok()?;
    let hparams = &model.model.hparams;
    let masked = hparams.architecture.is_diffusion() || hparams.block.is_some();
    let length = inputs.prompt.len() + if masked { inputs.follow } else { 0 };
    Some(Place {
        weights: WeightClass::of(&case.weights).ok()?,
        kv: case.options.kv,
        attn: case.options.attn,
        mode: case.mode,
        shape: shape_class(case.mode, masked, &case.options, length),
        class,
        device: format!("{}:{}", cell.build, cell.device),
    })
}

/// The limit of K/V before storing.
fn kv_limit(cell: &Cell, limits: &Limits, tolerances: &Tolerances) -> f64 {
    let stored = limits.kv_nmse.as_ref().map_or(f64::INFINITY, |bound| bound.limit);
    stored / tolerances.stored_factor(cell.options.kv)
}

fn values(
    figures: &Figures,
    cell: &Cell,
    limits: &Limits,
    tolerances: &Tolerances,
) -> Vec<(Metric, Pair, f64)> {
    let rows = limits.row_nmse.limit / limits.logits_nmse.limit;
    let stored = tolerances.stored_factor(cell.options.kv);
    let mut values = Vec::new();
    let mut of_pair = |pair, metrics: Option<&Metrics>| {
        let Some(metrics) = metrics else { return };
        let logits = worse(metrics.logits.overall, metrics.logits.worst.nmse / rows);
        values.push((Metric::Logits, pair, logits));
        let before = metrics.kv_before_storing.as_ref().map(|kv| kv.worst.nmse);
        let after = metrics.kv.as_ref().map(|kv| kv.worst.nmse / stored);
        let kv = before.into_iter().chain(after).reduce(worse);
        values.extend(kv.map(|kv| (Metric::Kv, pair, kv)));
    };
    of_pair(Pair::DeviceReference, figures.device.as_ref());
    of_pair(Pair::DeviceOracle, figures.device_on_oracle.as_ref());
    of_pair(Pair::ReferenceOracle, figures.reference_on_oracle.as_ref());
    for check in &cell.checks {
        match check.bound {
            CheckBound::Logits => values.push((Metric::Logits, Pair::Itself, check.value)),
            CheckBound::Kv => values.push((Metric::Kv, Pair::Itself, check.value / stored)),
            CheckBound::Exact | CheckBound::Reported => {}
        }
    }
    values
}

/// The larger of two figures; NaN if either is.
pub(super) fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}
