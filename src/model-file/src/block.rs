//! DiffusionGemma's hyper-parameters and tensors: block diffusion over Gemma 4's stack.
//!
//! Names of keys and tensors are those of llama.cpp's draft converter (`conversion/diffusion_gemma.py` and
//! `src/models/diffusion-gemma.cpp` of its pull request 24423): Gemma 4's under the prefix `diffusion-gemma.`,
//! `diffusion.*` for canvas and sampler, `self_cond_*` for self-conditioning, and `enc_layer_output_scale` beside
//! `layer_output_scale` for the two phases.

use crate::error::Error;
use crate::gguf::{Array, Value};
use crate::hparams::{Experts, HyperParams, Keys, RopeKind, Windowed};
use crate::model::TensorSpec;

/// What a block-diffusion model has beyond other decoders.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockDiffusion {
    /// Tokens that are denoised together.
    pub canvas: usize,
    /// How a canvas is denoised unless a run says otherwise.
    pub sampler: EntropyBound,
}

/// The entropy-bound sampler and its schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EntropyBound {
    /// Steps at most.
    pub max_steps: usize,
    /// Temperature that the last step comes near.
    pub t_min: f32,
    /// Temperature of the first step.
    pub t_max: f32,
    /// Entropy, in nats, that accepted positions may have together, the highest left out.
    pub bound: f32,
    /// Steps for which the most likely canvas must have been the same.
    pub stability: usize,
    /// Mean entropy under which a canvas that is stable is finished.
    pub confidence: f32,
}

impl Default for EntropyBound {
    /// The published model's.
    fn default() -> Self {
        Self { max_steps: 48, t_min: 0.4, t_max: 0.8, bound: 0.1, stability: 1, confidence: 0.005 }
    }
}

/// Metadata key of the canvas's length.
pub(crate) const CANVAS_KEY: &str = "diffusion.canvas_length";

impl Keys<'_> {
    /// The hyper-parameters of a DiffusionGemma file.
    pub(crate) fn read_block(&self) -> Result<HyperParams, Error> {
        let m = self.file.metadata();
        for name in ["attention.shared_kv_layers", "embedding_length_per_layer_input"] {
            let key = self.key(name);
            if m.opt_u32(&key)?.is_some_and(|n| n > 0) {
                return Err(m.locate(Error::unsupported("not implemented for diffusion-gemma"), &key));
            }
        }
        let n_layer = self.size("block_count")?;
        let n_head = self.size("attention.head_count")?;
        let layers = self.pattern(n_layer)?;
        let kv_heads = self.per_layer_sizes("attention.head_count_kv", n_layer)?;
        if let Some(bad) = kv_heads.iter().find(|&n| n_head % n != 0) {
            let message = format!("{bad} must divide the head count {n_head}");
            return Err(self.fault("attention.head_count_kv", message));
        }
        let [full, windowed] = [false, true].map(|kind| {
            let mut heads = kv_heads.iter().zip(&layers).filter(|(_, windowed)| **windowed == kind);
            let first = heads.next().map(|(n, _)| *n);
            (first, heads.all(|(n, _)| Some(*n) == first))
        });
        if !full.1 || !windowed.1 {
            let message = "must be the same in all layers with a window, and in all without";
            return Err(self.fault("attention.head_count_kv", message));
        }
        let Some(n_head_kv) = full.0 else {
            return Err(self.fault("attention.sliding_window_pattern", "has no layer that sees everything"));
        };
        let head_dim = self.head_size("attention.key_length", "attention.value_length")?;
        let narrow = self.head_size("attention.key_length_swa", "attention.value_length_swa")?;
        for (name, size) in [("rope.dimension_count", head_dim), ("rope.dimension_count_swa", narrow)] {
            if self.opt_size(name)?.is_some_and(|dims| dims != size) {
                return Err(self.fault(name, format!("must be the whole head, {size}")));
            }
        }
        let windowed = Windowed {
            window: self.size("attention.sliding_window")?,
            layers,
            n_head_kv: windowed.0.unwrap_or(n_head_kv),
            head_dim: narrow,
            rope_base: self.base("rope.freq_base_swa", 1e4)?,
            rope_dim: narrow,
        };
        let eps_key = self.key("attention.layer_norm_rms_epsilon");
        let rms_eps = m.f32(&eps_key)?;
        if !(rms_eps > 0.0 && rms_eps < 1.0) {
            return Err(m.fault(&eps_key, "must lie between 0 and 1"));
        }
        let n_vocab = self.n_vocab()?;
        Ok(HyperParams {
            architecture: self.architecture,
            convention: self.convention,
            n_layer,
            n_embd: self.size("embedding_length")?,
            n_ff: self.size("feed_forward_length")?,
            n_head,
            n_head_kv,
            head_dim,
            n_vocab,
            n_ctx_train: self.size("context_length")?,
            rms_eps,
            rope_base: self.base("rope.freq_base", 1e6)?,
            rope_dim: head_dim,
            rope_kind: RopeKind::Neox,
            causal: false,
            shift_logits: false,
            mask_token: self.mask_token(n_vocab)?,
            bos_token: self.token("tokenizer.ggml.bos_token_id", n_vocab)?,
            eos_token: self.token("tokenizer.ggml.eos_token_id", n_vocab)?,
            pad_token: self.token("tokenizer.ggml.padding_token_id", n_vocab)?,
            tied_head: self.file.tensor("output.weight").is_none(),
            has_rope_freqs: true,
            windowed: Some(windowed),
            // Scores of attention are not scaled.
            query_scalar: Some(1),
            logit_softcap: self.logit_softcap()?,
            experts: self.experts()?.map(|experts| Experts { normalised: true, ..experts }),
            block: Some(BlockDiffusion {
                canvas: self.plain_size(CANVAS_KEY)?,
                sampler: self.entropy_bound()?,
            }),
        })
    }

    /// A size under a key without the architecture's prefix.
    fn plain_size(&self, key: &str) -> Result<usize, Error> {
        let v = self.file.metadata().u32(key)?;
        self.positive(key, v)
    }

    /// Which layers are windowed.
    fn pattern(&self, n_layer: usize) -> Result<Vec<bool>, Error> {
        let (m, key) = (self.file.metadata(), self.key("attention.sliding_window_pattern"));
        match m.get(&key) {
            Some(Value::Array(Array::Bool(list))) if list.len() == n_layer => Ok(list.clone()),
            Some(_) => Err(m.fault(&key, format!("must be {n_layer} bools, one for each layer"))),
            None => Err(Error::metadata("missing, a list of bools, one for each layer, is needed")
                .field(key)
                .file(self.file.path())),
        }
    }

    /// A size for each layer, from one number or a list of them.
    fn per_layer_sizes(&self, name: &str, n_layer: usize) -> Result<Vec<usize>, Error> {
        let (m, key) = (self.file.metadata(), self.key(name));
        let list: Vec<u32> = match m.get(&key) {
            Some(Value::Array(Array::U32(list))) => list.clone(),
            Some(Value::Array(Array::I32(list))) => list
                .iter()
                .map(|&n| u32::try_from(n).map_err(|_| m.fault(&key, "must be above 0")))
                .collect::<Result<_, _>>()?,
            _ => return Ok(vec![self.size(name)?; n_layer]),
        };
        if list.len() != n_layer {
            return Err(m.fault(&key, format!("has {} numbers for {n_layer} layers", list.len())));
        }
        list.into_iter().map(|n| self.positive(&key, n)).collect()
    }

    /// The size of K's heads, which must be that of V's.
    fn head_size(&self, key: &str, value: &str) -> Result<usize, Error> {
        let size = self.size(key)?;
        if !size.is_multiple_of(2) {
            return Err(self.fault(key, "must be even"));
        }
        if self.opt_size(value)?.is_some_and(|v| v != size) {
            return Err(self.fault(value, format!("must equal the size of K's heads, {size}")));
        }
        Ok(size)
    }

    fn base(&self, name: &str, default: f32) -> Result<f32, Error> {
        let (m, key) = (self.file.metadata(), self.key(name));
        let base = m.opt_f32(&key)?.unwrap_or(default);
        if !(base > 0.0 && base.is_finite()) {
            return Err(m.fault(&key, "must be above 0 and finite"));
        }
        Ok(base)
    }

    fn entropy_bound(&self) -> Result<EntropyBound, Error> {
        let (m, default) = (self.file.metadata(), EntropyBound::default());
        let number = |key: &str, default: f32| {
            let v = m.opt_f32(key)?.unwrap_or(default);
            if v > 0.0 && v.is_finite() { Ok(v) } else { Err(m.fault(key, "must be above 0 and finite")) }
        };
        let sampler = EntropyBound {
            max_steps: match m.opt_u32("diffusion.eb_max_steps")? {
                Some(n) => self.positive("diffusion.eb_max_steps", n)?,
                None => default.max_steps,
            },
            t_min: number("diffusion.eb_t_min", default.t_min)?,
            t_max: number("diffusion.eb_t_max", default.t_max)?,
            bound: number("diffusion.eb_entropy_bound", default.bound)?,
            // Zero is allowed: then a canvas need not be stable.
            stability: m
                .opt_u32("diffusion.eb_stability_threshold")?
                .map_or(default.stability, |n| usize::try_from(n).unwrap_or(usize::MAX)),
            confidence: number("diffusion.eb_confidence_threshold", default.confidence)?,
        };
        if !(sampler.t_max >= sampler.t_min) {
            return Err(m.fault("diffusion.eb_t_max", format!("must be at least t_min, {}", sampler.t_min)));
        }
        Ok(sampler)
    }
}

/// The tensors of the network, in the order of use. Layers that see everything take their values from the keys'
/// projection, and divide their frequencies by `rope_freqs.weight`.
pub(crate) fn tensor_table(h: &HyperParams) -> Vec<TensorSpec> {
    let experts = h.experts.unwrap_or(Experts { count: 0, used: 0, n_ff: 0, normalised: true });
    let [embd, ff, vocab] = [h.n_embd, h.n_ff, h.n_vocab].map(|n| n as u64);
    let [count, ff_expert] = [experts.count, experts.n_ff].map(|n| n as u64);
    let mut table = Vec::new();
    let mut add = |name: String, shape: &[u64], required: bool| {
        table.push(TensorSpec { name, shape: shape.to_vec(), required });
    };
    add("token_embd.weight".into(), &[embd, vocab], true);
    add("output_norm.weight".into(), &[embd], true);
    add("output.weight".into(), &[embd, vocab], false);
    add("rope_freqs.weight".into(), &[h.rope_dim as u64 / 2], true);
    add("self_cond_pre_norm.weight".into(), &[embd], true);
    add("self_cond_gate.weight".into(), &[embd, ff], true);
    add("self_cond_up.weight".into(), &[embd, ff], true);
    add("self_cond_down.weight".into(), &[ff, embd], true);
    for i in 0..h.n_layer {
        let layer = h.layer(i);
        let [head, q, kv] = [layer.head_dim, layer.q_width(), layer.kv_width()].map(|n| n as u64);
        let mut add = |part: &str, shape: &[u64]| add(format!("blk.{i}.{part}"), shape, true);
        add("attn_norm.weight", &[embd]);
        add("attn_q.weight", &[embd, q]);
        add("attn_k.weight", &[embd, kv]);
        if layer.window.is_some() {
            add("attn_v.weight", &[embd, kv]);
        }
        add("attn_q_norm.weight", &[head]);
        add("attn_k_norm.weight", &[head]);
        add("attn_output.weight", &[q, embd]);
        add("post_attention_norm.weight", &[embd]);
        add("ffn_norm.weight", &[embd]);
        add("ffn_gate.weight", &[embd, ff]);
        add("ffn_up.weight", &[embd, ff]);
        add("ffn_down.weight", &[ff, embd]);
        add("post_ffw_norm_1.weight", &[embd]);
        add("ffn_gate_inp.weight", &[embd, count]);
        add("ffn_gate_inp.scale", &[embd]);
        add("pre_ffw_norm_2.weight", &[embd]);
        add("ffn_gate_up_exps.weight", &[embd, 2 * ff_expert, count]);
        add("ffn_down_exps.weight", &[ff_expert, embd, count]);
        add("ffn_down_exps.scale", &[count]);
        add("post_ffw_norm_2.weight", &[embd]);
        add("post_ffw_norm.weight", &[embd]);
        add("layer_output_scale.weight", &[1]);
        add("enc_layer_output_scale.weight", &[1]);
    }
    table
}
