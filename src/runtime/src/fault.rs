//! Faults that tests plant in a session, to show that the harness finds them and blames the right arm, layer and op.
//!
//! Each is a mistake that runtimes have made. A session honours the one in [`Options::planted`](crate::Options);
//! nothing a user can give sets it. A fault changes nothing where there is nothing to mistake: heads are not
//! mispaired where every query head has keys of its own, nor is a shift ignored that the model does not have.

use ggml_sys::{DType, RopeParams, Tensor};
use model_file::HyperParams;
use serde::{Deserialize, Serialize};

use crate::blocks::{Builder, named};
use crate::cache::as_i64;

/// A mistake to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// RoPE rotates halves where it should rotate neighbours, and the reverse. All layers.
    RopeKindSwapped,
    /// Query head h reads K/V head h modulo their number, not the one of its group. All layers.
    HeadsMispaired,
    /// The bias of the keys is left out. The last layer.
    BiasDropped,
    /// The head of an untied model is taken from the embedding.
    HeadFromEmbedding,
    /// Tokens of an untied model are looked up in the head.
    EmbeddingFromHead,
    /// A masked position is predicted from its own row, though the model's logits are shifted.
    ShiftIgnored,
    /// The active set of sparse steps lacks the row before each masked position.
    PredecessorsLeftOut,
    /// A token sees the one after it. Causal models, all layers.
    MaskOffByOne,
    /// The keys of head 0 are 1.01 times what they should be. The last layer.
    KeyHeadScaled,
    /// Of several columns, the middle one of the feed-forward part's result is zero. The first layer.
    RowZeroed,
    /// A graph that adds to a cache, or writes over a part of it, does not store its last token: what the cache had
    /// there stays. All layers.
    StaleRow,
    /// Of equal maxima the dense sampler takes the last.
    ArgmaxLast,
    /// The dense sampler's running sum goes over a whole row of the vocabulary, not over blocks and then within one.
    CumsumOneLevel,
    /// The dense sampler's entropy is the logarithm of the sum, without the mean that belongs to it.
    EntropyWithoutMean,
    /// The logits of a canvas are not kept on the device for the next one: what was there stays.
    ConditionLost,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::RopeKindSwapped,
        Self::HeadsMispaired,
        Self::BiasDropped,
        Self::HeadFromEmbedding,
        Self::EmbeddingFromHead,
        Self::ShiftIgnored,
        Self::PredecessorsLeftOut,
        Self::MaskOffByOne,
        Self::KeyHeadScaled,
        Self::RowZeroed,
        Self::StaleRow,
        Self::ArgmaxLast,
        Self::CumsumOneLevel,
        Self::EntropyWithoutMean,
        Self::ConditionLost,
    ];

    /// How many of `tokens` a graph stores that reads `n_kv` positions of the cache.
    pub(crate) fn stored(planted: Option<Self>, tokens: usize, n_kv: usize) -> usize {
        tokens - usize::from(planted == Some(Self::StaleRow) && tokens < n_kv)
    }

    /// The last position that each token sees.
    pub(crate) fn seen(planted: Option<Self>, positions: &[usize]) -> Vec<usize> {
        let beyond = usize::from(planted == Some(Self::MaskOffByOne));
        positions.iter().map(|p| p + beyond).collect()
    }

    /// How the model is rotated.
    pub(crate) fn rope(planted: Option<Self>, right: RopeParams) -> RopeParams {
        RopeParams { neox: right.neox != (planted == Some(Self::RopeKindSwapped)), ..right }
    }

    /// Whether the model's logits are taken as shifted.
    pub(crate) fn shift(planted: Option<Self>, h: &HyperParams) -> bool {
        h.shift_logits && planted != Some(Self::ShiftIgnored)
    }
}

impl Builder<'_> {
    fn planted_in(&self, fault: Fault, layer: usize, at: usize) -> bool {
        self.planted == Some(fault) && layer == at
    }

    /// Whether the bias of `what` is left out.
    pub(crate) fn drops_bias(&self, what: &str, layer: usize) -> bool {
        what == "attn_k" && self.planted_in(Fault::BiasDropped, layer, self.hparams.n_layer - 1)
    }

    /// The keys `[head_dim, kv_heads, n]` as they go into the cache.
    pub(crate) fn planted_keys(&self, k: Tensor, layer: usize) -> Tensor {
        if !self.planted_in(Fault::KeyHeadScaled, layer, self.hparams.n_layer - 1) {
            return k;
        }
        self.scaled_part(&k, 0, 1.01, "k_scaled", layer)
    }

    /// The feed-forward part's result `[n_embd, n]`.
    pub(crate) fn planted_columns(&self, x: Tensor, layer: usize) -> Tensor {
        if self.n < 2 || !self.planted_in(Fault::RowZeroed, layer, 0) {
            return x;
        }
        self.scaled_part(&x, self.n / 2, 0.0, "ffn_zeroed", layer)
    }

    /// Keys or values `[head_dim, kv_heads, n_kv]` as attention reads them: where they are mispaired, one after the
    /// other until there is one for each query head.
    pub(crate) fn planted_pairs(&self, t: Tensor, what: &str, layer: usize) -> Tensor {
        if self.planted != Some(Fault::HeadsMispaired) {
            return t;
        }
        let t = match t.dtype() {
            DType::F32 => t,
            _ => named(self.ctx.cast(&t, DType::F32), &format!("{what}_plain"), layer),
        };
        let again = |all: Tensor, _| named(self.ctx.concat(&all, &t, 1), &format!("{what}_tiled"), layer);
        (1..self.hparams.layer(layer).heads_per_kv()).fold(t.clone(), again)
    }

    /// `t` with row `i` of its second dimension scaled.
    fn scaled_part(&self, t: &Tensor, i: usize, factor: f32, what: &str, layer: usize) -> Tensor {
        let (ne, nb) = (t.ne(), t.nb());
        let part = |from: usize, to: usize| {
            (to > from).then(|| {
                let size = [ne[0], as_i64(to - from), ne[2]];
                let view = self.ctx.view_3d(t, size, [nb[1], nb[2]], from * nb[1]);
                named(self.ctx.cont(&view), &format!("{what}_part"), layer)
            })
        };
        let end = usize::try_from(ne[1]).expect("sizes are positive");
        let middle = part(i, i + 1).map(|t| named(self.ctx.scale(&t, factor), what, layer));
        let parts = [part(0, i), middle, part(i + 1, end)].into_iter().flatten();
        let join = |a, b| named(self.ctx.concat(&a, &b, 1), &format!("{what}_joined"), layer);
        parts.reduce(join).expect("the middle part at least")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_becomes_stale_only_in_a_cache_that_holds_others() {
        let stale = Some(Fault::StaleRow);
        assert_eq!(
            [Fault::stored(stale, 4, 4), Fault::stored(stale, 4, 6), Fault::stored(stale, 1, 6)],
            [4, 3, 0]
        );
        assert_eq!(Fault::stored(None, 4, 6), 4);
    }

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let names: Vec<String> = Fault::ALL.iter().map(|f| serde_json::to_string(f).unwrap()).collect();
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
        assert!(names.contains(&"\"rope-kind-swapped\"".to_owned()));
    }
}
