//! What a trace finds: one typed result, which console, JSON, Markdown and CSV are functions of.

use super::figures::Figures;
use super::windows::Together;
use crate::named::named_enum;
use crate::plan::CellId;
use crate::verdict::ExitCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The schema of `trace.json`.
pub const SCHEMA: &str = "ggml-parity.trace/1";

named_enum! {
    /// Who is off at a node, by the f64 value of it.
    pub enum Culprit as "arm" {
        /// The device alone.
        Device = "device",
        /// The reference alone.
        Reference = "reference",
        /// Either.
        Both = "both",
        /// Neither, though they may be apart.
        Neither = "neither",
        /// Not known: there is no f64 value of the node.
        Unknown = "unknown",
    }
}

/// A node, on the device against the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its number among the nodes that compute.
    pub number: usize,
    /// Its name, unique in the graph.
    pub name: String,
    /// Its layer, where its name tells it; the head counts as the layer after the last.
    pub layer: Option<usize>,
    /// ggml's name of the op.
    pub op: String,
    /// The types of its sources and of itself, as `q4_k x f32 -> f32`.
    pub types: String,
    /// Its shape, fastest dimension first.
    pub ne: [usize; 4],
    /// Of a matrix product `[k, m] x [k, n]`: k, m and n.
    pub product: Option<[usize; 3]>,
    /// The device that computes it.
    pub backend: Option<String>,
    /// Its error when the device computes everything up to it: what it inherits and what it adds.
    pub total: Option<Figures>,
    /// Its error when the device computes it from the reference's inputs: what it adds.
    pub introduced: Option<Figures>,
    /// The same by head, of nodes of attention.
    #[serde(with = "crate::figure::Figures", default, skip_serializing_if = "Vec::is_empty")]
    pub heads: Vec<f64>,
    /// NMSE of the device from the reference's inputs against the f64 value.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub device_truth: Option<f64>,
    /// NMSE of the reference against the f64 value.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub reference_truth: Option<f64>,
    /// Why there is no f64 value.
    pub without_truth: Option<String>,
    /// What each of these may be.
    pub limit: f64,
    /// Why it is not less.
    pub reason: String,
    /// Where the two arms built it differently.
    pub differs: Vec<String>,
}

impl NodeReport {
    /// Whether a figure is over the limit, or missing.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        let off = |nmse: f64| !(nmse <= self.limit);
        self.introduced.as_ref().is_none_or(|figures| off(figures.nmse))
            || self.device_truth.is_some_and(off)
            || self.reference_truth.is_some_and(off)
    }

    /// Who is off.
    #[must_use]
    pub fn culprit(&self) -> Culprit {
        let off = |nmse: f64| !(nmse <= self.limit);
        match (self.device_truth.map(off), self.reference_truth.map(off)) {
            (Some(true), Some(true)) => Culprit::Both,
            (Some(true), Some(false)) => Culprit::Device,
            (Some(false), Some(true)) => Culprit::Reference,
            (Some(false), Some(false)) => Culprit::Neither,
            _ => Culprit::Unknown,
        }
    }
}

/// One graph of the case, computed whole on both arms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphReport {
    /// Tokens.
    pub tokens: usize,
    /// The first position.
    pub position: usize,
    /// Positions of the cache that it reads.
    pub cached: Option<usize>,
    /// NMSE of its logits; none where it gives none.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub logits: Option<f64>,
    /// NMSE of its keys or values in the worst layer.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub kv: Option<f64>,
    /// Whether one of these is over the cell's limit.
    pub over: bool,
    /// Where the device was asked for something else.
    pub differs: Option<String>,
}

/// What all nodes of an op, with such types and shapes, introduce.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The op.
    pub op: String,
    /// Types.
    pub types: String,
    /// The shape: `k x m, n columns` of a product, that of the result otherwise.
    pub shape: String,
    /// How many nodes.
    pub nodes: usize,
    /// The worst introduced NMSE.
    #[serde(with = "crate::figure::Figure")]
    pub worst: f64,
    /// The node that has it.
    pub node: String,
    /// The worst NMSE of the device against the f64 values.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub device_truth: Option<f64>,
    /// The worst NMSE of the reference against them.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub reference_truth: Option<f64>,
    /// The limit of the worst node.
    pub limit: f64,
}

/// How far the residual stream is off after a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerReport {
    /// The layer.
    pub layer: usize,
    /// The total NMSE of its last node.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub total: Option<f64>,
    /// The worst NMSE that a node of it introduces.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub introduced: Option<f64>,
    /// That node.
    pub node: String,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Nothing is over a limit.
    Clean,
    /// The first node that is over its limit, by its number.
    Node(usize),
    /// The device was asked for, or built, something else.
    Structure(String),
    /// Every node is right when it is computed alone; these are off together. None where no window was found.
    FusedOrScheduling(Option<Together>),
    /// No node is over its limit; their errors add up to more than the cell's.
    Accumulated,
}

/// A trace of one graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// [`SCHEMA`].
    pub schema: String,
    /// The cell.
    pub cell: CellId,
    /// The arm that it is compared with.
    pub reference: CellId,
    /// The graphs of the case.
    pub graphs: Vec<GraphReport>,
    /// The one that was walked through.
    pub graph: usize,
    /// What was found.
    pub finding: Finding,
    /// Inputs that the arms do not share.
    pub inputs: Vec<String>,
    /// The nodes, in the reference's order; none where the arms were not asked for the same.
    pub nodes: Vec<NodeReport>,
    /// Nodes of one arm that the other has not.
    pub unmatched: Vec<String>,
    /// What each op with such types and shapes introduces, the worst first.
    pub groups: Vec<Group>,
    /// Layer by layer.
    pub layers: Vec<LayerReport>,
    /// Nodes for each device.
    pub placement: BTreeMap<String, usize>,
    /// The command that does this again.
    pub rerun: String,
    /// How long it took.
    pub seconds: f64,
}

impl Trace {
    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.finding == Finding::Clean { ExitCode::Success } else { ExitCode::Diverged }
    }

    /// The node that the finding names.
    #[must_use]
    pub fn bad_node(&self) -> Option<&NodeReport> {
        match &self.finding {
            Finding::Node(number) => self.nodes.get(*number),
            Finding::FusedOrScheduling(Some(window)) => {
                self.nodes.iter().find(|node| node.name == window.node)
            }
            _ => None,
        }
    }
}
