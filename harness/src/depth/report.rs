//! The result of a depth sweep, and its JSON, CSV, Markdown and console text, all of one value.

use super::ranges::{Range, ranges};
use super::{Origin, Standing, page};
use crate::atomic;
use crate::plan::CellId;
use crate::report::{Cell, Environment, Run, csv as cells, scientific};
use crate::verdict::{ExitCode, exit_code};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::io;
use std::path::Path;

/// The schema of `depth.json` and of the journal.
pub const SCHEMA: &str = "ggml-parity.depth/1";

/// What one length gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Tokens of the prompt; for masked diffusion, of the sequence.
    pub length: u32,
    /// Why it was tried.
    pub origin: Origin,
    /// The cell, as `run` judges it.
    pub cell: Cell,
}

/// A depth sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The run.
    pub run: Run,
    /// Where it ran.
    pub environment: Environment,
    /// The cell, without a length.
    pub cell: CellId,
    /// The lengths that were tried first.
    pub grid: Vec<u32>,
    /// The lengths that were tried, in their order.
    pub points: Vec<Point>,
    /// What is known of ranges of them.
    pub ranges: Vec<Range>,
    /// The search was ended at so many lengths, before it was at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<usize>,
}

/// The figures of a length that tables and curves show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) logits: Option<f64>,
    pub(super) logits_limit: Option<f64>,
    pub(super) k: Option<f64>,
    pub(super) v: Option<f64>,
    pub(super) kv_limit: Option<f64>,
    pub(super) ties: Option<u64>,
    pub(super) real: Option<u64>,
    pub(super) rows: Option<u64>,
    pub(super) oracle: Option<[f64; 2]>,
}

impl Point {
    /// How it stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.cell.status.into()
    }

    pub(super) fn figures(&self) -> Figures {
        let (metrics, limits) = (self.cell.metrics.as_ref(), self.cell.limits.as_ref());
        // What was stored in fewer bits is a step; what was given to be stored tells more, and both are judged.
        let kv = metrics.and_then(|m| m.kv.as_ref());
        Figures {
            logits: metrics.map(|m| m.logits.overall),
            logits_limit: limits.map(|l| l.logits_nmse.limit),
            k: kv.map(|kv| kv.worst_of(crate::capture::Cache::K).1),
            v: kv.map(|kv| kv.worst_of(crate::capture::Cache::V).1),
            kv_limit: limits.and_then(|l| l.kv_nmse.as_ref()).map(|bound| bound.limit),
            ties: metrics.map(|m| m.top_token.ties),
            real: metrics.map(|m| m.top_token.real),
            rows: metrics.map(|m| m.top_token.rows),
            oracle: self.cell.attribution.as_ref().map(|a| [a.reference_nmse, a.device_nmse]),
        }
    }
}

/// The headings of a length's row.
pub(super) const HEADINGS: [&str; 9] =
    ["length", "why", "status", "logits NMSE", "limit", "K NMSE", "V NMSE", "mismatches", "oracle ref/dev"];

impl DepthReport {
    /// A report of this version's form; `points` in any order.
    #[must_use]
    pub fn new(
        run: Run,
        environment: Environment,
        cell: CellId,
        grid: Vec<u32>,
        mut points: Vec<Point>,
        ended_at: Option<usize>,
    ) -> Self {
        points.sort_by_key(|point| point.length);
        let standings: Vec<_> = points.iter().map(|point| (point.length, point.standing())).collect();
        let ranges = ranges(&standings);
        Self { schema: SCHEMA.to_owned(), run, environment, cell, grid, points, ranges, ended_at }
    }

    /// By the table of exit codes, over all lengths that were tried.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        exit_code(self.points.iter().map(|point| point.cell.outcome()))
    }

    /// The ranges that are not good.
    pub fn faults(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter().filter(|range| range.standing != Standing::Good)
    }

    /// How many lengths were tried, and what that says.
    #[must_use]
    pub fn summary(&self) -> String {
        let of = |standing| self.points.iter().filter(|point| point.standing() == standing).count();
        let counts: Vec<String> = Standing::ALL
            .iter()
            .map(|&standing| (of(standing), standing))
            .filter(|(count, _)| *count > 0)
            .map(|(count, standing)| format!("{count} {standing}"))
            .collect();
        let (first, last) = (self.points.first(), self.points.last());
        let ends =
            first.zip(last).map_or_else(String::new, |(a, b)| format!(" from {} to {}", a.length, b.length));
        let code = self.exit_code();
        let counts = if counts.is_empty() { "nothing compared".to_owned() } else { counts.join(", ") };
        format!("{} lengths{ends}: {counts}; exit {} ({})", self.points.len(), code.code(), code.meaning())
    }

    /// What is known, a sentence each: what is not good first, or that nothing was found.
    #[must_use]
    pub fn known(&self) -> Vec<String> {
        let mut said: Vec<String> = self.faults().map(Range::sentence).collect();
        if said.is_empty() {
            said.extend(self.ranges.iter().map(Range::sentence));
        }
        if let Some(most) = self.ended_at {
            said.push(format!("the search was ended at {most} lengths, before it was at its end (--most)"));
        }
        said
    }

    /// For the console.
    #[must_use]
    pub fn text(&self) -> String {
        let rows: Vec<[String; 9]> =
            std::iter::once(HEADINGS.map(str::to_owned)).chain(self.points.iter().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let mut text = format!("{}\n", self.cell);
        for row in &rows {
            let mut line = String::new();
            for (column, value) in row.iter().enumerate() {
                let fill = " ".repeat(width(column) - value.chars().count());
                line += &if column == 0 { format!("{fill}{value}") } else { format!("  {value}{fill}") };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for sentence in self.known() {
            let _ = writeln!(text, "{sentence}");
        }
        text + &self.summary() + "\n"
    }

    /// For `depth.md`.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# `{}` by length\n\n{}.\n\n", self.cell, self.summary());
        for sentence in self.known() {
            let _ = writeln!(text, "- {sentence}");
        }
        let _ = write!(
            text,
            "\n| {} |\n| --: | --- | --- | --: | --: | --: | --: | --: | --: |\n",
            HEADINGS.join(" | ")
        );
        for point in &self.points {
            let _ = writeln!(text, "| {} |", row(point).join(" | "));
        }
        let reasons = self.points.iter().filter(|point| !point.cell.reason.is_empty());
        for (i, point) in reasons.enumerate() {
            let head = if i == 0 { "\n## Reasons\n\n" } else { "" };
            let reason = crate::report::format::one_line(&point.cell.reason);
            let _ = write!(text, "{head}- {}: {reason}\n\n      {}\n", point.length, point.cell.rerun);
        }
        text
    }

    /// For `depth.csv`: length, why and standing, then what `cells.csv` has of the cell.
    #[must_use]
    pub fn csv(&self) -> String {
        let own = ["length", "why", "standing"].map(str::to_owned);
        let heading = own.into_iter().chain(cells::headings()).collect();
        let rows = self.points.iter().map(|point| {
            let own = [point.length.to_string(), point.origin.to_string(), point.standing().to_string()];
            own.into_iter().chain(cells::values(&point.cell)).collect()
        });
        cells::table(heading, rows)
    }

    /// For `depth.json`.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("reports are plain data") + "\n"
    }

    /// Writes `depth.json`, `depth.csv`, `depth.md` and `index.html` into `folder`, each whole or not at all.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let files = [
            ("depth.json", self.json()),
            ("depth.csv", self.csv()),
            ("depth.md", self.markdown()),
            (crate::report::INDEX, page::render(self)),
        ];
        for (name, text) in files {
            atomic::write_with(&folder.join(name), |path| std::fs::write(path, &text))?;
        }
        Ok(())
    }
}

/// One length under [`HEADINGS`].
pub(super) fn row(point: &Point) -> [String; 9] {
    let figures = point.figures();
    let number = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), scientific);
    let mismatches = figures.real.zip(figures.ties).zip(figures.rows);
    [
        point.length.to_string(),
        point.origin.to_string(),
        point.cell.status.to_string(),
        number(figures.logits),
        number(figures.logits_limit),
        number(figures.k),
        number(figures.v),
        mismatches.map_or_else(
            || "-".to_owned(),
            |((real, ties), rows)| format!("{real} real, {ties} ties of {rows}"),
        ),
        figures
            .oracle
            .map_or_else(|| "-".to_owned(), |[r, d]| format!("{}/{}", scientific(r), scientific(d))),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::fixtures::{diverged, passed};
    use crate::verdict::{Status, Verdict};

    /// A sweep that found lengths 33 to 40 wrong, and one at which the worker died.
    pub(in crate::depth) fn sweep() -> DepthReport {
        let id: CellId = "gen-llama/f32/prefill?attn=flash&kv=f16@npm-3.10.0:Vulkan0".parse().unwrap();
        let point = |length: u32, origin, mut cell: Cell| {
            cell.rerun = format!("ggml-parity run --cell '{length}'");
            cell.reason = crate::report::format::one_line(&cell.reason);
            Point { length, origin, cell }
        };
        let mut lost = passed();
        lost.set_verdict(Verdict::new(Status::Crashed, "signal 11 (SIGSEGV) | <last> words"));
        lost.metrics = None;
        lost.attribution = None;
        let points = vec![
            point(64, Origin::Grid, passed()),
            point(1, Origin::Grid, passed()),
            point(32, Origin::Grid, passed()),
            point(33, Origin::Grid, diverged()),
            point(40, Origin::Bisection, diverged()),
            point(41, Origin::Bisection, passed()),
            point(56, Origin::Look, lost),
        ];
        let run = Run {
            name: "depth-1".to_owned(),
            started: "2026-01-01T00:00:00Z".to_owned(),
            seconds: 12.5,
            command: "ggml-parity depth".to_owned(),
            version: "0.1.0".to_owned(),
            ..Run::default()
        };
        DepthReport::new(run, Environment::default(), id, vec![1, 32, 33, 64], points, Some(7))
    }

    #[test]
    fn the_console_and_markdown() {
        insta::assert_snapshot!("depth_console", sweep().text());
        insta::assert_snapshot!("depth_markdown", sweep().markdown());
    }

    #[test]
    fn the_json_is_read_back_and_the_csv_has_every_length() {
        let sweep = sweep();
        let read: DepthReport = serde_json::from_str(&sweep.json()).unwrap();
        assert_eq!(read.markdown(), sweep.markdown(), "figures that are not finite come back too");
        let csv = sweep.csv();
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        assert_eq!(
            reader.headers().unwrap().iter().take(4).collect::<Vec<_>>(),
            ["length", "why", "standing", "id"]
        );
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        let lengths: Vec<&str> = rows.iter().map(|row| &row[0]).collect();
        assert_eq!(lengths, ["1", "32", "33", "40", "41", "56", "64"]);
        assert_eq!(&rows[2][2], "bad");
    }

    #[test]
    fn the_exit_code_is_of_all_lengths() {
        let mut sweep = sweep();
        assert_eq!(sweep.exit_code(), ExitCode::Worker);
        sweep.points.retain(|point| point.standing() != Standing::Lost);
        assert_eq!(sweep.exit_code(), ExitCode::Diverged);
        sweep.points.retain(|point| point.standing() == Standing::Good);
        assert_eq!(sweep.exit_code(), ExitCode::Success);
        sweep.points.clear();
        assert_eq!(sweep.exit_code(), ExitCode::Incomplete, "nothing compared is not success");
    }
}
