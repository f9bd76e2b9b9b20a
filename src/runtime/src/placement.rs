//! Where the scheduler placed the work, counted after each graph.

use std::collections::BTreeMap;

use ggml_sys::{Graph, Scheduler, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pins::Unit;

/// Nodes computed by one backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendNodes {
    /// The backend's name.
    pub name: String,
    /// Nodes that compute.
    pub compute_nodes: u64,
    /// Nodes that only look at data: views, reshapes, permutes, transposes.
    pub view_nodes: u64,
    /// Compute nodes by op and the type of their first source, as `MUL_MAT q4_0`.
    #[serde(default)]
    pub ops: BTreeMap<String, u64>,
}

/// Nodes that were meant for the device and ran on the CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fallback {
    /// Op and type.
    pub op: String,
    /// The first node's name and shape.
    pub node: String,
    /// How often.
    pub count: u64,
}

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Model weights.
    Weights,
    /// K/V cache.
    Cache,
    /// The scheduler's compute buffers.
    Compute,
}

/// Bytes held in one buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BufferUse {
    /// ggml's name of the buffer type.
    pub buffer: String,
    /// What it holds.
    pub purpose: Purpose,
    /// Its size.
    pub bytes: u64,
}

/// Nodes per backend over all graphs so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Graphs computed.
    pub graphs: u64,
    /// Scheduler splits over all graphs.
    pub splits: u64,
    /// One entry a backend, in the scheduler's order.
    pub backends: Vec<BackendNodes>,
    /// Work that fell back to the CPU.
    #[serde(default)]
    pub fallbacks: Vec<Fallback>,
    /// Compute nodes that were pinned to the CPU, by unit; they are no fall-backs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned: BTreeMap<Unit, u64>,
}

/// Whether an op only looks at data.
pub(crate) fn is_view(op: &str) -> bool {
    matches!(op, "NONE" | "VIEW" | "RESHAPE" | "PERMUTE" | "TRANSPOSE")
}

impl BackendNodes {
    /// Whether this is the CPU backend.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.name == "CPU"
    }
}

impl Placement {
    /// Compute nodes on the CPU backend.
    #[must_use]
    pub fn on_cpu(&self) -> u64 {
        self.backends.iter().filter(|b| b.is_cpu()).map(|b| b.compute_nodes).sum()
    }

    /// Compute nodes on any other backend.
    #[must_use]
    pub fn off_cpu(&self) -> u64 {
        self.backends.iter().filter(|b| !b.is_cpu()).map(|b| b.compute_nodes).sum()
    }

    /// All compute nodes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.on_cpu() + self.off_cpu()
    }

    /// Compute nodes on the CPU backend that were not pinned there.
    #[must_use]
    pub fn unasked_on_cpu(&self) -> u64 {
        self.on_cpu().saturating_sub(self.pinned.values().sum())
    }

    /// Adds where another session's work was placed.
    pub fn add(&mut self, other: &Self) {
        self.graphs += other.graphs;
        self.splits += other.splits;
        for theirs in &other.backends {
            match self.backends.iter_mut().find(|mine| mine.name == theirs.name) {
                None => self.backends.push(theirs.clone()),
                Some(mine) => {
                    mine.compute_nodes += theirs.compute_nodes;
                    mine.view_nodes += theirs.view_nodes;
                    for (op, count) in &theirs.ops {
                        *mine.ops.entry(op.clone()).or_default() += count;
                    }
                }
            }
        }
        for theirs in &other.fallbacks {
            match self.fallbacks.iter_mut().find(|mine| mine.op == theirs.op) {
                Some(mine) => mine.count += theirs.count,
                None => self.fallbacks.push(theirs.clone()),
            }
        }
        for (unit, count) in &other.pinned {
            *self.pinned.entry(unit.clone()).or_default() += count;
        }
    }

    /// Adds the placement of `graph`, which `scheduler` has just allocated. Nodes of layers that were left
    /// on the CPU on purpose (`meant_for_cpu`) are no fall-backs, nor are those of a `pinned` unit.
    pub(crate) fn record(
        &mut self,
        scheduler: &Scheduler,
        graph: &Graph,
        meant_for_cpu: impl Fn(&Tensor) -> bool,
        pinned: impl Fn(&Tensor) -> Option<Unit>,
    ) {
        let backends = scheduler.backends();
        if self.backends.is_empty() {
            let empty = |name| BackendNodes { name, ..BackendNodes::default() };
            self.backends = backends.iter().map(|b| empty(b.device().name())).collect();
        }
        self.graphs += 1;
        self.splits += scheduler.splits();
        for node in graph.nodes() {
            // A node without a backend would be counted nowhere; the last backend is where such a node runs.
            let index = scheduler.backend_of(&node).unwrap_or(backends.len() - 1);
            let entry = &mut self.backends[index];
            let op = node.op();
            if is_view(&op) {
                entry.view_nodes += 1;
                continue;
            }
            let dtype = node.src(0).map_or_else(|| node.dtype_name(), |s| s.dtype_name());
            let op = format!("{op} {dtype}");
            entry.compute_nodes += 1;
            *entry.ops.entry(op.clone()).or_default() += 1;
            let unit = pinned(&node).filter(|_| index > 0);
            if let Some(unit) = unit {
                *self.pinned.entry(unit).or_default() += 1;
            } else if index > 0 && !meant_for_cpu(&node) {
                match self.fallbacks.iter_mut().find(|f| f.op == op) {
                    Some(fallback) => fallback.count += 1,
                    None => {
                        let node = format!("{} {:?}", node.name(), node.ne());
                        self.fallbacks.push(Fallback { op, node, count: 1 });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_added_by_backend_and_op() {
        let placed = |name: &str, compute_nodes| Placement {
            graphs: 1,
            splits: 2,
            backends: vec![BackendNodes {
                name: name.to_owned(),
                compute_nodes,
                view_nodes: 1,
                ops: [("ADD f32".to_owned(), compute_nodes)].into(),
            }],
            fallbacks: vec![Fallback { op: "ADD f32".to_owned(), node: name.to_owned(), count: 1 }],
            pinned: Default::default(),
        };
        let mut all = placed("Vulkan0", 3);
        all.add(&placed("Vulkan0", 4));
        all.add(&placed("CPU", 5));
        assert_eq!((all.graphs, all.splits, all.on_cpu(), all.off_cpu()), (3, 6, 5, 7));
        assert_eq!(all.backends[0].ops["ADD f32"], 7);
        assert_eq!((all.fallbacks.len(), all.fallbacks[0].count), (1, 3));
    }
}
