//! Selectors: which cells a declaration is about. A field that is left out matches everything.

use super::GateError;
use super::error::Source;
use super::many::{Many, Scalar};
use crate::capture::{BuildInfo, DeviceInfo, DeviceKind};
use crate::plan::models;
use crate::plan::{Case, DeviceSelector, Mode, Options};
use crate::report::{Cell, Environment};
use crate::verdict::WeightClass;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use toml::Spanned;

/// The cells that a declaration is about, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSelector {
    device: Option<Spanned<Many<String>>>,
    #[serde(default)]
    kind: Many<DeviceKind>,
    driver: Option<Spanned<String>>,
    #[serde(default)]
    build: Many<String>,
    ggml: Option<Spanned<String>>,
    model: Option<Spanned<Many<String>>>,
    weights: Option<Spanned<Many<String>>>,
    #[serde(default)]
    mode: Many<Mode>,
    #[serde(default)]
    options: BTreeMap<String, Spanned<Many<Scalar>>>,
}

/// The cells that a declaration is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    /// Devices, without their builds.
    device: Vec<DevicePattern>,
    kind: Vec<DeviceKind>,
    /// A part of the device's description or driver.
    driver: Option<String>,
    build: Vec<String>,
    /// ggml's version; a build that states none does not match.
    ggml: Option<semver::VersionReq>,
    model: Vec<String>,
    weights: Vec<String>,
    mode: Vec<Mode>,
    /// For each option the values that match.
    options: Vec<(String, Vec<String>)>,
}

/// A device by its exact name, or all whose names begin so: `CUDA*`.
#[derive(Clone, Debug)]
enum DevicePattern {
    Exactly(DeviceSelector),
    Beginning(String),
}

impl DevicePattern {
    fn matches(&self, device: &DeviceSelector) -> bool {
        match self {
            Self::Exactly(selector) => *selector == device.without_build(),
            Self::Beginning(text) => device.without_build().to_string().starts_with(text.as_str()),
        }
    }
}

impl Selector {
    /// Whether `cell`, computed in `environment`, is meant.
    pub(super) fn matches(&self, cell: &Cell, environment: &Environment) -> bool {
        fn one_of<T: PartialEq>(wanted: &[T], value: &T) -> bool {
            wanted.is_empty() || wanted.contains(value)
        }
        let device = device(cell, environment);
        let build = environment.builds.iter().find(|build| build.name == cell.build);
        (self.device.is_empty() || self.device.iter().any(|pattern| pattern.matches(&cell.device)))
            && (self.kind.is_empty() || device.is_some_and(|device| self.kind.contains(&device.kind)))
            && self.driver.as_ref().is_none_or(|text| device.is_some_and(|device| says(device, text)))
            && one_of(&self.build, &cell.build)
            && self
                .ggml
                .as_ref()
                .is_none_or(|wanted| build.and_then(version).is_some_and(|v| wanted.matches(&v)))
            && one_of(&self.model, &cell.model)
            && (self.weights.is_empty() || self.weights.iter().any(|w| w.eq_ignore_ascii_case(&cell.weights)))
            && one_of(&self.mode, &cell.mode)
            && self
                .options
                .iter()
                .all(|(name, values)| values.iter().any(|value| has(&cell.options, name, value)))
    }
}

/// The device of a cell, or the one whose variant or buffers it names.
fn device<'a>(cell: &Cell, environment: &'a Environment) -> Option<&'a DeviceInfo> {
    let selector = cell.device.to_string();
    let devices = &environment.devices;
    let exact = devices.iter().find(|device| device.selector == selector);
    exact.or_else(|| devices.iter().find(|device| device.selector == cell.device.base))
}

fn says(device: &DeviceInfo, text: &str) -> bool {
    device.description.contains(text) || device.driver.as_ref().is_some_and(|driver| driver.contains(text))
}

/// ggml's version without what follows a pre-release's mark: ranges are about releases.
fn version(build: &BuildInfo) -> Option<semver::Version> {
    let version: semver::Version = build.version.as_deref()?.parse().ok()?;
    Some(semver::Version::new(version.major, version.minor, version.patch))
}

/// Whether `options` have this value: setting it would change nothing.
fn has(options: &Options, name: &str, value: &str) -> bool {
    let mut same = *options;
    same.set(name, value).is_ok() && same == *options
}

/// The name that ids have for a model as `--model` takes it.
pub(super) fn name_of(model: &str) -> String {
    let path = Path::new(model);
    if !path.is_file() {
        return model.rsplit_once(':').map_or(model, |(name, _)| name).to_owned();
    }
    let stem = path.file_stem().map_or_else(|| model.to_owned(), |stem| stem.to_string_lossy().into_owned());
    crate::plan::safe_name(&stem)
}

/// Checks that everything a selector names can exist; `named` are the models of the file's rows.
pub(super) fn check(
    raw: &Spanned<RawSelector>,
    source: Source<'_>,
    named: &[String],
) -> Result<Selector, GateError> {
    let span = raw.span();
    let raw = raw.get_ref();
    let selector = Selector {
        device: raw.device.as_ref().map(|devices| patterns(devices, source)).transpose()?.unwrap_or_default(),
        kind: raw.kind.0.clone(),
        driver: raw.driver.as_ref().map(|driver| not_empty(driver, source)).transpose()?,
        build: raw.build.0.clone(),
        ggml: raw.ggml.as_ref().map(|range| versions(range, source)).transpose()?,
        model: raw.model.as_ref().map(|models| known(models, source, named)).transpose()?.unwrap_or_default(),
        weights: raw.weights.as_ref().map(|types| weights(types, source)).transpose()?.unwrap_or_default(),
        mode: raw.mode.0.clone(),
        options: options(&raw.options, &raw.mode.0, source)?,
    };
    let anything = selector.device.is_empty()
        && selector.kind.is_empty()
        && selector.driver.is_none()
        && selector.build.is_empty()
        && selector.ggml.is_none()
        && selector.model.is_empty()
        && selector.weights.is_empty()
        && selector.mode.is_empty()
        && selector.options.is_empty();
    if anything {
        return Err(source.error(&span, "a declaration about every cell; name a device, a build, a model, …"));
    }
    Ok(selector)
}

fn not_empty(text: &Spanned<String>, source: Source<'_>) -> Result<String, GateError> {
    if text.get_ref().is_empty() {
        return Err(source.error(&text.span(), "an empty text is a part of every driver"));
    }
    Ok(text.get_ref().clone())
}

fn patterns(devices: &Spanned<Many<String>>, source: Source<'_>) -> Result<Vec<DevicePattern>, GateError> {
    let pattern = |text: &String| {
        let begins = text.strip_suffix('*');
        let selector: DeviceSelector = begins
            .unwrap_or(text)
            .parse()
            .map_err(|error: crate::plan::IdError| source.error(&devices.span(), error.to_string()))?;
        if selector.build.is_some() {
            let message = format!("device `{text}` names a build, for which there is the field `build`");
            return Err(source.error(&devices.span(), message));
        }
        Ok(begins.map_or(DevicePattern::Exactly(selector), |text| DevicePattern::Beginning(text.to_owned())))
    };
    devices.get_ref().0.iter().map(pattern).collect()
}

fn versions(range: &Spanned<String>, source: Source<'_>) -> Result<semver::VersionReq, GateError> {
    let text = range.get_ref();
    text.parse().map_err(|error| {
        source.error(&range.span(), format!("ggml `{text}`: {error}; a range as `>=0.23, <0.27` is wanted"))
    })
}

fn known(
    wanted: &Spanned<Many<String>>,
    source: Source<'_>,
    named: &[String],
) -> Result<Vec<String>, GateError> {
    let mut known = models::known();
    known.extend(named.iter().cloned());
    match wanted.get_ref().0.iter().find(|name| !known.contains(name)) {
        Some(unknown) => {
            let hint = crate::hint::nearest(unknown, known.iter().map(String::as_str));
            let message = format!("model `{unknown}`: no known model, and none of this file's rows{hint}");
            Err(source.error(&wanted.span(), message))
        }
        None => Ok(wanted.get_ref().0.clone()),
    }
}

fn weights(types: &Spanned<Many<String>>, source: Source<'_>) -> Result<Vec<String>, GateError> {
    for name in &types.get_ref().0 {
        WeightClass::of(name).map_err(|error| source.error(&types.span(), error.to_string()))?;
    }
    Ok(types.get_ref().0.clone())
}

/// Options and values that exist, in a mode that takes them.
fn options(
    wanted: &BTreeMap<String, Spanned<Many<Scalar>>>,
    modes: &[Mode],
    source: Source<'_>,
) -> Result<Vec<(String, Vec<String>)>, GateError> {
    let modes = if modes.is_empty() { Mode::ALL } else { modes };
    let mut all = Vec::new();
    for (name, values) in wanted {
        let mut texts = Vec::new();
        for Scalar(value) in &values.get_ref().0 {
            let at = |message: String| source.error(&values.span(), message);
            let mut options = Options::default();
            options.set(name, value).map_err(|error| at(error.to_string()))?;
            let case = |mode| Case { model: "m".to_owned(), weights: "f32".to_owned(), mode, options };
            let refused: Vec<String> =
                modes.iter().filter_map(|&mode| Some(case(mode).check().err()?.to_string())).collect();
            if refused.len() == modes.len() {
                return Err(at(refused.into_iter().next().unwrap_or_default()));
            }
            texts.push(value.clone());
        }
        all.push((name.clone(), texts));
    }
    Ok(all)
}
