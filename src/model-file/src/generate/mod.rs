//! Seeded generated models: complete F32 files, small, and bit-identical on every platform.
//!
//! They exist so that every fault class has a case that fits in a second: grouped heads, non-zero biases,
//! both RoPE kinds, RoPE factors, tied and untied heads, widths that are no power of two. Each tensor's
//! numbers depend on the seed and the tensor's name alone, so a tied model and its untied twin differ in
//! the head only, and a new tensor moves no other.
//!
//! Matrices are scaled so that activations stay near 1 and logits spread over a few units.

mod block;
mod numbers;
mod vocabulary;

use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

use self::numbers::{Stream, Values};
use self::vocabulary::Vocabulary;
use crate::error::Error;
use crate::gguf::GgufWriter;
use crate::hparams::{ARCHITECTURE_KEY, DIFFUSE, SHIFT_KEY, TOKENS_KEY};
use crate::{Architecture, Convention, Experts, HyperParams, TensorType, Windowed, tensor_table};

pub use self::block::BlockSpec;

/// What to generate. Start from a [`preset`](Self::preset) and change fields.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateSpec {
    /// `general.name`.
    pub name: String,
    /// The network.
    pub architecture: Architecture,
    /// Whose metadata keys to write; `Diffuse` for masked-diffusion models only.
    pub convention: Convention,
    /// Seed of all numbers.
    pub seed: u64,
    /// Layers.
    pub n_layer: usize,
    /// Width.
    pub n_embd: usize,
    /// Feed-forward width.
    pub n_ff: usize,
    /// Query heads.
    pub n_head: usize,
    /// K/V heads.
    pub n_head_kv: usize,
    /// Elements of a head, even.
    pub head_dim: usize,
    /// Vocabulary, at least 8: four special tokens, characters, merges.
    pub n_vocab: usize,
    /// Context length declared.
    pub n_ctx: usize,
    /// Base of RoPE's frequencies.
    pub rope_base: f32,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// No `output.weight`: the head is the embedding.
    pub tied: bool,
    /// Write the embedding's numbers as `output.weight`, so that the untied twin must compute the same as
    /// the tied model.
    pub head_is_embedding: bool,
    /// Write `rope_freqs.weight` (Llama only).
    pub rope_freqs: bool,
    /// Positions that layers with a sliding window look back over (Gemma 3 only).
    pub window: Option<usize>,
    /// The mixture of experts (LLaDA-MoE only, which needs one).
    pub experts: Option<Experts>,
    /// Squeezes the logits (Gemma 3 only).
    pub logit_softcap: Option<f32>,
    /// Factor of the query and key projections: their products grow with its square.
    pub scale_qk: f32,
    /// Factor of the key projection, its bias included, by which the query projection is divided: a power of two
    /// leaves their products as they are.
    pub scale_k: f32,
    /// Factor of everything that is added to the residual stream. The norms take it out again, so a power of two
    /// leaves logits, keys and values as they are, but for the norm's epsilon.
    pub scale_residual: f32,
    /// Factor of the feed-forward part's `up` projection, by which `down` is divided: a power of two leaves the
    /// result as it is.
    pub scale_ffn: f32,
    /// Block diffusion (DiffusionGemma only, which needs it). Heads and RoPE's base above are those of layers without a
    /// window.
    pub block: Option<BlockSpec>,
}

static PRESETS: LazyLock<Vec<GenerateSpec>> = LazyLock::new(|| {
    let base = |name: &str, architecture: Architecture, seed: u64| GenerateSpec {
        name: name.to_string(),
        architecture,
        convention: Convention::LlamaCpp,
        seed,
        n_layer: 2,
        n_embd: 256,
        n_ff: 512,
        n_head: 4,
        n_head_kv: 2,
        head_dim: 64,
        n_vocab: 130,
        n_ctx: 2048,
        rope_base: 10_000.0,
        rms_eps: 1e-5,
        tied: false,
        head_is_embedding: false,
        rope_freqs: false,
        window: None,
        experts: None,
        logit_softcap: None,
        scale_qk: 1.0,
        scale_k: 1.0,
        scale_residual: 1.0,
        scale_ffn: 1.0,
        block: None,
    };
    // Nine heads of 64 on three K/V heads: no power of two, not a multiple of a K type's block.
    let wide = |spec: GenerateSpec| GenerateSpec { n_embd: 576, n_ff: 1536, n_head: 9, n_head_kv: 3, ..spec };
    // So many layers that some can be left out between two protected ones at either end.
    let deep = |spec: GenerateSpec| GenerateSpec { n_layer: 8, n_embd: 128, n_ff: 256, head_dim: 32, ..spec };
    let heads = |spec: GenerateSpec, head_dim, n_head, n_head_kv| GenerateSpec {
        n_embd: 128,
        n_ff: 256,
        n_head,
        n_head_kv,
        head_dim,
        ..spec
    };
    let dream = |name: &str, seed| GenerateSpec {
        rope_base: 1e6,
        rms_eps: 1e-6,
        ..base(name, Architecture::Dream, seed)
    };
    let llada = |name: &str, seed| GenerateSpec {
        n_head_kv: 4,
        rope_base: 5e5,
        ..base(name, Architecture::Llada, seed)
    };
    let qwen2 = |name: &str, seed| GenerateSpec {
        rope_base: 1e6,
        rms_eps: 1e-6,
        ..base(name, Architecture::Qwen2, seed)
    };
    let llama = |name: &str, seed| GenerateSpec {
        rope_base: 5e5,
        rope_freqs: true,
        ..base(name, Architecture::Llama, seed)
    };
    let qwen3 = |name: &str, seed| GenerateSpec {
        rope_base: 1e6,
        rms_eps: 1e-6,
        ..base(name, Architecture::Qwen3, seed)
    };
    // Six layers, of which the last sees everything.
    let gemma3 = |name: &str, seed| GenerateSpec {
        n_layer: 6,
        n_ff: 256,
        rope_base: 1e6,
        rms_eps: 1e-6,
        tied: true,
        window: Some(16),
        ..base(name, Architecture::Gemma3, seed)
    };
    let llada_moe = |name: &str, seed, count, used, n_ff| GenerateSpec {
        n_ff,
        n_head_kv: 4,
        rope_base: 5e4,
        experts: Some(Experts { count, used, n_ff, normalised: false }),
        ..base(name, Architecture::LladaMoe, seed)
    };
    vec![
        dream("gen-dream", 1),
        llada("gen-llada", 2),
        GenerateSpec { tied: true, ..qwen2("gen-qwen2", 3) },
        qwen2("gen-qwen2-untied", 3),
        llama("gen-llama", 4),
        GenerateSpec { tied: true, ..llama("gen-llama-tied", 4) },
        wide(dream("gen-dream-576", 5)),
        wide(llama("gen-llama-576", 6)),
        deep(llama("gen-llama-8l", 7)),
        GenerateSpec { tied: true, ..deep(qwen2("gen-qwen2-8l", 8)) },
        // A head that is no quotient of width and heads, as in the published sizes.
        GenerateSpec { head_dim: 128, tied: true, ..qwen3("gen-qwen3", 9) },
        gemma3("gen-gemma3", 10),
        llada_moe("gen-llada-moe", 11, 6, 2, 256),
        // More experts than a K type's block has weights.
        GenerateSpec { n_embd: 64, head_dim: 16, ..llada_moe("gen-llada-moe-300", 12, 300, 8, 32) },
        // Products of queries and keys up to about 1e5, beyond the 65,504 of 16-bit floats.
        GenerateSpec { scale_qk: 56.0, ..llama("adv-kq-range", 20) },
        // About 1e5 in the residual stream and in the feed-forward part.
        GenerateSpec { scale_residual: 1_048_576.0, scale_ffn: 65_536.0, ..qwen2("adv-activations", 21) },
        heads(qwen2("adv-head-64", 22), 64, 14, 2),
        heads(llama("adv-head-80", 23), 80, 4, 4),
        heads(qwen2("adv-head-96", 24), 96, 6, 2),
        heads(llama("adv-head-128", 25), 128, 8, 2),
        heads(qwen2("adv-head-256", 26), 256, 4, 2),
        heads(llama("adv-gqa-12", 27), 64, 24, 2),
        // Keys of a norm of 2e5 with elements up to 63,000, where 16-bit floats end at 65,504, and queries at their lower
        // end.
        GenerateSpec { scale_k: 16_384.0, ..heads(qwen2("adv-long-keys", 28), 128, 4, 2) },
        // The same heads for masked diffusion.
        heads(dream("adv-dream-head-64", 32), 64, 14, 2),
        heads(dream("adv-dream-head-80", 33), 80, 4, 4),
        heads(dream("adv-dream-head-96", 34), 96, 6, 2),
        heads(dream("adv-dream-head-128", 35), 128, 8, 2),
        heads(dream("adv-dream-head-256", 36), 256, 4, 2),
        heads(dream("adv-dream-gqa-12", 37), 64, 24, 2),
        block::few_experts(base("gen-diffusion-gemma", Architecture::DiffusionGemma, 40), 8),
        block::few_experts(base("gen-diffusion-gemma-c32", Architecture::DiffusionGemma, 41), 32),
        block::many_experts(base("gen-diffusion-gemma-e300", Architecture::DiffusionGemma, 42)),
    ]
});

/// The named models, in a fixed order.
pub fn presets() -> &'static [GenerateSpec] {
    &PRESETS
}

impl GenerateSpec {
    /// The preset with this name.
    pub fn preset(name: &str) -> Option<Self> {
        presets().iter().find(|s| s.name == name).cloned()
    }

    /// The hyper-parameters a file of this spec has when it is opened.
    pub fn hparams(&self) -> HyperParams {
        let diffusion = self.architecture.is_diffusion();
        HyperParams {
            architecture: self.architecture,
            convention: self.convention,
            n_layer: self.n_layer,
            n_embd: self.n_embd,
            n_ff: self.n_ff,
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            head_dim: self.head_dim,
            n_vocab: self.n_vocab,
            n_ctx_train: self.n_ctx,
            rms_eps: self.rms_eps,
            rope_base: self.rope_base,
            rope_dim: self.head_dim,
            rope_kind: self.architecture.rope_kind(self.convention),
            causal: !diffusion && self.block.is_none(),
            shift_logits: self.architecture.shifts_logits(),
            mask_token: diffusion.then_some(vocabulary::MASK),
            bos_token: Some(vocabulary::BOS),
            eos_token: Some(vocabulary::EOS),
            pad_token: Some(vocabulary::PAD),
            tied_head: self.tied,
            has_rope_freqs: self.rope_freqs,
            block: self.block.as_ref().map(|block| block.diffusion),
            windowed: self.block.as_ref().map(|block| block.windowed.clone()).or(self.window.map(|window| {
                Windowed {
                    window,
                    layers: (0..self.n_layer).map(|layer| layer % 6 < 5).collect(),
                    n_head_kv: self.n_head_kv,
                    head_dim: self.head_dim,
                    rope_base: 10_000.0,
                    rope_dim: self.head_dim,
                }
            })),
            query_scalar: self.block.as_ref().map(|_| 1),
            logit_softcap: self.logit_softcap,
            experts: self.experts,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let fault =
            |field: &str, value: usize, message: &str| Err(Error::request(message).field(field).value(value));
        for (field, value) in [
            ("n_layer", self.n_layer),
            ("n_embd", self.n_embd),
            ("n_ff", self.n_ff),
            ("n_head", self.n_head),
            ("n_head_kv", self.n_head_kv),
            ("head_dim", self.head_dim),
            ("n_vocab", self.n_vocab),
            ("n_ctx", self.n_ctx),
        ] {
            if value == 0 || value > 1 << 24 {
                return fault(field, value, "must lie between 1 and 2^24");
            }
        }
        if !self.n_head.is_multiple_of(self.n_head_kv) {
            return fault("n_head_kv", self.n_head_kv, "must divide n_head");
        }
        if !self.head_dim.is_multiple_of(2) {
            return fault("head_dim", self.head_dim, "must be even");
        }
        if self.n_vocab < vocabulary::SMALLEST {
            return fault("n_vocab", self.n_vocab, "must be at least 8: four special tokens and a merge");
        }
        for (field, factor) in [
            ("scale_qk", self.scale_qk),
            ("scale_k", self.scale_k),
            ("scale_residual", self.scale_residual),
            ("scale_ffn", self.scale_ffn),
        ] {
            if !(factor.is_normal() && factor > 0.0) {
                return Err(Error::request("must be a positive number").field(field).value(factor));
            }
        }
        if self.scale_residual != 1.0 && (self.tied || self.head_is_embedding) {
            let message = "a head that is the embedding would be scaled too";
            return Err(Error::request(message).field("scale_residual").value(self.scale_residual));
        }
        if self.rope_freqs && self.architecture != Architecture::Llama && self.block.is_none() {
            return Err(Error::request("only llama has RoPE factors").field("rope_freqs"));
        }
        block::check(self)?;
        if (self.window.is_some() || self.logit_softcap.is_some() && self.block.is_none())
            && self.architecture != Architecture::Gemma3
        {
            return Err(Error::request("only gemma3 has windows and soft-capped logits").field("window"));
        }
        if self.window == Some(0) {
            return fault("window", 0, "must be above 0");
        }
        match self.experts {
            Some(_) if !self.architecture.has_experts() => {
                return Err(Error::request("this architecture has no experts").field("experts"));
            }
            None if self.architecture.has_experts() => {
                return Err(Error::request("this architecture needs experts").field("experts"));
            }
            Some(e) if !(1..=e.count).contains(&e.used) || e.n_ff == 0 || e.count > 1 << 16 => {
                let message = "of 1 to 65,536 experts at least one works, and none has a width of 0";
                return Err(Error::request(message).field("experts").value(e.used));
            }
            _ => {}
        }
        if self.tied && self.head_is_embedding {
            return Err(Error::request("a tied model has no output.weight").field("head_is_embedding"));
        }
        if self.convention == Convention::Diffuse && !self.architecture.is_diffusion() {
            return Err(Error::request("the diffuse converter has dream and llada only").field("convention"));
        }
        Ok(())
    }

    fn metadata<'a>(&self, writer: GgufWriter<'a>) -> GgufWriter<'a> {
        let prefix = match self.convention {
            Convention::LlamaCpp => self.architecture.name(),
            Convention::Diffuse => DIFFUSE,
        };
        let key = |name: &str| format!("{prefix}.{name}");
        let mut w = writer
            .metadata(ARCHITECTURE_KEY, prefix)
            .metadata("general.name", self.name.as_str())
            .metadata("general.file_type", 0u32)
            .metadata(key("block_count"), self.n_layer as u32)
            .metadata(key("context_length"), self.n_ctx as u32)
            .metadata(key("embedding_length"), self.n_embd as u32)
            .metadata(key("feed_forward_length"), self.n_ff as u32)
            .metadata(key("attention.head_count"), self.n_head as u32)
            .metadata(key("attention.head_count_kv"), self.n_head_kv as u32)
            .metadata(key("attention.layer_norm_rms_epsilon"), self.rms_eps)
            .metadata(key("rope.freq_base"), self.rope_base)
            .metadata(key("rope.dimension_count"), self.head_dim as u32)
            .metadata(key("vocab_size"), self.n_vocab as u32);
        if let Some(block) = &self.block {
            w = block::metadata(self, block, w);
        } else if self.head_dim * self.n_head != self.n_embd {
            w = w
                .metadata(key("attention.key_length"), self.head_dim as u32)
                .metadata(key("attention.value_length"), self.head_dim as u32);
        }
        if let Some(window) = self.window {
            w = w.metadata(key("attention.sliding_window"), window as u32);
        }
        if let Some(cap) = self.logit_softcap {
            w = w.metadata(key("final_logit_softcapping"), cap);
        }
        if let Some(e) = self.experts {
            w = w
                .metadata(key("expert_count"), e.count as u32)
                .metadata(key("expert_used_count"), e.used as u32)
                .metadata(key("expert_feed_forward_length"), e.n_ff as u32)
                .metadata(key("expert_weights_norm"), e.normalised);
        }
        if self.architecture.is_diffusion() {
            w = w.metadata(SHIFT_KEY, self.architecture.shifts_logits());
        }
        if self.convention == Convention::Diffuse {
            w = w
                .metadata("diffuse.model_type", self.architecture.name())
                .metadata("diffuse.mask_token_id", vocabulary::MASK);
        }

        let vocabulary = Vocabulary::new(self.n_vocab);
        w = w
            .metadata("tokenizer.ggml.model", "gpt2")
            .metadata("tokenizer.ggml.pre", "default")
            .metadata(TOKENS_KEY, vocabulary.tokens)
            .metadata("tokenizer.ggml.token_type", vocabulary.types)
            .metadata("tokenizer.ggml.merges", vocabulary.merges)
            .metadata("tokenizer.ggml.bos_token_id", vocabulary::BOS)
            .metadata("tokenizer.ggml.eos_token_id", vocabulary::EOS)
            .metadata("tokenizer.ggml.padding_token_id", vocabulary::PAD)
            .metadata("tokenizer.ggml.add_bos_token", false);
        if self.architecture.is_diffusion() {
            w = w.metadata("tokenizer.ggml.mask_token_id", vocabulary::MASK);
        }
        w
    }

    /// Whose numbers a tensor gets and how they are spread.
    fn values(&self, name: &str, shape: &[u64]) -> Values {
        let part = name.strip_prefix("blk.").and_then(|n| n.split_once('.')).map_or(name, |(_, part)| part);
        let factor = match part {
            "token_embd.weight" | "attn_output.weight" => self.scale_residual,
            "attn_q.weight" => self.scale_qk / self.scale_k,
            "attn_k.weight" => self.scale_qk * self.scale_k,
            "attn_q.bias" => 1.0 / self.scale_k,
            "attn_k.bias" => self.scale_k,
            "ffn_up.weight" => self.scale_ffn,
            "ffn_down.weight" => self.scale_residual / self.scale_ffn,
            _ => 1.0,
        };
        let bell = |deviation: f64| Values::bell(deviation).times(factor);
        if let Some(values) = self.block.as_ref().and_then(|_| block::values(self, part, shape)) {
            return values;
        }
        match part {
            "token_embd.weight" | "output.weight" => bell(2.0 / (shape[0] as f64).sqrt()),
            "rope_freqs.weight" => Values::ramp(1.0, 8.0),
            // Routers that tell experts apart by more than noise.
            "ffn_gate_inp.weight" => bell(2.0 / (shape[0] as f64).sqrt()),
            _ if part.ends_with("norm.weight") => Values::even(1.0, 0.1),
            _ if part.ends_with(".bias") => Values::even(0.0, 0.1).times(factor),
            _ => bell(1.0 / (shape[0] as f64).sqrt()),
        }
    }
}

/// Writes the model of a spec to `path`, atomically.
///
/// ```
/// # use model_file::{GenerateSpec, Model, generate};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.gguf");
/// let spec = GenerateSpec { n_layer: 1, ..GenerateSpec::preset("gen-llama").unwrap() };
/// generate(&spec, &path)?;
/// assert_eq!(Model::open(&path)?.hparams.n_layer, 1);
/// # Ok(()) }
/// ```
pub fn generate(spec: &GenerateSpec, path: &Path) -> Result<(), Error> {
    spec.check()?;
    let mut writer = spec.metadata(GgufWriter::new());
    for tensor in tensor_table(&spec.hparams()) {
        let absent = match tensor.name.as_str() {
            "output.weight" => spec.tied,
            "rope_freqs.weight" => !spec.rope_freqs,
            // Llama's optional biases; the architectures with biases are dream and qwen2.
            name => name.ends_with(".bias") && !tensor.required,
        };
        if absent {
            continue;
        }
        let source = match tensor.name.as_str() {
            "output.weight" if spec.head_is_embedding => "token_embd.weight".to_string(),
            name => name.to_string(),
        };
        let values = spec.values(&source, &tensor.shape);
        let seed = spec.seed;
        let n: u64 = tensor.shape.iter().product();
        writer = writer.tensor(tensor.name, &tensor.shape, TensorType::F32, move |out| {
            write_values(out, Stream::new(seed, &source), values, n)
        });
    }
    writer.write(path)
}

fn write_values(out: &mut dyn Write, mut stream: Stream, values: Values, n: u64) -> Result<(), Error> {
    let mut buffer = Vec::with_capacity(16 << 10);
    for i in 0..n {
        buffer.extend_from_slice(&values.next(&mut stream, i, n).to_le_bytes());
        if buffer.len() >= 16 << 10 || i + 1 == n {
            out.write_all(&buffer).map_err(|e| Error::io("cannot write", &e))?;
            buffer.clear();
        }
    }
    Ok(())
}
