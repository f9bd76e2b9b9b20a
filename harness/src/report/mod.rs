//! One typed report, many renderers: each is a pure function of the report, in a file of its own.

pub mod console;
pub mod csv;
pub(crate) mod format;
pub mod json;
pub mod markdown;
mod model;

pub use crate::verdict::{Arm, Attribution};
pub use model::{Cell, Environment, Report, ReportError, Run, SCHEMA};

use crate::atomic;
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

#[cfg(test)]
mod tests;
