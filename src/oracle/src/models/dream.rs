//! Dream: masked diffusion on Qwen2.5's body (Ye et al. 2025, <https://arxiv.org/abs/2508.15487>; reference
//! implementation <https://github.com/DreamLM/Dream>).
//!
//! Qwen2's network with attention in both directions. It was adapted from an autoregressive model and kept
//! its shift: row i - 1 predicts token i. The shift belongs to generation, rows here are the network's own.

use super::pre_norm::{Bias, Parts};

pub(super) const PARTS: Parts = Parts { qkv_bias: Bias::Always, ..Parts::PLAIN };
