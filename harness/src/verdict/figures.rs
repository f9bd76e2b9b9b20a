//! Which figures of a cell are beyond their limits, in words.

use super::{Bound, Finding, FindingKind, Limits};
use crate::capture::{Cache, KvSet};
use crate::compare::{LayerNmse, Metrics};

/// Every figure beyond its limit: what, where and by how much.
pub(super) fn faults(metrics: &Metrics, limits: &Limits) -> Vec<Finding> {
    let logits = logits(metrics, limits);
    let row = worst_row(metrics, limits).map(|row| match &logits {
        // What is said of all logits names the worst row.
        Some(_) => Finding { text: String::new(), ..row },
        None => row,
    });
    let checks = [
        nonfinite(metrics),
        logits,
        row,
        caches(metrics, limits),
        step_caches(metrics, limits),
        before_storing(metrics, limits),
        mismatches(metrics, limits),
        experts(metrics),
        divergence(metrics, limits),
        greedy(metrics),
    ];
    checks.into_iter().flatten().collect()
}

fn nonfinite(metrics: &Metrics) -> Option<Finding> {
    let found = &metrics.nonfinite;
    let first = found.first.as_ref()?;
    let text = format!(
        "{} NaN and {} unmatched infinities, first in {} row {} column {}: {} in the reference, {} in the test",
        found.nan(),
        found.unmatched_infinite(),
        first.tensor,
        first.row,
        first.column,
        first.reference,
        first.test
    );
    Some(Finding::new(FindingKind::NonFinite, (found.nan() + found.unmatched_infinite()) as f64, text))
}

fn logits(metrics: &Metrics, limits: &Limits) -> Option<Finding> {
    let found = &metrics.logits;
    let excess = limits.logits_nmse.excess(found.overall)?;
    let worst = &found.worst;
    let text = format!(
        "logits NMSE {excess}, worst row {} of {} with {:.1e}{}{}",
        worst.place.row,
        found.rows,
        worst.nmse,
        worst.column.map_or_else(String::new, |column| format!(" (largest error in column {column})")),
        first_bad_step(metrics)
    );
    Some(Finding::new(FindingKind::Logits, found.overall, text))
}

/// Where in a run of several steps the divergence began and how far it grew.
fn first_bad_step(metrics: &Metrics) -> String {
    let Some(steps) = &metrics.steps else { return String::new() };
    let Some(first) = &steps.first_bad else { return String::new() };
    let logits = first.nmse.map(|nmse| format!("logits {nmse:.1e}"));
    let cache =
        first.cache.map(|found| format!("first {}.{} with {:.1e}", found.cache, found.layer, found.nmse));
    let what: Vec<String> = logits.into_iter().chain(cache).collect();
    let worst = steps.worst.nmse.map(|nmse| format!(", worst step {} ({nmse:.1e})", steps.worst.step));
    format!(", over the limit from step {} on ({}){}", first.step, what.join(", "), worst.unwrap_or_default())
}

/// Keys and values that later steps have overwritten, so that the caches at the end do not tell them.
fn step_caches(metrics: &Metrics, limits: &Limits) -> Option<Finding> {
    let bound = limits.kv_nmse.as_ref()?;
    let steps = metrics.steps.as_ref()?;
    let (name, excess) = first_over(&steps.layers, bound, KvSet::Steps)?;
    // Where logits or the caches at the end are beyond their limits too, they have said where it begins.
    let said = !limits.logits_nmse.holds(metrics.logits.overall)
        || metrics.kv.as_ref().is_some_and(|kv| first_over(&kv.layers, bound, KvSet::Stored).is_some());
    let begins = if said { String::new() } else { first_bad_step(metrics) };
    let text = format!("NMSE of {name} over all steps {excess}{begins}");
    Some(Finding::new(FindingKind::Kv, worst_layer(&steps.layers), text))
}

/// The first cache over its limit, by name.
fn first_over(layers: &[LayerNmse], bound: &Bound, set: KvSet) -> Option<(String, String)> {
    layers.iter().find_map(|layer| {
        let check = |cache, nmse| Some((set.tensor(cache, layer.layer as usize), bound.excess(nmse)?));
        check(Cache::K, layer.k).or_else(|| check(Cache::V, layer.v))
    })
}

/// A single bad row that the mean forgives.
fn worst_row(metrics: &Metrics, limits: &Limits) -> Option<Finding> {
    let excess = limits.row_nmse.excess(metrics.logits.worst.nmse)?;
    let (place, rows) = (metrics.logits.worst.place, metrics.logits.rows);
    let column = metrics.logits.worst.column;
    let text = format!(
        "NMSE of row {} of {rows} (position {}, step {}{}) {excess}",
        place.row,
        place.position,
        place.step,
        column.map_or_else(String::new, |column| format!(", largest error in column {column}"))
    );
    Some(Finding::new(FindingKind::Row, metrics.logits.worst.nmse, text))
}

fn caches(metrics: &Metrics, limits: &Limits) -> Option<Finding> {
    let bound = limits.kv_nmse.as_ref()?;
    let Some(kv) = &metrics.kv else {
        return Some(Finding::unforgivable("K/V were to be compared, but the captures hold none"));
    };
    // Every layer is checked here again: the limits may not be those of the comparison.
    let (name, excess) = first_over(&kv.layers, bound, KvSet::Stored)?;
    let worst = &kv.worst;
    // Where the logits are beyond theirs too, they have said it.
    let begins = if limits.logits_nmse.holds(metrics.logits.overall) {
        first_bad_step(metrics)
    } else {
        String::new()
    };
    let text = format!(
        "NMSE of {name} {excess}, the first cache over its limit; worst {}.{} with {:.1e} \
         (head {}, position {}){begins}",
        worst.cache, worst.layer, worst.nmse, worst.head, worst.position
    );
    Some(Finding::new(FindingKind::Kv, worst_layer(&kv.layers), text))
}

/// The largest NMSE of K or V in any layer; NaN where there is one.
fn worst_layer(layers: &[LayerNmse]) -> f64 {
    let worse = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
    layers.iter().flat_map(|layer| [layer.k, layer.v]).fold(0.0, worse)
}

/// Where the limit is given, captures of modes that record nothing hold none of these; that is no fault.
fn before_storing(metrics: &Metrics, limits: &Limits) -> Option<Finding> {
    let bound = limits.kv_before_storing_nmse.as_ref()?;
    let kv = metrics.kv_before_storing.as_ref()?;
    let (name, excess) = first_over(&kv.layers, bound, KvSet::BeforeStoring)?;
    let text = format!("NMSE of {name} {excess}, the first over the limit before it was stored");
    Some(Finding::new(FindingKind::BeforeStoring, worst_layer(&kv.layers), text))
}

fn mismatches(metrics: &Metrics, limits: &Limits) -> Option<Finding> {
    let (found, limit) = (&metrics.top_token, limits.max_real_mismatches);
    if found.real <= limit {
        return None;
    }
    let first = found.list.first().map_or_else(String::new, |m| {
        format!(", first in row {} (margin {:.1e}, a tie up to {:.1e})", m.place.row, m.margin, m.allowed)
    });
    let text = format!("{} real top-token mismatches in {} rows > {limit}{first}", found.real, found.rows);
    Some(Finding::new(FindingKind::Mismatches, found.real as f64, text))
}

fn experts(metrics: &Metrics) -> Option<Finding> {
    let found = metrics.experts.as_ref().filter(|found| found.real > 0)?;
    let first = found.list.first().map_or_else(String::new, |d| {
        format!(
            ", first in layer {} at position {}, step {}: {:?} instead of {:?} (gap {:.1e}, a tie up to {:.1e})",
            d.layer, d.position, d.step, d.test, d.reference, d.gap, d.allowed
        )
    });
    let text = format!("{} of {} sets of experts really differ{first}", found.real, found.sets);
    Some(Finding::new(FindingKind::Experts, found.real as f64, text))
}

fn divergence(metrics: &Metrics, limits: &Limits) -> Option<Finding> {
    let excess = limits.kl_mean.as_ref()?.excess(metrics.distribution.kl_mean)?;
    let text = format!("mean KL {excess}");
    Some(Finding::new(FindingKind::Kl, metrics.distribution.kl_mean, text))
}

fn greedy(metrics: &Metrics) -> Option<Finding> {
    let greedy = metrics.greedy.as_ref().filter(|greedy| !greedy.passes())?;
    let first = greedy.first_difference.as_ref()?;
    let token = |token: Option<i32>| token.map_or_else(|| "the end".to_owned(), |t| t.to_string());
    let margin = first.margin.map_or_else(|| "margin unknown".to_owned(), |m| format!("margin {m:.1e}"));
    let text = format!(
        "greedy run differs at token {} of {}: {} in the reference, {} in the test, {margin}",
        first.index,
        greedy.length,
        token(first.reference),
        token(first.test)
    );
    Some(Finding::new(FindingKind::Greedy, first.decision as f64, text))
}
