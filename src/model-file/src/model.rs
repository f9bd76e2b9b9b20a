//! A model: a file, its hyper-parameters, and the proof that its tensors are those the network needs.

use std::collections::HashSet;
use std::path::Path;

use crate::error::Error;
use crate::gguf::{GgufFile, TensorInfo};
use crate::hparams::{Architecture, HyperParams};

/// A tensor that a network has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the file.
    pub name: String,
    /// Its shape in ggml's order, the fastest extent first.
    pub shape: Vec<u64>,
    /// Whether a file without it is refused.
    pub required: bool,
}

/// The tensors of a network, in the order of use.
///
/// `output.weight` is listed and optional: without it the head is the embedding. The RoPE factors are
/// listed for Llama and optional; the Q/K/V biases are required, optional (Llama) or not listed. The matrices of
/// all experts of a layer are one tensor, one expert after the other.
pub fn tensor_table(h: &HyperParams) -> Vec<TensorSpec> {
    if h.block.is_some() {
        return crate::block::tensor_table(h);
    }
    let [embd, ff, vocab] = [h.n_embd, h.n_ff, h.n_vocab].map(|n| n as u64);
    let mut table = Vec::new();
    let mut add = |name: String, shape: &[u64], required: bool| {
        table.push(TensorSpec { name, shape: shape.to_vec(), required });
    };

    add("token_embd.weight".into(), &[embd, vocab], true);
    add("output_norm.weight".into(), &[embd], true);
    add("output.weight".into(), &[embd, vocab], false);
    if h.architecture == Architecture::Llama {
        add("rope_freqs.weight".into(), &[h.rope_dim as u64 / 2], false);
    }
    for i in 0..h.n_layer {
        let name = |part: &str| format!("blk.{i}.{part}");
        let shape = h.layer(i);
        let [q, kv, head] = [shape.q_width(), shape.kv_width(), shape.head_dim].map(|n| n as u64);
        add(name("attn_norm.weight"), &[embd], true);
        for (part, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            add(name(&format!("{part}.weight")), &[embd, width], true);
            if h.architecture.may_have_qkv_bias() {
                add(name(&format!("{part}.bias")), &[width], h.architecture.needs_qkv_bias());
            }
        }
        if h.architecture.has_qk_norm() {
            add(name("attn_q_norm.weight"), &[head], true);
            add(name("attn_k_norm.weight"), &[head], true);
        }
        add(name("attn_output.weight"), &[q, embd], true);
        if h.architecture.has_post_norms() {
            add(name("post_attention_norm.weight"), &[embd], true);
        }
        add(name("ffn_norm.weight"), &[embd], true);
        match h.experts {
            None => {
                add(name("ffn_gate.weight"), &[embd, ff], true);
                add(name("ffn_up.weight"), &[embd, ff], true);
                add(name("ffn_down.weight"), &[ff, embd], true);
            }
            Some(e) => {
                let [count, ff] = [e.count, e.n_ff].map(|n| n as u64);
                add(name("ffn_gate_inp.weight"), &[embd, count], true);
                add(name("ffn_gate_exps.weight"), &[embd, ff, count], true);
                add(name("ffn_up_exps.weight"), &[embd, ff, count], true);
                add(name("ffn_down_exps.weight"), &[ff, embd, count], true);
            }
        }
        if h.architecture.has_post_norms() {
            add(name("post_ffw_norm.weight"), &[embd], true);
        }
    }
    table
}

/// An open model file whose metadata and tensors agree.
#[derive(Debug)]
pub struct Model {
    /// The file.
    pub file: GgufFile,
    /// Its hyper-parameters.
    pub hparams: HyperParams,
}

impl Model {
    /// Opens a file and checks that it holds the model it claims: every required tensor there, every
    /// shape as the metadata says, all layers present and no others, token ids inside the vocabulary.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_file(GgufFile::open(path)?)
    }

    /// The same for a file that is already open.
    pub fn from_file(file: GgufFile) -> Result<Self, Error> {
        let hparams = HyperParams::from_gguf(&file)?;
        check_layers(&file, &hparams)?;
        for spec in tensor_table(&hparams) {
            check_tensor(&file, &spec)?;
        }
        Ok(Self { file, hparams })
    }

    /// The tensors this network has and where they lie in the file, optional ones only where present.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorSpec, &TensorInfo)> {
        tensor_table(&self.hparams)
            .into_iter()
            .filter_map(|spec| self.file.tensor(&spec.name).map(|info| (spec, info)))
    }

    /// Tensors in the file that this network does not use, in the file's order. They change nothing
    /// here; another runtime may use them.
    pub fn unused_tensors(&self) -> Vec<&TensorInfo> {
        let known: HashSet<String> = tensor_table(&self.hparams).into_iter().map(|s| s.name).collect();
        self.file.tensors().iter().filter(|t| !known.contains(&t.name)).collect()
    }
}

/// The layer a tensor's name places it in.
fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The block count must be that of the layers in the file. This also bounds the table built from it.
fn check_layers(file: &GgufFile, h: &HyperParams) -> Result<(), Error> {
    let layers: HashSet<u64> = file.tensors().iter().filter_map(|t| layer_of(&t.name)).collect();
    let n = h.n_layer as u64;
    let key = match h.convention {
        crate::Convention::LlamaCpp => format!("{}.block_count", h.architecture),
        crate::Convention::Diffuse => "diffuse.block_count".to_string(),
    };
    // Bounded: at most one step more than the file has layers.
    if let Some(missing) = (0..n).find(|i| !layers.contains(i)) {
        return Err(file.metadata().locate(
            Error::tensor(format!(
                "no tensor of blk.{missing} is in the file, which has {} layers",
                layers.len()
            )),
            &key,
        ));
    }
    if let Some(extra) = layers.iter().filter(|&&i| i >= n).min() {
        return Err(file
            .metadata()
            .locate(Error::tensor(format!("the file also has tensors of blk.{extra}")), &key));
    }
    Ok(())
}

fn check_tensor(file: &GgufFile, spec: &TensorSpec) -> Result<(), Error> {
    let Some(info) = file.tensor(&spec.name) else {
        if spec.required {
            return Err(Error::tensor(format!("the tensor is missing, shape {:?} is needed", spec.shape))
                .field(&spec.name)
                .file(file.path()));
        }
        return Ok(());
    };
    let fault = |message: String| {
        Error::tensor(message)
            .field(&spec.name)
            .value(format!("{:?} {}", info.shape, info.ty))
            .offset(info.offset)
            .file(file.path())
    };
    if !same_shape(&info.shape, &spec.shape) {
        return Err(fault(format!("the metadata asks for shape {:?}", spec.shape)));
    }
    if !info.ty.is_weight() {
        return Err(fault("weights cannot have this type".to_string()));
    }
    Ok(())
}

/// Equal but for trailing ones.
fn same_shape(a: &[u64], b: &[u64]) -> bool {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    long.starts_with(short) && long[short.len()..].iter().all(|&n| n == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_read_from_names() {
        assert_eq!(layer_of("blk.12.attn_q.weight"), Some(12));
        assert_eq!(layer_of("blk.x.attn_q.weight"), None);
        assert_eq!(layer_of("output.weight"), None);
    }

    #[test]
    fn trailing_ones_do_not_matter() {
        assert!(same_shape(&[4, 1], &[4]));
        assert!(!same_shape(&[4, 2], &[4]));
        assert!(!same_shape(&[4], &[5]));
    }
}
