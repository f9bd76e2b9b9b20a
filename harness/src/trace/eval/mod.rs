//! The truth of one node: the ops that our graphs are built from, in f64, from given inputs.
//!
//! It shares no code with ggml, the runtime or the oracle. Weights are dequantised and activations taken as they are,
//! so what a kernel loses by rounding either is part of its error. The one exception is what an op is there to round:
//! a value stored in another type is true when it is rounded to that type.

mod attention;
mod matrix;
mod pointwise;
mod view;

pub use view::View;

use super::graph::{GraphInfo, TensorInfo};
use model_file::TensorType;
use std::ops::Deref;

/// Bytes that are held or mapped.
pub enum Data {
    /// In memory.
    Held(Vec<u8>),
    /// In a file.
    Mapped(model_file::Mapped),
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Held(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

/// Why there is no truth of a node.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// An op, a type or a parameter that is not implemented.
    #[error("{0}")]
    Lacks(String),
    /// Inputs that do not fit.
    #[error("{0}")]
    Malformed(String),
    /// A value could not be read.
    #[error(transparent)]
    Spool(#[from] super::spool::SpoolError),
    /// The model file could not be read.
    #[error(transparent)]
    Model(#[from] model_file::Error),
}

impl EvalError {
    fn lacks(t: &TensorInfo, what: impl std::fmt::Display) -> Self {
        Self::Lacks(format!("{} `{}`: no f64 value for {what}", t.op, t.name))
    }
}

/// Gives the data that nodes look at.
pub trait Source {
    /// The data of tensor `root` as node `reader` finds them.
    ///
    /// # Errors
    /// When they cannot be read.
    fn data(&mut self, graph: &GraphInfo, root: usize, reader: usize) -> Result<Data, EvalError>;
}

/// A node with its inputs.
pub struct Node<'a> {
    /// The node.
    pub info: &'a TensorInfo,
    /// What it reads, in ggml's order.
    pub inputs: Vec<View<'a>>,
}

impl Node<'_> {
    fn input(&self, i: usize) -> Result<&View<'_>, EvalError> {
        self.inputs.get(i).ok_or_else(|| EvalError::lacks(self.info, format!("a missing source {i}")))
    }

    /// The true values in the order of the elements; of a node that writes into a cache, those of the rows that it
    /// writes.
    ///
    /// # Errors
    /// An op, a type or a parameter that is not implemented.
    pub fn value(&self) -> Result<Vec<f64>, EvalError> {
        match self.info.op.as_str() {
            "ADD" => pointwise::binary(self, |a, b| a + b),
            "MUL" => pointwise::binary(self, |a, b| a * b),
            "SCALE" => pointwise::scale(self),
            "DIV" => pointwise::binary(self, |a, b| a / b),
            "SILU" => pointwise::silu(self),
            "GELU" => pointwise::gelu(self),
            "TANH" => pointwise::each(self, f64::tanh),
            "SUM_ROWS" => pointwise::sum_rows(self),
            "ARGSORT" => pointwise::argsort(self),
            "RMS_NORM" => pointwise::rms_norm(self),
            "GET_ROWS" => pointwise::get_rows(self),
            "CONCAT" => pointwise::concat(self),
            "CONT" | "CPY" | "DUP" | "SET_ROWS" => pointwise::stored(self),
            "ROPE" => attention::rope(self),
            "SOFT_MAX" => attention::soft_max(self),
            "FLASH_ATTN_EXT" => attention::flash(self),
            "MUL_MAT" => matrix::product(self),
            "MUL_MAT_ID" => matrix::product_of_chosen(self),
            op => Err(EvalError::lacks(self.info, format!("op {op}"))),
        }
    }
}

/// The true value of node `i` of `graph`, whose inputs `source` gives.
///
/// # Errors
/// An op, a type or a parameter that is not implemented, or inputs that cannot be read.
pub fn evaluate(graph: &GraphInfo, i: usize, source: &mut dyn Source) -> Result<Vec<f64>, EvalError> {
    let info = &graph.tensors[i];
    // The last source of an op that writes into a tensor is that tensor.
    let wanted = match info.op.as_str() {
        "SET_ROWS" | "CPY" => 1,
        _ => info.sources.len(),
    };
    let data = info.sources[..wanted.min(info.sources.len())]
        .iter()
        .map(|&s| source.data(graph, graph.tensors[s].root, i))
        .collect::<Result<Vec<_>, _>>()?;
    let inputs = info.sources.iter().zip(&data).map(|(&s, data)| View::new(&graph.tensors[s], data));
    Node { info, inputs: inputs.collect::<Result<_, _>>()? }.value()
}

/// `values` as type `ty` keeps them.
fn rounded(ty: TensorType, values: &mut [f64]) -> Result<(), EvalError> {
    match ty {
        TensorType::F32 => values.iter_mut().for_each(|v| *v = f64::from(*v as f32)),
        TensorType::F16 => values.iter_mut().for_each(|v| *v = half::f16::from_f64(*v).to_f64()),
        _ => {
            let narrow: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            let (mut bytes, mut back) = (Vec::new(), vec![0f32; narrow.len()]);
            model_file::quantize(ty, &narrow, &mut bytes)?;
            model_file::dequantize(ty, &bytes, &mut back)?;
            values.iter_mut().zip(back).for_each(|(v, b)| *v = f64::from(b));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
