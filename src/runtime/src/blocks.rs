//! The blocks that decoder layers are built from, as ggml graphs. Activations are `[n_embd, n]`, one column
//! a token; every computing node carries a name that ends in its layer, as `q-3`.

use ggml_sys::{Context, DType, Graph, RopeParams, Tensor};
use model_file::{HyperParams, RopeKind};

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
}

/// A graph under construction.
pub(crate) struct Builder<'a> {
    pub(crate) ctx: Context,
    pub(crate) graph: Graph,
    pub(crate) hparams: &'a HyperParams,
    pub(crate) weights: &'a Weights,
    pub(crate) attention: Attention,
    /// Tokens in this graph.
    pub(crate) n: usize,
    /// I32 `[n]`.
    pub(crate) positions: Tensor,
    /// `[n_kv, n]`: 0 or minus infinity; none where every token sees every other. F32 for explicit attention,
    /// F16 with padded rows for flash.
    pub(crate) mask: Option<Tensor>,
    /// The mask of the last layer, where it is another.
    pub(crate) last_mask: Option<Tensor>,
    pub(crate) kv: Kv<'a>,
    /// Keys after RoPE and values of each layer, `[head_dim, kv_heads, n]`, marked as outputs where
    /// `capture` is set.
    pub(crate) captured: Vec<(Tensor, Tensor)>,
    pub(crate) capture: bool,
    /// The type that attention reads keys and values in where there is no cache.
    pub(crate) kv_type: DType,
    /// Layers that are left out.
    pub(crate) skip: &'a [usize],
    /// The residual stream before the first and after each layer, where it is to be kept.
    pub(crate) residuals: Option<Vec<Tensor>>,
    /// What a test has planted.
    pub(crate) planted: Option<Fault>,
}

/// How the model rotates.
pub(crate) fn rope_params(h: &HyperParams) -> RopeParams {
    RopeParams {
        dims: i32::try_from(h.rope_dim).expect("a head's size"),
        neox: h.rope_kind == RopeKind::Neox,
        freq_base: h.rope_base,
    }
}

/// Names `t` for the layer it belongs to.
pub(crate) fn named(t: Tensor, what: &str, layer: usize) -> Tensor {
    t.set_name(&format!("{what}-{layer}"));
    t
}

impl Builder<'_> {
    fn weight(&self, layer: usize, what: &str) -> &Tensor {
        self.weights.get(&format!("blk.{layer}.{what}"))
    }

    /// Root-mean-square norm with a learned scale.
    pub(crate) fn norm(&self, x: &Tensor, scale: &Tensor, what: &str, layer: usize) -> Tensor {
        let plain = named(self.ctx.rms_norm(x, self.hparams.rms_eps), &format!("{what}_rms"), layer);
        named(self.ctx.mul(&plain, scale), what, layer)
    }

    /// The norm of layer `layer` whose scale is `what`.
    pub(crate) fn layer_norm(&self, x: &Tensor, what: &str, layer: usize) -> Tensor {
        self.norm(x, self.weight(layer, &format!("{what}.weight")), what, layer)
    }

    /// `x + y`.
    pub(crate) fn residual(&self, x: &Tensor, y: &Tensor, what: &str, layer: usize) -> Tensor {
        named(self.ctx.add(x, y), what, layer)
    }

    /// A matrix product with the layer's weight `what`, and its bias where `bias` says there may be one.
    fn linear(&self, x: &Tensor, what: &str, bias: bool, layer: usize) -> Tensor {
        let product = named(self.ctx.mul_mat(self.weight(layer, &format!("{what}.weight")), x), what, layer);
        match self
            .weights
            .find(&format!("blk.{layer}.{what}.bias"))
            .filter(|_| bias && !self.drops_bias(what, layer))
        {
            Some(b) => named(self.ctx.add(&product, b), &format!("{what}_bias"), layer),
            None => product,
        }
    }

    /// Self-attention: projections, RoPE, the K/V cache, attention, output projection.
    pub(crate) fn self_attention(&mut self, x: &Tensor, bias: bool, layer: usize) -> Result<Tensor, Error> {
        let h = self.hparams;
        let (head, heads, kv_heads, n) =
            (as_i64(h.head_dim), as_i64(h.n_head), as_i64(h.n_head_kv), as_i64(self.n));
        let q = self.ctx.reshape_3d(&self.linear(x, "attn_q", bias, layer), [head, heads, n]);
        let k = self.ctx.reshape_3d(&self.linear(x, "attn_k", bias, layer), [head, kv_heads, n]);
        let v = self.linear(x, "attn_v", bias, layer);
        let v = if self.capture { v.output() } else { v };
        let v = self.ctx.reshape_3d(&v, [head, kv_heads, n]);

        let q = named(self.rope(&q), "q_rope", layer);
        let k = self.planted_keys(named(self.rope(&k), "k_rope", layer), layer);
        let k = if self.capture { k.output() } else { k };
        self.captured.push((k.clone(), v.clone()));

        let (k, v) = self.through_cache(k, v, layer)?;
        let (k, v) = (self.planted_pairs(k, "k", layer), self.planted_pairs(v, "v", layer));
        let scale = 1.0 / (h.head_dim as f32).sqrt();
        let q = self.ctx.permute(&q, [0, 2, 1, 3]);
        let mixed = match self.attention {
            Attention::Explicit => self.explicit_attention(&q, &k, &v, scale, layer),
            Attention::Flash => self.flash_attention(&q, &k, &v, scale, layer),
        };
        Ok(self.linear(&mixed, "attn_output", false, layer))
    }

    fn rope(&self, x: &Tensor) -> Tensor {
        let factors = self.weights.find("rope_freqs.weight");
        self.ctx.rope(x, &self.positions, factors, Fault::rope(self.planted, rope_params(self.hparams)))
    }

    /// Writes the new rows into the cache, if there is one, and returns what attention reads:
    /// `[head_dim, kv_heads, n_kv]` each.
    fn through_cache(&self, k: Tensor, v: Tensor, layer: usize) -> Result<(Tensor, Tensor), Error> {
        let Kv::Cached { cache, n_kv, scatter, stored } = &self.kv else {
            if self.kv_type == DType::F32 {
                return Ok((k, v));
            }
            let stored = |t: &Tensor, what| named(self.ctx.cast(t, self.kv_type), what, layer);
            return Ok((stored(&k, "k_stored"), stored(&v, "v_stored")));
        };
        let h = self.hparams;
        let (head, kv_heads) = (as_i64(h.head_dim), as_i64(h.n_head_kv));
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
            let head_bytes = row / h.n_head_kv;
            Ok(self.ctx.view_3d(store, [head, kv_heads, as_i64(*n_kv)], [head_bytes, row], 0))
        };
        Ok((through(&k, &cache.k[layer], "k")?, through(&v, &cache.v[layer], "v")?))
    }

    /// The mask of a layer.
    fn mask(&self, layer: usize) -> Option<&Tensor> {
        let last = self.last_mask.as_ref().filter(|_| layer + 1 == self.hparams.n_layer);
        last.or(self.mask.as_ref())
    }

    /// `softmax(K^T Q scale + mask) V`: `q [head_dim, n, heads]`, `k` and `v`
    /// `[head_dim, kv_heads, n_kv]`; the result is `[head_dim * heads, n]`. ggml repeats each K/V head over
    /// the query heads of its group.
    fn explicit_attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, layer: usize) -> Tensor {
        let h = self.hparams;
        // Products with a permuted view of blocks would leave a GPU for the CPU.
        let f32 = |t: &Tensor, what| named(self.ctx.cast(t, DType::F32), what, layer);
        let k = match k.dtype() {
            DType::F32 | DType::F16 => k.clone(),
            _ => f32(k, "k_f32"),
        };
        let k = self.ctx.permute(&k, [0, 2, 1, 3]);
        let scores = named(self.ctx.mul_mat_f32(&k, q), "kq", layer);
        let weights = named(self.ctx.soft_max(&scores, self.mask(layer), scale), "kq_soft_max", layer);
        // Blocks cannot be transposed, and 16-bit values would turn the weights into 16 bits too.
        let v = match v.dtype() {
            DType::F32 => v.clone(),
            _ => f32(v, "v_f32"),
        };
        let v = named(self.ctx.cont(&self.ctx.permute(&v, [1, 2, 0, 3])), "v_transposed", layer);
        let mixed = named(self.ctx.mul_mat(&v, &weights), "kqv", layer);
        let merged = named(self.ctx.cont(&self.ctx.permute(&mixed, [0, 2, 1, 3])), "kqv_merged", layer);
        self.ctx.reshape_2d(&merged, [as_i64(h.head_dim * h.n_head), as_i64(self.n)])
    }

    /// The same in one node, which reads keys and values as they are stored.
    fn flash_attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, layer: usize) -> Tensor {
        let h = self.hparams;
        let [k, v] = [k, v].map(|t| self.ctx.permute(t, [0, 2, 1, 3]));
        let mixed = self.ctx.flash_attention(q, &k, &v, self.mask(layer), scale);
        let mixed = named(mixed, "kqv_flash", layer);
        self.ctx.reshape_2d(&mixed, [as_i64(h.head_dim * h.n_head), as_i64(self.n)])
    }

    /// Keeps `x` as a state of the residual stream, where that is wanted.
    pub(crate) fn keep_residual(&mut self, x: Tensor) -> Tensor {
        match &mut self.residuals {
            None => x,
            Some(kept) => {
                let x = x.output();
                kept.push(x.clone());
                x
            }
        }
    }

    /// `down(silu(gate(x)) * up(x))`.
    pub(crate) fn swiglu(&self, x: &Tensor, layer: usize) -> Tensor {
        let gate = named(self.ctx.silu(&self.linear(x, "ffn_gate", false, layer)), "ffn_silu", layer);
        let up = self.linear(x, "ffn_up", false, layer);
        let hidden = named(self.ctx.mul(&gate, &up), "ffn_gated", layer);
        self.planted_columns(self.linear(&hidden, "ffn_down", false, layer), layer)
    }

    /// Rows of the embedding table for I32 `tokens`.
    pub(crate) fn embed(&self, tokens: &Tensor) -> Tensor {
        let head =
            self.weights.find("output.weight").filter(|_| self.planted == Some(Fault::EmbeddingFromHead));
        let table = head.unwrap_or_else(|| self.weights.get("token_embd.weight"));
        named(self.ctx.get_rows(table, tokens), "embedding", 0)
    }

    /// Final norm and head for the rows in `rows` (all where none), F32 `[n_vocab, rows]`.
    pub(crate) fn logits(&self, x: &Tensor, rows: Option<&Tensor>) -> Tensor {
        let last = self.hparams.n_layer;
        let x = match rows {
            Some(rows) => named(self.ctx.get_rows(x, rows), "wanted_rows", last),
            None => x.clone(),
        };
        let x = self.norm(&x, self.weights.get("output_norm.weight"), "output_norm", last);
        let head =
            self.weights.find("output.weight").filter(|_| self.planted != Some(Fault::HeadFromEmbedding));
        let head = head.unwrap_or_else(|| self.weights.get("token_embd.weight"));
        named(self.ctx.mul_mat(head, &x), "logits", last).output()
    }

    /// A new input tensor.
    pub(crate) fn input(ctx: &Context, dtype: DType, ne: &[i64], name: &str) -> Tensor {
        let tensor = ctx.tensor(dtype, ne).input();
        tensor.set_name(name);
        tensor
    }
}
