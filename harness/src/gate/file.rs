//! The file as it is written: one type a table, unknown fields refused.

use super::error::{GateError, Source};
use super::many::{Many, Scalar};
use super::outcome::{self, RawOutcome};
use super::selector::{self, RawSelector};
use super::{Expectation, Gate, preset};
use crate::builds::catalogue::hex;
use crate::pipeline::OracleUse;
use crate::plan::{DeviceSelector, Mode};
use crate::verdict::Tolerances;
use crate::worker::MemoryLimit;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use toml::Spanned;

/// The schema of gate files that this version reads.
const SCHEMA: &str = "ggml-parity.gate/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGate {
    schema: Spanned<String>,
    run: Spanned<Settings>,
    tolerances: Option<Spanned<Limits>>,
    preset: BTreeMap<String, Spanned<RawPreset>>,
    #[serde(default)]
    expect: Vec<Spanned<RawExpectation>>,
}

/// Settings of runs, where neither a flag nor the environment makes them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// The preset that runs where none is named.
    pub preset: String,
    /// The ggml builds: folders, or names of fetched builds.
    #[serde(default)]
    pub ggml: Vec<String>,
    /// CPU threads.
    pub threads: Option<NonZeroU32>,
    /// Seconds a cell may take.
    pub timeout: Option<NonZeroU32>,
    /// Memory a worker may take.
    pub memory: Option<MemoryLimit>,
    /// Whether the oracle computes.
    #[serde(default, deserialize_with = "oracle_use")]
    pub oracle: Option<OracleUse>,
}

fn oracle_use<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OracleUse>, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "never" => Ok(Some(OracleUse::Never)),
        "affordable" => Ok(Some(OracleUse::Affordable)),
        "always" => Ok(Some(OracleUse::Always)),
        other => Err(D::Error::custom(format!("`{other}` is none of never, affordable, always"))),
    }
}

/// Tolerances in place, or the file that has them.
enum Limits {
    Here(Box<Tolerances>),
    There(String),
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathOrTable;

        impl<'de> Visitor<'de> for PathOrTable {
            type Value = Limits;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the path of a table of tolerances, or the table")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<Limits, E> {
                Ok(Limits::There(path.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limits, A::Error> {
                let table = Tolerances::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Limits::Here(Box::new(table)))
            }
        }

        deserializer.deserialize_any(PathOrTable)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPreset {
    pub(super) description: String,
    pub(super) extends: Option<Spanned<Many<String>>>,
    #[serde(default)]
    pub(super) required: Many<DeviceSelector>,
    #[serde(default)]
    pub(super) row: Vec<Spanned<RawRow>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRow {
    pub(super) model: Spanned<Many<String>>,
    #[serde(default)]
    pub(super) weights: Many<String>,
    #[serde(default)]
    pub(super) mode: Many<Mode>,
    #[serde(default)]
    pub(super) options: BTreeMap<String, Spanned<Many<Scalar>>>,
    #[serde(default)]
    pub(super) device: Many<DeviceSelector>,
    #[serde(default)]
    pub(super) required: Many<DeviceSelector>,
    #[serde(default, rename = "if-fetched")]
    pub(super) if_fetched: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpectation {
    cells: Spanned<RawSelector>,
    outcome: Spanned<RawOutcome>,
    reason: Spanned<String>,
    link: Option<String>,
    expires: Option<Spanned<toml::value::Datetime>>,
}

/// Reads and checks the text of a gate file.
pub(super) fn parse(text: &str, name: &str, folder: &Path) -> Result<Gate, GateError> {
    let source = Source { name, text };
    let raw: RawGate = toml::from_str(text)
        .map_err(|error| source.error(&error.span().unwrap_or(0..0), one_line(error.message())))?;
    if raw.schema.get_ref() != SCHEMA {
        let message = format!("schema is `{}`, expected `{SCHEMA}`", raw.schema.get_ref());
        return Err(source.error(&raw.schema.span(), message));
    }
    let presets = preset::presets(&raw.preset, source, folder)?;
    let settings = raw.run.get_ref();
    if !presets.contains_key(&settings.preset) {
        let hint = crate::hint::nearest(&settings.preset, presets.keys().map(String::as_str));
        let message = format!("no preset `{}` in this file{hint}", settings.preset);
        return Err(source.error(&raw.run.span(), message));
    }
    let rows = presets.values().flat_map(|preset| &preset.rows);
    let named: Vec<String> = rows.map(|row| selector::name_of(&row.model)).collect();
    let expectations =
        raw.expect.iter().map(|raw| expectation(raw, source, &named)).collect::<Result<_, _>>()?;
    Ok(Gate {
        name: name.to_owned(),
        digest: hex(&Sha256::digest(text.as_bytes())),
        settings: settings.clone(),
        tolerances: raw.tolerances.map(|limits| tolerances(limits, source, folder)).transpose()?,
        presets,
        expectations,
    })
}

fn expectation(
    raw: &Spanned<RawExpectation>,
    source: Source<'_>,
    named: &[String],
) -> Result<Expectation, GateError> {
    let (line, _) = source.position(raw.span().start);
    let raw = raw.get_ref();
    if raw.reason.get_ref().trim().is_empty() {
        return Err(source.error(&raw.reason.span(), "a declaration needs a reason"));
    }
    let expires = match &raw.expires {
        Some(date) if date.get_ref().time.is_some() || date.get_ref().date.is_none() => {
            return Err(source.error(&date.span(), "a date as 2027-06-30 is wanted, without time"));
        }
        date => date.as_ref().map(|date| date.get_ref().to_string()),
    };
    Ok(Expectation {
        selector: selector::check(&raw.cells, source, named)?,
        outcome: outcome::check(&raw.outcome, source)?,
        reason: raw.reason.get_ref().clone(),
        link: raw.link.clone(),
        expires,
        line,
    })
}

fn tolerances(limits: Spanned<Limits>, source: Source<'_>, folder: &Path) -> Result<Tolerances, GateError> {
    let span = limits.span();
    match limits.into_inner() {
        Limits::Here(table) => {
            table.check().map_err(|error| source.error(&span, error.to_string()))?;
            Ok(*table)
        }
        Limits::There(path) => {
            let path = folder.join(path);
            let text = std::fs::read_to_string(&path)
                .map_err(|error| source.error(&span, format!("{}: {error}", path.display())))?;
            text.parse().map_err(|error| source.error(&span, format!("{}: {error}", path.display())))
        }
    }
}

/// A message without line breaks.
fn one_line(message: &str) -> String {
    message.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}
