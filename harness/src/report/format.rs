//! How figures are written for people.

use super::Cell;
use crate::capture::Cache;

/// The headings of a cell's row. K and V are those of the worst layer; nodes are those on the device of all; the
/// last are the logits NMSE of reference and device against the oracle.
pub(super) const HEADINGS: [&str; COLUMNS] = [
    "status",
    "cell",
    "logits NMSE",
    "worst row",
    "K NMSE",
    "V NMSE",
    "ties",
    "real",
    "greedy",
    "nodes",
    "oracle ref/dev",
];

/// Columns of a cell's row.
pub(super) const COLUMNS: usize = 11;

/// What stands where a figure does not exist.
pub(super) const NONE: &str = "-";

/// One cell as a row under [`HEADINGS`].
pub(super) fn row(cell: &Cell) -> [String; COLUMNS] {
    let none = || NONE.to_owned();
    let metrics = cell.metrics.as_ref();
    let figure = |f: &dyn Fn(&crate::compare::Metrics) -> Option<f64>| {
        metrics.and_then(f).map_or_else(none, scientific)
    };
    let worst_cache = |cache| figure(&|m| m.kv.as_ref().map(|kv| kv.worst_of(cache).1));
    let worst = metrics.map(|m| &m.logits.worst);
    let top = metrics.map(|m| &m.top_token);
    [
        cell.status.to_string(),
        cell.id.to_string(),
        figure(&|m| Some(m.logits.overall)),
        worst.map_or_else(none, |w| format!("{} #{}", scientific(w.nmse), w.place.row)),
        worst_cache(Cache::K),
        worst_cache(Cache::V),
        top.map_or_else(none, |t| t.ties.to_string()),
        top.map_or_else(none, |t| t.real.to_string()),
        greedy(cell),
        cell.nodes().map_or_else(none, |(placed, total)| format!("{placed}/{total}")),
        cell.attribution.as_ref().map_or_else(none, |found| {
            format!("{}/{}", scientific(found.reference_nmse), scientific(found.device_nmse))
        }),
    ]
}

/// Text on one line, without control characters: reasons may quote what a crashing worker wrote.
pub(crate) fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.trim().to_owned()
}

/// Text of at most `most` characters on one line; what is cut is told by an ellipsis.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let line = one_line(text);
    if line.chars().count() <= most {
        return line;
    }
    let mut short: String = line.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// `1.2e-9`, `0`, `inf`, `nan`.
pub(crate) fn scientific(value: f64) -> String {
    if value.is_nan() {
        "nan".to_owned()
    } else if value == 0.0 || value.is_infinite() {
        value.to_string()
    } else {
        format!("{value:.1e}")
    }
}

/// `equal 32`, or how many of the tokens are equal before the first difference.
fn greedy(cell: &Cell) -> String {
    let Some(greedy) = cell.metrics.as_ref().and_then(|m| m.greedy.as_ref()) else {
        return NONE.to_owned();
    };
    match &greedy.first_difference {
        None => format!("equal {}", greedy.length),
        Some(first) => format!("{}/{}", first.decision, greedy.length),
    }
}
