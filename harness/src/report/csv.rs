//! `cells.csv`: one row a cell with every figure, for spreadsheets and scripts.

use super::{Cell, Report};
use crate::capture::Cache;
use crate::compare::Metrics;

/// A column: its name and what stands in it.
type Column = (&'static str, fn(&Cell) -> String);

/// Every column, in order. What does not exist is empty; figures are written in full, as `4e-14`, `inf`, `NaN`.
const COLUMNS: &[Column] = &[
    ("id", |c| c.id.to_string()),
    ("model", |c| c.model.clone()),
    ("weights", |c| c.weights.clone()),
    ("mode", |c| c.mode.to_string()),
    ("attn", |c| c.options.attn.to_string()),
    ("kv", |c| c.options.kv.to_string()),
    ("ub", |c| optional(c.options.ub)),
    ("n", |c| optional(c.options.n)),
    ("threads", |c| optional(c.options.threads)),
    ("layers", |c| optional(c.options.layers)),
    ("causal", |c| c.options.causal.written().join("&")),
    ("masked", |c| c.options.masked.written().join("&")),
    ("draws", |c| c.options.draws.written().join("&")),
    ("build", |c| c.build.clone()),
    ("device", |c| c.device.to_string()),
    ("reference", |c| optional(c.reference.as_ref())),
    ("status", |c| c.status.to_string()),
    ("reason", |c| c.reason.clone()),
    ("declared", |c| optional(c.declared.as_ref())),
    ("logits_nmse", |c| figure(c, |m| Some(m.logits.overall))),
    ("logits_nmse_limit", |c| full(c.limits.as_ref().map(|l| l.logits_nmse.limit))),
    ("rows", |c| metric(c, |m| Some(m.logits.rows))),
    ("worst_row", |c| metric(c, |m| Some(m.logits.worst.place.row))),
    ("worst_row_position", |c| metric(c, |m| Some(m.logits.worst.place.position))),
    ("worst_row_step", |c| metric(c, |m| Some(m.logits.worst.place.step))),
    ("worst_row_nmse", |c| figure(c, |m| Some(m.logits.worst.nmse))),
    ("worst_row_nmse_limit", |c| full(c.limits.as_ref().map(|l| l.row_nmse.limit))),
    ("row_nmse_p50", |c| figure(c, |m| Some(m.logits.p50))),
    ("row_nmse_p99", |c| figure(c, |m| Some(m.logits.p99))),
    ("steps", |c| metric(c, |m| m.steps.as_ref().map(|s| s.list.len()))),
    ("first_bad_step", |c| metric(c, |m| m.steps.as_ref()?.first_bad.map(|s| s.step))),
    ("first_bad_step_cache", |c| {
        let first =
            |m: &Metrics| m.steps.as_ref()?.first_bad?.cache.map(|b| format!("{}.{}", b.cache, b.layer));
        metric(c, first)
    }),
    ("worst_step", |c| metric(c, |m| m.steps.as_ref().map(|s| s.worst.step))),
    ("worst_step_nmse", |c| figure(c, |m| m.steps.as_ref().and_then(|s| s.worst.nmse))),
    ("worst_step_kv", |c| metric(c, |m| m.steps.as_ref()?.worst_kv().map(|(step, _)| step))),
    ("worst_step_kv_nmse", |c| figure(c, |m| m.steps.as_ref()?.worst_kv().map(|(_, kv)| kv.worst.nmse))),
    ("kv_layers", |c| metric(c, |m| m.kv.as_ref().map(|kv| kv.layers.len()))),
    ("k_nmse", |c| figure(c, |m| m.kv.as_ref().map(|kv| kv.k))),
    ("v_nmse", |c| figure(c, |m| m.kv.as_ref().map(|kv| kv.v))),
    ("k_worst_layer", |c| metric(c, |m| m.kv.as_ref().map(|kv| kv.worst_of(Cache::K).0))),
    ("k_worst_nmse", |c| figure(c, |m| m.kv.as_ref().map(|kv| kv.worst_of(Cache::K).1))),
    ("v_worst_layer", |c| metric(c, |m| m.kv.as_ref().map(|kv| kv.worst_of(Cache::V).0))),
    ("v_worst_nmse", |c| figure(c, |m| m.kv.as_ref().map(|kv| kv.worst_of(Cache::V).1))),
    ("kv_worst_head", |c| metric(c, |m| m.kv.as_ref().map(|kv| kv.worst.head))),
    ("kv_worst_position", |c| metric(c, |m| m.kv.as_ref().map(|kv| kv.worst.position))),
    ("kv_first_bad", |c| {
        let first =
            |m: &Metrics| m.kv.as_ref()?.first_bad.as_ref().map(|b| format!("{}.{}", b.cache, b.layer));
        metric(c, first)
    }),
    ("kv_nmse_limit", |c| full(c.limits.as_ref().and_then(|l| l.kv_nmse.as_ref()).map(|b| b.limit))),
    ("kv_before_storing_worst_nmse", |c| figure(c, |m| m.kv_before_storing.as_ref().map(|kv| kv.worst.nmse))),
    ("kv_before_storing_nmse_limit", |c| {
        full(c.limits.as_ref().and_then(|l| l.kv_before_storing_nmse.as_ref()).map(|b| b.limit))
    }),
    ("top_mismatches", |c| metric(c, |m| Some(m.top_token.mismatches))),
    ("top_ties", |c| metric(c, |m| Some(m.top_token.ties))),
    ("top_real", |c| metric(c, |m| Some(m.top_token.real))),
    ("top_rate", |c| figure(c, |m| Some(m.top_token.rate))),
    ("top_rate_low", |c| figure(c, |m| m.top_token.interval.first().copied())),
    ("top_rate_high", |c| figure(c, |m| m.top_token.interval.last().copied())),
    ("greedy_equal", |c| metric(c, |m| m.greedy.as_ref().map(|g| g.equal))),
    ("greedy_length", |c| metric(c, |m| m.greedy.as_ref().map(|g| g.length))),
    ("greedy_required", |c| metric(c, |m| m.greedy.as_ref().map(|g| g.required))),
    ("greedy_first_difference", |c| {
        metric(c, |m| m.greedy.as_ref()?.first_difference.as_ref().map(|d| d.index))
    }),
    ("greedy_reference_token", |c| metric(c, |m| m.greedy.as_ref()?.first_difference.as_ref()?.reference)),
    ("greedy_test_token", |c| metric(c, |m| m.greedy.as_ref()?.first_difference.as_ref()?.test)),
    ("greedy_margin", |c| figure(c, |m| m.greedy.as_ref()?.first_difference.as_ref()?.margin)),
    ("nan", |c| metric(c, |m| Some(m.nonfinite.nan()))),
    ("unmatched_infinite", |c| metric(c, |m| Some(m.nonfinite.unmatched_infinite()))),
    ("first_not_finite", |c| {
        let of =
            |m: &Metrics| m.nonfinite.first.as_ref().map(|f| format!("{}[{},{}]", f.tensor, f.row, f.column));
        metric(c, of)
    }),
    ("kl_mean", |c| figure(c, |m| Some(m.distribution.kl_mean))),
    ("kl_p99", |c| figure(c, |m| Some(m.distribution.kl_p99))),
    ("kl_max", |c| figure(c, |m| Some(m.distribution.kl_max))),
    ("top_k", |c| metric(c, |m| Some(m.distribution.top_k))),
    ("top_k_overlap_mean", |c| figure(c, |m| Some(m.distribution.overlap_mean))),
    ("top_k_overlap_min", |c| figure(c, |m| Some(m.distribution.overlap_min))),
    ("entropy_max_difference", |c| figure(c, |m| Some(m.distribution.entropy_max_difference))),
    ("max_abs_error", |c| figure(c, |m| Some(m.distribution.max_abs_error))),
    ("max_rel_error", |c| figure(c, |m| Some(m.distribution.max_rel_error))),
    ("attribution", |c| optional(c.attribution.as_ref().map(|a| a.verdict))),
    ("reference_oracle_nmse", |c| full(c.attribution.as_ref().map(|a| a.reference_nmse))),
    ("device_oracle_nmse", |c| full(c.attribution.as_ref().map(|a| a.device_nmse))),
    ("reference_oracle_kv_nmse", |c| full(c.attribution.as_ref().and_then(|a| a.reference_kv_nmse))),
    ("device_oracle_kv_nmse", |c| full(c.attribution.as_ref().and_then(|a| a.device_kv_nmse))),
    ("without_oracle", |c| optional(c.without_oracle.as_ref())),
    ("nodes_placed", |c| optional(c.nodes().map(|(placed, _)| placed))),
    ("nodes_total", |c| optional(c.nodes().map(|(_, total)| total))),
    ("graphs", |c| optional(c.placement.as_ref().map(|p| p.graphs))),
    ("splits", |c| optional(c.placement.as_ref().map(|p| p.splits))),
    ("to_device_bytes", |c| optional(c.traffic.map(|t| t.to_device.total))),
    ("to_device_bytes_graph", |c| optional(c.traffic.map(|t| t.to_device.largest))),
    ("from_device_bytes", |c| optional(c.traffic.map(|t| t.from_device.total))),
    ("from_device_bytes_graph", |c| optional(c.traffic.map(|t| t.from_device.largest))),
    ("cache_read_bytes", |c| optional(c.traffic.map(|t| t.cache_read))),
    ("cache_written_bytes", |c| optional(c.traffic.map(|t| t.cache_written))),
    ("peak_rss_bytes", |c| optional(c.peak_rss_bytes)),
    ("seconds", |c| c.timings.iter().map(|(name, s)| format!("{name}={s}")).collect::<Vec<_>>().join(" ")),
    ("checks", |c| {
        c.checks.iter().map(|k| format!("{}={:?}", k.name, k.value)).collect::<Vec<_>>().join("; ")
    }),
    ("retried", |c| optional(c.retried.as_ref())),
    ("text", |c| optional(c.text.as_ref())),
    ("reference_text", |c| optional(c.reference_text.as_ref())),
    ("rerun", |c| c.rerun.clone()),
];

/// The report's cells as CSV with a heading.
pub fn render(report: &Report) -> String {
    table(headings().collect(), report.cells.iter().map(|cell| values(cell).collect()))
}

/// The names of a cell's columns.
pub(crate) fn headings() -> impl Iterator<Item = String> {
    COLUMNS.iter().map(|(name, _)| (*name).to_owned())
}

/// What stands in a cell's columns.
pub(crate) fn values(cell: &Cell) -> impl Iterator<Item = String> + '_ {
    COLUMNS.iter().map(|(_, value)| value(cell))
}

/// A heading and rows of its length as CSV.
pub(crate) fn table(heading: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in std::iter::once::<Vec<String>>(heading).chain(rows) {
        writer.write_record(&row).expect("rows of one length go into memory");
    }
    let bytes = writer.into_inner().expect("memory can be flushed");
    String::from_utf8(bytes).expect("CSV of strings is UTF-8")
}

/// A value, or nothing.
pub(super) fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A figure with every digit it has.
pub(super) fn full(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:?}"))
}

fn figure(cell: &Cell, of: impl Fn(&Metrics) -> Option<f64>) -> String {
    full(cell.metrics.as_ref().and_then(of))
}

fn metric<T: ToString>(cell: &Cell, of: impl Fn(&Metrics) -> Option<T>) -> String {
    optional(cell.metrics.as_ref().and_then(of))
}
