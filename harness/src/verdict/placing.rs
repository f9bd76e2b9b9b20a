//! Where the work of a cell was to be, and where it was.

use super::{Finding, FindingKind};
use crate::capture::Placement;

/// What is wrong with the placement of a cell on the CPU: every compute node must be there.
pub(super) fn cpu_fault(placement: &Placement) -> Option<String> {
    let (off, total) = (placement.off_cpu(), placement.total());
    if total == 0 {
        return Some("no compute node was counted".to_owned());
    }
    (off > 0).then(|| {
        let others = placement.backends.iter().filter(|b| !b.is_cpu() && b.compute_nodes > 0);
        let named: Vec<String> = others.map(|b| format!("{} on {}", b.compute_nodes, b.name)).collect();
        format!("{off} of {total} compute nodes off the CPU: {}", named.join(", "))
    })
}

/// What is wrong with the placement of a cell on another device, at most `limit` nodes of which may be on the
/// CPU, those not counted that were pinned there.
pub(super) fn device_fault(placement: &Placement, limit: Option<u64>) -> Option<Finding> {
    let (fell_back, total) = (placement.unasked_on_cpu(), placement.total());
    if placement.off_cpu() == 0 && placement.pinned.is_empty() {
        return Some(Finding::unforgivable(format!("the selected device got none of {total} compute nodes")));
    }
    let limit = limit.filter(|&limit| fell_back > limit)?;
    let ops = fallback_ops(placement).join(", ");
    let text = format!("{fell_back} of {total} compute nodes fell back to the CPU (limit {limit}): {ops}");
    Some(Finding::new(FindingKind::Fallback, fell_back as f64, text))
}

/// The ops that are on the CPU while another device is selected, with their types, as `GET_ROWS iq4_nl`.
pub(crate) fn ops_on_cpu(placement: &Placement) -> Vec<&str> {
    let listed = placement.fallbacks.iter().map(|fallback| fallback.op.as_str());
    let on_cpu = placement.backends.iter().filter(|b| b.is_cpu()).flat_map(|b| &b.ops);
    let counted = on_cpu.filter(|(_, count)| **count > 0).map(|(op, _)| op.as_str());
    listed.chain(counted).collect()
}

/// The ops that fell back: as the worker listed them, or else what the CPU's node counts tell.
fn fallback_ops(placement: &Placement) -> Vec<String> {
    if !placement.fallbacks.is_empty() {
        return placement.fallbacks.iter().map(|f| format!("{} x{} ({})", f.op, f.count, f.node)).collect();
    }
    let cpu = placement.backends.iter().filter(|b| b.is_cpu());
    cpu.flat_map(|b| &b.ops).map(|(op, count)| format!("{op} x{count}")).collect()
}
