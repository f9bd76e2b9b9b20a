//! The blocks that decoder layers are built from, as ggml graphs. Activations are `[n_embd, n]`, one column
//! a token; every computing node carries a name that ends in its layer, as `q-3`.

use ggml_sys::{Context, DType, Graph, Tensor};
use model_file::HyperParams;

use crate::attention::Kv;
use crate::error::Error;
use crate::experts::Routed;
use crate::fault::Fault;
use crate::masks::Masks;
use crate::session::Attention;
use crate::weights::Weights;

/// What gates a feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)`, approximated with a hyperbolic tangent.
    Gelu,
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
    /// What each token sees.
    pub(crate) masks: &'a Masks,
    pub(crate) kv: Kv<'a>,
    /// Keys after RoPE and values of each layer, `[head_dim, kv_heads, n]`, marked as outputs where
    /// `capture` is set.
    pub(crate) captured: Vec<(Tensor, Tensor)>,
    pub(crate) capture: bool,
    /// What the routers of experts decided, layer by layer, marked as outputs where `keep_routing` is set.
    pub(crate) routed: Vec<Routed>,
    pub(crate) keep_routing: bool,
    /// Experts that are to work, by layer.
    pub(crate) given: Option<Vec<Vec<i32>>>,
    /// The type that attention reads keys and values in where there is no cache.
    pub(crate) kv_type: DType,
    /// Layers that are left out.
    pub(crate) skip: &'a [usize],
    /// The residual stream before the first and after each layer, where it is to be kept.
    pub(crate) residuals: Option<Vec<Tensor>>,
    /// What a test has planted.
    pub(crate) planted: Option<Fault>,
}

/// Names `t` for the layer it belongs to.
pub(crate) fn named(t: Tensor, what: &str, layer: usize) -> Tensor {
    t.set_name(&format!("{what}-{layer}"));
    t
}

impl Builder<'_> {
    /// The weight `what` of layer `layer`.
    pub(crate) fn weight(&self, layer: usize, what: &str) -> &Tensor {
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
    pub(crate) fn linear(&self, x: &Tensor, what: &str, bias: bool, layer: usize) -> Tensor {
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

    /// `gate` of `x`.
    pub(crate) fn gate(&self, x: &Tensor, gate: Gate, layer: usize) -> Result<Tensor, Error> {
        Ok(match gate {
            Gate::Silu => named(self.ctx.silu(x), "ffn_silu", layer),
            Gate::Gelu => named(self.ctx.gelu(x)?, "ffn_gelu", layer),
        })
    }

    /// `down(gate(x Wgate) * up(x))`.
    pub(crate) fn feed_forward(&self, x: &Tensor, gate: Gate, layer: usize) -> Result<Tensor, Error> {
        let gate = self.gate(&self.linear(x, "ffn_gate", false, layer), gate, layer)?;
        let up = self.linear(x, "ffn_up", false, layer);
        let hidden = named(self.ctx.mul(&gate, &up), "ffn_gated", layer);
        Ok(self.planted_columns(self.linear(&hidden, "ffn_down", false, layer), layer))
    }

    /// Rows of the embedding table for I32 `tokens`.
    pub(crate) fn embed(&self, tokens: &Tensor) -> Tensor {
        let head =
            self.weights.find("output.weight").filter(|_| self.planted == Some(Fault::EmbeddingFromHead));
        let table = head.unwrap_or_else(|| self.weights.get("token_embd.weight"));
        let x = named(self.ctx.get_rows(table, tokens), "embedding", 0);
        if !self.hparams.architecture.scales_embedding() {
            return x;
        }
        named(self.ctx.scale(&x, (self.hparams.n_embd as f32).sqrt()), "embedding_scaled", 0)
    }

    /// Final norm and head for the rows in `rows` (all where none), F32 `[n_vocab, rows]`.
    pub(crate) fn logits(&self, x: &Tensor, rows: Option<&Tensor>) -> Result<Tensor, Error> {
        let last = self.hparams.n_layer;
        let x = match rows {
            Some(rows) => named(self.ctx.get_rows(x, rows), "wanted_rows", last),
            None => x.clone(),
        };
        let x = self.norm(&x, self.weights.get("output_norm.weight"), "output_norm", last);
        let head =
            self.weights.find("output.weight").filter(|_| self.planted != Some(Fault::HeadFromEmbedding));
        let head = head.unwrap_or_else(|| self.weights.get("token_embd.weight"));
        let logits = named(self.ctx.mul_mat(head, &x), "logits", last);
        let Some(cap) = self.hparams.logit_softcap else { return Ok(logits.output()) };
        let small = named(self.ctx.scale(&logits, 1.0 / cap), "logits_small", last);
        let squeezed = named(self.ctx.tanh(&small)?, "logits_tanh", last);
        Ok(named(self.ctx.scale(&squeezed, cap), "logits_capped", last).output())
    }

    /// A new input tensor.
    pub(crate) fn input(ctx: &Context, dtype: DType, ne: &[i64], name: &str) -> Tensor {
        let tensor = ctx.tensor(dtype, ne).input();
        tensor.set_name(name);
        tensor
    }
}
