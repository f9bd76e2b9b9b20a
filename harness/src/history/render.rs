//! A series for people: a line of blocks and a table on the console, a page with a plot.

use super::drift::{Drift, by_build};
use super::store::{Key, Metric, Point};
use crate::bisect::{self, Outcome, Plot};
use crate::report::scientific;
use crate::verdict::Status;
use maud::{Markup, html};

/// One series and what was found in it.
pub struct Shown {
    /// What it is of.
    pub key: Key,
    /// Its points, in the order of time.
    pub points: Vec<Point>,
    /// Its drift, if there is one.
    pub drift: Option<Drift>,
}

/// Heights of blocks, from the lowest.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Values as a line of blocks on a logarithmic scale: `·` has no figure, `!` is not finite, 0 is the lowest block.
#[must_use]
pub fn sparkline(values: &[Option<f64>]) -> String {
    let logs = values.iter().flatten().filter(|v| v.is_finite() && **v > 0.0).map(|v| v.log10());
    let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    let block = |value: f64| {
        if !value.is_finite() {
            return '!';
        }
        if value <= 0.0 || !(high > low) {
            return BLOCKS[0];
        }
        let share = (value.log10() - low) / (high - low);
        BLOCKS[((share * 7.0).round() as usize).min(7)]
    };
    values.iter().map(|value| value.map_or('·', block)).collect()
}

/// What a drift says of itself.
#[must_use]
pub fn sentence(drift: &Drift, metric: Metric) -> String {
    let used =
        drift.used.map_or_else(String::new, |used| format!("; {:.0} % of the limit now", used * 100.0));
    format!(
        "drift: {} grew {:.1} times over {} builds from {} to {} (p {:.1e}){used}",
        metric.what(),
        drift.ratio,
        drift.builds,
        drift.from,
        drift.to,
        drift.p
    )
}

/// A series on the console: by run, and by build in one line.
#[must_use]
pub fn console(shown: &Shown, metric: Metric) -> String {
    let Key { case, device, machine } = &shown.key;
    let builds = by_build(&shown.points, metric);
    let values: Vec<Option<f64>> = builds.iter().map(|build| build.value).collect();
    let mut text = format!("{case}@{device} on {machine}\n  {} {}\n", metric.what(), sparkline(&values));
    if let Some(drift) = &shown.drift {
        text.push_str(&format!("  {}\n", sentence(drift, metric)));
    }
    let width = shown.points.iter().map(|point| point.build.len()).max().unwrap_or(0);
    for point in &shown.points {
        let (value, limit) = point.figure(metric);
        text.push_str(&format!(
            "  {} {:<width$} {:<12} {:>9} limit {}\n",
            point.started,
            point.build,
            point.status,
            number(value),
            number(limit)
        ));
    }
    text
}

/// All series as a page, over builds and over time.
#[must_use]
pub fn page(title: &str, all: &[Shown], metric: Metric) -> String {
    let body = html! {
        header.top {
            p.product { "ggml-parity history" }
            h1 { (title) }
            p { (metric.what()) " of past runs" }
        }
        main #main {
            @for (i, shown) in all.iter().enumerate() { (section(i, shown, metric)) }
        }
    };
    bisect::page(&format!("{title} · ggml-parity"), env!("CARGO_PKG_VERSION"), &[], &body)
}

fn section(index: usize, shown: &Shown, metric: Metric) -> Markup {
    let Key { case, device, machine } = &shown.key;
    let builds = by_build(&shown.points, metric);
    let build_names: Vec<String> = builds.iter().map(|build| build.build.clone()).collect();
    let run_names: Vec<String> = shown
        .points
        .iter()
        .map(|point| point.started.get(..16).unwrap_or(&point.started).to_owned())
        .collect();
    let outcome = |good: bool| if good { Outcome::Good } else { Outcome::Bad };
    let limits: Vec<f64> = builds.iter().filter_map(|build| build.limit).collect();
    let limit = limits.first().copied().filter(|first| limits.iter().all(|limit| limit == first));
    let over_builds = Plot {
        id: &format!("b{index}"),
        title: format!("{} by build, medians", metric.what()),
        places: &build_names,
        points: builds
            .iter()
            .enumerate()
            .map(|(place, b)| bisect::Point { place, value: b.value, outcome: outcome(b.good) })
            .collect(),
        limit,
    };
    let point = |(place, point): (usize, &Point)| bisect::Point {
        place,
        value: point.figure(metric).0,
        outcome: match point.status {
            Status::Unsupported | Status::Missing => Outcome::Skip,
            status => outcome(status.is_good()),
        },
    };
    let over_time = Plot {
        id: &format!("t{index}"),
        title: format!("{} by run", metric.what()),
        places: &run_names,
        points: shown.points.iter().enumerate().map(point).collect(),
        limit,
    };
    html! {
        section aria-labelledby=(format!("s{index}")) {
            h2 id=(format!("s{index}")) { (case) "@" (device) }
            p { (machine) }
            @if let Some(drift) = &shown.drift {
                div.verdict.bad { p.word { "Drift" } p { (sentence(drift, metric)) "." } }
            }
            div.wide { (over_builds.figure()) (over_time.figure()) }
            div.scroll tabindex="0" role="group" aria-label="Runs" {
                table {
                    thead { tr { th { "Run" } th { "Started" } th { "Build" } th { "ggml" } th { "Status" } th.n { (metric.what()) } th.n { "Limit" } } }
                    tbody {
                        @for point in &shown.points {
                            @let (value, limit) = point.figure(metric);
                            tr class=(if point.status.is_good() { "" } else { "over" }) {
                                th scope="row" { (point.run) }
                                td { (point.started) }
                                td { (point.build) }
                                td { (point.ggml) }
                                td { span class=(format!("badge s-{}", point.status)) { (point.status) } }
                                td.n { (number(value)) }
                                td.n { (number(limit)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn number(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), scientific)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::drift::{Rule, drift};

    fn shown(values: &[f64]) -> Shown {
        let point =
            |(i, &value): (usize, &f64)| Point::for_test(&i.to_string(), &format!("b{i}"), value, 1e-4);
        let points: Vec<Point> = values.iter().enumerate().map(point).collect();
        let text = |text: &str| text.to_owned();
        Shown {
            key: Key { case: text("m/f32/prefill"), device: text("Vulkan0"), machine: text("llvmpipe") },
            drift: drift(&points, Metric::Logits, &Rule::default()),
            points,
        }
    }

    #[test]
    fn blocks_grow_with_the_logarithm() {
        assert_eq!(sparkline(&[Some(1e-8), Some(1e-4), Some(1.0), None]), "▁▅█·");
        assert_eq!(sparkline(&[Some(f64::NAN), Some(0.0), Some(2.0)]), "!▁▁");
        assert_eq!(sparkline(&[]), "");
    }

    #[test]
    fn a_drift_on_the_console_and_in_the_page() {
        let shown = shown(&[1e-6, 2e-6, 4e-6, 8e-6, 1.6e-5]);
        insta::assert_snapshot!("history_console", console(&shown, Metric::Logits));
        let page = page("m/f32/prefill", &[shown], Metric::Logits);
        assert!(page.contains("Drift") && page.contains("16 % of the limit now"), "{page}");
        assert!(page.contains("id=\"b0-t\"") && page.contains("id=\"t0-t\""));
    }
}
