//! The dense sampler of a diffusion canvas on the device: logits stay where the model left them, and three numbers for
//! each row come back.
//!
//! [`DenseSampler`] is a graph of ggml ops that any backend computes which has them; a backend may bring its own
//! sampler beside it ([`DenseSampler::own`]). [`host`] is what runtimes do without either: fetch all logits, and sample
//! on the CPU.

mod device;
mod graph;
pub mod host;
mod tables;

pub use device::{DenseSampler, Settings};

/// What one row gives; a row that has a NaN, or whose largest logit is not finite, gives none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The first index of the largest logit.
    pub argmax: u32,
    /// The entropy of the soft-max in nats.
    pub entropy: f32,
    /// The index drawn by `u`.
    pub token: u32,
}

/// The size of a canvas of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Columns.
    pub vocab: usize,
    /// Rows.
    pub rows: usize,
}

impl Shape {
    /// Bytes of the logits in F32.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.vocab * self.rows * 4
    }
}

/// How the running sum is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// By ggml's `cumsum`.
    Cumsum,
    /// As the row sums of a triangle of copies, where build or device lack it.
    Triangle,
}
