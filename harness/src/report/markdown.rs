//! `summary.md`: red cells first, made to fit a CI step summary of one MiB.

use super::format::{COLUMNS, HEADINGS, NONE, one_line, row, scientific, shortened};
use super::{Cell, Part, Report, sampler};
use crate::compare::StepNmse;
use crate::gate::GateUse;

/// The most bytes of a summary: GitHub drops a larger one as a whole.
pub const MOST_BYTES: usize = 1 << 20;
/// The most lines of each table or list; nobody reads more.
const MOST: usize = 500;
/// The most cells whose reason is told in full.
const MOST_REASONS: usize = 200;
/// The most characters of a reason; `report.json` has all of it.
const LONGEST: usize = 1000;
/// What is kept for the line that says that parts are missing.
const RESERVED: usize = 200;

/// The report as Markdown of at most [`MOST_BYTES`]. Parts that do not fit are left out, and a last line says so.
pub fn render(report: &Report) -> String {
    let parts = [
        format!("# ggml-parity: {}\n\n**{}**\n\n", escape(&report.run.name), report.summary()),
        cells(report),
        failed(report),
        retried(report),
        notes(report),
        samplers(report),
        checks(report),
        steps(report),
        environment(report),
    ];
    let mut text = String::new();
    let mut complete = true;
    for part in parts {
        if text.len() + part.len() + RESERVED <= MOST_BYTES {
            text.push_str(&part);
        } else {
            complete = false;
        }
    }
    if !complete {
        text.push_str("\nSome parts did not fit here; `index.html` and `report.json` have everything.\n");
    }
    text
}

/// The table: red cells, then the others, each in declared order.
fn cells(report: &Report) -> String {
    let mut text = "## Cells\n\n".to_owned();
    text.push_str(&table_line(HEADINGS.map(str::to_owned)));
    text.push_str(&table_line(std::array::from_fn::<String, COLUMNS, _>(|column| {
        if column < 2 { "---".to_owned() } else { "--:".to_owned() }
    })));
    let (red, green): (Vec<&Cell>, Vec<&Cell>) = report.cells.iter().partition(|cell| cell.is_red());
    for cell in red.into_iter().chain(green).take(MOST) {
        let mut fields = row(cell);
        if cell.is_red() {
            fields[0] = format!("❌ {}", fields[0]);
        }
        text.push_str(&table_line(fields.map(|field| escape(&field))));
    }
    text.push_str(&left_out(report.cells.len(), MOST));
    text
}

/// Why cells are red, and how to run them again.
fn failed(report: &Report) -> String {
    let failed: Vec<&Cell> = report.failed().collect();
    if failed.is_empty() {
        return String::new();
    }
    let mut text = "\n## Failed\n\n".to_owned();
    for cell in failed.iter().take(MOST_REASONS) {
        text.push_str(&format!(
            "- **{}** `{}`{}: {}\n\n      {}\n\n",
            cell.status,
            cell.id,
            whence(report, cell),
            reason(&cell.reason),
            one_line(&cell.rerun)
        ));
    }
    text.push_str(&left_out(failed.len(), MOST_REASONS));
    text
}

/// Cells that a second worker computed.
fn retried(report: &Report) -> String {
    let lines = report.retried().map(|(cell, how)| format!("- `{}`: {}\n", cell.id, reason(how)));
    list("Computed on the second try", lines.collect())
}

/// Cells that passed with something to be said or did as the gate declares, what else the gate says, and why cells lack
/// the oracle.
fn notes(report: &Report) -> String {
    let noted = report.noted().chain(report.expected());
    let noted = noted.map(|cell| format!("- `{}`: {}\n", cell.id, reason(&cell.reason)));
    let gate = report.gate.iter().flat_map(GateUse::notes);
    let gate = gate.map(|note| format!("- gate: {}\n", reason(&note)));
    let without = report.without_oracle().into_iter();
    let without = without.map(|(why, n)| format!("- {n} cells without the oracle: {}\n", escape(why)));
    // What concerns the whole run comes first, so that a long list does not drop it.
    list("Notes", gate.chain(without).chain(noted).collect())
}

/// What dense samplers say, and what they cost.
fn samplers(report: &Report) -> String {
    let told = |cell: &Cell| {
        let found = sampler::of(cell)?;
        Some(format!("- `{}`: {}\n", cell.id, reason(&sampler::parts(found).join("; "))))
    };
    list("Samplers", report.cells.iter().filter_map(told).collect())
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
    let head = "| cell | what | figure | held to | |\n| --- | --- | --: | --- | --- |\n";
    let more = left_out(lines.len(), MOST);
    lines.truncate(MOST);
    folded("Each device against itself", &format!("{head}{}{more}", lines.concat()))
}

/// Which run of a merged report a cell is of.
fn whence(report: &Report, cell: &Cell) -> String {
    report.part_of(&cell.id).map_or_else(String::new, |part| format!(" in {}", escape(&part.run.name)))
}

/// The runs of a merged report.
fn parts(report: &Report) -> String {
    let line = |part: &Part| {
        let shard = part.shard.map(|shard| format!(", shard {shard}")).unwrap_or_default();
        let (run, environment) = (&part.run, &part.environment);
        let host = [&environment.os, &environment.arch].map(String::as_str).join(" ");
        let cpu = environment.cpu.as_ref().map(|cpu| format!(", {cpu}")).unwrap_or_default();
        let (name, host) = (escape(&run.name), escape(&format!("{host}{cpu}")));
        format!("- run {name}{shard}: {} cells, {}, {host}\n", part.cells.len(), escape(&run.started))
    };
    report.parts.iter().map(line).collect()
}

/// Where the divergence of cells with several steps begins, and how it grows.
fn steps(report: &Report) -> String {
    let mut lines = Vec::new();
    for cell in &report.cells {
        let Some(steps) = cell.metrics.as_ref().and_then(|metrics| metrics.steps.as_ref()) else { continue };
        let begins = steps.first_bad.map_or_else(
            || NONE.to_owned(),
            |bad| match bad.cache {
                Some(found) => format!("{}, {}.{}", bad.step, found.cache, found.layer),
                None => bad.step.to_string(),
            },
        );
        let worst = steps.worst_kv().map_or_else(
            || NONE.to_owned(),
            |(step, kv)| {
                let found = kv.worst;
                format!("{} in {}.{} at {step}", scientific(found.nmse), found.cache, found.layer)
            },
        );
        let told = steps.list.iter().filter(|step| step.kv.is_some()).count();
        let caches = |step: &StepNmse| step.kv.map(|kv| kv.worst.nmse);
        let fields = [
            cell.id.to_string(),
            steps.list.len().to_string(),
            begins,
            course(steps.list.iter().filter_map(|step| step.nmse)),
            course(steps.list.iter().filter_map(caches)),
            worst,
            told.to_string(),
        ];
        lines.push(format!("| {} |\n", fields.map(|field| escape(&field)).join(" | ")));
    }
    if lines.is_empty() {
        return String::new();
    }
    let head = "| cell | steps | over a limit from | logits NMSE | K/V NMSE, worst layer | worst cache | steps with K/V |\n\
        | --- | --: | --- | --- | --- | --- | --: |\n";
    let more = left_out(lines.len(), MOST);
    lines.truncate(MOST);
    folded("Step by step", &format!("{head}{}{more}", lines.concat()))
}

/// Figures of up to five steps, evenly spread from the first to the last.
fn course(figures: impl Iterator<Item = f64>) -> String {
    const POINTS: usize = 5;
    let all: Vec<f64> = figures.collect();
    let shown: Vec<String> = match all.len() {
        0 => vec![NONE.to_owned()],
        n if n <= POINTS => all.into_iter().map(scientific).collect(),
        n => (0..POINTS).map(|i| scientific(all[i * (n - 1) / (POINTS - 1)])).collect(),
    };
    shown.join(" → ")
}

/// Builds, devices and the host.
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
    for (name, value) in &environment.switches {
        text.push_str(&format!("- switch {}\n", escape(&format!("{name}={value}"))));
    }
    let host = environment.cpu.as_ref().map(|cpu| format!(", {}", escape(cpu))).unwrap_or_default();
    text.push_str(&format!("- host: {} {}{host}\n", environment.os, environment.arch));
    text.push_str(&format!("- ggml-parity {}\n", escape(&report.run.version)));
    text.push_str(&parts(report));
    folded("Environment", &text)
}

/// A list that is folded away; nothing where it is empty.
fn list(title: &str, mut lines: Vec<String>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let more = left_out(lines.len(), MOST);
    lines.truncate(MOST);
    folded(title, &format!("{}{more}", lines.concat()))
}

fn folded(title: &str, text: &str) -> String {
    format!("\n<details><summary>{title}</summary>\n\n{text}\n</details>\n")
}

fn table_line(fields: [String; COLUMNS]) -> String {
    format!("| {} |\n", fields.join(" | "))
}

/// A note on what a table or a list leaves out.
fn left_out(count: usize, most: usize) -> String {
    match count.checked_sub(most) {
        None | Some(0) => String::new(),
        Some(more) => format!("\n{more} more are in `cells.csv`.\n"),
    }
}

/// A reason of a length that people read.
fn reason(text: &str) -> String {
    escape(&shortened(text, LONGEST))
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
