//! The layer that the architectures share: norm, self-attention, residual, norm, feed-forward part or experts,
//! residual; in some a norm before each residual, too.

use ggml_sys::Tensor;

use crate::attention::AttentionParts;
use crate::blocks::{Builder, Gate};
use crate::error::Error;

/// Where the architectures differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoder {
    /// A token sees only itself and earlier ones.
    pub(crate) causal: bool,
    /// What attention has beside its projections.
    pub(crate) attention: AttentionParts,
    /// What attention and the feed-forward part give is normalised before it is added.
    pub(crate) post_norms: bool,
    /// What gates the feed-forward part.
    pub(crate) gate: Gate,
}

impl Decoder {
    /// A plain decoder without biases.
    pub(super) const PLAIN: Self = Self {
        causal: true,
        attention: AttentionParts { bias: false, qk_norm: false, v_norm: false },
        post_norms: false,
        gate: Gate::Silu,
    };

    /// All layers but the skipped ones over the embedding `x`, `[n_embd, n]`.
    pub(crate) fn layers(self, b: &mut Builder<'_>, mut x: Tensor) -> Result<Tensor, Error> {
        x = b.keep_residual(x);
        for layer in (0..b.hparams.n_layer).filter(|layer| !b.skip.contains(layer)) {
            let h = b.layer_norm(&x, "attn_norm", layer);
            let h = b.self_attention(&h, self.attention, layer)?;
            let h = self.post_norm(b, h, "post_attention_norm", layer);
            x = b.residual(&x, &h, "attn_residual", layer);
            let h = b.layer_norm(&x, "ffn_norm", layer);
            let h = match b.hparams.experts {
                None => b.feed_forward(&h, self.gate, layer)?,
                Some(experts) => {
                    let logits = b.linear(&h, "ffn_gate_inp", false, layer);
                    b.experts(&h, &logits, experts, self.gate, layer)?
                }
            };
            let h = self.post_norm(b, h, "post_ffw_norm", layer);
            x = b.residual(&x, &h, "layer", layer);
            x = b.keep_residual(x);
        }
        Ok(x)
    }

    fn post_norm(self, b: &Builder<'_>, x: Tensor, what: &str, layer: usize) -> Tensor {
        if self.post_norms { b.layer_norm(&x, what, layer) } else { x }
    }
}
