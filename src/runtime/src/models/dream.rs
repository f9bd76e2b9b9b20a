//! Dream: masked diffusion; every token sees every other, biases on Q, K and V; row i - 1 of then//! logits predicts token i.

use super::Decoder;

pub(super) const DECODER: Decoder = Decoder { causal: false, qkv_bias: true };
