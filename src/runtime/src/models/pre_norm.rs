//! The layer that all four architectures share: norm, self-attention, residual, norm, SwiGLU, residual.

use ggml_sys::Tensor;

use crate::blocks::Builder;
use crate::error::Error;

/// Where the architectures differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoder {
    /// A token sees only itself and earlier ones.
    pub(crate) causal: bool,
    /// Query, key and value projections may have biases.
    pub(crate) qkv_bias: bool,
}

impl Decoder {
    /// All layers but the skipped ones over the embedding `x`, `[n_embd, n]`.
    pub(crate) fn layers(self, b: &mut Builder<'_>, mut x: Tensor) -> Result<Tensor, Error> {
        x = b.keep_residual(x);
        for layer in (0..b.hparams.n_layer).filter(|layer| !b.skip.contains(layer)) {
            let h = b.layer_norm(&x, "attn_norm", layer);
            let h = b.self_attention(&h, self.qkv_bias, layer)?;
            x = b.residual(&x, &h, "attn_residual", layer);
            let h = b.layer_norm(&x, "ffn_norm", layer);
            let h = b.swiglu(&h, layer);
            x = b.residual(&x, &h, "layer", layer);
            x = b.keep_residual(x);
        }
        Ok(x)
    }
}
