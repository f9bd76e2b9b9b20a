//! Qwen3 (Yang et al. 2025, <https://arxiv.org/abs/2505.09388>; reference implementation `models/qwen3` of
//! <https://github.com/huggingface/transformers>).
//!
//! Causal, grouped K/V heads of a size of their own, no biases, an RMS norm over each head of Q and K before RoPE, which
//! turns halves.

use super::pre_norm::Parts;

pub(super) const PARTS: Parts = Parts { qk_norm: true, ..Parts::PLAIN };
