//! The table of arms that console and Markdown share.

use crate::report::scientific;
use crate::sweep::result::{PairSummary, Rate, Summary, Sweep};
use crate::sweep::stats::Interval;

/// The headings of a row. Differences are in percentage points.
pub(super) const HEADINGS: [&str; 12] = [
    "arm",
    "right",
    "accuracy [95 %]",
    "against",
    "difference [95 %]",
    "p",
    "corrected",
    "same answers",
    "KL mean, p99, max",
    "same top token",
    "perplexity",
    "ratio [95 %]",
];

/// What stands where a figure does not exist.
const NONE: &str = "-";

/// One row of the table.
pub(super) type Line = [String; HEADINGS.len()];

/// The rows of all arms over all items, or over those of a tag: one for each reference, or one for an arm without.
pub(super) fn lines(sweep: &Sweep, tag: Option<&str>) -> Vec<Line> {
    let mine = sweep.summaries.iter().filter(|summary| summary.tag.as_deref() == tag);
    mine.flat_map(|summary| {
        let first = own(sweep, summary);
        if summary.against.is_empty() {
            return vec![first];
        }
        summary.against.iter().map(|pair| against(sweep, first.clone(), pair)).collect()
    })
    .collect()
}

/// The number by which the tables name an arm.
pub(super) fn number(sweep: &Sweep, id: &crate::plan::CellId) -> String {
    sweep.arms.iter().position(|arm| arm.id == *id).map_or_else(|| id.to_string(), |i| format!("{}", i + 1))
}

fn own(sweep: &Sweep, summary: &Summary) -> Line {
    let none = || NONE.to_owned();
    let mut line = [(); HEADINGS.len()].map(|()| none());
    line[0] = number(sweep, &summary.arm);
    if summary.accuracy.trials > 0 {
        line[1] = format!("{} of {}", summary.accuracy.hits, summary.accuracy.trials);
        line[2] = percent(&summary.accuracy);
    }
    line[10] = summary.perplexity.map_or_else(none, |perplexity| format!("{perplexity:.4}"));
    line
}

fn against(sweep: &Sweep, mut line: Line, pair: &PairSummary) -> Line {
    line[3] = format!("{} ({})", number(sweep, &pair.reference), pair.kind);
    if let Some(mcnemar) = &pair.mcnemar {
        let interval = between(&pair.difference_interval, |v| format!("{:+.1}", 100.0 * v));
        line[4] = format!("{:+.1} {interval}", 100.0 * pair.difference);
        line[5] = probability(mcnemar.p);
        line[6] = pair.corrected_p.map_or_else(|| NONE.to_owned(), probability);
    }
    if pair.exact.trials > 0 {
        line[7] = format!("{} of {}", pair.exact.hits, pair.exact.trials);
    }
    if let Some(kl) = &pair.kl {
        line[8] = [kl.mean.value, kl.p99, kl.max].map(scientific).join(", ");
    }
    if pair.same_top.trials > 0 {
        line[9] = percent(&pair.same_top);
    }
    if let Some(perplexity) = &pair.perplexity {
        let interval = perplexity.ratio.interval.map(|i| format!(" {}", between(&i, |v| format!("{v:.5}"))));
        line[11] = format!("{:.5}{}", perplexity.ratio.value, interval.unwrap_or_default());
    }
    line
}

/// `98.6 [97.1, 99.4]`, in per cent.
fn percent(rate: &Rate) -> String {
    let interval = between(&rate.interval, |v| format!("{:.1}", 100.0 * v));
    format!("{:.1} {interval}", 100.0 * rate.value)
}

fn between(interval: &Interval, written: impl Fn(f64) -> String) -> String {
    format!("[{}, {}]", written(interval.low), written(interval.high))
}

/// `1`, `0.42`, `7.8e-3`.
fn probability(p: f64) -> String {
    if p >= 0.1 { format!("{p:.2}").trim_end_matches(".00").to_owned() } else { scientific(p) }
}
