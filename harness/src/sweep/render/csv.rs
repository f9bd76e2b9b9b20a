//! `items.csv`, a row for each item on each arm, and `arms.csv`, a row for each arm over all items and each tag.
//!
//! What does not exist is empty; figures are written in full, as `4e-14`, `inf`, `NaN`. The columns of a pairing come
//! once for parity and once for the baseline.

use crate::sweep::result::{Against, Arm, Item, PairSummary, PairingKind, Row, Summary, Sweep};
use crate::sweep::stats::Interval;
use std::collections::HashMap;

/// A column: its name and what stands in it.
type Column<T> = (&'static str, fn(&T) -> String);

/// One row of `items.csv`.
struct Line<'a> {
    item: &'a Item,
    arm: &'a Arm,
    row: &'a Row,
}

/// A column of `items.csv`.
type ItemColumn = (&'static str, for<'a> fn(&Line<'a>) -> String);

const ITEMS: &[ItemColumn] = &[
    ("item", |l| l.item.id.clone()),
    ("corpus", |l| l.item.corpus.clone()),
    ("tags", |l| l.item.tags.join(" ")),
    ("arm", |l| l.arm.id.to_string()),
    ("model", |l| l.arm.model.clone()),
    ("weights", |l| l.arm.weights.clone()),
    ("mode", |l| l.arm.mode.to_string()),
    ("options", |l| l.arm.options.to_string()),
    ("build", |l| l.arm.build.clone()),
    ("device", |l| l.arm.device.to_string()),
    ("status", |l| l.row.status.to_string()),
    ("reason", |l| l.row.reason.clone()),
    ("retried", |l| optional(l.row.retried.as_ref())),
    ("prompt", |l| l.item.prompt.clone()),
    ("expected", |l| optional(l.item.expected.as_ref())),
    ("text", |l| optional(l.row.answer.as_ref().map(|a| &a.text))),
    ("judged", |l| optional(l.row.answer.as_ref().map(|a| a.judged))),
    ("read", |l| optional(l.row.answer.as_ref().and_then(|a| a.read.as_ref()))),
    ("exactly", |l| optional(l.row.answer.as_ref().and_then(|a| a.exactly))),
    ("ended", |l| optional(l.row.answer.as_ref().map(|a| a.ended))),
    ("prompt_tokens", |l| l.row.prompt_tokens.to_string()),
    ("new_tokens", |l| optional(l.row.answer.as_ref().map(|a| a.tokens.len()))),
    ("loss_nats", |l| optional(l.row.loss.map(|loss| loss.nats))),
    ("scored_tokens", |l| optional(l.row.loss.map(|loss| loss.tokens))),
    ("nonfinite", |l| l.row.nonfinite.to_string()),
    ("nodes_on_device", |l| l.row.nodes[0].to_string()),
    ("nodes", |l| l.row.nodes[1].to_string()),
    ("seconds", |l| l.row.seconds.to_string()),
    ("forced_seconds", |l| l.row.forced_seconds.to_string()),
];

const AGAINST: &[Column<Against>] = &[
    ("reference", |a| a.reference.to_string()),
    ("exact", |a| optional(a.exact)),
    ("divergence_decision", |a| optional(a.divergence.as_ref().map(|d| d.decision))),
    ("divergence_index", |a| optional(a.divergence.as_ref().map(|d| d.index))),
    ("divergence_margin", |a| optional(a.divergence.as_ref().and_then(|d| d.margin))),
    ("reference_token", |a| optional(a.divergence.as_ref().and_then(|d| Some(&d.reference.as_ref()?.text)))),
    ("token", |a| optional(a.divergence.as_ref().and_then(|d| Some(&d.test.as_ref()?.text)))),
    ("rows", |a| optional(a.logits.as_ref().map(|l| l.rows))),
    ("nmse", |a| optional(a.logits.as_ref().map(|l| l.nmse))),
    ("kl_mean", |a| optional(a.logits.as_ref().map(|l| l.kl_mean))),
    ("kl_max", |a| optional(a.logits.as_ref().map(|l| l.kl_max))),
    ("entropy_mean", |a| optional(a.logits.as_ref().map(|l| l.entropy_mean))),
    ("entropy_max", |a| optional(a.logits.as_ref().map(|l| l.entropy_max))),
    ("same_top", |a| optional(a.logits.as_ref().map(|l| l.same_top))),
];

const ARMS: &[Column<Summary>] = &[
    ("arm", |s| s.arm.to_string()),
    ("tag", |s| optional(s.tag.as_ref())),
    ("items", |s| s.items.to_string()),
    ("done", |s| s.done.to_string()),
    ("judged", |s| s.accuracy.trials.to_string()),
    ("right", |s| s.accuracy.hits.to_string()),
    ("accuracy", |s| s.accuracy.value.to_string()),
    ("accuracy_low", |s| s.accuracy.interval.low.to_string()),
    ("accuracy_high", |s| s.accuracy.interval.high.to_string()),
    ("exactly", |s| s.exactly.hits.to_string()),
    ("perplexity", |s| optional(s.perplexity)),
    ("scored_tokens", |s| s.scored_tokens.to_string()),
    ("new_tokens", |s| s.new_tokens.to_string()),
    ("nonfinite", |s| s.nonfinite.to_string()),
    ("seconds", |s| s.seconds.to_string()),
];

const PAIRS: &[Column<PairSummary>] = &[
    ("reference", |p| p.reference.to_string()),
    ("items", |p| p.items.to_string()),
    ("both_right", |p| p.counts.both.to_string()),
    ("lost", |p| p.counts.lost.to_string()),
    ("gained", |p| p.counts.gained.to_string()),
    ("neither", |p| p.counts.neither.to_string()),
    ("difference", |p| p.difference.to_string()),
    ("difference_low", |p| p.difference_interval.low.to_string()),
    ("difference_high", |p| p.difference_interval.high.to_string()),
    ("p", |p| optional(p.mcnemar.map(|m| m.p))),
    ("mid_p", |p| optional(p.mcnemar.map(|m| m.mid_p))),
    ("corrected_p", |p| optional(p.corrected_p)),
    ("exact", |p| p.exact.hits.to_string()),
    ("generated", |p| p.exact.trials.to_string()),
    ("nmse_median", |p| optional(p.nmse.map(|n| n.median))),
    ("nmse_max", |p| optional(p.nmse.map(|n| n.max))),
    ("kl_rows", |p| optional(p.kl.map(|k| k.rows))),
    ("kl_mean", |p| optional(p.kl.map(|k| k.mean.value))),
    ("kl_mean_low", |p| optional(p.kl.and_then(|k| k.mean.interval).map(low))),
    ("kl_mean_high", |p| optional(p.kl.and_then(|k| k.mean.interval).map(high))),
    ("kl_p99", |p| optional(p.kl.map(|k| k.p99))),
    ("kl_max", |p| optional(p.kl.map(|k| k.max))),
    ("same_top", |p| p.same_top.value.to_string()),
    ("same_top_low", |p| p.same_top.interval.low.to_string()),
    ("same_top_high", |p| p.same_top.interval.high.to_string()),
    ("perplexity", |p| optional(p.perplexity.map(|x| x.test))),
    ("reference_perplexity", |p| optional(p.perplexity.map(|x| x.reference))),
    ("perplexity_ratio", |p| optional(p.perplexity.map(|x| x.ratio.value))),
    ("perplexity_ratio_low", |p| optional(p.perplexity.and_then(|x| x.ratio.interval).map(low))),
    ("perplexity_ratio_high", |p| optional(p.perplexity.and_then(|x| x.ratio.interval).map(high))),
    ("parted", |p| p.divergence.parted.to_string()),
    ("parted_by_tenth", |p| optional(p.parted_by.tenth)),
    ("parted_by_half", |p| optional(p.parted_by.half)),
    ("parted_by_nine_tenths", |p| optional(p.parted_by.nine_tenths)),
];

/// `items.csv`.
#[must_use]
pub fn items(sweep: &Sweep) -> String {
    let items: HashMap<&str, &Item> = sweep.items.iter().map(|item| (item.id.as_str(), item)).collect();
    let lines = sweep.rows.iter().filter_map(|row| {
        let line = Line { item: items.get(row.item.as_str())?, arm: sweep.arm(&row.arm)?, row };
        let of = |kind| row.against.iter().find(|against| against.kind == kind);
        let own = ITEMS.iter().map(|(_, of)| of(&line));
        Some(own.chain(PairingKind::ALL.iter().flat_map(|&kind| cells(AGAINST, of(kind)))).collect())
    });
    written(headings(ITEMS.iter().map(|(name, _)| *name), AGAINST), lines)
}

/// `arms.csv`.
#[must_use]
pub fn arms(sweep: &Sweep) -> String {
    let lines = sweep.summaries.iter().map(|summary| {
        let of = |kind| summary.against.iter().find(|against| against.kind == kind);
        let own = ARMS.iter().map(|(_, of)| of(summary));
        own.chain(PairingKind::ALL.iter().flat_map(|&kind| cells(PAIRS, of(kind)))).collect()
    });
    written(headings(ARMS.iter().map(|(name, _)| *name), PAIRS), lines)
}

fn headings<P>(own: impl Iterator<Item = &'static str>, pairing: &[Column<P>]) -> Vec<String> {
    let own = own.map(str::to_owned);
    let pairings = PairingKind::ALL
        .iter()
        .flat_map(|kind| pairing.iter().map(move |(name, _)| format!("{kind}_{name}")));
    own.chain(pairings).collect()
}

fn cells<T>(columns: &[Column<T>], of: Option<&T>) -> Vec<String> {
    columns.iter().map(|(_, cell)| of.map(cell).unwrap_or_default()).collect()
}

fn written(headings: Vec<String>, lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for line in [headings].into_iter().chain(lines) {
        writer.write_record(&line).expect("every line has every column, and memory takes them all");
    }
    let bytes = writer.into_inner().expect("memory takes all that is written");
    String::from_utf8(bytes).expect("cells are text")
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn low(interval: Interval) -> f64 {
    interval.low
}

fn high(interval: Interval) -> f64 {
    interval.high
}
