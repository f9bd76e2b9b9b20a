//! The pre-norm decoder that the architectures are:
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
//!
//! In some, each head of q and k goes through a norm before it is rotated, what attention and the second part give goes
//! through a norm before it is added, or the second part is a mixture of experts: [`Parts`] says which.

use model_file::{HyperParams, Model};

use crate::Error;
use crate::attention::attend;
use crate::cache::{Cache, LayerKv};
use crate::experts::{Mixture, Routing};
use crate::matrix::Matrix;
use crate::network::{Logits, Pass, Plan};
use crate::ops::{add, geglu, rms_norm, soft_cap, swiglu};
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
    /// Whether each head of Q and K goes through a norm.
    pub(super) qk_norm: bool,
    /// Whether what is added goes through a norm before.
    pub(super) post_norms: bool,
    /// Whether embeddings are multiplied with the root of their width.
    pub(super) scaled_embedding: bool,
    /// What gates the second part.
    pub(super) gate: Gate,
    /// Whether the second part is a mixture of experts.
    pub(super) experts: bool,
}

impl Parts {
    /// None of what only some have.
    pub(super) const PLAIN: Self = Self {
        qkv_bias: Bias::Never,
        rope_factors: false,
        qk_norm: false,
        post_norms: false,
        scaled_embedding: false,
        gate: Gate::Silu,
        experts: false,
    };
}

/// What is between the projections of a gated feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`.
    Gelu,
}

impl Gate {
    fn activate(self, gate: &mut [f64], up: &[f64]) {
        match self {
            Self::Silu => swiglu(gate, up),
            Self::Gelu => geglu(gate, up),
        }
    }
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
    /// `[head_dim]` each.
    head_norms: Option<[Vec<f64>; 2]>,
    attn_output: Matrix,
    ffn_norm: Vec<f64>,
    second: Second,
    post_norms: Option<[Vec<f64>; 2]>,
}

/// The second part of a layer.
#[derive(Debug)]
enum Second {
    Dense { gate: Matrix, up: Matrix, down: Matrix },
    Experts { router: Matrix, mixture: Mixture },
}

/// A pre-norm decoder with its weights.
#[derive(Debug)]
pub(crate) struct PreNorm {
    embedding: Matrix,
    layers: Vec<Layer>,
    output_norm: Vec<f64>,
    /// `None`: the embedding is the head.
    head: Option<Matrix>,
    /// One for each layer.
    ropes: Vec<Rope>,
    parts: Parts,
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
                let two = |a: &str, b: &str| -> Result<_, Error> {
                    Ok([tensors.vector(&name(a))?, tensors.vector(&name(b))?])
                };
                let second = match model.hparams.experts.filter(|_| parts.experts) {
                    None => Second::Dense {
                        gate: tensors.matrix(&name("ffn_gate.weight"))?,
                        up: tensors.matrix(&name("ffn_up.weight"))?,
                        down: tensors.matrix(&name("ffn_down.weight"))?,
                    },
                    Some(sizes) => Second::Experts {
                        router: tensors.matrix(&name("ffn_gate_inp.weight"))?,
                        mixture: Mixture {
                            sizes,
                            gate: tensors.matrix(&name("ffn_gate_exps.weight"))?,
                            up: tensors.matrix(&name("ffn_up_exps.weight"))?,
                            down: tensors.matrix(&name("ffn_down_exps.weight"))?,
                        },
                    },
                };
                let head_norms =
                    parts.qk_norm.then(|| two("attn_q_norm.weight", "attn_k_norm.weight")).transpose()?;
                let post_norms =
                    parts.post_norms.then(|| two("post_attention_norm.weight", "post_ffw_norm.weight"));
                Ok(Layer {
                    attn_norm: tensors.vector(&name("attn_norm.weight"))?,
                    q: tensors.linear(&name("attn_q"), parts.qkv_bias)?,
                    k: tensors.linear(&name("attn_k"), parts.qkv_bias)?,
                    v: tensors.linear(&name("attn_v"), parts.qkv_bias)?,
                    head_norms,
                    attn_output: tensors.matrix(&name("attn_output.weight"))?,
                    ffn_norm: tensors.vector(&name("ffn_norm.weight"))?,
                    second,
                    post_norms: post_norms.transpose()?,
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
            ropes: (0..model.hparams.n_layer)
                .map(|i| model.hparams.layer(i))
                .map(|shape| {
                    let factors = factors.as_deref().filter(|_| shape.window.is_none());
                    Rope::new(&shape, model.hparams.rope_kind, factors)
                })
                .collect(),
            parts,
        })
    }

    /// Rotates rows of a layer's K `[n, n_head_kv, head_dim]` by positions, which may be negative.
    pub(crate) fn rotate(&self, layer: usize, k: &mut [f64], positions: &[f64]) {
        self.ropes[layer].rotate(k, positions);
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
        if self.parts.scaled_embedding {
            let scale = (h.n_embd as f64).sqrt();
            x.iter_mut().for_each(|v| *v *= scale);
        }

        let mut kv = vec![LayerKv::default(); self.layers.len()];
        let mut routing = Vec::new();
        let mut change = vec![0.0; self.layers.len()];
        for (i, layer) in self.layers.iter().enumerate().filter(|(i, _)| !plan.skip.contains(i)) {
            let before = x.clone();
            let normed = rms_norm(&x, &layer.attn_norm, eps);
            let mut q = layer.q.apply(&normed)?;
            kv[i] = LayerKv { k: layer.k.apply(&normed)?, v: layer.v.apply(&normed)? };
            if let Some([of_q, of_k]) = &layer.head_norms {
                q = rms_norm(&q, of_q, eps);
                kv[i].k = rms_norm(&kv[i].k, of_k, eps);
            }
            self.ropes[i].rotate(&mut q, &positions);
            self.ropes[i].rotate(&mut kv[i].k, &positions);
            cache.store(i, &plan.positions, &kv[i])?;
            let (held, shape) = (&cache.layers()[i], h.layer(i));
            let scale = 1.0 / (h.query_scalar.unwrap_or(shape.head_dim) as f64).sqrt();
            let mixed = attend(&shape, scale, &q, &held.k, &held.v, &plan.visible[&shape.window]);
            let mut given = layer.attn_output.apply(&mixed, None)?;
            if let Some([norm, _]) = &layer.post_norms {
                given = rms_norm(&given, norm, eps);
            }
            add(&mut x, &given);

            let normed = rms_norm(&x, &layer.ffn_norm, eps);
            let (mut given, decided) = layer.second.apply(
                &normed,
                self.parts.gate,
                plan.experts.map(|given| given[routing.len()]),
            )?;
            routing.extend(decided);
            if let Some([_, norm]) = &layer.post_norms {
                given = rms_norm(&given, norm, eps);
            }
            add(&mut x, &given);
            change[i] = x.iter().zip(&before).map(|(a, b)| (a - b) * (a - b)).sum();
        }

        let wanted: Vec<f64> =
            plan.rows.iter().flat_map(|&r| &x[r * h.n_embd..(r + 1) * h.n_embd]).copied().collect();
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let mut logits = head.apply(&rms_norm(&wanted, &self.output_norm, eps), None)?;
        if let Some(cap) = h.logit_softcap {
            soft_cap(&mut logits, f64::from(cap));
        }
        Ok(Pass { logits: Logits::from_rows(h.n_vocab, logits), kv, routing, change })
    }
}

impl Second {
    /// What is added to the residual stream, by the experts that are `given` where some are, and what a router decided
    /// for it.
    fn apply(
        &self,
        x: &[f64],
        kind: Gate,
        given: Option<&[usize]>,
    ) -> Result<(Vec<f64>, Option<Routing>), Error> {
        match self {
            Self::Dense { gate, up, down } => {
                let mut gate = gate.apply(x, None)?;
                kind.activate(&mut gate, &up.apply(x, None)?);
                Ok((down.apply(&gate, None)?, None))
            }
            Self::Experts { router, mixture } => {
                let logits = router.apply(x, None)?;
                let (sum, routing) = mixture.apply(x, logits, given, |gate, up| kind.activate(gate, up))?;
                Ok((sum, Some(routing)))
            }
        }
    }
}
