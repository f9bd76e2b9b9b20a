//! `index.html`: the report for people, one file that needs no network. Everything can be read without JavaScript; the
//! script adds filters, an order and buttons to copy. A content security policy allows this style and this script and
//! nothing else, whatever a model's name or a worker's last words may hold.

mod cell;
pub(crate) mod curves;
pub(crate) mod environment;
mod figures;
mod first;
mod matrix;
mod placement;
pub(crate) mod shell;
mod tokens;

use super::Report;
use crate::gate::GateUse;
use crate::verdict::{ExitCode, Status};
use maud::{Markup, html};
use shell::{Page, command, footer};

const SCRIPT: &str = concat!(include_str!("copy.js"), include_str!("script.js"));

/// The report as a page.
pub fn render(report: &Report) -> String {
    let code = report.exit_code();
    let title = format!(
        "{} · {} · ggml-parity",
        if code == ExitCode::Success { "pass" } else { "FAIL" },
        report.run.name
    );
    let order = first::worst_first(report);
    let body = html! {
        (header(report, code))
        main #main {
            (first::render(report, &order))
            (matrix::render(report))
            (cell::list(report, &order))
            (notes(report))
            (environment::render(&report.environment))
        }
        (footer(&report.run.version, &["report.json", "cells.csv", "tensors.csv", "junit.xml", "summary.md"]))
    };
    shell::render(&Page {
        title: &title,
        version: &report.run.version,
        style: "",
        script: SCRIPT,
        skip: "Skip to the findings",
        body,
    })
}

fn header(report: &Report, code: ExitCode) -> Markup {
    let good = code == ExitCode::Success;
    let run = &report.run;
    let counted = Status::ALL.iter().filter_map(|&status| {
        let count = report.cells.iter().filter(|cell| cell.status == status).count();
        (count > 0).then_some((status, count))
    });
    html! {
        header.top {
            p.product { "ggml-parity" }
            h1 { (run.name) }
            div class=(if good { "verdict good" } else { "verdict bad" }) {
                p.word { (if good { "✓ Pass" } else { "✕ Fail" }) }
                p { "Exit code " strong { (code.code()) } ": " (code.meaning()) "." }
            }
            ul.counts {
                @for (status, count) in counted {
                    li { (badge(status)) " " strong { (count) } }
                }
                li.all { (report.cells.len()) " cells in all" }
            }
            dl.run {
                div { dt { "Started" } dd { time datetime=(run.started) { (run.started) } } }
                div { dt { "Took" } dd { (duration(run.seconds)) } }
                div { dt { "Host" } dd { (environment::host(&report.environment)) } }
                div { dt { "ggml" } dd { (environment::versions(&report.environment)) } }
            }
            (command("Command", &run.command))
        }
    }
}

/// What passed with something to be said or did as the gate declares, what was computed on a second try, what had no
/// oracle, and what else the gate says.
fn notes(report: &Report) -> Markup {
    let place = |id: &crate::plan::CellId| report.cells.iter().position(|cell| cell.id == *id).unwrap_or(0);
    let noted: Vec<_> = report.noted().collect();
    let retried: Vec<_> = report.retried().collect();
    let without = report.without_oracle();
    let gate: Vec<String> = report.gate.iter().flat_map(GateUse::notes).collect();
    let expected: Vec<_> = report.expected().collect();
    if [noted.len(), retried.len(), without.len(), gate.len(), expected.len()] == [0; 5] {
        return html! {};
    }
    html! {
        section #notes aria-labelledby="notes-title" {
            h2 #notes-title { "Notes" }
            ul.notes {
                @for note in gate {
                    li { "Gate: " (note) }
                }
                @for cell in noted.into_iter().chain(expected) {
                    li { a href=(format!("#c{}", place(&cell.id))) { (cell.id) } ": " (cell.reason) }
                }
                @for (cell, how) in retried {
                    li {
                        a href=(format!("#c{}", place(&cell.id))) { (cell.id) }
                        " was computed on the second try: " (how)
                    }
                }
                @for (reason, cells) in without {
                    li { (cells) " cells without the oracle: " (reason) }
                }
            }
        }
    }
}

/// A status with its sign, in its colour: none of the three alone.
pub(crate) fn badge(status: Status) -> Markup {
    html! { span class=(format!("badge s-{status}")) { span aria-hidden="true" { (sign(status)) } " " (status) } }
}

/// A sign for people who do not see the colour.
fn sign(status: Status) -> &'static str {
    match status {
        Status::Pass => "✓",
        Status::Expected => "≈",
        Status::Diverged => "✕",
        Status::UnexpectedPass => "?",
        Status::Unsupported => "–",
        Status::Fallback => "↩",
        Status::Crashed | Status::Timeout | Status::OutOfMemory => "!",
        Status::Missing => "∅",
    }
}

/// How many times a limit: `0.03×`, `250×`, `1e6×`, `∞×`.
fn times(ratio: f64) -> String {
    match ratio {
        r if r.is_infinite() => "∞×".to_owned(),
        0.0 => "0×".to_owned(),
        r if r < 0.001 => "<0.001×".to_owned(),
        // What is beyond a limit must not read like the limit, nor what is within it.
        r if r > 1.0 && r < 1.01 => "1.01×".to_owned(),
        r if r < 0.1 => format!("{r:.3}×"),
        r if r < 1.0 => format!("{:.2}×", (r * 100.0).floor() / 100.0),
        r if r < 10.0 => format!("{r:.2}×"),
        r if r < 1e4 => format!("{r:.0}×"),
        r => format!("{r:.0e}×"),
    }
}

/// Seconds as people write them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if !(s >= 0.0) => "?".to_owned(),
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{} min {:.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

/// Bytes as people write them.
fn bytes(count: u64) -> String {
    let count = count as f64;
    match count {
        n if n < 1024.0 => format!("{n} B"),
        n if n < 1024.0 * 1024.0 => format!("{:.1} KiB", n / 1024.0),
        n if n < 1024.0 * 1024.0 * 1024.0 => format!("{:.1} MiB", n / (1024.0 * 1024.0)),
        n => format!("{:.2} GiB", n / (1024.0 * 1024.0 * 1024.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_never_reads_as_if_it_were_on_the_other_side_of_one() {
        assert_eq!(
            [0.0, 1e-9, 0.0321, 0.9999, 1.0].map(times),
            ["0×", "<0.001×", "0.032×", "0.99×", "1.00×"]
        );
        assert_eq!([1.000_001, 2.5, 250.4, 1e6].map(times), ["1.01×", "2.50×", "250×", "1e6×"]);
        assert_eq!(times(f64::INFINITY), "∞×");
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(
            [0, 1023, 1536, 64 << 20, 3 << 30].map(bytes),
            ["0 B", "1023 B", "1.5 KiB", "64.0 MiB", "3.00 GiB"]
        );
        assert_eq!([0.25, 61.54, 125.0].map(duration), ["0.25 s", "61.5 s", "2 min 5 s"]);
        assert_eq!(duration(f64::NAN), "?");
    }
}
