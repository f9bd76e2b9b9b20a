//! Nodes by what they have in common.

use super::model::{Group, LayerReport, NodeReport};
use std::collections::BTreeMap;

/// The worse of two figures; NaN is the worst.
pub(super) fn worse(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }),
        (a, b) => a.or(b),
    }
}

/// What a node introduces; a node without a figure is the worst.
fn introduced(node: &NodeReport) -> f64 {
    node.introduced.as_ref().map_or(f64::NAN, |figures| figures.nmse)
}

/// `576 x 1536, 33 columns`, or the shape of the result.
pub(super) fn shape(node: &NodeReport) -> String {
    match node.product {
        Some([k, m, n]) if node.ne[2] * node.ne[3] == 1 => format!("{k} x {m}, {n} columns"),
        Some([k, m, n]) => format!("{k} x {m}, {n} columns, {} heads", node.ne[2] * node.ne[3]),
        None => {
            let used = 4 - node.ne.iter().rev().take_while(|&&n| n == 1).count();
            node.ne[..used.max(1)].iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ")
        }
    }
}

/// Nodes by op, types and shape, those that introduce the most first.
pub(super) fn groups(nodes: &[NodeReport]) -> Vec<Group> {
    let mut all: BTreeMap<(String, String, String), Group> = BTreeMap::new();
    for node in nodes {
        let key = (node.op.clone(), node.types.clone(), shape(node));
        let nmse = introduced(node);
        let group = all.entry(key.clone()).or_insert_with(|| Group {
            op: key.0,
            types: key.1,
            shape: key.2,
            nodes: 0,
            worst: nmse,
            node: node.name.clone(),
            device_truth: None,
            reference_truth: None,
            limit: node.limit,
        });
        group.nodes += 1;
        group.device_truth = worse(group.device_truth, node.device_truth);
        group.reference_truth = worse(group.reference_truth, node.reference_truth);
        if !group.worst.is_nan() && !(nmse <= group.worst) {
            (group.worst, group.node, group.limit) = (nmse, node.name.clone(), node.limit);
        }
    }
    let mut all: Vec<Group> = all.into_values().collect();
    // `total_cmp` puts a positive NaN above infinity.
    all.sort_by(|a, b| b.worst.abs().total_cmp(&a.worst.abs()));
    all
}

/// The nodes of each layer: how far off the last is, and which introduces the most.
pub(super) fn layers(nodes: &[NodeReport]) -> Vec<LayerReport> {
    let mut all: BTreeMap<usize, LayerReport> = BTreeMap::new();
    for node in nodes {
        let Some(layer) = node.layer else { continue };
        let nmse = introduced(node);
        let report = all.entry(layer).or_insert_with(|| LayerReport {
            layer,
            total: None,
            introduced: Some(nmse),
            node: node.name.clone(),
        });
        report.total = node.total.as_ref().map(|figures| figures.nmse);
        if report.introduced.is_some_and(|worst| !worst.is_nan() && !(nmse <= worst)) {
            (report.introduced, report.node) = (Some(nmse), node.name.clone());
        }
    }
    all.into_values().collect()
}
