//! What is known of a graph's tensors without ggml: names, ops, shapes, where each one's data lie.

use ggml_sys::Tensor;
use model_file::TensorType;
use runtime::GraphRequest;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What a tensor is in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// There before the graph: tokens, positions, masks, indices, given experts, what a canvas is conditioned on.
    Input,
    /// Of the model file.
    Weight,
    /// A layer's keys or values.
    Cache,
    /// Another look at a tensor's data; nothing is computed.
    View,
    /// Computed.
    Compute,
}

/// Where a tensor's value lies in its spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len: u64,
}

/// One tensor of a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// ggml's name of it, which ends in its layer for nodes of ours.
    pub name: String,
    /// The name, made unique in the graph: what tensors of two arms are matched by.
    pub key: String,
    /// ggml's name of the op; `NONE` for leaves.
    pub op: String,
    /// The number of its data type.
    pub ty: u32,
    /// Elements per dimension, fastest first.
    pub ne: [usize; 4],
    /// Stride in bytes per dimension.
    pub nb: [usize; 4],
    /// The tensor whose data it looks at, by index; its own where it is no view.
    pub root: usize,
    /// Where its data begin in those of the root, in bytes.
    pub offset: usize,
    /// What it is computed from, by index.
    pub sources: Vec<usize>,
    /// The op's parameters: integers, and the bits of floats.
    pub params: [i32; 16],
    /// What it is.
    pub kind: Kind,
    /// The device that computes it.
    pub backend: Option<String>,
    /// Whether it is read after the graph.
    pub output: bool,
    /// Its value. Of a cache, and of a node that writes into one, the rows that the graph reads.
    pub value: Option<Place>,
}

impl TensorInfo {
    /// The layer in its name.
    #[must_use]
    pub fn layer(&self) -> Option<usize> {
        self.name.rsplit_once('-')?.1.parse().ok()
    }

    /// Its data type, where this program knows it.
    #[must_use]
    pub fn tensor_type(&self) -> Option<TensorType> {
        TensorType::from_id(self.ty)
    }

    /// The data type's name in lower case.
    #[must_use]
    pub fn type_name(&self) -> String {
        self.tensor_type().map_or_else(|| format!("type {}", self.ty), |ty| ty.name().to_lowercase())
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.ne.iter().product()
    }

    /// A parameter as a float.
    #[must_use]
    pub fn float(&self, i: usize) -> f64 {
        f64::from(f32::from_bits(u32::from_ne_bytes(self.params[i].to_ne_bytes())))
    }
}

/// A graph as it was computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphInfo {
    /// What it was asked for.
    pub request: GraphRequest,
    /// Its tensors: nodes in the order they were built in, leaves before the first node that reads them.
    pub tensors: Vec<TensorInfo>,
    /// The nodes that compute, by index, in the order that the device computed them in: backends reorder.
    pub order: Vec<usize>,
}

impl GraphInfo {
    /// The nodes that compute, by index, in order.
    pub fn computed(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.tensors.len()).filter(|&i| self.tensors[i].kind == Kind::Compute)
    }

    /// The tensor of this key.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<usize> {
        self.tensors.iter().position(|t| t.key == key)
    }

    /// Whether a node writes into a cache.
    #[must_use]
    pub fn is_store(&self, i: usize) -> bool {
        let t = &self.tensors[i];
        t.kind == Kind::Compute && self.tensors[t.root].kind == Kind::Cache
    }

    /// For each tensor the nodes that read its data, through views too; none where it is an output or lies in a
    /// cache, which is read after the end.
    #[must_use]
    pub fn readers(&self) -> Vec<Option<Vec<usize>>> {
        let mut all = vec![Some(Vec::new()); self.tensors.len()];
        for i in self.computed() {
            let t = &self.tensors[i];
            for source in t.sources.iter().flat_map(|&s| [s, self.tensors[s].root]) {
                if let Some(list) = &mut all[source]
                    && !list.contains(&i)
                {
                    list.push(i);
                }
            }
        }
        for (i, t) in self.tensors.iter().enumerate() {
            // A captured view marks its own tensor; the data are its root's.
            if t.output {
                all[t.root] = None;
            }
            if t.output || self.is_store(i) {
                all[i] = None;
            }
        }
        all
    }

    /// Describes `nodes` and what they read; also the tensors themselves, in the same order.
    pub(super) fn describe(request: &GraphRequest, nodes: &[Tensor]) -> (Self, Vec<Tensor>) {
        let mut graph = Self { request: request.clone(), tensors: Vec::new(), order: Vec::new() };
        let (mut by_id, mut handles) = (HashMap::new(), Vec::new());
        for node in nodes {
            graph.add(node, &mut by_id, &mut handles);
        }
        let mut seen: HashMap<String, usize> = HashMap::new();
        for t in &mut graph.tensors {
            let before = seen.entry(t.name.clone()).or_default();
            t.key = if *before == 0 { t.name.clone() } else { format!("{}#{before}", t.name) };
            *before += 1;
        }
        (graph, handles)
    }

    fn add(
        &mut self,
        tensor: &Tensor,
        by_id: &mut HashMap<usize, usize>,
        handles: &mut Vec<Tensor>,
    ) -> usize {
        if let Some(&known) = by_id.get(&tensor.id()) {
            return known;
        }
        // A cast names itself among its sources.
        let sources = (0..10).filter_map(|i| tensor.src(i)).filter(|source| source.id() != tensor.id());
        let sources: Vec<usize> = sources.map(|source| self.add(&source, by_id, handles)).collect();
        let root = tensor.root();
        let of_root = (root.id() != tensor.id()).then(|| self.add(&root, by_id, handles));
        let index = self.tensors.len();
        by_id.insert(tensor.id(), index);
        handles.push(tensor.clone());
        let (name, op) = (tensor.name(), tensor.op());
        let kind = kind(&name, &op);
        self.tensors.push(TensorInfo {
            key: String::new(),
            ty: tensor.dtype().0,
            ne: tensor.ne().map(|n| usize::try_from(n).unwrap_or(0)),
            nb: tensor.nb(),
            root: of_root.unwrap_or(index),
            offset: tensor.offset_in_root(),
            sources,
            params: tensor.op_params(),
            backend: None,
            output: tensor.is_output(),
            value: None,
            name,
            op,
            kind,
        });
        index
    }
}

/// What a tensor is, by its op and, for leaves, by the names that the runtime gives.
fn kind(name: &str, op: &str) -> Kind {
    match op {
        "VIEW" | "RESHAPE" | "PERMUTE" | "TRANSPOSE" => Kind::View,
        "NONE" if name.starts_with("cache.k.") || name.starts_with("cache.v.") => Kind::Cache,
        "NONE" if name.ends_with(".weight") || name.ends_with(".bias") => Kind::Weight,
        "NONE" => Kind::Input,
        _ => Kind::Compute,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A tensor of 32-bit floats, `[n]`.
    pub(crate) fn tensor(name: &str, op: &str, sources: &[usize], root: usize) -> TensorInfo {
        TensorInfo {
            name: name.to_owned(),
            key: name.to_owned(),
            op: op.to_owned(),
            ty: 0,
            ne: [4, 1, 1, 1],
            nb: [4, 16, 16, 16],
            root,
            offset: 0,
            sources: sources.to_vec(),
            params: [0; 16],
            kind: kind(name, op),
            backend: None,
            output: false,
            value: None,
        }
    }

    #[test]
    fn a_tensor_is_read_through_any_view_of_it() {
        let request = GraphRequest {
            tokens: vec![1],
            positions: vec![0],
            rows: None,
            cached: None,
            keep_kv: false,
            keep_residuals: false,
            skip: Vec::new(),
            capacity: 0,
            phase: runtime::Phase::Plain,
        };
        let mut tensors = vec![
            tensor("tokens", "NONE", &[], 0),
            tensor("a-0", "MUL", &[0], 1),
            tensor("b", "RESHAPE", &[1], 1),
            tensor("c-0", "ADD", &[0], 3),
            tensor("d-0", "ADD", &[2, 3], 4),
        ];
        tensors[4].output = true;
        let graph = GraphInfo { request, tensors, order: Vec::new() };
        let readers = graph.readers();
        assert_eq!(readers[1], Some(vec![4]), "through the reshape");
        assert_eq!((&readers[3], &readers[4]), (&Some(vec![4]), &None));
        assert_eq!(graph.computed().collect::<Vec<_>>(), [1, 3, 4]);
    }

    #[test]
    fn leaves_are_told_by_their_names() {
        for (name, op, is) in [
            ("cache.k.3", "NONE", Kind::Cache),
            ("cache_rows", "NONE", Kind::Input),
            ("blk.0.attn_q.bias", "NONE", Kind::Weight),
            ("mask", "NONE", Kind::Input),
            ("cache.k.3 (view)", "VIEW", Kind::View),
            ("k_store-3", "SET_ROWS", Kind::Compute),
        ] {
            assert_eq!(kind(name, op), is, "{name}");
        }
        assert_eq!(tensor("attn_q-12", "MUL_MAT", &[], 0).layer(), Some(12));
        assert_eq!(tensor("tokens", "NONE", &[], 0).layer(), None);
    }
}
