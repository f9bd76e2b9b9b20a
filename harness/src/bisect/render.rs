//! What people read of a bisection: the console, `bisect.md`, `index.html` and `plot.svg`, all of one record.

use super::plot::{Plot, Point};
use super::record::{Bisection, Finding, Judged};
use super::search::Outcome;
use super::trial::Change;
use crate::atomic;
use crate::report::format::one_line;
use crate::report::html::shell::{self, COPY, Page, command};
use crate::report::scientific;
use maud::{Markup, html};
use std::path::Path;

/// What the page needs beside the reports' style: charts as wide as there are places.
const WIDE: &str = ".chart.broad { max-width: 100%; overflow-x: auto; }\n.chart.broad > svg { width: auto; max-width: none; }\n\
    .chart .place { font-size: 11px; }\n.o-good { background: var(--good); color: var(--good-ink); }\n\
    .o-bad { background: var(--bad); color: var(--bad-ink); }\n.o-skip { background: var(--none); color: var(--none-ink); }\n";

impl Bisection {
    /// Writes `bisect.json`, `bisect.md`, `plot.svg` and `index.html` into `folder`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        let json = serde_json::to_string_pretty(self).expect("records are plain data") + "\n";
        let files = [
            ("bisect.json", json),
            ("bisect.md", self.markdown()),
            ("plot.svg", self.plot().file()),
            ("index.html", self.page()),
        ];
        for (name, text) in files {
            atomic::write_with(&folder.join(name), |path| std::fs::write(path, &text))?;
        }
        Ok(())
    }

    /// The figure over the places.
    #[must_use]
    pub fn plot(&self) -> Plot<'_> {
        let point =
            |judged: &&Judged| Point { place: judged.place, value: judged.figure, outcome: judged.outcome };
        let limits: Vec<f64> = self.trials.iter().filter_map(|judged| judged.trial.limit).collect();
        // Limits of the verdict are drawn where all trials had the same one.
        let common = limits.first().copied().filter(|first| limits.iter().all(|limit| limit == first));
        let shown = self.what == "logits NMSE";
        Plot {
            id: "figure",
            title: format!("{} of {}", self.what, self.subject),
            places: &self.places,
            points: self.in_order().iter().map(point).collect(),
            limit: self.limit.or(common.filter(|_| shown)),
        }
    }

    /// For the console.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n  {}\n", self.subject, self.sentence(), self.effort());
        for moved in self.moved() {
            text.push_str(&format!(
                "  placement: {} on {}: {} nodes, {} before\n",
                moved.op, moved.backend, moved.after, moved.before
            ));
        }
        let scanned = matches!(self.finding, Finding::Scanned { .. });
        for (judged, change) in self.steps().filter(|_| scanned) {
            text.push_str(&format!("  {}: {}\n", judged.trial.label, changed(change)));
        }
        if let Some(rerun) = self.rerun() {
            text.push_str(&format!("  again: {rerun}\n"));
        }
        text
    }

    /// The command that runs the cell on the first bad build.
    #[must_use]
    pub fn rerun(&self) -> Option<&str> {
        let (_, first_bad) = self.change()?;
        self.at(first_bad)?.trial.rerun.as_deref()
    }

    /// For `bisect.md`.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# Bisection of `{}`\n\n{}.\n\n", self.subject, escape(&self.sentence()));
        text.push_str(&format!(
            "Question: `{}`. Range: {}, {} places from {} to {}. {}.\n\n",
            self.until,
            self.range,
            self.places.len(),
            self.places[0],
            self.places[self.places.len() - 1],
            self.effort()
        ));
        text.push_str(&format!("![{} over the places](plot.svg)\n\n", self.what));
        text.push_str(&format!("    {}\n\n", self.command));
        if let Some(rerun) = self.rerun() {
            text.push_str(&format!("The first bad one alone:\n\n    {rerun}\n\n"));
        }
        let moved = self.moved();
        if !moved.is_empty() {
            text.push_str(
                "## Placement\n\n| backend | op | nodes before | after |\n| --- | --- | --: | --: |\n",
            );
            for moved in moved {
                text.push_str(&format!(
                    "| {} | {} | {} | {} |\n",
                    moved.backend, moved.op, moved.before, moved.after
                ));
            }
            text.push('\n');
        }
        text.push_str(
            "## Trials\n\n| place | ggml | outcome | logits NMSE | K/V NMSE | oracle | from the build before | seconds | why |\n\
             | --- | --- | --- | --: | --: | --: | --- | --: | --- |\n",
        );
        for judged in self.in_order() {
            let trial = &judged.trial;
            let ggml = if trial.build.is_some() { trial.ggml() } else { "-".to_owned() };
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} | {} | {} | {:.1} | {} |\n",
                trial.label,
                ggml,
                judged.outcome.name(),
                number(trial.logits_nmse),
                number(trial.kv_nmse),
                number(trial.oracle_nmse),
                trial.against_previous.as_ref().map_or_else(|| "-".to_owned(), from_before),
                trial.seconds,
                escape(&brief(&judged.why)),
            ));
        }
        text
    }

    /// For `index.html`.
    #[must_use]
    pub fn page(&self) -> String {
        let bad = self.trials.iter().any(|judged| judged.outcome == Outcome::Bad);
        let (word, found) = match &self.finding {
            Finding::Found { .. } => ("Found", true),
            Finding::Scanned { .. } => ("Scanned", !bad),
            _ => ("Not found", false),
        };
        let body = html! {
                    header.top {
                        p.product { "ggml-parity bisect" }
                        h1 { (self.subject) }
                        div class=(if found { "verdict good" } else { "verdict bad" }) {
                            p.word { (word) }
                            p { (self.sentence()) "." }
                        }
                        dl.run {
                            div { dt { "Question" } dd { code { (self.until) } } }
                            div { dt { "Range" } dd { (self.range) ", " (self.places.len()) " places" } }
                            div { dt { "Trials" } dd { (self.effort()) } }
                            div { dt { "Model" } dd { code { (self.model_sha256.chars().take(16).collect::<String>()) } } }
                        }
                        (command("Command", &self.command))
                        @if let Some(rerun) = self.rerun() {
                            (command("First bad one alone", rerun))
                        }
                    }
                    main #main {
                        section aria-labelledby="plot-title" {
                            h2 #plot-title { "Figure over the places" }
                            div.wide { (self.plot().figure()) }
                        }
                        (self.placement())
                        (self.trials())
                    }
        };
        let files = ["bisect.json", "bisect.md", "plot.svg", "trials.jsonl"];
        page(&format!("bisect {} · ggml-parity", self.subject), &self.version, &files, &body)
    }

    fn placement(&self) -> Markup {
        let Some((last_good, first_bad)) = self.change() else { return html! {} };
        let moved = self.moved();
        html! {
            section aria-labelledby="placement-title" {
                h2 #placement-title { "Placement" }
                @if moved.is_empty() {
                    p { "The same nodes ran on the same backends on " (self.places[last_good]) " and on " (self.places[first_bad]) ", as far as both ran." }
                } @else {
                    div.scroll tabindex="0" role="group" aria-label="Nodes that moved" {
                        table {
                            caption { "Compute nodes by backend, op and type" }
                            thead { tr { th { "Backend" } th { "Op" } th.n { (self.places[last_good]) } th.n { (self.places[first_bad]) } } }
                            tbody {
                                @for moved in &moved {
                                    tr { th scope="row" { (moved.backend) } td { (moved.op) } td.n { (moved.before) } td.n { (moved.after) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn trials(&self) -> Markup {
        html! {
            section aria-labelledby="trials-title" {
                h2 #trials-title { "Trials" }
                div.scroll tabindex="0" role="group" aria-label="Trials" {
                    table {
                        caption { "In the order of the places; the number says when a trial was made" }
                        thead {
                            tr {
                                th.n { "#" } th { "Place" } th { "ggml" } th { "Outcome" } th.n { "Logits NMSE" } th.n { "K/V NMSE" } th.n { "Oracle" }
                                th { "From the build before" } th.n { "Seconds" } th { "Why" }
                            }
                        }
                        tbody {
                            @for judged in self.in_order() {
                                @let trial = &judged.trial;
                                @let made = self.trials.iter().position(|other| other.place == judged.place).unwrap_or(0) + 1;
                                tr class=(if judged.outcome == Outcome::Bad { "over" } else { "" }) {
                                    td.n { (made) @if judged.known { "*" } }
                                    th scope="row" { (trial.label) @if !self.details[judged.place].is_empty() { br; span.places { (self.details[judged.place]) } } }
                                    td { @if trial.build.is_some() { (trial.ggml()) } @else { "-" } }
                                    td { span class=(format!("badge o-{}", judged.outcome.name())) { (judged.outcome.name()) } }
                                    td.n { (number(trial.logits_nmse)) }
                                    td.n { (number(trial.kv_nmse)) }
                                    td.n { (number(trial.oracle_nmse)) }
                                    td { @if let Some(change) = &trial.against_previous { (from_before(change)) } @else { "-" } }
                                    td.n { (format!("{:.1}", trial.seconds)) }
                                    td.why { (brief(&judged.why)) @if let Some(how) = &trial.retried { " (second try: " (brief(how)) ")" } }
                                }
                            }
                        }
                    }
                }
                @if self.trials.iter().any(|judged| judged.known) {
                    p.more { "* made by an earlier start of this search and taken from its journal" }
                }
            }
        }
    }
}

/// One trial on a line, as the console shows it while the search runs.
#[must_use]
pub(crate) fn line(judged: &Judged) -> String {
    let from = if judged.known { " (from the journal)" } else { "" };
    format!("{}: {} ({}){from}", judged.trial.label, judged.outcome.name(), brief(&judged.why))
}

/// How numbers changed, in words.
fn changed(change: &Change) -> String {
    format!("its numbers are not those of {}: {}", change.from, difference(change))
}

fn from_before(change: &Change) -> String {
    if change.is_none() { "the same".to_owned() } else { difference(change) }
}

pub(crate) fn difference(change: &Change) -> String {
    if let Some(why) = &change.why {
        return format!("went another way: {}", brief(why));
    }
    let mut words = format!("logits {}", number(change.nmse));
    if change.kv_nmse.is_some() {
        words.push_str(&format!(", K/V {}", number(change.kv_nmse)));
    }
    match (change.same_tokens, change.mismatches) {
        (Some(false), _) => words.push_str(", other tokens"),
        (_, 0) => {}
        (_, n) => words.push_str(&format!(", {n} top tokens")),
    }
    words
}

pub(crate) fn number(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), scientific)
}

/// A reason on one line that is not too long.
pub(crate) fn brief(text: &str) -> String {
    const MOST: usize = 240;
    let line = one_line(text);
    if line.chars().count() <= MOST { line } else { line.chars().take(MOST - 1).chain(['…']).collect() }
}

/// For a table of Markdown.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// A page in the reports' style; `files` lie beside it.
pub(crate) fn page(title: &str, version: &str, files: &[&str], body: &Markup) -> String {
    let body = html! { (body) (shell::footer(version, files)) };
    shell::render(&Page { title, version, style: WIDE, script: COPY, skip: "Skip to the findings", body })
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
