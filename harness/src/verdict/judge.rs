//! The verdict on one cell: its status and, where it is not good, what is wrong, where and by how much.

use super::{Limits, Status};
use crate::capture::{Cache, Placement};
use crate::compare::{CompareError, Metrics};

/// A status and its reason; the reason of a pass is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What became of the cell.
    pub status: Status,
    /// Why, in words and figures.
    pub reason: String,
}

impl From<CompareError> for Verdict {
    /// Captures that cannot be compared have diverged.
    fn from(error: CompareError) -> Self {
        Self { status: Status::Diverged, reason: error.to_string() }
    }
}

/// Judges a cell that ran: its figures first, then where its work was placed.
pub fn judge(metrics: &Metrics, placement: &Placement, limits: &Limits, device_is_cpu: bool) -> Verdict {
    let figures = figure_faults(metrics, limits);
    let placed = if device_is_cpu { reference_fault(placement) } else { device_fault(placement, limits) };
    let status = match (figures.is_empty(), &placed) {
        (false, _) => Status::Diverged,
        (true, Some(_)) => Status::Fallback,
        (true, None) => Status::Pass,
    };
    let reasons: Vec<String> = figures.into_iter().chain(placed).collect();
    Verdict { status, reason: reasons.join("; ") }
}

/// What is wrong with the placement of a reference or another CPU cell: every compute node must be on the CPU,
/// and there must be some. A reference with a fault makes every cell that is compared with it red.
pub fn reference_fault(placement: &Placement) -> Option<String> {
    if placement.total() == 0 {
        return Some("no compute node was counted".to_owned());
    }
    (placement.off_cpu() > 0).then(|| {
        let others = placement.backends.iter().filter(|b| !b.is_cpu() && b.compute_nodes > 0);
        let named: Vec<String> = others.map(|b| format!("{} on {}", b.compute_nodes, b.name)).collect();
        format!(
            "{} of {} compute nodes off the CPU: {}",
            placement.off_cpu(),
            placement.total(),
            named.join(", ")
        )
    })
}

/// What is wrong with the placement of a cell on another device.
fn device_fault(placement: &Placement, limits: &Limits) -> Option<String> {
    let (fell_back, total) = (placement.on_cpu(), placement.total());
    if placement.off_cpu() == 0 {
        return Some(format!("the selected device got none of {total} compute nodes"));
    }
    let limit = limits.fallback_nodes?;
    (fell_back > limit).then(|| {
        format!(
            "{fell_back} of {total} compute nodes fell back to the CPU (limit {limit}): {}",
            fallback_ops(placement)
        )
    })
}

/// The ops that fell back: as the worker listed them, or else what the CPU's node counts tell.
fn fallback_ops(placement: &Placement) -> String {
    let listed = placement.fallbacks.iter().map(|f| (f.op.as_str(), f.count));
    let counted = placement.backends.iter().filter(|b| b.is_cpu()).flat_map(|b| &b.ops);
    let mut ops: Vec<(&str, u64)> = listed.collect();
    if ops.is_empty() {
        ops = counted.map(|(op, count)| (op.as_str(), *count)).collect();
    }
    ops.iter().map(|(op, count)| format!("{op} x{count}")).collect::<Vec<_>>().join(", ")
}

/// Every figure beyond its limit, in words.
fn figure_faults(metrics: &Metrics, limits: &Limits) -> Vec<String> {
    let checks = [
        nonfinite_fault(metrics),
        logits_fault(metrics, limits),
        row_fault(metrics, limits),
        kv_fault(metrics, limits),
        mismatch_fault(metrics, limits),
        kl_fault(metrics, limits),
        greedy_fault(metrics),
    ];
    checks.into_iter().flatten().collect()
}

fn nonfinite_fault(metrics: &Metrics) -> Option<String> {
    let found = &metrics.nonfinite;
    let first = found.first.as_ref()?;
    Some(format!(
        "{} NaN and {} unmatched infinities, first in {} row {} column {}: {} in the reference, {} in the test",
        found.nan(),
        found.unmatched_infinite(),
        first.tensor,
        first.row,
        first.column,
        first.reference,
        first.test
    ))
}

fn logits_fault(metrics: &Metrics, limits: &Limits) -> Option<String> {
    let (found, bound) = (&metrics.logits, &limits.logits_nmse);
    (!bound.holds(found.overall)).then(|| {
        let worst = found.worst.place.row;
        format!(
            "logits NMSE {:.1e} > {:.0e}, worst row {worst} of {}",
            found.overall, bound.limit, found.rows
        )
    })
}

fn row_fault(metrics: &Metrics, limits: &Limits) -> Option<String> {
    let (worst, bound) = (&metrics.logits.worst, &limits.row_nmse);
    (!bound.holds(worst.nmse)).then(|| {
        format!(
            "row {} of {} (position {}, step {}) NMSE {:.1e} > {:.0e}",
            worst.place.row,
            metrics.logits.rows,
            worst.place.position,
            worst.place.step,
            worst.nmse,
            bound.limit
        )
    })
}

fn kv_fault(metrics: &Metrics, limits: &Limits) -> Option<String> {
    let bound = limits.kv_nmse.as_ref()?;
    let Some(kv) = &metrics.kv else {
        return Some("K/V were to be compared, but the captures hold none".to_owned());
    };
    // Every layer is checked here again: the limits may have been tightened since the comparison.
    let beyond = kv.layers.iter().find_map(|layer| {
        let of = |cache, nmse| (!bound.holds(nmse)).then_some((cache, layer.layer, nmse));
        of(Cache::K, layer.k).or_else(|| of(Cache::V, layer.v))
    });
    beyond.map(|(cache, layer, nmse)| {
        let worst = &kv.worst;
        format!(
            "{cache}.{layer} is the first cache over its limit: NMSE {nmse:.1e} > {:.0e}; worst {}.{} {:.1e} (head {}, \
             position {})",
            bound.limit, worst.cache, worst.layer, worst.nmse, worst.head, worst.position
        )
    })
}

fn mismatch_fault(metrics: &Metrics, limits: &Limits) -> Option<String> {
    let found = &metrics.top_token;
    (found.real > limits.max_real_mismatches).then(|| {
        let rows = found.rows;
        let first = found.list.first().map_or_else(String::new, |m| {
            format!(
                ", row {} first: margin {:.1e}, allowed noise explains {:.1e}",
                m.place.row, m.margin, m.allowed
            )
        });
        format!(
            "{} real top-token mismatches of {rows} rows > {}{first}",
            found.real, limits.max_real_mismatches
        )
    })
}

fn kl_fault(metrics: &Metrics, limits: &Limits) -> Option<String> {
    let bound = limits.kl_mean.as_ref()?;
    let found = metrics.distribution.kl_mean;
    (!bound.holds(found)).then(|| format!("mean KL {found:.1e} > {:.0e}", bound.limit))
}

fn greedy_fault(metrics: &Metrics) -> Option<String> {
    let greedy = metrics.greedy.as_ref().filter(|greedy| !greedy.passes())?;
    let first = greedy.first_difference.as_ref()?;
    let token = |token: Option<i32>| token.map_or_else(|| "the end".to_owned(), |t| t.to_string());
    let margin = first.margin.map_or_else(|| "unknown margin".to_owned(), |m| format!("margin {m:.1e}"));
    Some(format!(
        "greedy run differs at token {} of {}: {} in the reference, {} in the test, {margin}",
        first.index,
        greedy.length,
        token(first.reference),
        token(first.test)
    ))
}
