//! DiffusionGemma (reference implementation `models/diffusion_gemma` of <https://github.com/huggingface/transformers>,
//! names as in llama.cpp's draft): a prompt is encoded causally, a canvas after it denoised in both directions, over
//! one stack of layers. Norms before and after each part, queries and keys normalised head by head with a scale and
//! values without, a dense branch beside experts, and a factor of each layer's result that the phases have apart. On a
//! canvas the embedding is conditioned on the step before and then normalised.

use ggml_sys::Tensor;
use model_file::Experts;

use crate::attention::AttentionParts;
use crate::blocks::{Builder, Gate, named};
use crate::cache::as_i64;
use crate::canvas::{Conditioning, Phase};
use crate::error::Error;

const ATTENTION: AttentionParts = AttentionParts { bias: false, qk_norm: true, v_norm: true };

/// All layers over the scaled embedding `x`, `[n_embd, n]`.
pub(crate) fn layers(
    b: &mut Builder<'_>,
    x: Tensor,
    phase: Phase,
    conditioning: Option<&Conditioning>,
) -> Result<Tensor, Error> {
    let experts = b.hparams.experts.ok_or_else(|| Error::Input("a model without experts".to_owned()))?;
    let x = input(b, &x, phase, conditioning)?;
    let mut x = b.keep_residual(x);
    for layer in 0..b.hparams.n_layer {
        let h = b.layer_norm(&x, "attn_norm", layer);
        let h = b.self_attention(&h, ATTENTION, layer)?;
        let h = b.layer_norm(&h, "post_attention_norm", layer);
        x = b.residual(&x, &h, "attn_residual", layer);
        let h = feed_forward(b, &x, experts, layer)?;
        x = b.residual(&x, &h, "layer", layer);
        x = scaled(b, &x, phase, layer);
        x = b.keep_residual(x);
    }
    Ok(x)
}

/// The dense branch and the experts, each between norms of its own, and a norm of their sum.
fn feed_forward(b: &mut Builder<'_>, x: &Tensor, experts: Experts, layer: usize) -> Result<Tensor, Error> {
    let h = b.layer_norm(x, "ffn_norm", layer);
    let dense = b.feed_forward(&h, Gate::Gelu, layer)?;
    let dense = b.layer_norm(&dense, "post_ffw_norm_1", layer);

    // The router reads the residual stream, normalised without a weight but with a scale over the root of the width.
    let plain = named(b.ctx.rms_norm(x, b.hparams.rms_eps), "router_rms", layer);
    let small = named(b.ctx.scale(&plain, 1.0 / (b.hparams.n_embd as f32).sqrt()), "router_small", layer);
    let read = named(b.ctx.mul(&small, b.weight(layer, "ffn_gate_inp.scale")), "router_scaled", layer);
    let scores = b.linear(&read, "ffn_gate_inp", false, layer);
    let h = b.layer_norm(x, "pre_ffw_norm_2", layer);
    let routed = b.experts(&h, &scores, experts, Gate::Gelu, layer)?;
    let routed = b.layer_norm(&routed, "post_ffw_norm_2", layer);

    let sum = named(b.ctx.add(&dense, &routed), "ffn_sum", layer);
    Ok(b.layer_norm(&sum, "post_ffw_norm", layer))
}

/// The prompt's columns as they are, the canvas's conditioned and normalised.
fn input(
    b: &Builder<'_>,
    x: &Tensor,
    phase: Phase,
    conditioning: Option<&Conditioning>,
) -> Result<Tensor, Error> {
    match phase {
        Phase::Plain | Phase::Encode => Ok(x.clone()),
        Phase::Canvas { temperature } => canvas(b, x, temperature, conditioning),
        Phase::Unified { prompt, temperature } => {
            let (before, after) = split(b, x, prompt, "input", 0);
            let after = canvas(b, &after, temperature, conditioning)?;
            Ok(joined(b, before, after, "input", 0))
        }
    }
}

fn canvas(
    b: &Builder<'_>,
    x: &Tensor,
    temperature: Option<f32>,
    conditioning: Option<&Conditioning>,
) -> Result<Tensor, Error> {
    let x = match (temperature, conditioning) {
        (Some(temperature), Some(before)) => {
            let signal = signal(b, before, temperature)?;
            named(b.ctx.add(x, &signal), "canvas_conditioned", 0)
        }
        _ => x.clone(),
    };
    Ok(named(b.ctx.rms_norm(&x, b.hparams.rms_eps), "canvas_norm", 0))
}

/// What the step before says: its probabilities' mean of the embedding, through a gated projection.
fn signal(b: &Builder<'_>, before: &Conditioning, temperature: f32) -> Result<Tensor, Error> {
    let product = |weight: &str, x: &Tensor| {
        named(b.ctx.mul_mat(b.weights.get(&format!("{weight}.weight")), x), weight, 0)
    };
    let p = named(b.ctx.soft_max(before.logits(), None, 1.0 / temperature), "conditioning_soft_max", 0);
    let mean = named(b.ctx.mul_mat_f32(before.table(), &p), "conditioning_mean", 0);
    let mean = named(b.ctx.scale(&mean, (b.hparams.n_embd as f32).sqrt()), "conditioning_scaled", 0);
    let h = b.norm(&mean, b.weights.get("self_cond_pre_norm.weight"), "self_cond_pre_norm", 0);
    let gate = named(b.ctx.gelu(&product("self_cond_gate", &h))?, "self_cond_gelu", 0);
    let hidden = named(b.ctx.mul(&gate, &product("self_cond_up", &h)), "self_cond_gated", 0);
    Ok(product("self_cond_down", &hidden))
}

/// The layer's result times its factor in the phase.
fn scaled(b: &Builder<'_>, x: &Tensor, phase: Phase, layer: usize) -> Tensor {
    let times =
        |x: &Tensor, what: &str| named(b.ctx.mul(x, b.weight(layer, &format!("{what}.weight"))), what, layer);
    match phase {
        Phase::Encode => times(x, "enc_layer_output_scale"),
        Phase::Plain | Phase::Canvas { .. } => times(x, "layer_output_scale"),
        Phase::Unified { prompt, .. } => {
            let (before, after) = split(b, x, prompt, "layer", layer);
            let before = before.map(|x| times(&x, "enc_layer_output_scale"));
            joined(b, before, times(&after, "layer_output_scale"), "layer_output", layer)
        }
    }
}

/// The first columns and the rest; none where there are none of the first.
fn split(b: &Builder<'_>, x: &Tensor, first: usize, what: &str, layer: usize) -> (Option<Tensor>, Tensor) {
    let (width, stride, n) = (x.ne()[0], x.nb()[1], b.n);
    if first == 0 {
        return (None, x.clone());
    }
    let part = |from: usize, to: usize, which: &str| {
        let view = b.ctx.view_2d(x, [width, as_i64(to - from)], stride, from * stride);
        named(b.ctx.cont(&view), &format!("{what}_{which}"), layer)
    };
    (Some(part(0, first, "prompt")), part(first, n, "canvas"))
}

fn joined(b: &Builder<'_>, before: Option<Tensor>, after: Tensor, what: &str, layer: usize) -> Tensor {
    match before {
        None => after,
        Some(before) => named(b.ctx.concat(&before, &after, 1), &format!("{what}_joined"), layer),
    }
}
