//! The pre-norm decoder that all four architectures are:
//!
//! ```text
//! x = embedding[tokens]
//! for each layer:
//!     h = rms_norm(x)
//!     q, k, v = h Wq + bq, h Wk + bk, h Wv + bv
//!     x += attention(rope(q), rope(k), v) Wo
//!     h = rms_norm(x)
//!     x += (silu(h Wgate) * (h Wup)) Wdown
//! logits = rms_norm(x) Whead
//! ```

use model_file::{HyperParams, Model};

use crate::Error;
use crate::attention::attend;
use crate::cache::{Cache, LayerKv};
use crate::matrix::Matrix;
use crate::network::{Logits, Pass, Plan};
use crate::ops::{add, rms_norm, swiglu};
use crate::rope::Rope;

/// Whether Q, K and V have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    /// All three.
    Always,
    /// None.
    Never,
    /// Each where the file has one.
    IfPresent,
}

/// What an architecture's decoder consists of, beyond the sizes in the hyper-parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// Biases of Q, K and V.
    pub(super) qkv_bias: Bias,
    /// Whether RoPE's frequencies have factors where the file has `rope_freqs.weight`.
    pub(super) rope_factors: bool,
}

/// A projection with an optional bias.
#[derive(Debug)]
struct Linear {
    weight: Matrix,
    /// `[outputs]`
    bias: Option<Vec<f64>>,
}

impl Linear {
    fn apply(&self, x: &[f64]) -> Result<Vec<f64>, Error> {
        self.weight.apply(x, self.bias.as_deref())
    }
}

#[derive(Debug)]
struct Layer {
    attn_norm: Vec<f64>,
    q: Linear,
    k: Linear,
    v: Linear,
    attn_output: Matrix,
    ffn_norm: Vec<f64>,
    ffn_gate: Matrix,
    ffn_up: Matrix,
    ffn_down: Matrix,
}

/// A pre-norm decoder with its weights.
#[derive(Debug)]
pub(crate) struct PreNorm {
    embedding: Matrix,
    layers: Vec<Layer>,
    output_norm: Vec<f64>,
    /// `None`: the embedding is the head.
    head: Option<Matrix>,
    rope: Rope,
}

/// Looks tensors up by name.
pub(super) struct Tensors<'a>(pub(super) &'a Model);

impl Tensors<'_> {
    pub(super) fn optional(&self, name: &str) -> Result<Option<Matrix>, Error> {
        Matrix::open(self.0, name)
    }

    /// A tensor that opening the model has found.
    pub(super) fn matrix(&self, name: &str) -> Result<Matrix, Error> {
        self.optional(name)?.ok_or_else(|| Error::Unsupported(format!("{name} is missing")))
    }

    pub(super) fn vector(&self, name: &str) -> Result<Vec<f64>, Error> {
        self.matrix(name)?.values()
    }

    fn linear(&self, name: &str, bias: Bias) -> Result<Linear, Error> {
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Bias::Always => Some(self.vector(&bias_name)?),
            Bias::Never => None,
            Bias::IfPresent => self.optional(&bias_name)?.map(|b| b.values()).transpose()?,
        };
        Ok(Linear { weight: self.matrix(&format!("{name}.weight"))?, bias })
    }
}

impl PreNorm {
    /// Maps the matrices of a model and reads its norms and biases.
    pub(super) fn open(model: &Model, parts: Parts) -> Result<Self, Error> {
        let tensors = Tensors(model);
        let layers = (0..model.hparams.n_layer)
            .map(|i| {
                let name = |part: &str| format!("blk.{i}.{part}");
                Ok(Layer {
                    attn_norm: tensors.vector(&name("attn_norm.weight"))?,
                    q: tensors.linear(&name("attn_q"), parts.qkv_bias)?,
                    k: tensors.linear(&name("attn_k"), parts.qkv_bias)?,
                    v: tensors.linear(&name("attn_v"), parts.qkv_bias)?,
                    attn_output: tensors.matrix(&name("attn_output.weight"))?,
                    ffn_norm: tensors.vector(&name("ffn_norm.weight"))?,
                    ffn_gate: tensors.matrix(&name("ffn_gate.weight"))?,
                    ffn_up: tensors.matrix(&name("ffn_up.weight"))?,
                    ffn_down: tensors.matrix(&name("ffn_down.weight"))?,
                })
            })
            .collect::<Result<_, Error>>()?;
        let factors = match parts.rope_factors {
            true => tensors.optional("rope_freqs.weight")?.map(|f| f.values()).transpose()?,
            false => None,
        };
        Ok(Self {
            embedding: tensors.matrix("token_embd.weight")?,
            layers,
            output_norm: tensors.vector("output_norm.weight")?,
            head: tensors.optional("output.weight")?,
            rope: Rope::new(&model.hparams, factors.as_deref()),
        })
    }

    /// Rotates rows of K `[n, n_head_kv, head_dim]` by positions, which may be negative.
    pub(crate) fn rotate(&self, k: &mut [f64], positions: &[f64]) {
        self.rope.rotate(k, positions);
    }

    /// A pass that has been checked.
    pub(crate) fn forward(&self, h: &HyperParams, cache: &mut Cache, plan: &Plan<'_>) -> Result<Pass, Error> {
        let n = plan.tokens.len();
        let eps = f64::from(h.rms_eps);
        let positions: Vec<f64> = plan.positions.iter().map(|&p| p as f64).collect();
        let mut x = vec![0.0; n * h.n_embd];
        let mut scratch = Vec::new();
        for (row, &token) in x.chunks_exact_mut(h.n_embd).zip(plan.tokens) {
            self.embedding.decode(token as usize, row, &mut scratch)?;
        }

        let mut kv = vec![LayerKv::default(); self.layers.len()];
        let mut change = vec![0.0; self.layers.len()];
        for (i, layer) in self.layers.iter().enumerate().filter(|(i, _)| !plan.skip.contains(i)) {
            let before = x.clone();
            let normed = rms_norm(&x, &layer.attn_norm, eps);
            let mut q = layer.q.apply(&normed)?;
            kv[i] = LayerKv { k: layer.k.apply(&normed)?, v: layer.v.apply(&normed)? };
            self.rope.rotate(&mut q, &positions);
            self.rope.rotate(&mut kv[i].k, &positions);
            cache.store(i, &plan.positions, &kv[i])?;
            let held = &cache.layers()[i];
            add(&mut x, &layer.attn_output.apply(&attend(h, &q, &held.k, &held.v, &plan.visible), None)?);

            let normed = rms_norm(&x, &layer.ffn_norm, eps);
            let mut gate = layer.ffn_gate.apply(&normed, None)?;
            swiglu(&mut gate, &layer.ffn_up.apply(&normed, None)?);
            add(&mut x, &layer.ffn_down.apply(&gate, None)?);
            change[i] = x.iter().zip(&before).map(|(a, b)| (a - b) * (a - b)).sum();
        }

        let wanted: Vec<f64> =
            plan.rows.iter().flat_map(|&r| &x[r * h.n_embd..(r + 1) * h.n_embd]).copied().collect();
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let logits = head.apply(&rms_norm(&wanted, &self.output_norm, eps), None)?;
        Ok(Pass { logits: Logits::from_rows(h.n_vocab, logits), kv, change })
    }
}
