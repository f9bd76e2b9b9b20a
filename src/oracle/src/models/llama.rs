//! Llama (Touvron et al. 2023, <https://arxiv.org/abs/2302.13971>; version 3, with frequency factors: Grattafiori et
//! al. 2024, <https://arxiv.org/abs/2407.21783>; reference implementation `models/llama` of
//! <https://github.com/huggingface/transformers>).
//!
//! Causal, grouped K/V heads, biases only where a fine-tune has added them. Converted files hold Q and K permuted
//! so that RoPE turns neighbouring elements, and Llama 3.1's frequency scaling as `rope_freqs.weight`: each
//! frequency is divided by its factor.

use super::pre_norm::{Bias, Parts};

pub(super) const PARTS: Parts = Parts { qkv_bias: Bias::IfPresent, rope_factors: true, ..Parts::PLAIN };
