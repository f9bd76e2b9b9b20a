//! `tensors.csv`: one row for each tensor of each cell that was compared.

use super::csv::{full, optional};
use super::{Cell, Report, held};
use crate::capture::KvSet;
use crate::compare::{KvNmse, Metrics};
use crate::plan::Mode;
use crate::verdict::Bound;

const HEADING: [&str; 13] = [
    "id",
    "status",
    "tensor",
    "nmse",
    "nmse_limit",
    "worst_row",
    "worst_row_position",
    "worst_row_step",
    "worst_row_nmse",
    "worst_row_nmse_limit",
    "worst_head",
    "worst_position",
    "ok",
];

/// The tensors as CSV with a heading: `logits`, then K and V of each layer as stored (`k.0`, `v.0`, …) and, of
/// quantised caches, before they were stored (`k_raw.0`, …). What does not exist is empty: the worst row is that of
/// logits, head and position are known of the worst cache alone, and `ok` says nothing where there is no limit.
pub fn render(report: &Report) -> String {
    // The logits of a sampler's cell are checksums.
    let rows = report.cells.iter().filter(|cell| cell.mode != Mode::Sampler);
    let rows = rows.filter_map(|cell| Some((cell, cell.metrics.as_ref()?)));
    let rows = rows.flat_map(|(cell, metrics)| {
        let limits = cell.limits.as_ref();
        let stored = limits.and_then(|limits| limits.kv_nmse.as_ref());
        let before = limits.and_then(|limits| limits.kv_before_storing_nmse.as_ref());
        let mut rows = vec![logits(cell, metrics)];
        rows.extend(caches(cell, metrics.kv.as_ref(), KvSet::Stored, stored));
        rows.extend(caches(cell, metrics.kv_before_storing.as_ref(), KvSet::BeforeStoring, before));
        rows
    });
    super::csv::table(HEADING.map(str::to_owned).to_vec(), rows.map(Vec::from))
}

fn logits(cell: &Cell, metrics: &Metrics) -> [String; 13] {
    let (found, worst) = (&metrics.logits, &metrics.logits.worst);
    let limits = cell.limits.as_ref();
    let ok =
        limits.map(|limits| limits.logits_nmse.holds(found.overall) && limits.row_nmse.holds(worst.nmse));
    [
        cell.id.to_string(),
        cell.status.to_string(),
        "logits".to_owned(),
        full(Some(found.overall)),
        full(limits.map(|limits| limits.logits_nmse.limit)),
        worst.place.row.to_string(),
        worst.place.position.to_string(),
        worst.place.step.to_string(),
        full(Some(worst.nmse)),
        full(limits.map(|limits| limits.row_nmse.limit)),
        String::new(),
        String::new(),
        optional(ok),
    ]
}

fn caches(cell: &Cell, kv: Option<&KvNmse>, set: KvSet, bound: Option<&Bound>) -> Vec<[String; 13]> {
    let Some(kv) = kv else { return Vec::new() };
    let rows = held::tensors(kv, set).map(|(tensor, cache, layer, nmse)| {
        let worst = Some(&kv.worst).filter(|worst| worst.cache == cache && worst.layer == layer);
        [
            cell.id.to_string(),
            cell.status.to_string(),
            tensor,
            full(Some(nmse)),
            full(bound.map(|bound| bound.limit)),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            optional(worst.map(|worst| worst.head)),
            optional(worst.map(|worst| worst.position)),
            optional(bound.map(|bound| bound.holds(nmse))),
        ]
    });
    rows.collect()
}
