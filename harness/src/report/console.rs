//! The console: an aligned table, a line for each failed cell, and one line of summary.

use super::format::{COLUMNS, HEADINGS, one_line, row};
use super::{Cell, Report, sampler};
use crate::verdict::Status;

/// The report as text; escape codes for colour only when asked for.
pub fn render(report: &Report, colour: bool) -> String {
    let rows: Vec<[String; COLUMNS]> = report.cells.iter().map(row).collect();
    let heading = HEADINGS.map(str::to_owned);
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|column| rows.iter().chain([&heading]).map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = line(&heading, &widths, None);
    for (cell, row) in report.cells.iter().zip(&rows) {
        text.push_str(&line(row, &widths, colour.then(|| paint(cell))));
    }
    text.push('\n');
    for cell in report.failed() {
        text.push_str(&format!("{}: {}: {}\n", cell.status, cell.id, one_line(&cell.reason)));
    }
    for (cell, how) in report.retried() {
        text.push_str(&format!("computed on the second try: {}: {}\n", cell.id, one_line(how)));
    }
    for cell in report.noted() {
        text.push_str(&format!("{}: {}: {}\n", cell.status, cell.id, one_line(&cell.reason)));
    }
    for cell in report.expected() {
        text.push_str(&format!("{}: {}: {}\n", cell.status, cell.id, one_line(&cell.reason)));
    }
    for (cell, found) in report.cells.iter().filter_map(|cell| Some((cell, sampler::of(cell)?))) {
        text.push_str(&format!("sampler: {}: {}\n", cell.id, sampler::parts(found).join("; ")));
    }
    for note in report.gate.iter().flat_map(crate::gate::GateUse::notes) {
        text.push_str(&format!("gate: {}\n", one_line(&note)));
    }
    for (reason, cells) in report.without_oracle() {
        text.push_str(&format!("without the oracle: {cells} cells: {}\n", one_line(reason)));
    }
    text.push_str(&report.summary());
    text.push('\n');
    text
}

/// One line of the table: names to the left, figures to the right, the status painted.
fn line(row: &[String; COLUMNS], widths: &[usize], paint: Option<&str>) -> String {
    let cells: Vec<String> = row
        .iter()
        .zip(widths)
        .enumerate()
        .map(|(column, (text, &width))| match (column, paint) {
            (0, Some(code)) => format!("\x1b[{code}m{text:<width$}\x1b[0m"),
            (0 | 1, _) => format!("{text:<width$}"),
            _ => format!("{text:>width$}"),
        })
        .collect();
    format!("{}\n", cells.join("  ").trim_end())
}

/// The colour of a cell's status.
fn paint(cell: &Cell) -> &'static str {
    match cell.status {
        Status::Pass => "32",
        Status::Expected => "36",
        Status::Unsupported if cell.is_as_declared() => "33",
        _ => "31",
    }
}
