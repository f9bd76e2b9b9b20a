//! The values of a spooled tensor.

use super::eval::View;
use super::graph::{GraphInfo, Kind, TensorInfo};

/// The values of tensor `i` out of its spooled bytes, in the order of the elements; of a node that writes into a
/// cache, those of the rows at the graph's positions. `None` where they cannot be read.
#[must_use]
pub(super) fn written(graph: &GraphInfo, i: usize, bytes: &[u8]) -> Option<Vec<f64>> {
    let t = &graph.tensors[i];
    let root = &graph.tensors[t.root];
    if root.kind != Kind::Cache {
        let own = TensorInfo { offset: 0, ..t.clone() };
        return View::new(&own, bytes).ok()?.values().ok();
    }
    let rows = graph.request.cached?;
    let cache = TensorInfo { ne: [root.ne[0], rows, 1, 1], ..root.clone() };
    let view = View::new(&cache, bytes).ok()?;
    let positions = &graph.request.positions;
    let mut values = Vec::with_capacity(view.ne[0] * positions.len());
    for &position in positions {
        if position >= rows {
            return None;
        }
        values.extend(view.row(position).ok()?);
    }
    Some(values)
}
