//! DiffusionGemma: block diffusion over Gemma 4's stack (reference implementation `models/diffusion_gemma` of
//! <https://github.com/huggingface/transformers>).
//!
//! ```text
//! x = embedding[tokens] * sqrt(width)
//! on a canvas: x = rms_norm(x + conditioning)              no weight
//! for each layer:
//!     h = rms_norm(x)
//!     q, k = h Wq, h Wk
//!     v = h Wv in windowed layers, h Wk in the others
//!     q, k, v = rope(rms_norm(q)), rope(rms_norm(k)), rms_norm(v)        by head; v's without a weight
//!     x += rms_norm(attention(q, k, v) Wo)                 scores are not scaled
//!     dense = rms_norm((gelu(h Wgate) * (h Wup)) Wdown)    with h = rms_norm(x)
//!     routed = rms_norm(experts(rms_norm(x)))              routed by x
//!     x = (x + rms_norm(dense + routed)) * the layer's factor in this phase
//! logits = softcap(rms_norm(x) Whead)
//! ```
//!
//! Conditioning on the step before: `s = softmax(logits / temperature) E sqrt(width)`, then with `n = rms_norm(s)`
//! `(gelu(n Wgate) * (n Wup)) Wdown`; nothing on the first step.

use std::ops::Range;

use model_file::{HyperParams, LayerShape, Model};

use super::experts::Experts;
use super::pre_norm::Tensors;
use crate::Error;
use crate::attention::attend;
use crate::block::Conditioning;
use crate::cache::LayerKv;
use crate::experts::Routing;
use crate::matrix::Matrix;
use crate::ops::{add, geglu, rms_norm, rms_norm_plain, soft_cap, softmax};
use crate::rope::Rope;

/// A gated feed-forward part.
#[derive(Debug)]
struct Gated {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Gated {
    fn open(tensors: &Tensors<'_>, prefix: &str) -> Result<Self, Error> {
        let part = |part: &str| tensors.matrix(&format!("{prefix}_{part}.weight"));
        Ok(Self { gate: part("gate")?, up: part("up")?, down: part("down")? })
    }

    fn apply(&self, x: &[f64]) -> Result<Vec<f64>, Error> {
        let mut gate = self.gate.apply(x, None)?;
        geglu(&mut gate, &self.up.apply(x, None)?);
        self.down.apply(&gate, None)
    }
}

#[derive(Debug)]
struct Layer {
    shape: LayerShape,
    attn_norm: Vec<f64>,
    q: Matrix,
    k: Matrix,
    /// `None`: the keys' projection.
    v: Option<Matrix>,
    q_norm: Vec<f64>,
    k_norm: Vec<f64>,
    attn_output: Matrix,
    post_attention_norm: Vec<f64>,
    ffn_norm: Vec<f64>,
    dense: Gated,
    dense_post_norm: Vec<f64>,
    expert_norm: Vec<f64>,
    experts: Experts,
    expert_post_norm: Vec<f64>,
    ffn_post_norm: Vec<f64>,
    /// The factor of the prompt's phase, then the canvas's.
    factors: [f64; 2],
    rope: Rope,
}

/// The network with its weights.
#[derive(Debug)]
pub(crate) struct DiffusionGemma {
    embedding: Matrix,
    layers: Vec<Layer>,
    output_norm: Vec<f64>,
    /// `None`: the embedding is the head.
    head: Option<Matrix>,
    conditioning_norm: Vec<f64>,
    conditioning: Gated,
}

/// The rows of a pass: the prompt's first, the canvas's after them.
pub(crate) struct Rows<'a> {
    /// The prompt's tokens.
    pub(crate) prompt: &'a [u32],
    /// The canvas's.
    pub(crate) canvas: &'a [u32],
    /// What the canvas is conditioned on.
    pub(crate) previous: Option<Conditioning<'a>>,
    /// K and V of the positions before these rows, for each layer.
    pub(crate) held: &'a [LayerKv],
    /// How many those are.
    pub(crate) first: usize,
    /// Experts that are to work whatever the routers choose, layer by layer `[n, used]`.
    pub(crate) experts: Option<&'a [&'a [usize]]>,
}

impl Rows<'_> {
    /// Which of the held rows and of these, counted together, each row sees.
    ///
    /// A prompt's row sees those up to itself, in a windowed layer the last `window` of them. A canvas's rows see the
    /// whole canvas and the whole prompt, in a windowed layer its last `window - 1` positions.
    fn visible(&self, window: Option<usize>) -> Vec<Range<usize>> {
        let end = self.first + self.prompt.len();
        let from = |end: usize| window.map_or(0, |window| end.saturating_sub(window));
        let prompt = (self.first..end).map(|p| from(p + 1)..p + 1);
        let from = from(end + 1);
        let canvas = self.canvas.iter().map(|_| from..end + self.canvas.len());
        prompt.chain(canvas).collect()
    }
}

/// What the layers give.
pub(crate) struct Output {
    /// The canvas's logits, `[canvas, n_vocab]`.
    pub(crate) logits: Vec<f64>,
    /// K and V of the pass's rows in each layer.
    pub(crate) kv: Vec<LayerKv>,
    /// The experts of each layer.
    pub(crate) experts: Vec<Routing>,
}

impl DiffusionGemma {
    /// Maps the matrices of a model and reads its norms.
    pub(crate) fn open(model: &Model) -> Result<Self, Error> {
        let (h, tensors) = (&model.hparams, Tensors(model));
        let factors = tensors.optional("rope_freqs.weight")?.map(|f| f.values()).transpose()?;
        let used = h.experts.map_or(0, |e| e.used);
        let layers = (0..h.n_layer).map(|i| {
            let shape = h.layer(i);
            let name = |part: &str| format!("blk.{i}.{part}");
            let scalar = |part: &str| Ok::<_, Error>(tensors.vector(&name(part))?[0]);
            let v = if shape.window.is_some() { Some(tensors.matrix(&name("attn_v.weight"))?) } else { None };
            Ok(Layer {
                shape,
                attn_norm: tensors.vector(&name("attn_norm.weight"))?,
                q: tensors.matrix(&name("attn_q.weight"))?,
                k: tensors.matrix(&name("attn_k.weight"))?,
                v,
                q_norm: tensors.vector(&name("attn_q_norm.weight"))?,
                k_norm: tensors.vector(&name("attn_k_norm.weight"))?,
                attn_output: tensors.matrix(&name("attn_output.weight"))?,
                post_attention_norm: tensors.vector(&name("post_attention_norm.weight"))?,
                ffn_norm: tensors.vector(&name("ffn_norm.weight"))?,
                dense: Gated::open(&tensors, &name("ffn"))?,
                dense_post_norm: tensors.vector(&name("post_ffw_norm_1.weight"))?,
                expert_norm: tensors.vector(&name("pre_ffw_norm_2.weight"))?,
                experts: Experts::open(model, used, i)?,
                expert_post_norm: tensors.vector(&name("post_ffw_norm_2.weight"))?,
                ffn_post_norm: tensors.vector(&name("post_ffw_norm.weight"))?,
                factors: [scalar("enc_layer_output_scale.weight")?, scalar("layer_output_scale.weight")?],
                rope: Rope::new(&shape, h.rope_kind, factors.as_deref().filter(|_| shape.window.is_none())),
            })
        });
        Ok(Self {
            embedding: tensors.matrix("token_embd.weight")?,
            layers: layers.collect::<Result<_, Error>>()?,
            output_norm: tensors.vector("output_norm.weight")?,
            head: tensors.optional("output.weight")?,
            conditioning_norm: tensors.vector("self_cond_pre_norm.weight")?,
            conditioning: Gated::open(&tensors, "self_cond")?,
        })
    }

    /// Logits, K, V and experts of rows that have been checked.
    pub(crate) fn forward(&self, h: &HyperParams, rows: &Rows<'_>) -> Result<Output, Error> {
        let (eps, width) = (f64::from(h.rms_eps), h.n_embd);
        let mut x = self.embed(rows, width, eps)?;
        let split = rows.prompt.len() * width;
        let n = rows.prompt.len() + rows.canvas.len();
        let positions: Vec<f64> = (rows.first..rows.first + n).map(|p| p as f64).collect();
        let (mut kv, mut experts) = (Vec::new(), Vec::new());
        for (layer, held) in self.layers.iter().zip(rows.held) {
            let shape = layer.shape;
            let normed = rms_norm(&x, &layer.attn_norm, eps);
            let mut q = rms_norm(&layer.q.apply(&normed, None)?, &layer.q_norm, eps);
            let keys = layer.k.apply(&normed, None)?;
            let values = layer.v.as_ref().map(|v| v.apply(&normed, None)).transpose()?;
            let v = rms_norm_plain(values.as_ref().unwrap_or(&keys), shape.head_dim, eps);
            let mut k = rms_norm(&keys, &layer.k_norm, eps);
            layer.rope.rotate(&mut q, &positions);
            layer.rope.rotate(&mut k, &positions);
            let visible = rows.visible(shape.window);
            let mixed =
                attend(&shape, 1.0, &q, &[&held.k[..], &k].concat(), &[&held.v[..], &v].concat(), &visible);
            let mixed = layer.attn_output.apply(&mixed, None)?;
            add(&mut x, &rms_norm(&mixed, &layer.post_attention_norm, eps));

            let dense = layer.dense.apply(&rms_norm(&x, &layer.ffn_norm, eps))?;
            let mut sum = rms_norm(&dense, &layer.dense_post_norm, eps);
            let given = rows.experts.map(|given| given[experts.len()]);
            let (routing, weights) = layer.experts.route(&x, eps, given)?;
            let work = given.unwrap_or(&routing.chosen);
            let routed = layer.experts.apply(&rms_norm(&x, &layer.expert_norm, eps), work, &weights)?;
            add(&mut sum, &rms_norm(&routed, &layer.expert_post_norm, eps));
            add(&mut x, &rms_norm(&sum, &layer.ffn_post_norm, eps));
            let (prompt, canvas) = x.split_at_mut(split);
            for (rows, factor) in [prompt, canvas].into_iter().zip(layer.factors) {
                rows.iter_mut().for_each(|x| *x *= factor);
            }
            kv.push(LayerKv { k, v });
            experts.push(routing);
        }
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let mut logits = head.apply(&rms_norm(&x[split..], &self.output_norm, eps), None)?;
        if let Some(cap) = h.logit_softcap {
            soft_cap(&mut logits, f64::from(cap));
        }
        Ok(Output { logits, kv, experts })
    }

    /// The residual stream before the first layer.
    fn embed(&self, rows: &Rows<'_>, width: usize, eps: f64) -> Result<Vec<f64>, Error> {
        let root = (width as f64).sqrt();
        let mut x = vec![0.0; (rows.prompt.len() + rows.canvas.len()) * width];
        let mut scratch = Vec::new();
        for (row, &token) in x.chunks_exact_mut(width).zip(rows.prompt.iter().chain(rows.canvas)) {
            self.embedding.decode(token as usize, row, &mut scratch)?;
            row.iter_mut().for_each(|x| *x *= root);
        }
        let mut canvas = x.split_off(rows.prompt.len() * width);
        if let Some(Conditioning { logits, temperature }) = rows.previous {
            let mut p: Vec<f64> = logits.values().iter().map(|z| z / temperature).collect();
            p.chunks_exact_mut(logits.n_vocab()).for_each(softmax);
            let mut soft = self.embedding.mix(&p)?;
            soft.iter_mut().for_each(|x| *x *= root);
            let normed = rms_norm(&soft, &self.conditioning_norm, eps);
            add(&mut canvas, &self.conditioning.apply(&normed)?);
        }
        x.extend(rms_norm_plain(&canvas, width, eps));
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canvas_sees_all_of_itself_and_a_window_less_one_of_the_prompt() {
        let rows =
            |prompt, canvas, first| Rows { prompt, canvas, previous: None, held: &[], first, experts: None };
        // Ten positions held, a canvas of three, a window of four: positions 7, 8 and 9.
        let windowed = rows(&[], &[0; 3], 10).visible(Some(4));
        assert_eq!(windowed, vec![7..13; 3]);
        assert_eq!(rows(&[], &[0; 3], 10).visible(None), vec![0..13; 3]);
        assert_eq!(rows(&[], &[0; 3], 2).visible(Some(4)), vec![0..5; 3], "a short prompt is seen whole");
        assert_eq!(rows(&[], &[0; 2], 5).visible(Some(1)), vec![5..7; 2], "the canvas alone");
    }

    #[test]
    fn a_prompt_is_causal_and_never_sees_the_canvas() {
        let rows =
            Rows { prompt: &[0; 3], canvas: &[0; 2], previous: None, held: &[], first: 4, experts: None };
        assert_eq!(rows.visible(None), [0..5, 0..6, 0..7, 0..9, 0..9]);
        assert_eq!(rows.visible(Some(2)), [3..5, 4..6, 5..7, 6..9, 6..9]);
    }
}
