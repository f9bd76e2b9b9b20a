//! The charts: accuracy, difference to the reference, perplexity ratio, KL and the first divergence, arm by arm.

use super::axis::Unit;
use super::rows::{self, Chart, Figure, Kind, Row};
use super::tables::{p_value, percent, signed};
use super::{View, significant};
use crate::compare::order;
use crate::report::scientific;
use crate::sweep::result::{PairSummary, PairingKind, Summary};
use maud::{Markup, html};

/// All charts over all items.
pub(super) fn render(view: &View<'_>) -> Markup {
    let charts = [
        accuracy(view, None, "accuracy"),
        differences(view, None, PairingKind::Parity, "parity"),
        differences(view, None, PairingKind::Baseline, "baseline"),
        perplexities(view, PairingKind::Parity, "perplexity-parity"),
        perplexities(view, PairingKind::Baseline, "perplexity-baseline"),
        kl(view, PairingKind::Parity, "kl-parity"),
        kl(view, PairingKind::Baseline, "kl-baseline"),
        divergences(view, PairingKind::Parity, "parting-parity"),
        divergences(view, PairingKind::Baseline, "parting-baseline"),
    ];
    html! {
        section #charts aria-labelledby="charts-title" {
            h2 #charts-title { "Arm by arm" }
            ul.legend aria-hidden="true" {
                li { "● an arm" } li { "◆ others are held against it" } li { "▼ significantly worse" } li { "▲ significantly better" }
            }
            div.charts { @for chart in &charts { (chart) } }
        }
    }
}

/// Accuracy and differences over the items of a tag.
pub(super) fn of_tag(view: &View<'_>, place: usize, tag: &str) -> Markup {
    html! {
        div.charts {
            (accuracy(view, Some(tag), &format!("t{place}-accuracy")))
            (differences(view, Some(tag), PairingKind::Parity, &format!("t{place}-parity")))
            (differences(view, Some(tag), PairingKind::Baseline, &format!("t{place}-baseline")))
        }
    }
}

fn within(tag: Option<&str>) -> String {
    tag.map_or_else(String::new, |tag| format!(", items tagged {tag}"))
}

fn accuracy(view: &View<'_>, tag: Option<&str>, id: &str) -> Markup {
    let judged = view.summaries(tag).filter(|summary| summary.accuracy.trials > 0);
    let row = |summary: &Summary| {
        let rate = &summary.accuracy;
        let ends = (rate.interval.low, rate.interval.high);
        let told = format!(
            "{} right of {}, {}, interval {} to {}",
            rate.hits,
            rate.trials,
            percent(rate.value),
            percent(ends.0),
            percent(ends.1)
        );
        let of = summary.against.iter().filter(|pair| significant(pair));
        let kind = match of.map(|pair| pair.difference).reduce(f64::min) {
            Some(difference) if difference < 0.0 => Kind::Worse,
            Some(_) => Kind::Better,
            None if view.is_reference(&summary.arm) => Kind::Reference,
            None => Kind::Plain,
        };
        let figure = Figure::Interval { value: rate.value, ends: Some(ends) };
        Row { label: view.label(&summary.arm), told, kind, figure }
    };
    rows::render(&Chart {
        id,
        title: &format!("Accuracy with its {} interval (Clopper-Pearson){}", view.level(), within(tag)),
        axis: "right of those that are judged",
        unit: Unit::Percent,
        centre: None,
        rows: judged.map(row).collect(),
    })
}

/// Every arm's pair of one kind.
fn pairs<'a>(
    view: &'a View<'_>,
    tag: Option<&'a str>,
    kind: PairingKind,
) -> impl Iterator<Item = (&'a Summary, &'a PairSummary)> {
    let all = view.summaries(tag);
    all.flat_map(move |s| s.against.iter().filter(move |pair| pair.kind == kind).map(move |pair| (s, pair)))
}

fn question(kind: PairingKind) -> &'static str {
    match kind {
        PairingKind::Parity => "the plain CPU",
        PairingKind::Baseline => "the baseline",
    }
}

fn kind_of(pair: &PairSummary) -> Kind {
    match significant(pair) {
        true if pair.difference < 0.0 => Kind::Worse,
        true => Kind::Better,
        false => Kind::Plain,
    }
}

fn differences(view: &View<'_>, tag: Option<&str>, kind: PairingKind, id: &str) -> Markup {
    let judged = pairs(view, tag, kind).filter(|(_, pair)| pair.counts.items() > 0);
    let row = |(summary, pair): (&Summary, &PairSummary)| {
        let ends = (pair.difference_interval.low, pair.difference_interval.high);
        let told = format!(
            "{} points against {}, interval {} to {}, corrected p {}",
            signed(pair.difference),
            view.label(&pair.reference),
            signed(ends.0),
            signed(ends.1),
            pair.corrected_p.map_or_else(|| "none".to_owned(), p_value)
        );
        let figure = Figure::Interval { value: pair.difference, ends: Some(ends) };
        Row { label: view.label(&summary.arm), told, kind: kind_of(pair), figure }
    };
    rows::render(&Chart {
        id: &format!("difference-{id}"),
        title: &format!(
            "Accuracy less that of {} with its {} interval (Newcombe){}",
            question(kind),
            view.level(),
            within(tag)
        ),
        axis: "percentage points; left of 0 is worse",
        unit: Unit::Points,
        centre: Some(0.0),
        rows: judged.map(row).collect(),
    })
}

fn perplexities(view: &View<'_>, kind: PairingKind, id: &str) -> Markup {
    let row = |(summary, pair): (&Summary, &PairSummary)| {
        let found = pair.perplexity.as_ref()?;
        let ends = found.ratio.interval.map(|interval| (interval.low, interval.high));
        let interval = ends.map_or_else(String::new, |(l, h)| format!(", interval {l:.5} to {h:.5}"));
        let reference = view.label(&pair.reference);
        let told = format!(
            "{:.5} times that of {reference}{interval}; {:.4} against {:.4} over {} tokens",
            found.ratio.value, found.test, found.reference, found.tokens
        );
        // The interval decides: there is no test of perplexities here, and none is claimed.
        let kind = match ends {
            Some((low, _)) if low > 1.0 => Kind::Worse,
            Some((_, high)) if high < 1.0 => Kind::Better,
            _ => Kind::Plain,
        };
        let figure = Figure::Interval { value: found.ratio.value, ends };
        Some(Row { label: view.label(&summary.arm), told, kind, figure })
    };
    rows::render(&Chart {
        id,
        title: &format!(
            "Perplexity over that of {}, with its {} bootstrap interval over texts (▼ ▲ where that leaves 1 out)",
            question(kind),
            view.level()
        ),
        axis: "ratio; right of 1 is worse",
        unit: Unit::Plain,
        centre: Some(1.0),
        rows: pairs(view, None, kind).filter_map(row).collect(),
    })
}

fn kl(view: &View<'_>, kind: PairingKind, id: &str) -> Markup {
    let row = |(summary, pair): (&Summary, &PairSummary)| {
        let mut values: Vec<f64> = Vec::new();
        for row in view.sweep.rows.iter().filter(|row| row.arm == summary.arm) {
            let mine = row.against.iter().filter(|a| a.kind == kind && a.reference == pair.reference);
            values.extend(mine.filter_map(|a| a.logits.as_ref()).flat_map(|l| l.kl_rows.iter().copied()));
        }
        if values.is_empty() {
            return None;
        }
        let quantiles = order::quantiles(&values, [0.05, 0.25, 0.5, 0.75, 0.99, 1.0]);
        let mean =
            pair.kl.as_ref().map(|kl| format!("mean {}, ", scientific(kl.mean.value))).unwrap_or_default();
        let told = format!(
            "{} rows against {}: {mean}5 % {}, 25 % {}, median {}, 75 % {}, 99 % {}, largest {} nats",
            values.len(),
            view.label(&pair.reference),
            scientific(quantiles[0]),
            scientific(quantiles[1]),
            scientific(quantiles[2]),
            scientific(quantiles[3]),
            scientific(quantiles[4]),
            scientific(quantiles[5])
        );
        let figure = Figure::Quantiles(quantiles);
        Some(Row { label: view.label(&summary.arm), told, kind: Kind::Plain, figure })
    };
    rows::render(&Chart {
        id,
        title: &format!(
            "KL divergence from {}, row by row: 5, 25, 50, 75, 99 % and × the largest",
            question(kind)
        ),
        axis: "nats; rows of 0 lie on the left edge",
        unit: Unit::Log,
        centre: None,
        rows: pairs(view, None, kind).filter_map(row).collect(),
    })
}

fn divergences(view: &View<'_>, kind: PairingKind, id: &str) -> Markup {
    let with = pairs(view, None, kind).filter(|(_, pair)| pair.divergence.runs > 0);
    let row = |(summary, pair): (&Summary, &PairSummary)| {
        let curve = &pair.divergence;
        let by = pair
            .parted_by
            .half
            .map_or_else(|| "fewer than half".to_owned(), |half| format!("half by decision {half}"));
        let told = format!(
            "{} of {} answers part from {}; {by}",
            curve.parted,
            curve.runs,
            view.label(&pair.reference)
        );
        let steps = curve.steps.iter().map(|step| (step.at as f64, step.agreeing)).collect();
        let label = format!("{} · {} of {} part", view.label(&summary.arm), curve.parted, curve.runs);
        Row { label, told, kind: Kind::Plain, figure: Figure::Steps(steps) }
    };
    rows::render(&Chart {
        id,
        title: &format!(
            "Share of free runs that still agree with {} (Kaplan-Meier), from 100 % down to 0",
            question(kind)
        ),
        axis: "decision, from 0",
        unit: Unit::Plain,
        centre: Some(0.0),
        rows: with.map(row).collect(),
    })
}
