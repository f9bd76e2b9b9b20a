//! Captures, version 1: what one cell computed, as a safetensors file that any runtime can write.
//!
//! | tensor | shape | type | what |
//! |---|---|---|---|
//! | `logits` | `[rows, vocab]` | F32 | one row for each position whose logits were asked for |
//! | `positions` | `[rows]` | I32 | the sequence position at which the network put out the row |
//! | `step` | `[rows]` | I32 | the forward pass that computed the row, from 0 |
//! | `tokens` | `[n]` | I32 | the tokens that were fed in, the reference's own trajectory included |
//! | `k.N`, `v.N` | `[positions, kv_heads, head_dim]` | F32 | the caches of layer N; K after RoPE, dequantised |
//! | `k_raw.N`, `v_raw.N` | as `k.N` | F32 | optional: the same before a quantised cache stored them |
//! | `kv_step`, `kv_position` | `[m]` | I32 | optional: entry i says that forward pass `kv_step[i]` computed the keys and values of position `kv_position[i]`, see below |
//! | `step_k.N`, `step_v.N` | `[m, kv_heads, head_dim]` | F32 | optional: what the caches of layer N held at entry i right after that pass |
//! | `router.N`, `experts.N` | `[m, experts]`, `[m, used]` | F32, I32 | optional: what layer N's router gave the experts of a token before the soft-max, and which of them worked |
//! | `route_step`, `route_position` | `[m]` | I32 | optional: the forward pass and the position of each row of these; without it one pass over 0, 1, 2, … |
//! | `profile.impact` | `[layers]` | F32 | optional: how much each layer changes the residual stream |
//! | `profile.skipped` | `[m]` | I32 | optional: the layers that were left out |
//! | `greedy` | `[m]` | I32 | optional: tokens of the free run; of a masked generation the whole final sequence |
//! | `greedy.margin` | `[m]` | F32 | optional: the arm's own margin of each `greedy` token, see below |
//! | `unmask.step`, `.position`, `.token` | `[m]` | I32 | optional: the trajectory of a masked generation |
//!
//! The file's `__metadata__` holds `schema` = [`SCHEMA`] and `ggml-parity`, one JSON document: [`CaptureMeta`].
//! Readers also take F64 (which the oracle writes), F16 and BF16 where F32 stands, and I64 where I32 stands, for other
//! runtimes write those; a file without our metadata is opened by [`CaptureReader::open_foreign`]. Unknown tensors are ignored.
//! `SCHEMA.md` beside this file says the same for those who write captures by other means, with an example.
//!
//! Where a pass overwrites what another has stored (masked generation, speculative batches, a cache's life), `step_k.N`
//! and `step_v.N` hold the rows of each pass in the order of the passes. Without them every position was computed once,
//! and entry i is row `kv_position[i]` of `k.N` and `v.N`. Passes whose rows would make these tensors larger than
//! [`STEP_KV_MOST`] bytes, and all passes after such a one, have no entry.
//!
//! `greedy.margin` is, in logits, the top-1 less the top-2 of the row that chose the token; in a masked
//! generation the smallest margin of any decision of that step, the order of unmasking included, and infinite
//! for the prompt. Without it the margins are taken from `logits` where `tokens` ends in `greedy` (with or without
//! its last token) and nothing was unmasked; margins that nothing tells make every token required.

mod canvas;
mod element;
mod error;
mod header;
mod meta;
mod reader;
mod results;
mod routing;
#[cfg(test)]
pub(crate) mod sample;
mod writer;

pub use canvas::{Canvas, canvases};
pub use element::Float;
pub use error::CaptureError;
pub use meta::{
    BuildFile, BuildInfo, CaptureMeta, Check, CheckBound, DeviceInfo, DeviceKind, ModelInfo, ORACLE, SCHEMA,
};
pub use reader::CaptureReader;
pub(crate) use reader::META_KEY;
pub use routing::{LayerRouting, Routing};
pub use runtime::{BackendNodes, BufferUse, Fallback, Moved, Placement, Purpose, Traffic};
pub use writer::CaptureWriter;

/// The most bytes of F32 that `step_k.N` and `step_v.N` of all layers take together.
pub const STEP_KV_MOST: usize = 64 << 20;

use crate::named::named_enum;

named_enum! {
    /// Which of the two caches.
    pub enum Cache as "cache" {
        /// Keys, after RoPE.
        K = "k",
        /// Values.
        V = "v",
    }
}

impl Cache {
    /// The name of the tensor that holds this cache of one layer.
    pub fn tensor(self, layer: usize) -> String {
        KvSet::Stored.tensor(self, layer)
    }
}

/// Which state of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSet {
    /// As it is stored, dequantised.
    Stored,
    /// As it was computed, before a quantised cache stored it.
    BeforeStoring,
    /// As it was stored by each pass, see [`StepRows`].
    Steps,
}

impl KvSet {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Stored, Self::BeforeStoring, Self::Steps];

    /// The name of the tensor that holds `cache` of one layer in this state.
    pub fn tensor(self, cache: Cache, layer: usize) -> String {
        match self {
            Self::Stored => format!("{cache}.{layer}"),
            Self::BeforeStoring => format!("{cache}_raw.{layer}"),
            Self::Steps => format!("step_{cache}.{layer}"),
        }
    }
}

/// Which forward pass computed which rows of the caches; see the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepRows {
    /// The pass, from 0, not falling.
    pub step: Vec<i32>,
    /// The position in the sequence.
    pub position: Vec<i32>,
}

/// What a profile of the layers said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerProfile {
    /// The squared norm of the change that each layer makes to the residual stream.
    pub impact: Vec<f64>,
    /// The layers that were left out, in order.
    pub skipped: Vec<i32>,
}

/// The trajectory of a masked generation, one entry for each token that was unmasked, in that order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmask {
    /// The step at which it was unmasked.
    pub step: Vec<i32>,
    /// Its position in the sequence.
    pub position: Vec<i32>,
    /// The token.
    pub token: Vec<i32>,
}

#[cfg(test)]
mod tests;
