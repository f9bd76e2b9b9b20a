//! `index.html` of a depth sweep: what is known of ranges, figures over length, and every length with its command.

use super::Standing;
use super::report::{DepthReport, HEADINGS, Point, row};
use crate::report::html::curves::{self, Chart, Series};
use crate::report::html::shell::{self, COPY, Page, command, footer};
use crate::report::html::{badge, duration, environment};
use crate::verdict::ExitCode;
use maud::{Markup, html};

/// What the page has beside the style of all pages: a wider chart, for its axis is long.
const OWN: &str = "\
.charts.lengths { grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); }
.charts.lengths .chart { max-width: 46rem; }
.ranges { list-style: none; padding: 0; display: grid; gap: .5rem; }
.ranges > li { background: var(--panel); border: 1px solid var(--line); border-left: 4px solid var(--line); border-radius: 8px; padding: .6rem 1rem; }
.ranges > li.bad, .ranges > li.lost { border-left-color: var(--bad-line); }
td .rerun { font-size: .8rem; }
";

/// The sweep as a page.
#[must_use]
pub fn render(report: &DepthReport) -> String {
    let code = report.exit_code();
    let word = if code == ExitCode::Success { "good" } else { "NOT GOOD" };
    let title = format!("{word} by length · {} · ggml-parity", report.run.name);
    let body = html! {
        (header(report, code))
        main #main {
            (ranges(report))
            (charts(report))
            (lengths(report))
            (environment::render(&report.environment))
        }
        (footer(&report.run.version, &["depth.json", "depth.csv", "depth.md"]))
    };
    shell::render(&Page {
        title: &title,
        version: &report.run.version,
        style: OWN,
        script: COPY,
        skip: "Skip to what is known",
        body,
    })
}

fn header(report: &DepthReport, code: ExitCode) -> Markup {
    let run = &report.run;
    html! {
        header.top {
            p.product { "ggml-parity depth" }
            h1 { (report.cell) }
            div class=(if code == ExitCode::Success { "verdict good" } else { "verdict bad" }) {
                p.word { (if code == ExitCode::Success { "✓ Good at every length tried" } else { "✕ Not good at every length" }) }
                p { (report.summary()) "." }
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

fn ranges(report: &DepthReport) -> Markup {
    html! {
        section #ranges aria-labelledby="ranges-title" {
            h2 #ranges-title { "What is known" }
            ul.ranges {
                @for range in &report.ranges {
                    li class=(range.standing) {
                        span aria-hidden="true" { (sign(range.standing)) " " }
                        @if range.standing == Standing::Good { (range.sentence()) } @else { strong { (range.sentence()) } }
                    }
                }
                @if let Some(most) = report.ended_at {
                    li.bad { "The search was ended at " (most) " lengths, before it was at its end." }
                }
            }
            p.more {
                "A length counts as known only where it was tried. Between neighbours whose verdict differs the gap was \
                 halved until they stood side by side; gaps of the grid beside such a change were looked into once."
            }
        }
    }
}

fn sign(standing: Standing) -> &'static str {
    match standing {
        Standing::Good => "✓",
        Standing::Bad => "✕",
        Standing::Lost => "!",
    }
}

fn charts(report: &DepthReport) -> Markup {
    type Figure = fn(&Point) -> (Option<f64>, Option<f64>);
    let series = |name: &'static str, figure: Figure| {
        let figures = report.points.iter().map(|point| (f64::from(point.length), figure(point)));
        let points = figures.clone().filter_map(|(length, (value, _))| Some((length, value?))).collect();
        Series { name, points, limit: figures.into_iter().find_map(|(_, (_, limit))| limit) }
    };
    let present = |series: Vec<Series>| -> Vec<Series> {
        series.into_iter().filter(|series| !series.points.is_empty()).collect()
    };
    let against = present(vec![
        series("logits", |p| (p.figures().logits, p.figures().logits_limit)),
        series("K", |p| (p.figures().k, p.figures().kv_limit)),
        series("V", |p| (p.figures().v, p.figures().kv_limit)),
    ]);
    let oracle = present(vec![
        series("reference", |p| (p.figures().oracle.map(|o| o[0]), p.figures().logits_limit)),
        series("device", |p| (p.figures().oracle.map(|o| o[1]), p.figures().logits_limit)),
    ]);
    let bad = report.points.iter().find_map(|point| {
        let value = point.figures().logits.filter(|_| point.standing() == Standing::Bad)?;
        Some((f64::from(point.length), value, format!("length {}", point.length)))
    });
    let chart = |id: &str, title: &str, series, bad| {
        curves::render(&Chart {
            id: id.to_owned(),
            title: title.to_owned(),
            axis: "length",
            series,
            bad,
            log: true,
            told: true,
        })
    };
    html! {
        section #figures aria-labelledby="figures-title" {
            h2 #figures-title { "Figures over length" }
            @if against.is_empty() && oracle.is_empty() {
                p { "No length has figures." }
            }
            div.charts.lengths {
                (chart("by-length", "NMSE against the reference; K and V of the worst layer", against, bad))
                (chart("by-length-oracle", "NMSE of logits against the f64 oracle", oracle, None))
            }
        }
    }
}

fn lengths(report: &DepthReport) -> Markup {
    html! {
        section #lengths aria-labelledby="lengths-title" {
            h2 #lengths-title { "Every length" }
            div.scroll.wide tabindex="0" role="group" aria-label="Every length that was tried" {
                table {
                    caption { "Every length that was tried, why, and what it gave" }
                    thead { tr { @for heading in HEADINGS { th scope="col" { (heading) } } th scope="col" { "reason and command" } } }
                    tbody { @for point in &report.points { (length(point)) } }
                }
            }
        }
    }
}

fn length(point: &Point) -> Markup {
    let [length, why, _, figures @ ..] = row(point);
    html! {
        tr class=[(point.standing() != Standing::Good).then_some("over")] id=(format!("n{length}")) {
            th.n scope="row" { (length) }
            td { (why) }
            td { (badge(point.cell.status)) }
            @for figure in figures { td.n { (figure) } }
            td.why {
                details {
                    summary { @if point.cell.reason.is_empty() { "run again" } @else { "reason, run again" } }
                    @if !point.cell.reason.is_empty() { p { (point.cell.reason) } }
                    code.rerun { (point.cell.rerun) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sweep;
    use super::*;

    #[test]
    fn the_page_tells_ranges_figures_and_commands() {
        let page = render(&sweep());
        assert!(page.contains("bad at 33 and 40; good at 32 and 41; not tried: 34..39"), "{page}");
        assert!(page.contains("id=\"by-length\"") && page.contains("first over: length 33"));
        assert!(page.contains("ggml-parity run --cell '56'") && page.contains("&lt;last&gt; words"));
        assert!(!page.contains("://"), "nothing is loaded from anywhere");
    }
}
