//! Plants a fault for a sweep to find: a copy of a model in which the keys of one head of one layer are scaled.
//!
//! ```text
//! cargo run --release --example scale_head -- MODEL.gguf OUT.gguf LAYER HEAD FACTOR
//! ```
//!
//! The keys' matrix may be in F32 or F16; its bias, where there is one, in F32.

use anyhow::{Context, Result, bail, ensure};
use half::f16;
use model_file::{Model, TensorType};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, layer, head, factor] = arguments.as_slice() else {
        bail!("usage: scale_head MODEL.gguf OUT.gguf LAYER HEAD FACTOR");
    };
    let (layer, head): (usize, usize) = (layer.parse()?, head.parse()?);
    let factor: f32 = factor.parse()?;
    let model = Model::open(Path::new(from))?;
    ensure!(layer < model.hparams.n_layer, "layer {layer} of {}", model.hparams.n_layer);
    let shape = model.hparams.layer(layer);
    ensure!(head < shape.n_head_kv, "head {head} of {}", shape.n_head_kv);

    let mut bytes = std::fs::read(from)?;
    for (part, required) in [("weight", true), ("bias", false)] {
        let name = format!("blk.{layer}.attn_k.{part}");
        let Some(tensor) = model.file.tensor(&name) else {
            ensure!(!required, "{from} has no tensor {name}");
            continue;
        };
        // Rows of a matrix, elements of a bias: the keys' dimensions, head by head.
        let (start, size) = (usize::try_from(tensor.offset)?, usize::try_from(tensor.bytes)?);
        let of_head = size / shape.n_head_kv;
        let values = bytes.get_mut(start + head * of_head..start + (head + 1) * of_head);
        let values = values.with_context(|| format!("{from} ends within {name}"))?;
        match tensor.ty {
            TensorType::F16 => values.chunks_exact_mut(2).for_each(|v| {
                let scaled = f16::from_le_bytes([v[0], v[1]]).to_f32() * factor;
                v.copy_from_slice(&f16::from_f32(scaled).to_le_bytes());
            }),
            TensorType::F32 => values.chunks_exact_mut(4).for_each(|v| {
                let scaled = f32::from_le_bytes([v[0], v[1], v[2], v[3]]) * factor;
                v.copy_from_slice(&scaled.to_le_bytes());
            }),
            other => bail!("{name} is in {}, not in F32 or F16", other.name()),
        }
    }
    std::fs::write(to, bytes)?;
    Ok(())
}
