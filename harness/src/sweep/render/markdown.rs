//! `summary.md`: what was asked of whom, and what came out, over all items and by tag.

use super::table::{HEADINGS, Line, lines};
use crate::report::one_line;
use crate::sweep::result::{PairingKind, Row, RowStatus, Sweep};
use std::collections::BTreeSet;

/// Rows that are told one by one at most.
const TOLD: usize = 50;

/// The result as Markdown.
#[must_use]
pub fn render(sweep: &Sweep) -> String {
    let mut text = format!("# ggml-parity sweep: {}\n\n{}\n\n", sweep.run.name, sweep.verdict());
    for corpus in &sweep.corpora {
        let (name, selected, items) = (&corpus.name, corpus.selected, corpus.items);
        text.push_str(&format!("- corpus {name}: {selected} of {items} items, sha256 {}\n", &corpus.sha256));
    }
    if let Some(shard) = sweep.run.shard {
        text.push_str(&format!("- shard {shard}: {} of these items\n", sweep.items.len()));
    }
    for model in &sweep.models {
        let (name, weights, sha256) = (&model.name, &model.weights, &model.sha256);
        text.push_str(&format!("- model {name}, {weights}, {}, sha256 {sha256}\n", model.architecture));
    }
    for build in &sweep.environment.builds {
        let version = build.version.as_deref().unwrap_or("of unknown version");
        text.push_str(&format!("- build {}, ggml {version}\n", build.name));
    }
    text.push_str("\n| | arm | held against |\n|--:|---|---|\n");
    for (i, arm) in sweep.arms.iter().enumerate() {
        let held: Vec<String> = arm
            .pairings
            .iter()
            .map(|p| format!("{} ({})", super::table::number(sweep, &p.reference), p.kind))
            .collect();
        let held = if held.is_empty() { "-".to_owned() } else { held.join(", ") };
        text.push_str(&format!("| {} | `{}` | {held} |\n", i + 1, arm.id));
    }
    for line in &sweep.left_out {
        text.push_str(&format!("\nLeft out: {}\n", one_line(line)));
    }
    text.push_str("\n## All items\n\n");
    text.push_str(&table(&lines(sweep, None)));
    text.push_str(&format!("\n{}\n\n{}\n", sweep.correction.sentence, legend(sweep)));
    let tags: BTreeSet<&str> = sweep.summaries.iter().filter_map(|s| s.tag.as_deref()).collect();
    for tag in tags {
        text.push_str(&format!("\n## {tag}\n\n{}", table(&lines(sweep, Some(tag)))));
    }
    text.push_str(&others(sweep));
    text
}

/// What the columns mean.
fn legend(sweep: &Sweep) -> String {
    let mut text = format!(
        "Accuracies and same-token rates have Clopper-Pearson intervals, differences (percentage points, paired) Newcombe's, \
         perplexity ratios bootstrap intervals over texts ({} resamples, seed {}). KL is of the reference's distribution to \
         the arm's, in nats, row by row along the reference's own tokens.",
        sweep.settings.resamples, sweep.settings.seed
    );
    let kinds = sweep.arms.iter().flat_map(|arm| &arm.pairings).map(|pairing| pairing.kind);
    if kinds.into_iter().any(|kind| kind == PairingKind::Baseline) {
        text.push_str(
            " Parity is against the plain CPU in the same mode; baseline is against the arm that `--reference` names.",
        );
    }
    text
}

fn table(lines: &[Line]) -> String {
    let says = |column: &usize| *column == 0 || lines.iter().any(|line| line[*column] != "-");
    let columns: Vec<usize> = (0..HEADINGS.len()).filter(says).collect();
    let row = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = row(columns.iter().map(|&c| HEADINGS[c]).collect());
    text.push_str(&format!("|{}\n", "--:|".repeat(columns.len())));
    for line in lines {
        text.push_str(&row(columns.iter().map(|&c| line[c].as_str()).collect()));
    }
    text
}

/// Rows that are not done, and those that took a second try.
fn others(sweep: &Sweep) -> String {
    let red: Vec<&Row> = sweep.rows.iter().filter(|row| row.status != RowStatus::Done).collect();
    let retried: Vec<&Row> = sweep.rows.iter().filter(|row| row.retried.is_some()).collect();
    if red.is_empty() && retried.is_empty() {
        return String::new();
    }
    let mut text = "\n## Rows that are not done\n\n| item | arm | | why |\n|---|---|---|---|\n".to_owned();
    let mut tell = |row: &Row, status: &str, why: &str| {
        let why = one_line(why).replace('|', "\\|");
        text.push_str(&format!("| {} | `{}` | {status} | {why} |\n", row.item, row.arm));
    };
    for row in red.iter().take(TOLD) {
        tell(row, row.status.name(), &row.reason);
    }
    for row in retried.iter().take(TOLD) {
        tell(row, "second try", row.retried.as_deref().unwrap_or_default());
    }
    let left = red.len().saturating_sub(TOLD) + retried.len().saturating_sub(TOLD);
    if left > 0 {
        text.push_str(&format!("\n… and {left} more, in `items.csv`.\n"));
    }
    text
}
