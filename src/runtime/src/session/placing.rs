//! Where the nodes of a graph are to run.

use ggml_sys::{Graph, Tensor};

use super::{Session, scheduler};
use crate::error::Error;
use crate::pins::{Pins, Unit};
use crate::placement::is_view;

impl Session {
    /// Gives memory to `graph` and counts where its nodes are. False where it has none, because a fresh scheduler had to
    /// be made: then it is to be built again.
    ///
    /// A compute buffer that is too small for a graph is replaced by a larger one. Mesa's llvmpipe writes into the heap
    /// after that: of processes in which buffers grew 30 times two in three died or hung, and none of those that began
    /// with a fresh backend each time, or in which the largest graph came first (Mesa 22.3.6, ggml 0.23.0).
    pub(super) fn allocate(&mut self, graph: &Graph) -> Result<bool, Error> {
        let pins = self.pins(&graph.nodes())?;
        let before = self.scheduler.compute_bytes(0);
        self.scheduler.allocate(graph, &pins)?;
        let grew = before > 0 && self.scheduler.compute_bytes(0) > before;
        if grew && self.selected.device.description().contains("llvmpipe") {
            self.scheduler = scheduler(&self.selected, &self.hparams, &self.options)?;
            return Ok(false);
        }
        self.record_placement(graph);
        Ok(true)
    }

    /// Nodes whose backend the scheduler is not to choose: on the CPU those that the device does not compute (some
    /// builds crash if the scheduler has to find that out) and those that are pinned there; where any are, the
    /// others on the device.
    fn pins(&self, nodes: &[Tensor]) -> Result<Vec<(Tensor, usize)>, Error> {
        let backends = self.scheduler.backends();
        let last = backends.len() - 1;
        let mut pins = Vec::new();
        for node in nodes {
            if backends[0].device().supports(node) {
                let place = self.options.pins.as_ref().filter(|_| last > 0);
                pins.extend(place.and_then(|p| self.place(p, node, last)).map(|at| (node.clone(), at)));
                continue;
            }
            if last == 0 || !backends[last].device().supports(node) {
                let sources: Vec<_> = (0..3).filter_map(|i| node.src(i)).collect();
                return Err(Error::UnsupportedNode {
                    device: backends[0].device().name(),
                    node: format!("{node:?} of {sources:?}"),
                });
            }
            pins.push((node.clone(), last));
        }
        Ok(pins)
    }

    /// The backend of a node that the device could compute; none where the scheduler may choose.
    fn place(&self, pins: &Pins, node: &Tensor, cpu: usize) -> Option<usize> {
        let unit = unit_of(node).filter(|unit| !self.weights.meant_for_cpu(unit.layer))?;
        Some(if pins.contains(&unit) { cpu } else { 0 })
    }

    /// Whether the rows of layer `l` are stored by the CPU, so that the cache must lie there.
    pub(super) fn stores_on_cpu(&self, layer: usize) -> bool {
        let op = if self.set_rows { "SET_ROWS" } else { "CPY" };
        let store = Unit { layer, op: op.to_owned() };
        self.options.pins.as_ref().is_some_and(|pins| pins.contains(&store))
    }

    /// Counts where the nodes of `graph` are, which was just allocated.
    fn record_placement(&mut self, graph: &Graph) {
        let (weights, pins) = (&self.weights, &self.options.pins);
        self.placement.record(
            &self.scheduler,
            graph,
            |node| layer_of(&node.name()).is_some_and(|layer| weights.meant_for_cpu(layer)),
            |node| unit_of(node).filter(|unit| pins.as_ref().is_some_and(|pins| pins.contains(unit))),
        );
    }
}

/// What a node is a part of; none for one that only looks at data, or that has no name of ours.
fn unit_of(node: &Tensor) -> Option<Unit> {
    let op = node.op();
    if is_view(&op) {
        return None;
    }
    Some(Unit { layer: layer_of(&node.name())?, op })
}

/// The layer in a node's name.
fn layer_of(name: &str) -> Option<usize> {
    name.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_carry_their_layer() {
        assert_eq!(layer_of("attn_q-12"), Some(12));
        assert_eq!(layer_of("embedding"), None);
        assert_eq!(layer_of("attn_q-12 (reshaped)"), None);
    }
}
