//! Generated DiffusionGemma models: layers that alternate between a window and everything, with heads of their own.

use super::GenerateSpec;
use super::numbers::Values;
use crate::block::CANVAS_KEY;
use crate::error::Error;
use crate::gguf::{Array, Value};
use crate::{Architecture, BlockDiffusion, BlockLayer, EntropyBound, GgufWriter};

/// RoPE turns so many of the pairs of a layer that sees everything: one of `ROTATED`.
const ROTATED: u64 = 4;
/// What the frequencies of the others are divided by, as converters write it.
const STILL: f32 = 1e30;

/// The base of frequencies where a layer sees everything.
const FULL_BASE: f32 = 1e6;

fn block(canvas: usize, heads: [usize; 2], kv_heads: [usize; 2], experts: [usize; 3]) -> BlockDiffusion {
    let windowed =
        BlockLayer { windowed: true, n_head_kv: kv_heads[0], head_dim: heads[0], rope_base: 10_000.0 };
    let full =
        BlockLayer { windowed: false, n_head_kv: kv_heads[1], head_dim: heads[1], rope_base: FULL_BASE };
    let [n_expert, n_expert_used, n_ff_expert] = experts;
    BlockDiffusion {
        canvas,
        window: 16,
        layers: vec![windowed, full, windowed, full],
        n_expert,
        n_expert_used,
        n_ff_expert,
        softcap: Some(30.0),
        sampler: EntropyBound::default(),
    }
}

fn with(base: GenerateSpec, block: BlockDiffusion) -> GenerateSpec {
    GenerateSpec {
        n_layer: block.layers.len(),
        n_head_kv: block.layers[0].n_head_kv,
        head_dim: block.layers[0].head_dim,
        rms_eps: 1e-6,
        tied: true,
        rope_freqs: true,
        block: Some(block),
        ..base
    }
}

/// Six experts of which two compute a token; every matrix has whole blocks of the K types in its rows.
pub(super) fn few_experts(base: GenerateSpec, canvas: usize) -> GenerateSpec {
    GenerateSpec { n_ff: 256, ..with(base, block(canvas, [64, 128], [2, 1], [6, 2, 256])) }
}

/// More experts than a warp has threads, or a work-group rows: 300, and a small network around them.
pub(super) fn many_experts(base: GenerateSpec) -> GenerateSpec {
    GenerateSpec { n_embd: 64, n_ff: 96, ..with(base, block(8, [32, 64], [2, 1], [300, 8, 32])) }
}

pub(super) fn check(spec: &GenerateSpec) -> Result<(), Error> {
    let fault = |field: &str, message: &str| Err(Error::request(message).field(field));
    let Some(block) = &spec.block else {
        return match spec.architecture {
            Architecture::DiffusionGemma => fault("block", "diffusion-gemma needs it"),
            _ => Ok(()),
        };
    };
    if spec.architecture != Architecture::DiffusionGemma {
        return fault("block", "only diffusion-gemma has it");
    }
    if block.layers.len() != spec.n_layer {
        return fault("block.layers", "must be as many as n_layer");
    }
    if block.layers.iter().any(|l| {
        l.n_head_kv == 0
            || !spec.n_head.is_multiple_of(l.n_head_kv)
            || l.head_dim == 0
            || !l.head_dim.is_multiple_of(2)
    }) {
        return fault("block.layers", "n_head_kv must divide n_head and head_dim be even");
    }
    if block.canvas == 0 || block.window == 0 || block.n_ff_expert == 0 {
        return fault("block", "canvas, window and n_ff_expert must be above 0");
    }
    if block.n_expert_used == 0 || block.n_expert_used > block.n_expert {
        return fault("block.n_expert_used", "must lie between 1 and n_expert");
    }
    Ok(())
}

/// The keys that other architectures do not have.
pub(super) fn metadata<'a>(block: &BlockDiffusion, w: GgufWriter<'a>) -> GgufWriter<'a> {
    let key = |name: &str| format!("{}.{name}", Architecture::DiffusionGemma);
    let kind = |windowed: bool| block.layers.iter().find(|l| l.windowed == windowed);
    let full = kind(false).or(kind(true)).expect("a layer");
    let narrow = kind(true).unwrap_or(full);
    let heads: Vec<i32> = block.layers.iter().map(|l| l.n_head_kv as i32).collect();
    let pattern: Vec<bool> = block.layers.iter().map(|l| l.windowed).collect();
    let s = &block.sampler;
    w.metadata(key("attention.head_count_kv"), Value::Array(Array::I32(heads)))
        .metadata(key("attention.sliding_window"), block.window as u32)
        .metadata(key("attention.sliding_window_pattern"), Value::Array(Array::Bool(pattern)))
        .metadata(key("attention.key_length"), full.head_dim as u32)
        .metadata(key("attention.value_length"), full.head_dim as u32)
        .metadata(key("attention.key_length_swa"), narrow.head_dim as u32)
        .metadata(key("attention.value_length_swa"), narrow.head_dim as u32)
        .metadata(key("attention.causal"), false)
        .metadata(key("rope.freq_base"), full.rope_base)
        .metadata(key("rope.freq_base_swa"), narrow.rope_base)
        .metadata(key("rope.dimension_count"), full.head_dim as u32)
        .metadata(key("rope.dimension_count_swa"), narrow.head_dim as u32)
        .metadata(key("expert_count"), block.n_expert as u32)
        .metadata(key("expert_used_count"), block.n_expert_used as u32)
        .metadata(key("expert_feed_forward_length"), block.n_ff_expert as u32)
        .metadata(key("final_logit_softcapping"), block.softcap.unwrap_or(0.0))
        .metadata(CANVAS_KEY, block.canvas as u32)
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
