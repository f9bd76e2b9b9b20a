//! Presets: rows of models, weight types, modes, options and devices, which multiply.

use super::GateError;
use super::error::Source;
use super::file::{RawPreset, RawRow};
use super::many::{Many, Scalar};
use crate::plan::matrix::Row;
use crate::plan::models;
use crate::plan::{DeviceSelector, Options};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// A named matrix.
#[derive(Clone, Debug)]
pub struct Preset {
    /// What it is for, in a line.
    pub description: String,
    /// The rows, those of the presets that it extends first.
    pub rows: Vec<Row>,
}

/// The presets of a file, each with the rows of those that it extends.
pub(super) fn presets(
    raw: &BTreeMap<String, Spanned<RawPreset>>,
    source: Source<'_>,
    folder: &Path,
) -> Result<BTreeMap<String, Preset>, GateError> {
    let mut done = BTreeMap::new();
    for (name, preset) in raw {
        let mut rows = Vec::new();
        collect(name, &preset.span(), raw, source, folder, &mut Vec::new(), &mut rows)?;
        let required = &preset.get_ref().required.0;
        for row in &mut rows {
            row.required
                .extend(required.iter().filter(|d| !row.required.contains(d)).cloned().collect::<Vec<_>>());
        }
        if rows.is_empty() {
            return Err(source.error(&preset.span(), format!("preset `{name}` has no row")));
        }
        done.insert(name.clone(), Preset { description: preset.get_ref().description.clone(), rows });
    }
    Ok(done)
}

/// Appends the rows of `name`, those of the presets that it extends first.
fn collect<'a>(
    name: &'a str,
    asked: &Range<usize>,
    raw: &'a BTreeMap<String, Spanned<RawPreset>>,
    source: Source<'_>,
    folder: &Path,
    path: &mut Vec<&'a str>,
    rows: &mut Vec<Row>,
) -> Result<(), GateError> {
    let Some(preset) = raw.get(name) else {
        let hint = crate::hint::nearest(name, raw.keys().map(String::as_str));
        return Err(source.error(asked, format!("no preset `{name}` in this file{hint}")));
    };
    if path.contains(&name) {
        return Err(source.error(asked, format!("preset `{name}` extends itself")));
    }
    path.push(name);
    let preset = preset.get_ref();
    if let Some(extends) = &preset.extends {
        for other in &extends.get_ref().0 {
            collect(other, &extends.span(), raw, source, folder, path, rows)?;
        }
    }
    for row in &preset.row {
        rows.extend(expand(row.get_ref(), &row.span(), source, folder)?);
    }
    path.pop();
    Ok(())
}

/// One row of the matrix for each model and weight type.
fn expand(
    row: &RawRow,
    span: &Range<usize>,
    source: Source<'_>,
    folder: &Path,
) -> Result<Vec<Row>, GateError> {
    let options = options(&row.options, source)?;
    let all = |device: &DeviceSelector| device.base == "all" && *device == device.without_build();
    if row.device.0.iter().any(all) && row.device.0.len() > 1 {
        return Err(source.error(span, "device is `all` and more; `all` stands alone"));
    }
    let devices = row.device.0.iter().filter(|device| !all(device)).cloned().collect::<Vec<_>>();
    if !devices.is_empty()
        && let Some(lost) = row.required.0.iter().find(|device| !devices.contains(device))
    {
        return Err(
            source.error(span, format!("required device `{lost}` is not among the devices of the row"))
        );
    }
    let mut rows = Vec::new();
    for model in &row.model.get_ref().0 {
        let model = locate(model, &row.model.span(), source, folder)?;
        let names = if row.weights.0.is_empty() {
            vec![model.clone()]
        } else {
            let of = |weights: &String| models::with_weights(&model, weights);
            let names: Option<Vec<String>> = row.weights.0.iter().map(of).collect();
            names.ok_or_else(|| {
                let unknown =
                    row.weights.0.iter().find(|weights| models::with_weights(&model, weights).is_none());
                source.error(
                    span,
                    format!(
                        "weights `{}` is no type that models can be converted to",
                        unknown.map_or("", |w| w)
                    ),
                )
            })?
        };
        for model in names {
            if model.is_empty() {
                return Err(source.error(span, "a model without a name"));
            }
            rows.push(Row {
                model,
                modes: row.mode.0.clone(),
                options: options.clone(),
                devices: devices.clone(),
                required: row.required.0.clone(),
                if_fetched: row.if_fetched,
                place: Some(format!("{}:{}", source.name, source.position(span.start).0)),
            });
        }
    }
    Ok(rows)
}

/// The name or path of a model that exists; relative paths begin at the file's folder.
fn locate(model: &str, span: &Range<usize>, source: Source<'_>, folder: &Path) -> Result<String, GateError> {
    let known = models::known();
    if known.iter().any(|name| name == model) {
        return Ok(model.to_owned());
    }
    let beside = folder.join(model);
    if beside.is_file() {
        return Ok(beside.display().to_string());
    }
    let hint = crate::hint::nearest(model, known.iter().map(String::as_str));
    Err(source.error(span, format!("model `{model}`: no known model and no file {}{hint}", beside.display())))
}

/// Every combination of the options' values.
fn options(
    axes: &BTreeMap<String, Spanned<Many<Scalar>>>,
    source: Source<'_>,
) -> Result<Vec<Options>, GateError> {
    let mut all = vec![Options::default()];
    for (name, values) in axes {
        let mut more = Vec::new();
        for options in &all {
            for Scalar(value) in &values.get_ref().0 {
                let mut options = *options;
                let set = options.set(name, value);
                set.map_err(|error| source.error(&values.span(), error.to_string()))?;
                more.push(options);
            }
        }
        all = more;
    }
    let mut seen = std::collections::BTreeSet::new();
    match all.iter().find(|options| !seen.insert(**options)) {
        Some(twice) => {
            let span = axes.values().next().map_or(0..0, Spanned::span);
            Err(source.error(&span, format!("options `{twice}` come twice")))
        }
        None => Ok(all),
    }
}
