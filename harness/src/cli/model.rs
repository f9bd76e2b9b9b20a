//! `ggml-parity model`: make and look at model files.

use super::Failed;
use crate::verdict::ExitCode;
use model_file::{Array, GenerateSpec, Model, Value, WeightMix, tensor_table};
use std::path::PathBuf;

/// Subcommands of `model`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Example:\n  ggml-parity model generate gen-qwen2 --out qwen2.gguf")]
pub(super) enum Command {
    /// Write a seeded two-layer F32 model; without a name, list them
    #[command(after_help = "Example:\n  ggml-parity model generate gen-qwen2 --out qwen2.gguf")]
    Generate {
        /// The model's name
        name: Option<String>,
        /// The file to write [default: NAME.gguf]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Another seed than the preset's
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Write a copy whose matrices have another type
    #[command(
        after_help = "Example:\n  ggml-parity model quantize model-f32.gguf q4_k_m --out model-q4_k_m.gguf"
    )]
    Quantize {
        /// The file
        file: PathBuf,
        /// The type: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, iq4_nl, mxfp4, q4_k_m
        #[arg(value_name = "TYPE")]
        weights: String,
        /// The file to write
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Check a GGUF file and show what is in it
    #[command(after_help = "Example:\n  ggml-parity model inspect model.gguf --tensors")]
    Inspect {
        /// The file
        file: PathBuf,
        /// List every tensor
        #[arg(long)]
        tensors: bool,
    },
}

pub(super) fn main(command: &Command) -> Result<ExitCode, Failed> {
    match command {
        Command::Generate { name: None, .. } => {
            for spec in model_file::presets() {
                let heads = if spec.tied { "tied" } else { "untied" };
                println!(
                    "{:<18} {:<6} {} layers, {} wide, {}/{} heads of {}, vocabulary {}, {heads}",
                    spec.name,
                    spec.architecture.name(),
                    spec.n_layer,
                    spec.n_embd,
                    spec.n_head,
                    spec.n_head_kv,
                    spec.head_dim,
                    spec.n_vocab
                );
            }
            Ok(ExitCode::Success)
        }
        Command::Generate { name: Some(name), out, seed } => {
            let mut spec = GenerateSpec::preset(name).ok_or_else(|| {
                let known: Vec<&str> = model_file::presets().iter().map(|spec| spec.name.as_str()).collect();
                Failed::new(
                    ExitCode::Usage,
                    format!(
                        "no generated model `{name}`; known: {}{}",
                        known.join(", "),
                        crate::hint::nearest(name, known.iter().copied())
                    ),
                )
            })?;
            spec.seed = seed.unwrap_or(spec.seed);
            let out = out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.gguf")));
            model_file::generate(&spec, &out).map_err(|error| Failed::new(ExitCode::Usage, error))?;
            println!("{}", out.display());
            Ok(ExitCode::Success)
        }
        Command::Quantize { file, weights, out } => {
            let usage = |error: &dyn std::fmt::Display| Failed::new(ExitCode::Usage, error);
            let mix = WeightMix::from_name(weights)
                .ok_or_else(|| usage(&format!("TYPE is `{weights}`, which is no weight type; see --help")))?;
            let model = Model::open(file).map_err(|error| usage(&error))?;
            model_file::requantize_model(&model, mix, out).map_err(|error| usage(&error))?;
            println!("{}", out.display());
            Ok(ExitCode::Success)
        }
        Command::Inspect { file, tensors } => {
            let model = Model::open(file).map_err(|error| Failed::new(ExitCode::Usage, error))?;
            print!("{}", inspect(&model, *tensors));
            Ok(ExitCode::Success)
        }
    }
}

fn inspect(model: &Model, tensors: bool) -> String {
    let (file, h) = (&model.file, &model.hparams);
    let mut out = format!(
        "{}: GGUF {}, {} bytes, alignment {}\n",
        file.path().display(),
        file.version(),
        file.file_len(),
        file.alignment()
    );
    let biases =
        tensor_table(h).iter().any(|spec| spec.name.ends_with(".bias") && file.tensor(&spec.name).is_some());
    out += &format!(
        "architecture {} ({:?} keys), {} layers, {} wide, feed-forward {}, {}/{} heads of {}, vocabulary {}\n",
        h.architecture.name(),
        h.convention,
        h.n_layer,
        h.n_embd,
        h.n_ff,
        h.n_head,
        h.n_head_kv,
        h.head_dim,
        h.n_vocab
    );
    out += &format!(
        "RoPE {:?} over {} dimensions, base {}, factors {}; RMS epsilon {:e}; head {}; Q/K/V biases {}\n",
        h.rope_kind,
        h.rope_dim,
        h.rope_base,
        yes(h.has_rope_freqs),
        h.rms_eps,
        if h.tied_head { "tied to the embedding" } else { "of its own" },
        yes(biases)
    );
    if h.architecture.is_diffusion() {
        let mask = h.mask_token.map_or_else(|| "none".to_owned(), |token| token.to_string());
        out += &format!("masked diffusion: mask token {mask}, shifted logits {}\n", yes(h.shift_logits));
    }
    if let Some(block) = h.block {
        let s = block.sampler;
        out += &format!(
            "block diffusion: canvas {}, at most {} steps from temperature {} towards {}, entropy bound {}\n",
            block.canvas, s.max_steps, s.t_max, s.t_min, s.bound
        );
    }
    out += "\nmetadata:\n";
    for (key, value) in file.metadata().iter() {
        out += &format!("  {key} = {}\n", short(value));
    }
    let mut types = std::collections::BTreeMap::<&str, (usize, u64)>::new();
    for tensor in file.tensors() {
        let entry = types.entry(tensor.ty.name()).or_default();
        entry.0 += 1;
        entry.1 += tensor.bytes;
    }
    out += &format!("\n{} tensors:\n", file.tensors().len());
    for (name, (count, bytes)) in types {
        out += &format!("  {count:>5} {name:<8} {bytes:>14} bytes\n");
    }
    let unused: Vec<&str> = model.unused_tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    if !unused.is_empty() {
        out += &format!("not used by this architecture: {}\n", unused.join(", "));
    }
    if tensors {
        out += "\n";
        for tensor in file.tensors() {
            out += &format!(
                "  {:<32} {:<8} {:?} at {}\n",
                tensor.name,
                tensor.ty.name(),
                tensor.shape,
                tensor.offset
            );
        }
    }
    out
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// A value on one line, long ones cut.
fn short(value: &Value) -> String {
    const LONGEST: usize = 80;
    match value {
        Value::Array(array) => format!("{} x {}", array.len(), Array::type_name(array)),
        Value::Str(text) => {
            let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let cut: String = text.chars().take(LONGEST).collect();
            if cut.len() < text.len() { format!("\"{cut}…\"") } else { format!("\"{cut}\"") }
        }
        other => format!("{other:?}")
            .split_once('(')
            .map_or_else(String::new, |(_, v)| v.trim_end_matches(')').to_owned()),
    }
}
