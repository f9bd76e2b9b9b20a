//! From spools to figures: each node of the reference against the device's, computed alone and after all others, and
//! both against the f64 value.

use super::decode;
use super::eval::{Data, EvalError, Source, evaluate};
use super::figures::{Figures, by_head};
use super::graph::{GraphInfo, Kind, TensorInfo};
use super::limits::NodeLimits;
use super::model::NodeReport;
use super::spool::{SpoolError, Walked};
use crate::compare::Nmse;
use crate::verdict::DeviceClass;
use model_file::{GgufFile, HyperParams};

/// The reference's values, as the f64 value of a node wants them.
pub(super) struct ReferenceValues<'a> {
    walked: &'a mut Walked,
    file: &'a GgufFile,
}

impl<'a> ReferenceValues<'a> {
    pub(super) fn new(walked: &'a mut Walked, file: &'a GgufFile) -> Self {
        Self { walked, file }
    }
}

impl Source for ReferenceValues<'_> {
    fn data(&mut self, graph: &GraphInfo, root: usize, reader: usize) -> Result<Data, EvalError> {
        let t = &graph.tensors[root];
        let absent = || EvalError::Lacks(format!("the value of `{}` is not known", t.name));
        match t.kind {
            Kind::Weight => {
                // A tied head may be a copy of the table under the name of a head.
                let table = || self.file.tensor("token_embd.weight").filter(|_| t.name == "output.weight");
                let info = self.file.tensor(&t.name).or_else(table).ok_or_else(absent)?;
                Ok(Data::Mapped(self.file.map(info)?))
            }
            Kind::Cache => {
                // As the last node before the reader left it.
                let store = (0..reader).rev().find(|&i| graph.is_store(i) && graph.tensors[i].root == root);
                let place = graph.tensors[store.unwrap_or(root)].value.ok_or_else(absent)?;
                let mut bytes = self.walked.read(place)?;
                // Only what is read was kept; views may be of the whole.
                bytes.resize((t.nb[1] * t.ne[1]).max(bytes.len()), 0);
                Ok(Data::Held(bytes))
            }
            _ => Ok(Data::Held(self.walked.read(t.value.ok_or_else(absent)?)?)),
        }
    }
}

/// What all nodes are compared with.
pub(super) struct Comparison<'a> {
    pub(super) hparams: &'a HyperParams,
    pub(super) limits: &'a NodeLimits,
    pub(super) device: DeviceClass,
    pub(super) file: &'a GgufFile,
}

impl Comparison<'_> {
    /// The nodes of `reference` in its order, against the device's `own` walk and its `forced` one.
    pub(super) fn nodes(
        &self,
        reference: &mut Walked,
        own: &mut Walked,
        forced: &mut Walked,
    ) -> Result<Vec<NodeReport>, SpoolError> {
        let graph = reference.document.clone();
        let computed: Vec<usize> = graph.computed().collect();
        let mut all = Vec::with_capacity(computed.len());
        for (number, i) in computed.into_iter().enumerate() {
            all.push(self.node(number, i, &graph, reference, own, forced)?);
        }
        Ok(all)
    }

    fn node(
        &self,
        number: usize,
        i: usize,
        graph: &GraphInfo,
        reference: &mut Walked,
        own: &mut Walked,
        forced: &mut Walked,
    ) -> Result<NodeReport, SpoolError> {
        let t = &graph.tensors[i];
        let row = if graph.is_store(i) { graph.tensors[t.root].ne[0] } else { t.ne[0] };
        let r = values(reference, i)?.unwrap_or_default();
        let of_arm = |walked: &mut Walked| -> Result<Option<Vec<f64>>, SpoolError> {
            walked.document.find(&t.key).map_or(Ok(None), |at| values(walked, at))
        };
        let (total, alone) = (of_arm(own)?, of_arm(forced)?);
        let truth = evaluate(graph, i, &mut ReferenceValues::new(reference, self.file));
        let truth = truth.map(|values| written_rows(graph, i, values, r.len()));
        let against = |truth: &[f64], x: &[f64]| {
            if truth.len() == x.len() { Nmse::of(truth, x).value() } else { f64::NAN }
        };
        let source = t.sources.first().map_or_else(|| t.type_name(), |&s| graph.tensors[s].type_name());
        let source = match t.op.as_str() {
            // What counts is the type that is stored, or the cache's.
            "SET_ROWS" | "CPY" => t.type_name(),
            _ => source,
        };
        let limit = self.limits.of(&t.op, &source, self.device);
        let axis = self.head_axis(t);
        let mine = forced.document.find(&t.key);
        Ok(NodeReport {
            number,
            name: t.key.clone(),
            layer: t.layer(),
            op: t.op.clone(),
            types: types(graph, t),
            ne: t.ne,
            product: (t.op == "MUL_MAT" && t.sources.len() > 1).then(|| {
                let (a, b) = (&graph.tensors[t.sources[0]], &graph.tensors[t.sources[1]]);
                [a.ne[0], a.ne[1], b.ne[1]]
            }),
            backend: mine.and_then(|at| forced.document.tensors[at].backend.clone()),
            total: total.map(|x| Figures::of(&r, &x, row)),
            heads: match (&alone, axis) {
                (Some(x), Some(axis)) => by_head(&r, x, t.ne, axis),
                _ => Vec::new(),
            },
            device_truth: truth.as_ref().ok().zip(alone.as_ref()).map(|(truth, x)| against(truth, x)),
            reference_truth: truth.as_ref().ok().map(|truth| against(truth, &r)),
            without_truth: truth.err().map(|error| error.to_string()),
            introduced: alone.map(|x| Figures::of(&r, &x, row)),
            limit: limit.limit,
            reason: limit.reason,
            differs: mine.map_or_else(Vec::new, |at| differences(graph, i, &forced.document, at)),
        })
    }

    /// The dimension that counts heads.
    fn head_axis(&self, t: &TensorInfo) -> Option<usize> {
        let heads = |axis: usize| {
            (t.ne[axis] == self.hparams.n_head || t.ne[axis] == self.hparams.n_head_kv).then_some(axis)
        };
        match t.op.as_str() {
            "ROPE" | "FLASH_ATTN_EXT" => heads(1),
            "SOFT_MAX" => heads(2),
            "MUL_MAT" if t.name.starts_with("kq") => heads(2),
            "CONT" if t.name.starts_with("v_transposed") => heads(2),
            "CONT" if t.name.starts_with("kqv_merged") => heads(1),
            _ => None,
        }
    }
}

/// The values of tensor `i`.
fn values(walked: &mut Walked, i: usize) -> Result<Option<Vec<f64>>, SpoolError> {
    let Some(place) = walked.document.tensors[i].value else { return Ok(None) };
    let bytes = walked.read(place)?;
    Ok(decode::written(&walked.document, i, &bytes))
}

/// Of a node that writes all that is read of a cache, the rows at the graph's positions.
fn written_rows(graph: &GraphInfo, i: usize, values: Vec<f64>, wanted: usize) -> Vec<f64> {
    let row = graph.tensors[graph.tensors[i].root].ne[0];
    let all = graph.request.cached.map(|rows| rows * row);
    if !graph.is_store(i) || values.len() == wanted || all != Some(values.len()) {
        return values;
    }
    graph.request.positions.iter().flat_map(|&p| values[p * row..][..row].to_vec()).collect()
}

/// `q4_k x f32 -> f32`; the result is left out where it is F32.
fn types(graph: &GraphInfo, t: &TensorInfo) -> String {
    let sources: Vec<String> = t.sources.iter().map(|&s| graph.tensors[s].type_name()).collect();
    let sources = match t.op.as_str() {
        "MUL_MAT" | "FLASH_ATTN_EXT" => sources.join(" x "),
        _ => sources.first().cloned().unwrap_or_default(),
    };
    if t.type_name() == "f32" { sources } else { format!("{sources} -> {}", t.type_name()) }
}

/// Where two arms built a node differently.
fn differences(a: &GraphInfo, i: usize, b: &GraphInfo, j: usize) -> Vec<String> {
    let (x, y) = (&a.tensors[i], &b.tensors[j]);
    let keys = |graph: &GraphInfo, t: &TensorInfo| {
        t.sources.iter().map(|&s| graph.tensors[s].key.clone()).collect::<Vec<_>>()
    };
    let shapes = |graph: &GraphInfo, t: &TensorInfo| {
        let shape = |&s: &usize| (graph.tensors[s].ne, graph.tensors[s].nb, graph.tensors[s].offset);
        t.sources.iter().filter(|&s| graph.tensors[*s].kind == Kind::View).map(shape).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    if x.op != y.op {
        found.push(format!("op {} instead of {}", y.op, x.op));
    }
    if (x.ty, x.ne) != (y.ty, y.ne) {
        found.push(format!("{} {:?} instead of {} {:?}", y.type_name(), y.ne, x.type_name(), x.ne));
    }
    if x.params != y.params {
        found.push(format!("parameters {:?} instead of {:?}", y.params, x.params));
    }
    if keys(a, x) != keys(b, y) {
        found.push(format!("reads {:?} instead of {:?}", keys(b, y), keys(a, x)));
    } else if shapes(a, x) != shapes(b, y) {
        found.push("looks at its sources with other shapes or strides".to_owned());
    }
    found
}
