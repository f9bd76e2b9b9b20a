//! `summary.md`: the matrix and the failed cells, made to fit a CI step summary.

use super::format::{COLUMNS, HEADINGS, one_line, row};
use super::{Cell, Report};

/// The most cells in each table: a step summary holds one MiB, and nobody reads more.
const MOST: usize = 500;
/// The most characters of a reason; `report.json` has all of it.
const LONGEST: usize = 1000;

/// The report as Markdown.
pub fn render(report: &Report) -> String {
    let mut text = format!("# ggml-parity: {}\n\n{}\n\n", escape(&report.run.name), report.summary());
    text.push_str(&environment(report));
    text.push_str("## Cells\n\n");
    text.push_str(&table_line(HEADINGS.map(str::to_owned)));
    text.push_str(&table_line(std::array::from_fn::<String, COLUMNS, _>(|column| {
        if column < 2 { "---".to_owned() } else { "--:".to_owned() }
    })));
    for cell in report.cells.iter().take(MOST) {
        text.push_str(&table_line(row(cell).map(|field| escape(&field))));
    }
    text.push_str(&left_out(report.cells.len()));
    text.push_str(&notes(report));
    text.push_str(&checks(report));
    let failed: Vec<&Cell> = report.failed().collect();
    if !failed.is_empty() {
        text.push_str("\n## Failed\n\n");
        for cell in failed.iter().take(MOST) {
            let reason: String = escape(&cell.reason).chars().take(LONGEST).collect();
            text.push_str(&format!(
                "- **{}** `{}`: {reason}\n\n      {}\n\n",
                cell.status, cell.id, cell.rerun
            ));
        }
        text.push_str(&left_out(failed.len()));
    }
    let retried: Vec<_> = report.retried().collect();
    if !retried.is_empty() {
        text.push_str("\n## Computed on the second try\n\n");
        for (cell, how) in retried.iter().take(MOST) {
            let how: String = escape(how).chars().take(LONGEST).collect();
            text.push_str(&format!("- `{}`: {how}\n", cell.id));
        }
        text.push_str(&left_out(retried.len()));
    }
    text
}

/// Cells that passed with something to be said or did as the gate declares, what else it says, and why cells lack the oracle.
fn notes(report: &Report) -> String {
    let noted = report.noted().chain(report.expected()).map(|cell| {
        let reason: String = escape(&cell.reason).chars().take(LONGEST).collect();
        format!("- `{}`: {reason}\n", cell.id)
    });
    let without = report.without_oracle().into_iter();
    let without = without.map(|(reason, n)| format!("- {n} cells without the oracle: {}\n", escape(reason)));
    let gate = report.gate.iter().flat_map(crate::gate::GateUse::notes);
    let gate = gate.map(|note| format!("- gate: {}\n", escape(&note)));
    let lines: Vec<String> = noted.take(MOST).chain(gate).chain(without).collect();
    if lines.is_empty() { String::new() } else { format!("\n## Notes\n\n{}", lines.concat()) }
}

/// What devices were found to do against themselves.
fn checks(report: &Report) -> String {
    let mut lines = Vec::new();
    for cell in &report.cells {
        for check in &cell.checks {
            let fields = [
                cell.id.to_string(),
                check.name.clone(),
                format!("{:.1e}", check.value),
                check.bound.to_string(),
                check.detail.clone(),
            ];
            lines.push(format!("| {} |\n", fields.map(|field| escape(&field)).join(" | ")));
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let head = "\n## Each device against itself\n\n| cell | what | figure | held to | |\n| --- | --- | --: | --- | --- |\n";
    let more = left_out(lines.len());
    lines.truncate(MOST);
    format!("{head}{}{more}", lines.concat())
}

/// Builds and devices.
fn environment(report: &Report) -> String {
    let environment = &report.environment;
    let mut text = String::new();
    for build in &environment.builds {
        let version = build.version.as_deref().unwrap_or("of unknown version");
        let commit = build.commit.as_ref().map(|c| format!(" ({c})")).unwrap_or_default();
        text.push_str(&format!("- build `{}`: ggml {}\n", build.name, escape(&format!("{version}{commit}"))));
    }
    for device in &environment.devices {
        let driver = device.driver.as_ref().map(|d| format!(", {d}")).unwrap_or_default();
        let description = escape(&format!("{}{driver}", device.description));
        text.push_str(&format!("- device `{}`: {description} ({})\n", device.selector, device.kind));
    }
    let host = environment.cpu.as_ref().map(|cpu| format!(", {}", escape(cpu))).unwrap_or_default();
    text.push_str(&format!("- host: {} {}{host}\n\n", environment.os, environment.arch));
    text
}

fn table_line(fields: [String; COLUMNS]) -> String {
    format!("| {} |\n", fields.join(" | "))
}

/// A note on the cells that a table leaves out.
fn left_out(count: usize) -> String {
    match count.checked_sub(MOST) {
        None | Some(0) => String::new(),
        Some(more) => format!("\n{more} more are in `cells.csv`.\n"),
    }
}

/// Text that a table or a list can hold.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        if matches!(c, '|' | '*' | '_' | '`' | '<' | '\\' | '[') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
