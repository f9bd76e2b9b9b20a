//! One node and its inputs as a file, and that file on a device.
//!
//! `repro.safetensors` holds the raw bytes of what the node reads (`data.N`, blocks of quantised weights as they are),
//! the reference's value (`reference`) and the f64 value (`truth`), both F64, and in its metadata the op, its
//! parameters, shapes and strides. It needs neither model nor case.

use super::compare::ReferenceValues;
use super::decode;
use super::eval::{Data, EvalError, Source, View, evaluate};
use super::graph::{GraphInfo, Kind, Place, TensorInfo};
use super::model::NodeReport;
use super::spool::{Reader, SpoolError, Walked, Writer};
use crate::plan::{CellId, DeviceSelector};
use crate::worker::{Failure, FailureKind};
use ggml_sys::{Backend, Context, DType, Ggml, RopeParams, Scheduler, Tensor};
use model_file::GgufFile;
use runtime::DeviceRequest;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The schema of the document in the file's metadata.
pub const SCHEMA: &str = "ggml-parity.repro/1";
const KEY: &str = "ggml-parity";
const TRUTH: &str = "truth";
const REFERENCE: &str = "reference";

/// What the file says of its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// The cell it was found in.
    pub cell: CellId,
    /// The node and what it reads.
    pub graph: GraphInfo,
    /// Which of those the node is.
    pub node: usize,
    /// The largest NMSE that passes.
    pub limit: f64,
    /// Why it is not less.
    pub reason: String,
    /// The command that runs it.
    pub command: String,
}

/// An opened file.
pub struct Repro {
    /// What it says of its node.
    pub document: Document,
    data: BTreeMap<usize, Vec<u8>>,
    /// The reference's value.
    pub reference: Vec<f64>,
    /// The f64 value; none where the op has none.
    pub truth: Option<Vec<f64>>,
}

/// A file that cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ReproError {
    /// The file system or the format refuses.
    #[error("{file}: {why}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A node without values.
    #[error(transparent)]
    Values(#[from] EvalError),
    /// A spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

fn at(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> ReproError + '_ {
    move |why| ReproError::File { file: path.display().to_string(), why: why.to_string() }
}

impl Repro {
    /// Node `node` of a walk of the reference.
    ///
    /// # Errors
    /// When the walk has no such node, or its inputs cannot be read.
    pub fn of(
        walked: &mut Walked,
        file: &GgufFile,
        node: &NodeReport,
        cell: &CellId,
        command: String,
    ) -> Result<Self, ReproError> {
        let whole = walked.document.clone();
        let absent = || EvalError::Lacks(format!("node `{}` has no value", node.name));
        let i = whole.find(&node.name).ok_or_else(absent)?;
        let place = whole.tensors[i].value.ok_or_else(absent)?;
        let reference = decode::written(&whole, i, &walked.read(place)?).ok_or_else(absent)?;
        let mut values = ReferenceValues::new(walked, file);
        let truth = evaluate(&whole, i, &mut values).ok().filter(|truth| truth.len() == reference.len());
        let mut part = GraphInfo { request: whole.request.clone(), tensors: Vec::new(), order: Vec::new() };
        let (mut numbers, mut data) = (HashMap::new(), BTreeMap::new());
        let sources = whole.tensors[i].sources.iter().copied().filter(|&s| s != i);
        let sources: Vec<usize> =
            sources.chain([whole.tensors[i].root].into_iter().filter(|&r| r != i)).collect();
        for &s in &sources {
            for t in [whole.tensors[s].root, s] {
                if numbers.contains_key(&t) {
                    continue;
                }
                let mut info = whole.tensors[t].clone();
                if t == info.root {
                    let bytes = values.data(&whole, t, i)?;
                    if info.kind == Kind::Cache {
                        // No more than the graph reads.
                        info.ne[1] =
                            Some(whole.request.cache_rows()).filter(|&rows| rows > 0).unwrap_or(info.ne[1]);
                    }
                    let len = info.nb[1] * info.ne[1] * info.ne[2] * info.ne[3];
                    data.insert(part.tensors.len(), bytes.get(..len).ok_or_else(absent)?.to_vec());
                    info.kind = if info.kind == Kind::Cache { Kind::Cache } else { Kind::Input };
                    (info.op, info.sources) = ("NONE".to_owned(), Vec::new());
                }
                let number = part.tensors.len();
                numbers.insert(t, number);
                info.root = numbers.get(&info.root).copied().unwrap_or(number);
                info.sources.clear();
                info.value = None;
                part.tensors.push(info);
            }
        }
        let mut info = whole.tensors[i].clone();
        let number = part.tensors.len();
        info.sources = info.sources.iter().filter_map(|s| numbers.get(s).copied()).collect();
        info.root = numbers.get(&info.root).copied().unwrap_or(number);
        info.value = None;
        part.tensors.push(info);
        let document = Document {
            schema: SCHEMA.to_owned(),
            cell: cell.clone(),
            graph: part,
            node: number,
            limit: node.limit,
            reason: node.reason.clone(),
            command,
        };
        Ok(Self { document, data, reference, truth })
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, path: &Path) -> Result<(), ReproError> {
        let wide = |values: &[f64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let mut all: Vec<(String, Dtype, usize, Vec<u8>)> = self
            .data
            .iter()
            .map(|(i, bytes)| (format!("data.{i}"), Dtype::U8, bytes.len(), bytes.clone()))
            .collect();
        all.push((REFERENCE.to_owned(), Dtype::F64, self.reference.len(), wide(&self.reference)));
        if let Some(truth) = &self.truth {
            all.push((TRUTH.to_owned(), Dtype::F64, truth.len(), wide(truth)));
        }
        let views = all
            .iter()
            .map(|(name, ty, len, bytes)| Ok((name, TensorView::new(*ty, vec![*len], bytes)?)))
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(|error| at(path)(&error))?;
        let document = serde_json::to_string(&self.document).expect("documents are plain data");
        let metadata = HashMap::from([(KEY.to_owned(), document)]);
        crate::atomic::write_with(path, |partial| {
            safetensors::serialize_to_file(views, Some(metadata), partial).map_err(std::io::Error::other)
        })
        .map_err(|error: std::io::Error| at(path)(&error))
    }

    /// Opens a file.
    ///
    /// # Errors
    /// When it is none, or does not hold what it says.
    pub fn open(path: &Path) -> Result<Self, ReproError> {
        let wrong = at(path);
        let bytes = std::fs::read(path).map_err(|error| wrong(&error))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| wrong(&error))?;
        let text = header.metadata().as_ref().and_then(|m| m.get(KEY));
        let text = text.ok_or_else(|| wrong(&format!("its metadata have no `{KEY}`")))?;
        let document: Document = serde_json::from_str(text).map_err(|error| wrong(&error))?;
        if document.schema != SCHEMA {
            return Err(wrong(&format!("schema is `{}`, expected `{SCHEMA}`", document.schema)));
        }
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| wrong(&error))?;
        check(&document.graph, document.node).map_err(|why| wrong(&why))?;
        let mut data = BTreeMap::new();
        for (i, t) in document.graph.tensors.iter().enumerate() {
            if t.root == i && i != document.node {
                let name = format!("data.{i}");
                let found = tensors.tensor(&name).map_err(|error| wrong(&format!("{name}: {error}")))?;
                View::new(t, found.data()).map_err(|error| wrong(&error))?;
                data.insert(i, found.data().to_vec());
            }
        }
        for t in &document.graph.tensors[..document.node] {
            View::new(t, &data[&t.root]).map_err(|error| wrong(&error))?;
        }
        let list = |name: &str| -> Option<Vec<f64>> {
            let found = tensors.tensor(name).ok().filter(|t| t.dtype() == Dtype::F64)?;
            let eight = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("eight bytes"));
            Some(found.data().chunks_exact(8).map(eight).collect())
        };
        let reference = list(REFERENCE).ok_or_else(|| wrong(&format!("no F64 tensor `{REFERENCE}`")))?;
        Ok(Self { reference, truth: list(TRUTH), document, data })
    }

    /// The f64 value, computed from the inputs in the file.
    ///
    /// # Errors
    /// When the op has none.
    pub fn evaluate(&mut self) -> Result<Vec<f64>, EvalError> {
        let (graph, node) = (self.document.graph.clone(), self.document.node);
        evaluate(&graph, node, self)
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &TensorInfo {
        &self.document.graph.tensors[self.document.node]
    }
}

impl Source for Repro {
    fn data(&mut self, _: &GraphInfo, root: usize, _: usize) -> Result<Data, EvalError> {
        let lacks = || EvalError::Malformed(format!("the file has no data of tensor {root}"));
        self.data.get(&root).cloned().map(Data::Held).ok_or_else(lacks)
    }
}

/// Indices and shapes lead nowhere else.
fn check(graph: &GraphInfo, node: usize) -> Result<(), String> {
    if node + 1 != graph.tensors.len() {
        return Err(format!("its node is tensor {node} of {}", graph.tensors.len()));
    }
    for (i, t) in graph.tensors.iter().enumerate() {
        let known = |&s: &usize| s < i;
        if !t.sources.iter().all(known) || (t.root != i && !known(&t.root)) {
            return Err(format!("tensor {i} looks at what does not come before it"));
        }
        if t.root != i && graph.tensors[t.root].root != t.root {
            return Err(format!("tensor {i} is a view of a view"));
        }
        let most = t.ne.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
        if most.is_none_or(|n| n == 0 || i64::try_from(n).is_err()) {
            return Err(format!("tensor {i} has the shape {:?}", t.ne));
        }
    }
    Ok(())
}

/// What a device made of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The device that computed it.
    pub backend: String,
    /// Its bytes.
    pub value: Place,
}

/// The values in the spool that [`compute`] wrote.
///
/// # Errors
/// When it cannot be read.
pub fn outcome(repro: &Repro, folder: &Path) -> Result<(String, Vec<f64>), ReproError> {
    let mut reader = Reader::<Outcome>::open(folder)?;
    let bytes = reader.read(reader.document.value)?;
    let values = decode::written(&repro.document.graph, repro.document.node, &bytes);
    let lacks = || EvalError::Lacks("the device's value cannot be read".to_owned());
    Ok((reader.document.backend, values.ok_or_else(lacks)?))
}

/// Computes the node of `file` on `device`, its inputs in the device's memory, and spools it.
///
/// # Errors
/// When the file is none, the device does not compute the node, or ggml fails.
pub fn compute(
    ggml: &'static Ggml,
    device: &DeviceSelector,
    threads: usize,
    file: &Path,
    into: &Path,
) -> Result<(), Failure> {
    let input = |message: String| Failure { kind: FailureKind::Input, message };
    let ggml_failed = |error: ggml_sys::Error| Failure::from(&error);
    let repro = Repro::open(file).map_err(|error| input(error.to_string()))?;
    let request = DeviceRequest { name: device.base.clone(), buffer: device.buft.clone() };
    let (chosen, matrices) = request.find(ggml).map_err(|error| Failure::from(&error))?;
    let (graph, node) = (&repro.document.graph, repro.node());

    let mut roots = HashMap::new();
    for (i, t) in graph.tensors.iter().enumerate().filter(|(i, _)| repro.data.contains_key(i)) {
        // A context of its own: the matrix may lie in another kind of memory.
        let ctx = Context::new(ggml, 1, 0).map_err(ggml_failed)?;
        let tensor = ctx.tensor(DType(t.ty), &signed(t.ne));
        tensor.set_name(&t.name);
        let is_matrix = node.op == "MUL_MAT" && node.sources.first() == Some(&i);
        let home = matrices.filter(|_| is_matrix).unwrap_or_else(|| chosen.buffer_type());
        ctx.allocate(&home, is_matrix).map_err(ggml_failed)?;
        tensor
            .write_bytes(0, &repro.data[&i][..tensor.bytes().min(repro.data[&i].len())])
            .map_err(ggml_failed)?;
        roots.insert(i, tensor);
    }
    let ctx = Context::new(ggml, 64, 64).map_err(ggml_failed)?;
    let cgraph = ctx.graph(64).map_err(ggml_failed)?;
    let view = |i: usize| view(&ctx, &graph.tensors[i], &roots[&graph.tensors[i].root]);
    let sources: Vec<Tensor> =
        node.sources.iter().map(|&s| view(s)).collect::<Result<_, _>>().map_err(input)?;
    let made = build(&ctx, node, &sources, roots.get(&node.root))?.output();
    cgraph.expand(&made);

    let cpu = ggml.devices().into_iter().find(|d| d.kind() == ggml_sys::DeviceKind::Cpu);
    let mut backends = vec![Backend::new(chosen).map_err(ggml_failed)?];
    if let Some(cpu) = cpu.filter(|cpu| cpu.name() != chosen.name()) {
        backends.push(Backend::new(cpu).map_err(ggml_failed)?);
    }
    if !chosen.supports(&made) {
        let message = format!("{} does not support {made:?} of {sources:?}", chosen.name());
        return Err(Failure { kind: FailureKind::Unsupported, message });
    }
    for backend in &backends {
        // A GPU has no threads of ours to set.
        let _ = backend.set_threads(threads.max(1));
    }
    let scheduler = Scheduler::new(backends, 256).map_err(ggml_failed)?;
    scheduler.allocate(&cgraph, &[]).map_err(ggml_failed)?;
    scheduler.compute(&cgraph).map_err(ggml_failed)?;
    let backend = scheduler.backend_of(&made).map(|i| scheduler.backends()[i].device().name());
    let held = roots.get(&node.root).unwrap_or(&made);
    let mut bytes = vec![0; held.bytes()];
    held.read_bytes(0, &mut bytes).map_err(ggml_failed)?;
    let spooled = |error: SpoolError| Failure { kind: FailureKind::Fault, message: error.to_string() };
    let mut writer = Writer::create(into).map_err(spooled)?;
    let value = writer.push(&bytes).map_err(spooled)?;
    writer.finish(&Outcome { backend: backend.unwrap_or_default(), value }).map_err(spooled)
}

fn signed(ne: [usize; 4]) -> [i64; 4] {
    ne.map(|n| i64::try_from(n).expect("shapes were checked"))
}

/// The view `t` of `root`: rows in the order of their strides, then permuted.
fn view(ctx: &Context, t: &TensorInfo, root: &Tensor) -> Result<Tensor, String> {
    if t.kind != Kind::View {
        return Ok(root.clone());
    }
    let mut order = [0, 1, 2];
    order.sort_by_key(|&d| (t.nb[d], d));
    let (ne, nb) = (signed(t.ne), t.nb);
    let size = t.tensor_type().map(|ty| ty.block_bytes());
    if t.ne[3] != 1 || size != Some(nb[order[0]] as u64) {
        return Err(format!("a view of {:?} with strides {:?} is not built", t.ne, t.nb));
    }
    let shape = [ne[order[0]], ne[order[1]], ne[order[2]]];
    let plain = ctx.view_3d(root, shape, [nb[order[1]], nb[order[2]]], t.offset);
    // Dimension `i` of the plain view is dimension `order[i]` of what is wanted.
    let axis = |i: usize| i32::try_from(order[i]).expect("three axes");
    Ok(if order == [0, 1, 2] { plain } else { ctx.permute(&plain, [axis(0), axis(1), axis(2), 3]) })
}

/// The node out of its sources, by the name of its op; `root` is what it writes into, where it does.
fn build(
    ctx: &Context,
    node: &TensorInfo,
    sources: &[Tensor],
    root: Option<&Tensor>,
) -> Result<Tensor, Failure> {
    let lacks = |what: &str| Failure {
        kind: FailureKind::Input,
        message: format!("{} `{}`: {what}", node.op, node.name),
    };
    let source = |i: usize| sources.get(i).ok_or_else(|| lacks("a source is missing"));
    let float = |i: usize| node.float(i) as f32;
    Ok(match node.op.as_str() {
        "ADD" => ctx.add(source(0)?, source(1)?),
        "MUL" => ctx.mul(source(0)?, source(1)?),
        "SCALE" => ctx.scale(source(0)?, float(0)),
        "SILU" => ctx.silu(source(0)?),
        "GELU" => ctx.gelu(source(0)?).map_err(|error| Failure::from(&error))?,
        "TANH" => ctx.tanh(source(0)?).map_err(|error| Failure::from(&error))?,
        "DIV" => ctx.div(source(0)?, source(1)?).map_err(|error| Failure::from(&error))?,
        "SUM_ROWS" => ctx.sum_rows(source(0)?).map_err(|error| Failure::from(&error))?,
        "ARGSORT" => ctx.argsort(source(0)?).map_err(|error| Failure::from(&error))?,
        "MUL_MAT_ID" => {
            ctx.mul_mat_id(source(0)?, source(1)?, source(2)?).map_err(|error| Failure::from(&error))?
        }
        "RMS_NORM" => ctx.rms_norm(source(0)?, float(0)),
        "MUL_MAT" if node.params[0] == 0 => ctx.mul_mat(source(0)?, source(1)?),
        "MUL_MAT" => ctx.mul_mat_f32(source(0)?, source(1)?),
        "GET_ROWS" => ctx.get_rows(source(0)?, source(1)?),
        "CONT" => ctx.cont(source(0)?),
        "CONCAT" => ctx.concat(source(0)?, source(1)?, node.params[0]),
        "SET_ROWS" => {
            let root = root.ok_or_else(|| lacks("there is nothing to write into"))?;
            ctx.set_rows(root, source(0)?, source(1)?).map_err(|error| Failure::from(&error))?
        }
        "CPY" if root.is_some() => ctx.cpy(source(0)?, source(1)?),
        "CPY" => ctx.cast(source(0)?, DType(node.ty)),
        "SOFT_MAX" => ctx.soft_max(source(0)?, sources.get(1), float(0)),
        "ROPE" => {
            let params = RopeParams { dims: node.params[1], neox: node.params[2] == 2, freq_base: float(5) };
            ctx.rope(source(0)?, source(1)?, sources.get(2), params)
        }
        "FLASH_ATTN_EXT" => ctx.flash_attention(source(0)?, source(1)?, source(2)?, sources.get(3), float(0)),
        _ => return Err(lacks("this op is not built")),
    })
}
