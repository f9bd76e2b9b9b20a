//! Hyper-parameters: what a file says about the network, in one struct for every arm.
//!
//! Two converters' keys are read. llama.cpp's carry the architecture as prefix (`dream.block_count`).
//! Those of the second converter for masked-diffusion models carry `diffuse.` and name the architecture
//! in `diffuse.model_type`; it does not permute Q and K, so RoPE is NEOX for LLaDA too.
//!
//! What would change the numbers but is not implemented (RoPE scaling, experts where the network has none) is an
//! error here, never silently left out.

use std::fmt;

use crate::block::BlockDiffusion;
use crate::error::{Error, quoted};
use crate::gguf::GgufFile;

/// The networks this crate knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Masked diffusion on Qwen2's body: bidirectional, Q/K/V biases, shifted logits.
    Dream,
    /// Masked diffusion on Llama's body: bidirectional, no biases.
    Llada,
    /// Autoregressive, Q/K/V biases.
    Qwen2,
    /// Autoregressive, optionally with RoPE frequency factors.
    Llama,
    /// Autoregressive, queries and keys normalised head by head, no biases.
    Qwen3,
    /// Autoregressive, most layers with a sliding window, norms before and after each part.
    Gemma3,
    /// Masked diffusion with a mixture of experts: bidirectional, queries and keys normalised head by head.
    LladaMoe,
    /// Block diffusion: a canvas denoised after a prompt that is encoded causally, with a mixture of experts.
    DiffusionGemma,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Dream,
        Self::Llada,
        Self::Qwen2,
        Self::Llama,
        Self::Qwen3,
        Self::Gemma3,
        Self::LladaMoe,
        Self::DiffusionGemma,
    ];

    /// The name in `general.architecture` and `diffuse.model_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dream => "dream",
            Self::Llada => "llada",
            Self::Qwen2 => "qwen2",
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Gemma3 => "gemma3",
            Self::LladaMoe => "llada-moe",
            Self::DiffusionGemma => "diffusion-gemma",
        }
    }

    /// The architecture with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// Whether it is a masked-diffusion model: bidirectional, with a mask token.
    pub const fn is_diffusion(self) -> bool {
        matches!(self, Self::Dream | Self::Llada | Self::LladaMoe)
    }

    /// Whether Q, K and V must have biases.
    pub const fn needs_qkv_bias(self) -> bool {
        matches!(self, Self::Dream | Self::Qwen2)
    }

    /// Whether Q, K and V may have biases.
    pub const fn may_have_qkv_bias(self) -> bool {
        matches!(self, Self::Dream | Self::Qwen2 | Self::Llama)
    }

    /// Whether queries and keys are normalised head by head before RoPE turns them.
    pub const fn has_qk_norm(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma3 | Self::LladaMoe | Self::DiffusionGemma)
    }

    /// Whether what attention and the feed-forward part give is normalised before it is added.
    pub const fn has_post_norms(self) -> bool {
        matches!(self, Self::Gemma3 | Self::DiffusionGemma)
    }

    /// Whether the feed-forward part is a mixture of experts.
    pub const fn has_experts(self) -> bool {
        matches!(self, Self::LladaMoe | Self::DiffusionGemma)
    }

    /// Whether embeddings are scaled by the root of their width.
    pub const fn scales_embedding(self) -> bool {
        matches!(self, Self::Gemma3 | Self::DiffusionGemma)
    }

    /// How RoPE pairs a head's elements in files of this converter.
    pub const fn rope_kind(self, convention: Convention) -> RopeKind {
        match (self, convention) {
            (Self::Llada | Self::Llama, Convention::LlamaCpp) => RopeKind::Norm,
            _ => RopeKind::Neox,
        }
    }

    /// Whether row i - 1 predicts token i unless the file says otherwise.
    pub const fn shifts_logits(self) -> bool {
        matches!(self, Self::Dream)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which elements of a head RoPE rotates together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Neighbours: elements 2i and 2i + 1.
    Norm,
    /// Halves: elements i and i + `rope_dim` / 2.
    Neox,
}

impl RopeKind {
    /// `norm` or `neox`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Neox => "neox",
        }
    }
}

/// Which converter's keys a file carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Convention {
    /// llama.cpp's: the architecture's name is the prefix.
    LlamaCpp,
    /// The second converter's: the prefix is `diffuse.` and Q and K are not permuted.
    Diffuse,
}

impl Convention {
    /// `llama.cpp` or `diffuse`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::Diffuse => "diffuse",
        }
    }
}

/// Layers that look back over a window only, and the shape that they have of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct Windowed {
    /// Positions that a token sees at most, itself included.
    pub window: usize,
    /// Which layers; the others see everything.
    pub layers: Vec<bool>,
    /// K/V heads of these layers.
    pub n_head_kv: usize,
    /// Elements of their heads.
    pub head_dim: usize,
    /// Base of their RoPE's frequencies.
    pub rope_base: f32,
    /// Elements of their heads that RoPE rotates.
    pub rope_dim: usize,
}

/// What attention is made of in one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerShape {
    /// Query heads.
    pub n_head: usize,
    /// K/V heads.
    pub n_head_kv: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Base of RoPE's frequencies.
    pub rope_base: f32,
    /// Elements of a head that RoPE rotates.
    pub rope_dim: usize,
    /// Positions that a token sees at most, itself included; all where none.
    pub window: Option<usize>,
}

impl LayerShape {
    /// Query heads to one K/V head.
    pub fn heads_per_kv(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Width of Q: `n_head * head_dim`.
    pub fn q_width(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Width of K and of V: `n_head_kv * head_dim`.
    pub fn kv_width(&self) -> usize {
        self.n_head_kv * self.head_dim
    }
}

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many work on a token: those with the highest router probabilities.
    pub used: usize,
    /// Feed-forward width of one.
    pub n_ff: usize,
    /// Whether the probabilities of those that work are scaled to a sum of 1.
    pub normalised: bool,
}

/// What a file says about the network, checked for contradictions.
#[derive(Debug, Clone, PartialEq)]
pub struct HyperParams {
    /// The network.
    pub architecture: Architecture,
    /// Whose keys the file carries.
    pub convention: Convention,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width of the feed-forward part.
    pub n_ff: usize,
    /// Query heads.
    pub n_head: usize,
    /// K/V heads; divides `n_head`. Query head h uses K/V head h / (n_head / n_head_kv).
    pub n_head_kv: usize,
    /// Elements of one head, the same for Q, K and V.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub n_vocab: usize,
    /// Longest sequence seen in training.
    pub n_ctx_train: usize,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// Base of RoPE's frequencies.
    pub rope_base: f32,
    /// Elements of a head that RoPE rotates, even, at most `head_dim`.
    pub rope_dim: usize,
    /// How RoPE pairs them.
    pub rope_kind: RopeKind,
    /// Whether a position sees only those up to itself.
    pub causal: bool,
    /// Whether the logits of row i - 1 predict token i (masked diffusion only).
    pub shift_logits: bool,
    /// The mask token (masked diffusion only).
    pub mask_token: Option<u32>,
    /// Begin of sequence.
    pub bos_token: Option<u32>,
    /// End of sequence.
    pub eos_token: Option<u32>,
    /// Padding.
    pub pad_token: Option<u32>,
    /// Whether the output head is the embedding (`output.weight` absent).
    pub tied_head: bool,
    /// Whether there is a `rope_freqs.weight`: each frequency is divided by its factor, but for those of
    /// [`Windowed`] layers.
    pub has_rope_freqs: bool,
    /// Layers with a sliding window; none where all see everything.
    pub windowed: Option<Windowed>,
    /// Scores of attention are divided by the root of this; of the head's size where none.
    pub query_scalar: Option<usize>,
    /// Logits are squeezed into plus and minus this by a hyperbolic tangent.
    pub logit_softcap: Option<f32>,
    /// The mixture of experts in place of the feed-forward part.
    pub experts: Option<Experts>,
    /// Block diffusion: both phases run over one stack of layers.
    pub block: Option<BlockDiffusion>,
}

/// Metadata key of the architecture.
pub(crate) const ARCHITECTURE_KEY: &str = "general.architecture";
/// The second converter's prefix.
pub(crate) const DIFFUSE: &str = "diffuse";
/// Metadata key of the logits' shift.
pub(crate) const SHIFT_KEY: &str = "diffusion.shift_logits";
/// Metadata key of the token list.
pub(crate) const TOKENS_KEY: &str = "tokenizer.ggml.tokens";

impl HyperParams {
    /// What attention is made of in layer `layer`.
    pub fn layer(&self, layer: usize) -> LayerShape {
        let n_head = self.n_head;
        match self.windowed.as_ref().filter(|w| w.layers.get(layer) == Some(&true)) {
            Some(w) => LayerShape {
                n_head,
                n_head_kv: w.n_head_kv,
                head_dim: w.head_dim,
                rope_base: w.rope_base,
                rope_dim: w.rope_dim,
                window: Some(w.window),
            },
            None => LayerShape {
                n_head,
                n_head_kv: self.n_head_kv,
                head_dim: self.head_dim,
                rope_base: self.rope_base,
                rope_dim: self.rope_dim,
                window: None,
            },
        }
    }

    /// Query heads to one K/V head.
    pub fn heads_per_kv(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Width of Q: `n_head * head_dim`.
    pub fn q_width(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Width of K and of V: `n_head_kv * head_dim`.
    pub fn kv_width(&self) -> usize {
        self.n_head_kv * self.head_dim
    }

    /// Reads and checks a file's hyper-parameters. Tensors are looked at only for what the metadata leaves
    /// open: whether the head is tied, and the vocabulary's size; [`Model::open`](crate::Model::open)
    /// checks the rest.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, Error> {
        Keys::of(file)?.read()
    }
}

/// A file with the prefix of its keys.
pub(crate) struct Keys<'a> {
    pub(crate) file: &'a GgufFile,
    pub(crate) architecture: Architecture,
    pub(crate) convention: Convention,
}

impl<'a> Keys<'a> {
    fn of(file: &'a GgufFile) -> Result<Self, Error> {
        let m = file.metadata();
        let name = m.str(ARCHITECTURE_KEY)?;
        let unknown = |key: &str| {
            let known: Vec<_> = Architecture::ALL.iter().map(|a| a.name()).collect();
            m.locate(
                Error::unsupported(format!("this architecture is not implemented; {} are", known.join(", "))),
                key,
            )
        };
        if name == DIFFUSE {
            let key = "diffuse.model_type";
            let architecture = match m.str(key)? {
                "dream" => Architecture::Dream,
                "llada" => Architecture::Llada,
                _ => {
                    let error = Error::unsupported("only dream and llada are implemented under diffuse");
                    return Err(m.locate(error, key));
                }
            };
            return Ok(Self { file, architecture, convention: Convention::Diffuse });
        }
        let architecture = Architecture::from_name(name).ok_or_else(|| unknown(ARCHITECTURE_KEY))?;
        Ok(Self { file, architecture, convention: Convention::LlamaCpp })
    }

    pub(crate) fn key(&self, name: &str) -> String {
        let prefix = match self.convention {
            Convention::LlamaCpp => self.architecture.name(),
            Convention::Diffuse => DIFFUSE,
        };
        format!("{prefix}.{name}")
    }

    /// A size: u32, required, above zero.
    pub(crate) fn size(&self, name: &str) -> Result<usize, Error> {
        let key = self.key(name);
        let v = self.file.metadata().u32(&key)?;
        self.positive(&key, v)
    }

    pub(crate) fn opt_size(&self, name: &str) -> Result<Option<usize>, Error> {
        let key = self.key(name);
        match self.file.metadata().opt_u32(&key)? {
            None => Ok(None),
            Some(v) => self.positive(&key, v).map(Some),
        }
    }

    pub(crate) fn positive(&self, key: &str, v: u32) -> Result<usize, Error> {
        if v == 0 {
            return Err(self.file.metadata().fault(key, "must be above 0"));
        }
        usize::try_from(v).map_err(|_| self.file.metadata().fault(key, "too large for this machine"))
    }

    /// An error about the key `name` under the prefix.
    pub(crate) fn fault(&self, name: &str, message: impl Into<String>) -> Error {
        self.file.metadata().fault(&self.key(name), message)
    }

    fn read(&self) -> Result<HyperParams, Error> {
        let m = self.file.metadata();
        self.refuse_unsupported()?;
        if self.architecture == Architecture::DiffusionGemma {
            return self.read_block();
        }

        let n_layer = self.size("block_count")?;
        let n_embd = self.size("embedding_length")?;
        let experts = self.experts()?;
        let n_ff = match experts {
            // The width of a dense part that the network does not have.
            Some(e) => self.opt_size("feed_forward_length")?.unwrap_or(e.n_ff),
            None => self.size("feed_forward_length")?,
        };
        let n_ctx_train = self.size("context_length")?;
        let n_head = self.size("attention.head_count")?;
        let n_head_kv = self.opt_size("attention.head_count_kv")?.unwrap_or(n_head);
        if n_head % n_head_kv != 0 {
            return Err(self.fault("attention.head_count_kv", format!("must divide the head count {n_head}")));
        }
        let head_dim = self.head_dim(n_embd, n_head)?;

        let eps_key = self.key("attention.layer_norm_rms_epsilon");
        let rms_eps = m.f32(&eps_key)?;
        if !(rms_eps > 0.0 && rms_eps < 1.0) {
            return Err(m.fault(&eps_key, "must lie between 0 and 1"));
        }
        let base_key = self.key("rope.freq_base");
        let rope_base = match self.convention {
            Convention::LlamaCpp => m.opt_f32(&base_key)?.unwrap_or(10_000.0),
            // The second converter always writes it, and its own loader's default is another.
            Convention::Diffuse => m.f32(&base_key)?,
        };
        if !(rope_base > 0.0 && rope_base.is_finite()) {
            return Err(m.fault(&base_key, "must be above 0 and finite"));
        }
        let rope_dim = self.opt_size("rope.dimension_count")?.unwrap_or(head_dim);
        if rope_dim > head_dim || !rope_dim.is_multiple_of(2) {
            return Err(self.fault(
                "rope.dimension_count",
                format!("must be even and at most the head's size {head_dim}"),
            ));
        }

        let causal = if self.architecture.is_diffusion() {
            false
        } else {
            m.opt_bool(&self.key("attention.causal"))?.unwrap_or(true)
        };
        let shift_logits = self.architecture.is_diffusion()
            && m.opt_bool(SHIFT_KEY)?.unwrap_or(self.architecture.shifts_logits());
        let n_vocab = self.n_vocab()?;
        let has_rope_freqs =
            self.architecture == Architecture::Llama && self.file.tensor("rope_freqs.weight").is_some();

        let windowed = self.windowed(n_layer, [n_head_kv, head_dim, rope_dim])?;
        // Gemma 3's largest model, known by its layers, scales by the width of the residual stream.
        let widest = self.architecture == Architecture::Gemma3 && n_layer == 62;
        let query_scalar = widest.then_some(n_embd / n_head);

        Ok(HyperParams {
            architecture: self.architecture,
            convention: self.convention,
            n_layer,
            n_embd,
            n_ff,
            n_head,
            n_head_kv,
            head_dim,
            n_vocab,
            n_ctx_train,
            rms_eps,
            rope_base,
            rope_dim,
            rope_kind: self.architecture.rope_kind(self.convention),
            causal,
            shift_logits,
            mask_token: self.mask_token(n_vocab)?,
            bos_token: self.token("tokenizer.ggml.bos_token_id", n_vocab)?,
            eos_token: self.token("tokenizer.ggml.eos_token_id", n_vocab)?,
            pad_token: self.token("tokenizer.ggml.padding_token_id", n_vocab)?,
            tied_head: self.file.tensor("output.weight").is_none(),
            has_rope_freqs,
            windowed,
            query_scalar,
            logit_softcap: self.logit_softcap()?,
            experts,
            block: None,
        })
    }

    /// Gemma 3's sliding windows: five layers with one, then one without, where the file does not say otherwise.
    fn windowed(
        &self,
        n_layer: usize,
        [n_head_kv, head_dim, rope_dim]: [usize; 3],
    ) -> Result<Option<Windowed>, Error> {
        if self.architecture != Architecture::Gemma3 {
            return Ok(None);
        }
        let m = self.file.metadata();
        // 0 stands for none.
        let Some(window) = m.opt_u32(&self.key("attention.sliding_window"))?.filter(|&n| n > 0) else {
            return Ok(None);
        };
        let period = self.opt_size("attention.sliding_window_pattern")?.unwrap_or(6);
        let base_key = self.key("rope.freq_base_swa");
        let rope_base = m.opt_f32(&base_key)?.unwrap_or(10_000.0);
        if !(rope_base > 0.0 && rope_base.is_finite()) {
            return Err(m.fault(&base_key, "must be above 0 and finite"));
        }
        let layers = (0..n_layer).map(|layer| layer % period < period - 1).collect();
        let window = self.positive(&self.key("attention.sliding_window"), window)?;
        Ok(Some(Windowed { window, layers, n_head_kv, head_dim, rope_base, rope_dim }))
    }

    pub(crate) fn logit_softcap(&self) -> Result<Option<f32>, Error> {
        let key = self.key("final_logit_softcapping");
        let m = self.file.metadata();
        // 0 stands for none.
        let cap = m.opt_f32(&key)?.filter(|&cap| cap != 0.0);
        match cap {
            Some(cap) if !(cap > 0.0 && cap.is_finite()) => Err(m.fault(&key, "must be above 0 and finite")),
            Some(_) if !matches!(self.architecture, Architecture::Gemma3 | Architecture::DiffusionGemma) => {
                Err(m.locate(
                    Error::unsupported(format!("soft-capping is not implemented for {}", self.architecture)),
                    &key,
                ))
            }
            cap => Ok(cap),
        }
    }

    pub(crate) fn experts(&self) -> Result<Option<Experts>, Error> {
        if !self.architecture.has_experts() {
            return Ok(None);
        }
        let count = self.size("expert_count")?;
        let used = self.size("expert_used_count")?;
        if used > count {
            return Err(self.fault("expert_used_count", format!("must be at most the {count} experts")));
        }
        let n_ff = match self.opt_size("expert_feed_forward_length")? {
            Some(n) => n,
            None => self.size("feed_forward_length")? / used,
        };
        let m = self.file.metadata();
        let normalised = m.opt_bool(&self.key("expert_weights_norm"))?.unwrap_or(false);
        let key = self.key("expert_weights_scale");
        if m.opt_f32(&key)?.is_some_and(|scale| scale != 0.0 && scale != 1.0) {
            return Err(
                m.locate(Error::unsupported("a scale of the experts' weights is not implemented"), &key)
            );
        }
        let key = self.key("expert_gating_func");
        // llama.cpp's numbers: 0 leaves it to the architecture, 1 is the soft-max.
        if m.opt_u32(&key)?.is_some_and(|kind| kind > 1) {
            return Err(m.locate(Error::unsupported("only soft-max gating of experts is implemented"), &key));
        }
        Ok(Some(Experts { count, used, n_ff, normalised }))
    }

    fn head_dim(&self, n_embd: usize, n_head: usize) -> Result<usize, Error> {
        let head_dim = match self.opt_size("attention.key_length")? {
            Some(n) => n,
            None if n_embd.is_multiple_of(n_head) => n_embd / n_head,
            None => {
                return Err(self.fault(
                    "attention.head_count",
                    format!("must divide the embedding length {n_embd}, as no attention.key_length is given"),
                ));
            }
        };
        let value = self.opt_size("attention.value_length")?.unwrap_or(head_dim);
        if value != head_dim {
            return Err(
                self.fault("attention.value_length", format!("must equal the size of K's heads, {head_dim}"))
            );
        }
        if n_head.checked_mul(head_dim).is_none_or(|w| u32::try_from(w).is_err()) {
            return Err(
                self.fault("attention.head_count", format!("{n_head} heads of {head_dim} are too wide"))
            );
        }
        Ok(head_dim)
    }

    /// The vocabulary's size, from the first of: `vocab_size`, the token list, the embedding's rows.
    pub(crate) fn n_vocab(&self) -> Result<usize, Error> {
        let m = self.file.metadata();
        let declared = self.opt_size("vocab_size")?;
        let listed = m.opt_array_str(TOKENS_KEY)?.map(<[String]>::len);
        match (declared, listed) {
            (Some(n), Some(l)) if n != l => {
                Err(self.fault("vocab_size", format!("{TOKENS_KEY} has {l} entries")))
            }
            (Some(n), _) | (None, Some(n)) if n > 0 => Ok(n),
            (Some(_), _) | (None, Some(_)) => Err(m.fault(TOKENS_KEY, "the token list is empty")),
            (None, None) => {
                let embedding = self.file.tensor("token_embd.weight").filter(|t| t.shape.len() == 2);
                let rows = embedding.and_then(|t| usize::try_from(t.shape[1]).ok());
                rows.ok_or_else(|| {
                    Error::metadata(
                        "missing, and neither a token list nor an embedding says how large the vocabulary is",
                    )
                    .field(self.key("vocab_size"))
                    .file(self.file.path())
                })
            }
        }
    }

    pub(crate) fn token(&self, key: &str, n_vocab: usize) -> Result<Option<u32>, Error> {
        let m = self.file.metadata();
        match m.opt_u32(key)? {
            Some(id) if id as usize >= n_vocab => {
                Err(m.fault(key, format!("outside the vocabulary of {n_vocab}")))
            }
            id => Ok(id),
        }
    }

    pub(crate) fn mask_token(&self, n_vocab: usize) -> Result<Option<u32>, Error> {
        const KEY: &str = "tokenizer.ggml.mask_token_id";
        let standard = self.token(KEY, n_vocab)?;
        if self.convention == Convention::LlamaCpp {
            return Ok(standard);
        }
        let own = self.token("diffuse.mask_token_id", n_vocab)?;
        match (own, standard) {
            (Some(a), Some(b)) if a != b => {
                Err(self.file.metadata().fault(KEY, format!("diffuse.mask_token_id is {a}")))
            }
            (own, standard) => Ok(own.or(standard)),
        }
    }

    /// Refuses what would change the numbers but is not implemented.
    fn refuse_unsupported(&self) -> Result<(), Error> {
        let m = self.file.metadata();
        let refuse = |key: &str, message: String| m.locate(Error::unsupported(message), key);

        let key = self.key("rope.scaling.type");
        if let Some(kind) = m.opt_str(&key)?.filter(|&k| k != "none") {
            return Err(refuse(&key, format!("RoPE scaling {} is not implemented", quoted(kind))));
        }
        for name in ["rope.scaling.factor", "rope.scale_linear"] {
            let key = self.key(name);
            // ggml writes 0 or 1 for no scaling.
            if m.opt_f32(&key)?.is_some_and(|f| f != 0.0 && f != 1.0) {
                return Err(refuse(&key, "RoPE scaling is not implemented".to_string()));
            }
        }
        let key = self.key("expert_count");
        if !self.architecture.has_experts() && m.opt_u32(&key)?.is_some_and(|n| n > 0) {
            return Err(refuse(
                &key,
                format!("a mixture of experts is not implemented for {}", self.architecture),
            ));
        }
        Ok(())
    }
}
