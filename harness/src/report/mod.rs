//! One typed report, many renderers: each is a pure function of the report, in a file of its own.

pub mod console;
pub mod csv;
mod format;
pub mod json;
pub mod markdown;
pub mod merge;
mod model;

pub use crate::verdict::{Arm, Attribution};
pub use model::{Captures, Cell, Environment, Part, Report, ReportError, Run, SCHEMA, ShardOf, Work};

use crate::atomic;
pub(crate) use format::scientific;
use std::io;
use std::path::Path;

/// Writes `report.json`, `cells.csv` and `summary.md` into `dir`, which is made if need be. Each file appears
/// whole or not at all.
///
/// # Errors
/// The file system's, naming the file.
pub fn write(dir: &Path, report: &Report) -> Result<(), ReportError> {
    std::fs::create_dir_all(dir).map_err(|source| ReportError::Io { path: dir.to_owned(), source })?;
    let files = [
        ("report.json", json::render(report)),
        ("cells.csv", csv::render(report)),
        ("summary.md", markdown::render(report)),
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
mod tests;
