//! One typed result, many renderers: each is a pure function of it, in a file of its own.

pub mod console;
pub mod csv;
pub mod json;
pub mod markdown;
pub mod schema;
mod table;

use super::html;
use super::result::{FILE, Sweep};
use crate::atomic;
use crate::report::{INDEX, ReportError};
use std::path::Path;

/// Writes `sweep.json`, `items.csv`, `arms.csv`, `summary.md` and `index.html` into `dir`, which is made if need be.
/// Each file appears whole or not at all.
///
/// # Errors
/// The file system's, naming the file.
pub fn write(dir: &Path, sweep: &Sweep) -> Result<(), ReportError> {
    std::fs::create_dir_all(dir).map_err(|source| ReportError::Io { path: dir.to_owned(), source })?;
    let files = [
        (FILE, json::render(sweep)),
        ("items.csv", csv::items(sweep)),
        ("arms.csv", csv::arms(sweep)),
        ("summary.md", markdown::render(sweep)),
        (INDEX, html::page(sweep)),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        atomic::write_with(&path, |partial| std::fs::write(partial, text))
            .map_err(|source: std::io::Error| ReportError::Io { path, source })?;
    }
    Ok(())
}

/// Reads the sweep of a folder, or a file `sweep.json`.
///
/// # Errors
/// A file that cannot be read or is no sweep; both name it.
pub fn read(path: &Path) -> Result<Sweep, ReportError> {
    let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let text =
        std::fs::read_to_string(&path).map_err(|source| ReportError::Io { path: path.clone(), source })?;
    json::parse(&text).map_err(|error| ReportError::File { path, error: Box::new(error) })
}

#[cfg(test)]
mod tests;
