//! Llama: autoregressive; some files carry biases on Q, K and V, or frequency factors for RoPE.

use super::Decoder;

pub(super) const DECODER: Decoder = Decoder { causal: true, qkv_bias: true };
