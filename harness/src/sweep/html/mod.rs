//! `index.html` of a sweep: what differs, charts with a row for each arm, tables, and the answers of all arms side by
//! side. One file that needs no network, under the same policy as the page of a run. All but the answers can be read
//! without JavaScript; these lie in the page as data, each answer once, and are drawn as they are asked for, so that
//! hundreds of items on dozens of arms stay quick.

mod answers;
mod axis;
mod plots;
mod rows;
mod tables;

use super::answers::labels;
use super::result::{PairSummary, RowStatus, Summary, Sweep};
use super::summary::ALPHA;
use crate::report::html::shell::{self, COPY, Page, command, footer};
use crate::report::html::{duration, environment};
use crate::verdict::ExitCode;
use maud::{Markup, html};
use std::collections::{BTreeMap, BTreeSet};

const SCRIPT: &str = include_str!("sweep.js");
const OWN: &str = include_str!("sweep.css");

/// The files that lie beside the page.
const BESIDE: [&str; 4] = ["sweep.json", "items.csv", "arms.csv", "summary.md"];

/// A sweep and the names of its arms.
struct View<'a> {
    sweep: &'a Sweep,
    /// By the places of the arms.
    labels: Vec<String>,
}

impl View<'_> {
    /// The name of an arm.
    fn label(&self, id: &crate::plan::CellId) -> String {
        let place = self.sweep.arms.iter().position(|arm| arm.id == *id);
        place.map_or_else(|| id.to_string(), |place| self.labels[place].clone())
    }

    /// Whether others are held against an arm.
    fn is_reference(&self, id: &crate::plan::CellId) -> bool {
        self.sweep.arms.iter().any(|arm| arm.pairings.iter().any(|pairing| pairing.reference == *id))
    }

    /// The summaries over all items, or over those of a tag.
    fn summaries(&self, tag: Option<&str>) -> impl Iterator<Item = &Summary> {
        self.sweep.summaries.iter().filter(move |summary| summary.tag.as_deref() == tag)
    }

    /// The tags, in alphabetical order.
    fn tags(&self) -> Vec<&str> {
        let mut tags: Vec<&str> = self.sweep.summaries.iter().filter_map(|s| s.tag.as_deref()).collect();
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    /// The level of intervals in words: `95 %`.
    fn level(&self) -> String {
        format!("{} %", (self.sweep.settings.level * 1e4).round() / 100.0)
    }
}

/// Whether a difference is significant after correction; never where there is no p value.
fn significant(pair: &PairSummary) -> bool {
    pair.corrected_p.is_some_and(|p| p <= ALPHA)
}

/// The sweep as a page.
#[must_use]
pub fn page(sweep: &Sweep) -> String {
    let view = View { sweep, labels: labels(sweep) };
    let code = sweep.exit_code();
    let word = if code == ExitCode::Success { "done" } else { "FAIL" };
    let title = format!("{word} · {} · ggml-parity sweep", sweep.run.name);
    let body = html! {
        (header(&view, code))
        main #main {
            (differences(&view))
            (plots::render(&view))
            (tables::render(&view))
            (by_tag(&view))
            (answers::section(&view))
            (settings(&view))
            (environment::render(&sweep.environment))
        }
        (footer(&sweep.run.version, &BESIDE))
        (answers::data(&view))
    };
    shell::render(&Page {
        title: &title,
        version: &sweep.run.version,
        style: OWN,
        script: &[COPY, SCRIPT].concat(),
        skip: "Skip to what differs",
        body,
    })
}

fn header(view: &View<'_>, code: ExitCode) -> Markup {
    let sweep = view.sweep;
    let run = &sweep.run;
    let good = code == ExitCode::Success;
    let counted = RowStatus::ALL.iter().filter_map(|&status| {
        let count = sweep.rows.iter().filter(|row| row.status == status).count();
        (count > 0).then_some((status, count))
    });
    html! {
        header.top {
            p.product { "ggml-parity sweep" }
            h1 { (run.name) }
            div class=(if good { "verdict good" } else { "verdict bad" }) {
                p.word { (if good { "✓ Complete" } else { "✕ Fail" }) }
                p { "Exit code " strong { (code.code()) } ": " (sweep.verdict()) "." }
            }
            ul.counts {
                @for (status, count) in counted { li { (badge(status)) " " strong { (count) } } }
                li.all { (sweep.rows.len()) " rows: " (sweep.items.len()) " items on " (sweep.arms.len()) " arms" }
            }
            dl.run {
                div { dt { "Started" } dd { time datetime=(run.started) { (run.started) } } }
                div { dt { "Took" } dd { (duration(run.seconds)) } }
                div { dt { "Host" } dd { (environment::host(&sweep.environment)) } }
                div { dt { "ggml" } dd { (environment::versions(&sweep.environment)) } }
                div { dt { "Corpora" } dd { (corpora(sweep)) } }
                div { dt { "Models" } dd { (models(sweep)) } }
            }
            (command("Command", &run.command))
        }
    }
}

fn corpora(sweep: &Sweep) -> String {
    let of = sweep.corpora.iter().map(|c| format!("{} ({} of {} items)", c.name, c.selected, c.items));
    of.collect::<Vec<_>>().join(", ")
}

fn models(sweep: &Sweep) -> String {
    let of = sweep.models.iter().map(|model| format!("{}/{}", model.name, model.weights));
    of.collect::<Vec<_>>().join(", ")
}

/// The status of rows with its sign, in its colour.
fn badge(status: RowStatus) -> Markup {
    let (class, sign) = match status {
        RowStatus::Done => ("s-pass", "✓"),
        RowStatus::Inapplicable | RowStatus::Unsupported => ("s-unsupported", "–"),
        RowStatus::Fallback => ("s-fallback", "↩"),
        RowStatus::Missing => ("s-missing", "∅"),
        RowStatus::Failed => ("s-diverged", "✕"),
        RowStatus::Crashed | RowStatus::Timeout | RowStatus::OutOfMemory => ("s-crashed", "!"),
    };
    html! { span class=(format!("badge {class}")) { span aria-hidden="true" { (sign) } " " (status) } }
}

/// What is significant, what is wrong, and what has no result.
fn differences(view: &View<'_>) -> Markup {
    let sweep = view.sweep;
    let found = |tag: Option<&str>| -> Vec<(String, &PairSummary)> {
        let pairs = view.summaries(tag).flat_map(|s| s.against.iter().map(move |pair| (&s.arm, pair)));
        pairs.filter(|(_, pair)| significant(pair)).map(|(arm, pair)| (view.label(arm), pair)).collect()
    };
    let all = found(None);
    let tagged: Vec<(&str, Vec<(String, &PairSummary)>)> = view
        .tags()
        .into_iter()
        .map(|tag| (tag, found(Some(tag))))
        .filter(|(_, found)| !found.is_empty())
        .collect();
    let lost = lost(view);
    html! {
        section #first aria-labelledby="first-title" {
            h2 #first-title { "What differs" }
            @if sweep.correction.all_items > 0 {
                @if all.is_empty() { p { "No arm answers significantly better or worse than what it is held against." } }
                @else { ol.first.plain-first { @for (arm, pair) in &all { (difference(view, arm, pair, None)) } } }
                @if !tagged.is_empty() {
                    h3 { "Among the items of a tag" }
                    ol.first.plain-first {
                        @for (tag, found) in &tagged { @for (arm, pair) in found { (difference(view, arm, pair, Some(*tag))) } }
                    }
                }
            }
            p.more { (sweep.correction.sentence) }
            @let faults = sweep.faults();
            @if !faults.is_empty() {
                h3 { "What is wrong with the sweep" }
                ul.notes { @for (code, fault) in &faults { li { (fault) " (exit " (code.code()) ")" } } }
            }
            @if !lost.is_empty() {
                h3 { "Without a result" }
                ul.notes {
                    @for ((status, reason), (count, arms)) in &lost {
                        li {
                            (badge(*status)) " " (count) " rows on "
                            @if arms.len() <= 3 { (arms.iter().map(String::as_str).collect::<Vec<_>>().join(", ")) } @else { (arms.len()) " arms" }
                            @if !reason.is_empty() { ": " (reason) }
                        }
                    }
                }
            }
            @if !sweep.left_out.is_empty() {
                h3 { "Left out" }
                ul.notes { @for what in &sweep.left_out { li { (what) } } }
            }
        }
    }
}

/// One significant difference.
fn difference(view: &View<'_>, arm: &str, pair: &PairSummary, tag: Option<&str>) -> Markup {
    let worse = pair.difference < 0.0;
    let counts = &pair.counts;
    html! {
        li class=(if worse { "worse" } else { "better" }) {
            p {
                strong { (arm) }
                " answers " (tables::points(pair.difference.abs())) " points " (if worse { "worse" } else { "better" }) " than "
                strong { (view.label(&pair.reference)) }
                @if let Some(tag) = tag { " among the items tagged " strong { (tag) } }
                "."
            }
            p.more {
                (view.level()) " interval " (tables::signed(pair.difference_interval.low)) " to " (tables::signed(pair.difference_interval.high))
                " points; of " (counts.items()) " items " (counts.lost) " lost and " (counts.gained) " gained; p "
                (pair.mcnemar.map_or_else(|| "–".to_owned(), |m| tables::p_value(m.p))) ", corrected "
                (pair.corrected_p.map_or_else(|| "–".to_owned(), tables::p_value))
            }
        }
    }
}

/// What rows without a result have in common: status and the beginning of the reason.
type Cause = (RowStatus, String);

/// How many rows each cause has, and on which arms.
fn lost(view: &View<'_>) -> BTreeMap<Cause, (usize, BTreeSet<String>)> {
    let mut lost: BTreeMap<Cause, (usize, BTreeSet<String>)> = BTreeMap::new();
    for row in view.sweep.rows.iter().filter(|row| row.status != RowStatus::Done) {
        let reason = crate::report::format::shortened(&row.reason, 160);
        let (count, arms) = lost.entry((row.status, reason)).or_default();
        *count += 1;
        arms.insert(view.label(&row.arm));
    }
    lost
}

/// The same charts and a table for the items of each tag.
fn by_tag(view: &View<'_>) -> Markup {
    let tags = view.tags();
    if tags.is_empty() {
        return html! {};
    }
    html! {
        section #tags aria-labelledby="tags-title" {
            h2 #tags-title { "By tag" }
            p.more { "An item with several tags counts in each. p values are corrected over all arms and tags together." }
            @for (i, tag) in tags.iter().enumerate() {
                details.cell {
                    summary { h3 { (tag) } span.worst { (view.summaries(Some(tag)).next().map_or(0, |s| s.items)) " items" } }
                    div.body { (plots::of_tag(view, i, tag)) (tables::of_tag(view, tag)) }
                }
            }
        }
    }
}

/// What decided prompts, lengths and statistics.
fn settings(view: &View<'_>) -> Markup {
    let s = &view.sweep.settings;
    let optional = |value: Option<u64>| {
        value.map_or_else(|| "as the item or the model says".to_owned(), |v| v.to_string())
    };
    let tags = if s.tags.is_empty() { "all".to_owned() } else { s.tags.join(", ") };
    let rows: [(&str, String); 11] = [
        ("tags", tags),
        ("items of each corpus at most", s.limit.map_or_else(|| "all".to_owned(), |v| v.to_string())),
        ("chat template", s.chat.to_string()),
        ("new tokens at most", optional(s.max_tokens)),
        ("steps of a masked generation", optional(s.steps)),
        ("tokens of a window of scored text", format!("{}, {} apart", s.context, s.stride)),
        ("share that is masked when a masked model scores", s.mask_share.to_string()),
        ("CPU threads", s.threads.to_string()),
        ("level of intervals", view.level()),
        ("resamples of bootstrap intervals", s.resamples.to_string()),
        ("seed", s.seed.to_string()),
    ];
    html! {
        section #settings aria-labelledby="settings-title" {
            h2 #settings-title { "Settings" }
            dl.run { @for (name, value) in rows { div { dt { (name) } dd { (value) } } } }
        }
    }
}

#[cfg(test)]
pub(in crate::sweep) mod sample;
#[cfg(test)]
mod tests;
