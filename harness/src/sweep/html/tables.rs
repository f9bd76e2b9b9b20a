//! The tables: every arm's figures against what it is held against.

use super::{View, significant};
use crate::report::scientific;
use crate::sweep::result::{PairSummary, Rate, Summary};
use maud::{Markup, html};

/// The tables over all items.
pub(super) fn render(view: &View<'_>) -> Markup {
    let pairs: Vec<(&Summary, Option<&PairSummary>)> = view.summaries(None).flat_map(paired).collect();
    html! {
        section #arms aria-labelledby="arms-title" {
            h2 #arms-title { "Figures of all arms" }
            (accuracy(view, None))
            div.scroll.wide tabindex="0" role="group" aria-label="Answers and logits against references" {
                table {
                    caption { "Answers and logits along the reference's own trajectory, and the likelihood of texts" }
                    thead {
                        tr {
                            th scope="col" { "arm" } th scope="col" { "held against" }
                            th.n scope="col" { "same answer" } th.n scope="col" { "same top token" }
                            th.n scope="col" { "logits NMSE, median item" } th.n scope="col" { "worst item" }
                            th.n scope="col" { "KL, mean" } th.n scope="col" { "p99" } th.n scope="col" { "largest" }
                            th.n scope="col" { "10, 50, 90 % parted by" }
                            th.n scope="col" { "perplexity" } th.n scope="col" { "its ratio" }
                        }
                    }
                    tbody { @for (summary, pair) in &pairs { (figures(view, summary, *pair)) } }
                }
            }
        }
    }
}

/// The table of accuracies over the items of a tag.
pub(super) fn of_tag(view: &View<'_>, tag: &str) -> Markup {
    accuracy(view, Some(tag))
}

/// Each pair of an arm, or the arm alone.
fn paired(summary: &Summary) -> Vec<(&Summary, Option<&PairSummary>)> {
    match summary.against.is_empty() {
        true => vec![(summary, None)],
        false => summary.against.iter().map(|pair| (summary, Some(pair))).collect(),
    }
}

fn accuracy(view: &View<'_>, tag: Option<&str>) -> Markup {
    let all: Vec<_> = view.summaries(tag).flat_map(paired).collect();
    let name = tag.map_or_else(|| "Accuracy".to_owned(), |tag| format!("Accuracy among items tagged {tag}"));
    html! {
        div.scroll.wide tabindex="0" role="group" aria-label=(name) {
            table {
                caption { (name) ", its difference in percentage points to what an arm is held against, and McNemar's exact p" }
                thead {
                    tr {
                        th scope="col" { "arm" } th.n scope="col" { "done" } th.n scope="col" { "right" } th.n scope="col" { "accuracy" }
                        th scope="col" { "held against" } th.n scope="col" { "difference" } th.n scope="col" { "lost, gained" }
                        th.n scope="col" { "p" } th.n scope="col" { "corrected p" }
                    }
                }
                tbody {
                    @for (summary, pair) in all {
                        tr class=[pair.filter(|pair| significant(pair) && pair.difference < 0.0).map(|_| "over")] {
                            th scope="row" { (view.label(&summary.arm)) }
                            td.n { (summary.done) " of " (summary.items) }
                            td.n { @if summary.accuracy.trials > 0 { (summary.accuracy.hits) " of " (summary.accuracy.trials) } @else { "–" } }
                            td.n { (rate(&summary.accuracy)) }
                            (against(view, pair))
                        }
                    }
                }
            }
        }
    }
}

fn against(view: &View<'_>, pair: Option<&PairSummary>) -> Markup {
    let Some(pair) = pair else {
        return html! { td { "–" } td.n { "–" } td.n { "–" } td.n { "–" } td.n { "–" } };
    };
    let judged = pair.counts.items() > 0;
    let interval = &pair.difference_interval;
    html! {
        td { (view.label(&pair.reference)) " (" (pair.kind) ")" }
        td.n { @if judged { (signed(pair.difference)) " (" (signed(interval.low)) " to " (signed(interval.high)) ")" } @else { "–" } }
        td.n { @if judged { (pair.counts.lost) ", " (pair.counts.gained) } @else { "–" } }
        td.n { (pair.mcnemar.map_or_else(|| "–".to_owned(), |found| p_value(found.p))) }
        td.n { (pair.corrected_p.map_or_else(|| "–".to_owned(), p_value)) }
    }
}

fn figures(view: &View<'_>, summary: &Summary, pair: Option<&PairSummary>) -> Markup {
    let none = || "–".to_owned();
    let perplexity = summary.perplexity.map_or_else(none, |p| format!("{p:.4}"));
    let Some(pair) = pair else {
        return html! {
            tr {
                th scope="row" { (view.label(&summary.arm)) }
                td { "–" }
                @for _ in 0..8 { td.n { "–" } }
                td.n { (perplexity) }
                td.n { "–" }
            }
        };
    };
    let kl = pair.kl.as_ref();
    let mean = kl.map_or_else(none, |kl| {
        let interval = kl
            .mean
            .interval
            .map_or_else(String::new, |i| format!(" ({} to {})", scientific(i.low), scientific(i.high)));
        format!("{}{interval}", scientific(kl.mean.value))
    });
    let ratio = pair.perplexity.as_ref().map_or_else(none, |found| {
        let interval =
            found.ratio.interval.map_or_else(String::new, |i| format!(" ({:.5} to {:.5})", i.low, i.high));
        format!("{:.5}{interval}", found.ratio.value)
    });
    let by = &pair.parted_by;
    let parted = [by.tenth, by.half, by.nine_tenths].map(|at| at.map_or_else(none, |at| at.to_string()));
    html! {
        tr {
            th scope="row" { (view.label(&summary.arm)) }
            td { (view.label(&pair.reference)) " (" (pair.kind) ")" }
            td.n { (rate(&pair.exact)) }
            td.n { (rate(&pair.same_top)) }
            td.n { (pair.nmse.map_or_else(none, |nmse| scientific(nmse.median))) }
            td.n { (pair.nmse.map_or_else(none, |nmse| scientific(nmse.max))) }
            td.n { (mean) }
            td.n { (kl.map_or_else(none, |kl| scientific(kl.p99))) }
            td.n { (kl.map_or_else(none, |kl| scientific(kl.max))) }
            td.n { (parted.join(", ")) }
            td.n { (perplexity) }
            td.n { (ratio) }
        }
    }
}

/// A rate and its interval; a dash where nothing was tried.
fn rate(rate: &Rate) -> String {
    if rate.trials == 0 {
        return "–".to_owned();
    }
    format!("{} ({} to {})", percent(rate.value), percent(rate.interval.low), percent(rate.interval.high))
}

/// A share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A share in percentage points, without a sign.
pub(super) fn points(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// A difference in percentage points, with its sign.
pub(super) fn signed(difference: f64) -> String {
    let text = format!("{:+.1}", 100.0 * difference);
    if text == "-0.0" { "+0.0".to_owned() } else { text }
}

/// A p value to two digits; never 0.
pub(super) fn p_value(p: f64) -> String {
    match p {
        p if p >= 0.1 => format!("{p:.2}"),
        p if p >= 0.001 => format!("{p:.4}"),
        p => scientific(p),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_as_people_read_them() {
        assert_eq!([0.0321, -0.05, -0.0001, 0.0].map(signed), ["+3.2", "-5.0", "+0.0", "+0.0"]);
        assert_eq!(
            [1.0, 0.5, 0.034_56, 0.001, 4.2e-9].map(p_value),
            ["1.00", "0.50", "0.0346", "0.0010", "4.2e-9"]
        );
        assert_eq!(p_value(f64::NAN), "nan");
    }
}
