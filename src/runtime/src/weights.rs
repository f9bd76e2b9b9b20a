//! Weights: every tensor of the model in the memory of the device that will use it, streamed there from
//! the file in windows, so that the host never holds more than one.

use std::collections::{BTreeSet, HashMap};

use ggml_sys::{BufferType, Context, DType, Device, Ggml, Tensor};
use model_file::{HyperParams, Model, TensorInfo, TensorType};

use crate::cache::as_i64;
use crate::device::{DeviceRequest, Selected};
use crate::error::Error;
use crate::placement::{BufferUse, Purpose};

/// Bytes of the file mapped at once.
const WINDOW: u64 = 16 << 20;

/// The tensors of a loaded model by name.
pub(crate) struct Weights {
    tensors: HashMap<String, Tensor>,
    buffers: Vec<BufferUse>,
    /// The first `n` layers are on the device.
    layers_on_device: usize,
    n_layer: usize,
}

/// How a graph uses a weight, which decides whether the device can hold it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Rows are looked up.
    Lookup,
    /// The left side of a matrix product.
    Matrix,
    /// The matrices of experts, of which each token takes some.
    Experts,
    /// Added to or multiplied with activations.
    Vector,
}

/// One weight to create: its name in the graph, its data in the file.
struct Item<'m> {
    name: String,
    info: &'m TensorInfo,
    home: BufferType,
}

impl Weights {
    pub(crate) fn load(
        ggml: &'static Ggml,
        model: &Model,
        selected: &Selected,
        layers: Option<usize>,
    ) -> Result<Self, Error> {
        let hparams = &model.hparams;
        if let Some((_, info)) = model.tensors().find(|(_, info)| !ggml.has_type(DType(info.ty.id()))) {
            return Err(Error::UnsupportedNode {
                device: format!("this ggml build ({})", ggml.version().unwrap_or("of unknown version")),
                node: format!("tensors of type {}, as {} is", info.ty.name(), info.name),
            });
        }
        let n_layer = hparams.n_layer;
        let layers_on_device = layers.unwrap_or(n_layer).min(n_layer);
        let mut items = Vec::new();
        for (_, info) in model.tensors() {
            let at = layer_of(&info.name, hparams);
            let on_device = at < layers_on_device || (at == n_layer && layers_on_device == n_layer);
            let usage = usage(info);
            let home = home_of(ggml, selected, info, usage, on_device)?;
            // A tied head whose table the device can multiply with but not look rows up in gets a copy.
            if usage == Use::Lookup && hparams.tied_head {
                let head_on_device = layers_on_device == n_layer;
                let head = home_of(ggml, selected, info, Use::Matrix, head_on_device)?;
                if head.name() != home.name() {
                    items.push(Item { name: "output.weight".to_owned(), info, home: head });
                }
            }
            items.push(Item { name: info.name.clone(), info, home });
        }
        let mut weights = Self { tensors: HashMap::new(), buffers: Vec::new(), layers_on_device, n_layer };
        let mut groups: Vec<(BufferType, Vec<Item<'_>>)> = Vec::new();
        for item in items {
            match groups.iter_mut().find(|(kind, _)| kind.name() == item.home.name()) {
                Some((_, group)) => group.push(item),
                None => groups.push((item.home, vec![item])),
            }
        }
        if let Some(kind) = selected.matrices
            && !groups.iter().any(|(home, _)| home.name() == kind.name())
        {
            let types: BTreeSet<&str> = model.tensors().map(|(_, info)| info.ty.name()).collect();
            return Err(Error::UnsupportedNode {
                device: kind.name(),
                node: format!("MUL_MAT with weights of any type in this model ({types:?})"),
            });
        }
        for (kind, group) in groups {
            weights.fill(ggml, model, kind, &group, selected)?;
        }
        Ok(weights)
    }

    fn fill(
        &mut self,
        ggml: &'static Ggml,
        model: &Model,
        kind: BufferType,
        items: &[Item<'_>],
        selected: &Selected,
    ) -> Result<(), Error> {
        let context = Context::new(ggml, items.len(), 0)?;
        let create = |item: &Item<'_>| {
            let ne: Vec<i64> = item.info.shape.iter().map(|&n| i64::try_from(n).expect("checked")).collect();
            let tensor = context.tensor(DType(item.info.ty.id()), &ne);
            tensor.set_name(&item.name);
            tensor
        };
        let tensors: Vec<Tensor> = items.iter().map(create).collect();
        let bytes = context.allocate(&kind, true)? as u64;
        self.buffers.push(BufferUse { buffer: kind.name(), purpose: Purpose::Weights, bytes });
        // A buffer type that stores another layout converts whole tensors only.
        let converts = selected.matrices.is_some_and(|m| m.name() == kind.name());
        for (item, tensor) in items.iter().zip(tensors) {
            let window = if converts { item.info.bytes.max(1) } else { WINDOW };
            for chunk in model.file.chunks(item.info, window) {
                let (offset, data) = chunk?;
                tensor.write_bytes(usize::try_from(offset).expect("in memory"), &data)?;
            }
            self.tensors.insert(item.name.clone(), tensor);
        }
        Ok(())
    }

    /// The tensor of this name.
    ///
    /// # Panics
    /// When the model has none: graphs ask only for what [`Model::open`] has checked.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("the model was loaded without '{name}'"))
    }

    /// The tensor of this name, if the model has it.
    #[must_use]
    pub(crate) fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Whether layer `l` was left on the CPU on purpose (`n_layer` stands for the head).
    pub(crate) fn meant_for_cpu(&self, l: usize) -> bool {
        if l == self.n_layer { self.layers_on_device < self.n_layer } else { l >= self.layers_on_device }
    }

    pub(crate) fn buffers(&self) -> &[BufferUse] {
        &self.buffers
    }
}

/// The layer a tensor belongs to; the embedding goes with the first, output norm and head with `n_layer`.
fn layer_of(name: &str, hparams: &HyperParams) -> usize {
    match name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()).and_then(|n| n.parse().ok()) {
        Some(layer) => layer,
        None if name == "token_embd.weight" || name == "rope_freqs.weight" => 0,
        None if name.starts_with("self_cond_") => 0,
        None => hparams.n_layer,
    }
}

fn usage(info: &TensorInfo) -> Use {
    match info.name.as_str() {
        "token_embd.weight" => Use::Lookup,
        _ if info.shape.len() == 1 => Use::Vector,
        _ if info.shape.len() == 3 => Use::Experts,
        _ => Use::Matrix,
    }
}

/// The first buffer type whose device supports the weight's use: the converting one, the device's own, the CPU's.
fn home_of(
    ggml: &'static Ggml,
    s: &Selected,
    info: &TensorInfo,
    usage: Use,
    on_device: bool,
) -> Result<BufferType, Error> {
    let cpu = s.cpu.buffer_type();
    if !on_device {
        return Ok(cpu);
    }
    if let Some(kind) = s.matrices.filter(|_| matches!(usage, Use::Matrix | Use::Experts))
        && supports(ggml, s.device, info, usage, Some(kind))?
    {
        return Ok(kind);
    }
    let own = s.device.buffer_type();
    Ok(if supports(ggml, s.device, info, usage, None)? { own } else { cpu })
}

impl DeviceRequest {
    /// The types of which a matrix can lie in the requested buffer type.
    ///
    /// # Errors
    /// When there is no such device or buffer type, or memory for the probe is short.
    pub fn matrix_types(&self, ggml: &'static Ggml) -> Result<Vec<TensorType>, Error> {
        let selected = self.select(ggml)?;
        let mut taken = Vec::new();
        for ty in model_file::quant::supported().filter(|ty| ggml.has_type(DType(ty.id()))) {
            let info = TensorInfo { name: String::new(), shape: vec![256, 256], ty, offset: 0, bytes: 0 };
            if supports(ggml, selected.device, &info, Use::Matrix, selected.matrices)? {
                taken.push(ty);
            }
        }
        Ok(taken)
    }
}

/// Asks the device for the op that will use the weight. A converting buffer type decides by where the
/// weight lies, so for it the probe gets real memory.
fn supports(
    ggml: &'static Ggml,
    device: Device,
    info: &TensorInfo,
    usage: Use,
    kind: Option<BufferType>,
) -> Result<bool, Error> {
    let ctx = Context::new(ggml, 4, 0)?;
    let ne: Vec<i64> = info.shape.iter().map(|&n| i64::try_from(n).expect("checked")).collect();
    let weights = Context::new(ggml, 1, 0)?;
    let weight = weights.tensor(DType(info.ty.id()), &ne);
    if let Some(kind) = kind {
        weights.allocate(&kind, true)?;
    }
    let node = match usage {
        Use::Lookup => ctx.get_rows(&weight, &ctx.tensor(DType::I32, &[8])),
        Use::Matrix => ctx.mul_mat(&weight, &ctx.tensor(DType::F32, &[ne[0], 8])),
        Use::Experts => {
            let columns = ctx.tensor(DType::F32, &[ne[0], 1, 8]);
            ctx.mul_mat_id(&weight, &columns, &ctx.tensor(DType::I32, &[2.min(ne[2]), 8]))?
        }
        Use::Vector => ctx.mul(&ctx.tensor(DType::F32, &[ne[0], as_i64(8)]), &weight),
    };
    Ok(device.supports(&node))
}
