//! The gate file: which cells a run declares, and which divergences are known.
//!
//! `ci/gate.toml` is the default gate and travels inside the binary; `--gate FILE` or `GGML_PARITY_GATE` names another.
//! `ci/gate.md` documents every field. A file holds *presets* (rows of models x weight types x modes x options x devices,
//! see [`preset`]), settings of runs, tolerances, and *declarations*: divergences, crashes and gaps that are known, each
//! with a selector ([`selector`]), what is expected ([`outcome`]), a reason, and perhaps a date on which it expires.
//!
//! Declarations are held against a finished report ([`Gate::apply`]). Nothing is skipped: a declared divergence is
//! computed and compared like any other, must stay within its bound, and must still be there.

mod declared;
mod error;
mod file;
mod judge;
mod many;
pub mod outcome;
pub mod preset;
pub mod selector;

pub use declared::{Declaration, Declared, Found, GateUse};
pub use error::GateError;
pub use file::Settings;

use crate::report::Report;
use crate::verdict::Tolerances;
use outcome::Outcome;
use preset::Preset;
use selector::Selector;
use std::collections::BTreeMap;
use std::path::Path;

/// The default gate, as it was when this binary was built.
const EMBEDDED: &str = include_str!("../../../ci/gate.toml");
/// How errors and reports name it.
const EMBEDDED_NAME: &str = "ci/gate.toml";

/// A gate file that was read and checked.
#[derive(Clone, Debug)]
pub struct Gate {
    /// How errors and reports name the file.
    pub name: String,
    /// SHA-256 of its text in hex: what a run that is resumed must not find changed.
    pub digest: String,
    /// Settings of runs that neither a flag nor the environment makes.
    pub settings: Settings,
    /// The limits, where the file has its own.
    pub tolerances: Option<Tolerances>,
    presets: BTreeMap<String, Preset>,
    expectations: Vec<Expectation>,
}

/// A divergence, a crash or a gap that is known.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    selector: Selector,
    outcome: Outcome,
    reason: String,
    link: Option<String>,
    /// The last day on which it counts, `YYYY-MM-DD`.
    expires: Option<String>,
    /// The line of the file.
    line: usize,
}

impl Expectation {
    fn expired(&self, today: &str) -> bool {
        // Dates of this form sort as text.
        self.expires.as_deref().is_some_and(|last| last < today)
    }
}

impl Gate {
    /// The default gate.
    ///
    /// # Panics
    /// Never: a test reads the embedded file.
    #[must_use]
    pub fn embedded() -> Self {
        file::parse(EMBEDDED, EMBEDDED_NAME, Path::new("")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Reads and checks a gate file. Relative paths in it begin at its folder.
    ///
    /// # Errors
    /// What is wrong with it, with line and column.
    pub fn read(path: &Path) -> Result<Self, GateError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| GateError::Io { path: path.to_owned(), source })?;
        file::parse(&text, &name, path.parent().unwrap_or(Path::new("")))
    }

    /// The names of the presets.
    pub fn preset_names(&self) -> impl Iterator<Item = &str> {
        self.presets.keys().map(String::as_str)
    }

    /// The preset of this name, or the default one.
    ///
    /// # Errors
    /// When there is none, with the names there are.
    pub fn preset(&self, name: Option<&str>) -> Result<&Preset, GateError> {
        let name = name.unwrap_or(&self.settings.preset);
        self.presets.get(name).ok_or_else(|| GateError::NoPreset {
            file: self.name.clone(),
            name: name.to_owned(),
            hint: crate::hint::nearest(name, self.preset_names()),
            known: self.preset_names().collect::<Vec<_>>().join(", "),
        })
    }

    /// How many declarations there are.
    #[must_use]
    pub fn declarations(&self) -> usize {
        self.expectations.len()
    }

    /// The declarations that no longer count on `today`, `YYYY-MM-DD`: where each stands, and why it was made.
    pub fn expired<'a>(&'a self, today: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let expired = self.expectations.iter().filter(move |expectation| expectation.expired(today));
        expired.map(|expectation| (expectation.line, expectation.reason.as_str()))
    }

    /// Holds the declarations against every cell of `report` and says in it what they did. What an earlier gate made of the
    /// cells is taken back first. `today` is `YYYY-MM-DD`.
    pub fn apply(&self, report: &mut Report, today: &str) {
        report.gate = Some(judge::apply(&self.expectations, &self.name, report, today));
    }
}

#[cfg(test)]
mod tests;
