//! Generated DiffusionGemma models: layers that alternate between a window and everything, with heads of their own.

use super::GenerateSpec;
use super::numbers::Values;
use crate::block::CANVAS_KEY;
use crate::error::Error;
use crate::gguf::{Array, Value};
use crate::{Architecture, BlockDiffusion, EntropyBound, Experts, GgufWriter, Windowed};

/// What a block-diffusion model has beyond other decoders.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockSpec {
    /// Canvas and sampler.
    pub diffusion: BlockDiffusion,
    /// The layers with a window, and their heads.
    pub windowed: Windowed,
}

/// RoPE turns so many of the pairs of a layer that sees everything: one of `ROTATED`.
const ROTATED: u64 = 4;
/// What the frequencies of the others are divided by, as converters write it.
const STILL: f32 = 1e30;

/// Four layers, of which every other sees a window of 16 with heads half as large and twice as many for K and V.
fn model(base: GenerateSpec, canvas: usize, head_dim: usize, experts: Experts) -> GenerateSpec {
    let windowed = Windowed {
        window: 16,
        layers: vec![true, false, true, false],
        n_head_kv: 2,
        head_dim: head_dim / 2,
        rope_base: 10_000.0,
        rope_dim: head_dim / 2,
    };
    let diffusion = BlockDiffusion { canvas, sampler: EntropyBound::default() };
    GenerateSpec {
        n_layer: windowed.layers.len(),
        n_head_kv: 1,
        head_dim,
        rope_base: 1e6,
        rms_eps: 1e-6,
        tied: true,
        rope_freqs: true,
        logit_softcap: Some(30.0),
        experts: Some(experts),
        block: Some(BlockSpec { diffusion, windowed }),
        ..base
    }
}

/// Six experts of which two compute a token; every matrix has whole blocks of the K types in its rows.
pub(super) fn few_experts(base: GenerateSpec, canvas: usize) -> GenerateSpec {
    let experts = Experts { count: 6, used: 2, n_ff: 256, normalised: true };
    GenerateSpec { n_ff: 256, ..model(base, canvas, 128, experts) }
}

/// More experts than a work-group sorts at once on some devices: 300, and a small network around them.
pub(super) fn many_experts(base: GenerateSpec) -> GenerateSpec {
    let experts = Experts { count: 300, used: 8, n_ff: 32, normalised: true };
    GenerateSpec { n_embd: 64, n_ff: 96, ..model(base, 8, 64, experts) }
}

pub(super) fn check(spec: &GenerateSpec) -> Result<(), Error> {
    let fault = |field: &str, message: &str| Err(Error::request(message).field(field));
    let Some(BlockSpec { diffusion, windowed }) = &spec.block else {
        return match spec.architecture {
            Architecture::DiffusionGemma => fault("block", "diffusion-gemma needs it"),
            _ => Ok(()),
        };
    };
    if spec.architecture != Architecture::DiffusionGemma {
        return fault("block", "only diffusion-gemma has it");
    }
    if windowed.layers.len() != spec.n_layer || windowed.layers.iter().all(|&w| w) {
        return fault("block.windowed.layers", "must be as many as n_layer, and not all of them true");
    }
    if windowed.n_head_kv == 0 || !spec.n_head.is_multiple_of(windowed.n_head_kv) {
        return fault("block.windowed.n_head_kv", "must divide n_head");
    }
    if windowed.head_dim == 0
        || !windowed.head_dim.is_multiple_of(2)
        || windowed.rope_dim != windowed.head_dim
    {
        return fault("block.windowed.head_dim", "must be even, and RoPE turns all of it");
    }
    if diffusion.canvas == 0 || windowed.window == 0 {
        return fault("block", "canvas and window must be above 0");
    }
    Ok(())
}

/// The keys that other architectures do not have, or have otherwise.
pub(super) fn metadata<'a>(spec: &GenerateSpec, block: &BlockSpec, w: GgufWriter<'a>) -> GgufWriter<'a> {
    let key = |name: &str| format!("{}.{name}", Architecture::DiffusionGemma);
    let BlockSpec { diffusion: BlockDiffusion { canvas, sampler: s }, windowed } = block;
    let heads = windowed.layers.iter().map(|&w| if w { windowed.n_head_kv } else { spec.n_head_kv } as i32);
    let heads = Value::Array(Array::I32(heads.collect()));
    let pattern = Value::Array(Array::Bool(windowed.layers.clone()));
    w.metadata(key("attention.head_count_kv"), heads)
        .metadata(key("attention.sliding_window"), windowed.window as u32)
        .metadata(key("attention.sliding_window_pattern"), pattern)
        .metadata(key("attention.key_length"), spec.head_dim as u32)
        .metadata(key("attention.value_length"), spec.head_dim as u32)
        .metadata(key("attention.key_length_swa"), windowed.head_dim as u32)
        .metadata(key("attention.value_length_swa"), windowed.head_dim as u32)
        .metadata(key("attention.causal"), false)
        .metadata(key("rope.freq_base_swa"), windowed.rope_base)
        .metadata(key("rope.dimension_count_swa"), windowed.head_dim as u32)
        .metadata(CANVAS_KEY, *canvas as u32)
        .metadata("diffusion.eb_max_steps", s.max_steps as u32)
        .metadata("diffusion.eb_t_min", s.t_min)
        .metadata("diffusion.eb_t_max", s.t_max)
        .metadata("diffusion.eb_entropy_bound", s.bound)
        .metadata("diffusion.eb_stability_threshold", s.stability as u32)
        .metadata("diffusion.eb_confidence_threshold", s.confidence)
}

/// The spread of a tensor's numbers where it is not that of other architectures.
pub(super) fn values(spec: &GenerateSpec, part: &str, shape: &[u64]) -> Option<Values> {
    let root = (spec.n_embd as f64).sqrt();
    Some(match part {
        // The table is multiplied with the root of the width, and is the head too: so many logits that a row is neither
        // flat nor certain.
        "token_embd.weight" => Values::bell(EMBEDDING / root),
        "rope_freqs.weight" => Values::Step { n: shape[0] / ROTATED, first: 1.0, rest: STILL },
        // Attention is not scaled, and queries are of norm sqrt(head): scores spread over about 1.5.
        "attn_k_norm.weight" => {
            let middle = 1.5 / (shape[0] as f64).sqrt();
            Values::even(middle as f32, 0.1 * middle)
        }
        // The router's input is divided by the root of the width: its scores spread over about 1.
        "ffn_gate_inp.scale" => Values::even(root as f32, 0.1 * root),
        "ffn_down_exps.scale" => Values::even(1.0, 0.25),
        "layer_output_scale.weight" | "enc_layer_output_scale.weight" => Values::even(0.75, 0.25),
        _ if part.contains("norm") => Values::even(1.0, 0.1),
        _ => return None,
    })
}

/// Standard deviation of the embedding's elements after scaling.
const EMBEDDING: f64 = 1.5;
