//! Qwen2: autoregressive, biases on Q, K and V, often a tied head.

use super::Decoder;

pub(super) const DECODER: Decoder = Decoder { causal: true, qkv_bias: true };
