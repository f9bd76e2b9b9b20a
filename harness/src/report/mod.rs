//! One typed report, many renderers: each is a pure function of the report, in a file of its own.

pub mod annotations;
pub mod console;
pub mod csv;
pub(crate) mod format;
mod held;
pub mod html;
pub mod json;
pub mod junit;
pub mod markdown;
pub mod merge;
mod model;
pub mod pieces;
pub mod schema;
pub mod tensors;

pub use crate::verdict::{Arm, Attribution};
pub use model::{ByArm, Cell, Environment, Part, Report, ReportError, Run, SCHEMA, ShardOf, Work};

use crate::atomic;
pub(crate) use format::{one_line, scientific};
use std::io;
use std::path::Path;

/// The file of a report that people open.
pub const INDEX: &str = "index.html";

/// Writes `report.json`, `cells.csv`, `tensors.csv`, `junit.xml`, `summary.md` and `index.html` into `dir`, which is
/// made if need be. Each file appears whole or not at all.
///
/// # Errors
/// The file system's, naming the file.
pub fn write(dir: &Path, report: &Report) -> Result<(), ReportError> {
    std::fs::create_dir_all(dir).map_err(|source| ReportError::Io { path: dir.to_owned(), source })?;
    let files = [
        ("report.json", json::render(report)),
        ("cells.csv", csv::render(report)),
        ("tensors.csv", tensors::render(report)),
        ("junit.xml", junit::render(report)),
        ("summary.md", markdown::render(report)),
        (INDEX, html::render(report)),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        atomic::write_with(&path, |partial| std::fs::write(partial, text))
            .map_err(|source: io::Error| ReportError::Io { path, source })?;
    }
    Ok(())
}

/// Reads the report of a run's folder, or a file `report.json`.
///
/// # Errors
/// A file that cannot be read or is no report; both name it.
pub fn read(path: &Path) -> Result<Report, ReportError> {
    let path = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
    let text =
        std::fs::read_to_string(&path).map_err(|source| ReportError::Io { path: path.clone(), source })?;
    json::parse(&text).map_err(|error| ReportError::File { path, error: Box::new(error) })
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;
