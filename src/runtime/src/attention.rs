//! Self-attention as a part of a graph: what it reads from the K/V cache and writes there, RoPE, and the two ways
//! in which it is computed.

use ggml_sys::{DType, RopeParams, Tensor};
use model_file::{HyperParams, LayerShape, RopeKind};

use crate::blocks::{Builder, named};
use crate::cache::{KvCache, as_i64};
use crate::error::Error;
use crate::fault::Fault;
use crate::scatter::Scatter;
use crate::session::Attention;
use crate::weights::Weights;

/// Where the keys and values of other positions come from.
pub(crate) enum Kv<'a> {
    /// Only the tokens of this graph attend to each other.
    Fresh,
    /// The graph's own rows are written into the cache, then its first `n_kv` rows are read.
    Cached {
        cache: &'a KvCache,
        n_kv: usize,
        /// How the rows get there.
        scatter: &'a Scatter,
        /// How many of the rows, from the first.
        stored: usize,
    },
    /// The first `held` rows of the cache are read before the graph's own, which are not stored; in a windowed layer
    /// the last `window - 1` of them.
    Held { cache: &'a KvCache, held: usize },
}

/// What self-attention has beside its projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionParts {
    /// Query, key and value projections may have biases.
    pub(crate) bias: bool,
    /// Queries and keys are normalised head by head, with a learned scale, before they are rotated.
    pub(crate) qk_norm: bool,
    /// Values are normalised head by head, without one.
    pub(crate) v_norm: bool,
}

/// How layers of this shape rotate.
pub(crate) fn rope_params(h: &HyperParams, shape: &LayerShape) -> RopeParams {
    RopeParams {
        dims: i32::try_from(shape.rope_dim).expect("a head's size"),
        neox: h.rope_kind == RopeKind::Neox,
        freq_base: shape.rope_base,
    }
}

/// What divides their frequencies, if anything.
pub(crate) fn rope_factors<'a>(weights: &'a Weights, shape: &LayerShape) -> Option<&'a Tensor> {
    weights.find("rope_freqs.weight").filter(|_| shape.window.is_none())
}

impl Builder<'_> {
    /// Self-attention: projections, norms of heads, RoPE, the K/V cache, attention, output projection. Without
    /// `attn_v.weight` the values are what the key projection gives.
    pub(crate) fn self_attention(
        &mut self,
        x: &Tensor,
        parts: AttentionParts,
        layer: usize,
    ) -> Result<Tensor, Error> {
        let shape = self.hparams.layer(layer);
        let (head, heads, kv_heads, n) =
            (as_i64(shape.head_dim), as_i64(shape.n_head), as_i64(shape.n_head_kv), as_i64(self.n));
        let q = self.ctx.reshape_3d(&self.linear(x, "attn_q", parts.bias, layer), [head, heads, n]);
        let projected = self.linear(x, "attn_k", parts.bias, layer);
        let k = self.ctx.reshape_3d(&projected, [head, kv_heads, n]);
        let v = match self.weights.find(&format!("blk.{layer}.attn_v.weight")) {
            Some(_) => self.linear(x, "attn_v", parts.bias, layer),
            None => projected,
        };
        // A view is not kept: what is marked must be the tensor that has the values.
        let v = if self.capture && !parts.v_norm { v.output() } else { v };
        let v = self.ctx.reshape_3d(&v, [head, kv_heads, n]);
        let v = if parts.v_norm {
            let v = named(self.ctx.rms_norm(&v, self.hparams.rms_eps), "v_norm", layer);
            if self.capture { v.output() } else { v }
        } else {
            v
        };

        let [q, k] = [(q, "attn_q_norm"), (k, "attn_k_norm")].map(|(heads, norm)| match parts.qk_norm {
            true => self.layer_norm(&heads, norm, layer),
            false => heads,
        });
        let q = named(self.rope(&q, &shape), "q_rope", layer);
        let k = self.planted_keys(named(self.rope(&k, &shape), "k_rope", layer), layer);
        let k = if self.capture { k.output() } else { k };
        self.captured.push((k.clone(), v.clone()));

        let (k, v) = self.through_cache(k, v, layer)?;
        let (k, v) = (self.planted_pairs(k, "k", layer), self.planted_pairs(v, "v", layer));
        let scale = 1.0 / (self.hparams.query_scalar.unwrap_or(shape.head_dim) as f32).sqrt();
        let q = self.ctx.permute(&q, [0, 2, 1, 3]);
        let mixed = match self.attention {
            Attention::Explicit => self.explicit_attention(&q, &k, &v, scale, layer),
            Attention::Flash => self.flash_attention(&q, &k, &v, scale, layer),
        };
        Ok(self.linear(&mixed, "attn_output", false, layer))
    }

    fn rope(&self, x: &Tensor, shape: &LayerShape) -> Tensor {
        let params = Fault::rope(self.planted, rope_params(self.hparams, shape));
        self.ctx.rope(x, &self.positions, rope_factors(self.weights, shape), params)
    }

    /// Writes the new rows into the cache, if there is one, and returns what attention reads:
    /// `[head_dim, kv_heads, n_kv]` each.
    fn through_cache(&self, k: Tensor, v: Tensor, layer: usize) -> Result<(Tensor, Tensor), Error> {
        if let Kv::Held { cache, held } = &self.kv {
            return Ok(self.after_held(k, v, cache, *held, layer));
        }
        let Kv::Cached { cache, n_kv, scatter, stored } = &self.kv else {
            if self.kv_type == DType::F32 {
                return Ok((k, v));
            }
            let stored = |t: &Tensor, what| named(self.ctx.cast(t, self.kv_type), what, layer);
            return Ok((stored(&k, "k_stored"), stored(&v, "v_stored")));
        };
        let shape = self.hparams.layer(layer);
        let (head, kv_heads) = (as_i64(shape.head_dim), as_i64(shape.n_head_kv));
        let through = |new: &Tensor, store: &Tensor, what: &str| -> Result<Tensor, Error> {
            let flat = self.ctx.reshape_2d(new, [head * kv_heads, as_i64(self.n)]);
            let row = store.nb()[1];
            if *stored > 0 {
                let rows = if flat.ne()[1] == as_i64(*stored) {
                    flat
                } else {
                    self.ctx.view_2d(&flat, [flat.ne()[0], as_i64(*stored)], flat.nb()[1], 0)
                };
                let written = scatter.store(&self.ctx, &rows, store, *n_kv)?;
                // In the graph before any reader, so that it runs first.
                self.graph.expand(&named(written, &format!("{what}_store"), layer));
            }
            let head_bytes = row / shape.n_head_kv;
            Ok(self.ctx.view_3d(store, [head, kv_heads, as_i64(*n_kv)], [head_bytes, row], 0))
        };
        Ok((through(&k, &cache.k[layer], "k")?, through(&v, &cache.v[layer], "v")?))
    }

    /// What the cache holds, and the new rows after it.
    fn after_held(
        &self,
        k: Tensor,
        v: Tensor,
        cache: &KvCache,
        held: usize,
        layer: usize,
    ) -> (Tensor, Tensor) {
        let shape = self.hparams.layer(layer);
        let first = shape.window.map_or(0, |window| (held + 1).saturating_sub(window));
        if first >= held {
            return (k, v);
        }
        let ne = [as_i64(shape.head_dim), as_i64(shape.n_head_kv), as_i64(held - first)];
        let join = |new: Tensor, store: &Tensor, what: &str| {
            let row = store.nb()[1];
            let rows = self.ctx.view_3d(store, ne, [row / shape.n_head_kv, row], first * row);
            let rows = match store.dtype() {
                DType::F32 => rows,
                _ => named(self.ctx.cast(&rows, DType::F32), &format!("{what}_held"), layer),
            };
            named(self.ctx.concat(&rows, &new, 2), &format!("{what}_joined"), layer)
        };
        (join(k, &cache.k[layer], "k"), join(v, &cache.v[layer], "v"))
    }

    /// `softmax(K^T Q scale + mask) V`: `q [head_dim, n, heads]`, `k` and `v`
    /// `[head_dim, kv_heads, n_kv]`; the result is `[head_dim * heads, n]`. ggml repeats each K/V head over
    /// the query heads of its group.
    fn explicit_attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, layer: usize) -> Tensor {
        // Products with a permuted view of blocks would leave a GPU for the CPU.
        let f32 = |t: &Tensor, what| named(self.ctx.cast(t, DType::F32), what, layer);
        let k = match k.dtype() {
            DType::F32 | DType::F16 => k.clone(),
            _ => f32(k, "k_f32"),
        };
        let k = self.ctx.permute(&k, [0, 2, 1, 3]);
        let scores = named(self.ctx.mul_mat_f32(&k, q), "kq", layer);
        let weights = named(self.ctx.soft_max(&scores, self.masks.of(layer), scale), "kq_soft_max", layer);
        // Blocks cannot be transposed, and 16-bit values would turn the weights into 16 bits too.
        let v = match v.dtype() {
            DType::F32 => v.clone(),
            _ => f32(v, "v_f32"),
        };
        let v = named(self.ctx.cont(&self.ctx.permute(&v, [1, 2, 0, 3])), "v_transposed", layer);
        let mixed = named(self.ctx.mul_mat(&v, &weights), "kqv", layer);
        let merged = named(self.ctx.cont(&self.ctx.permute(&mixed, [0, 2, 1, 3])), "kqv_merged", layer);
        self.ctx.reshape_2d(&merged, [as_i64(self.hparams.layer(layer).q_width()), as_i64(self.n)])
    }

    /// The same in one node, which reads keys and values as they are stored.
    fn flash_attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, layer: usize) -> Tensor {
        let [k, v] = [k, v].map(|t| self.ctx.permute(t, [0, 2, 1, 3]));
        let mixed = self.ctx.flash_attention(q, &k, &v, self.masks.of(layer), scale);
        let mixed = named(mixed, "kqv_flash", layer);
        self.ctx.reshape_2d(&mixed, [as_i64(self.hparams.layer(layer).q_width()), as_i64(self.n)])
    }
}
