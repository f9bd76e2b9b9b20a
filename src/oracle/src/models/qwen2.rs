//! Qwen2 (Yang et al. 2024, <https://arxiv.org/abs/2407.10671>; reference implementation `models/qwen2` of
//! <https://github.com/huggingface/transformers>).
//!
//! Causal, grouped K/V heads, biases on Q, K and V, RoPE on halves; small sizes tie the head to the embedding.

use super::pre_norm::{Bias, Parts};

pub(super) const PARTS: Parts = Parts { qkv_bias: Bias::Always, ..Parts::PLAIN };
