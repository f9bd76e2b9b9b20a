//! Where the scheduler placed the work of a cell.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Node counts over all graphs of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Graphs that were computed.
    pub graphs: u64,
    /// Splits of the scheduler, summed over the graphs.
    pub splits: u64,
    /// Nodes by backend.
    pub backends: Vec<BackendNodes>,
    /// Work that fell back to the CPU while another device was selected.
    #[serde(default)]
    pub fallbacks: Vec<Fallback>,
}

/// Nodes on one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendNodes {
    /// ggml's name of the backend: `CPU`, `Vulkan0`, ….
    pub name: String,
    /// Nodes that compute.
    pub compute_nodes: u64,
    /// Views, reshapes, permutes and transposes, which compute nothing.
    pub view_nodes: u64,
    /// Compute nodes by op and type of the first source: `MUL_MAT q4_0`.
    #[serde(default)]
    pub ops: BTreeMap<String, u64>,
}

/// Nodes of one kind that fell back to the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// Op and type.
    pub op: String,
    /// The name of the first such node.
    pub node: String,
    /// How many there were.
    pub count: u64,
}

impl BackendNodes {
    /// Whether this is the CPU backend.
    pub fn is_cpu(&self) -> bool {
        self.name == "CPU"
    }
}

impl Placement {
    /// Compute nodes on the CPU backend.
    pub fn on_cpu(&self) -> u64 {
        self.backends.iter().filter(|b| b.is_cpu()).map(|b| b.compute_nodes).sum()
    }

    /// Compute nodes on any other backend.
    pub fn off_cpu(&self) -> u64 {
        self.backends.iter().filter(|b| !b.is_cpu()).map(|b| b.compute_nodes).sum()
    }

    /// All compute nodes.
    pub fn total(&self) -> u64 {
        self.on_cpu() + self.off_cpu()
    }
}
