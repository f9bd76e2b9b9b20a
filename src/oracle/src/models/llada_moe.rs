//! LLaDA-MoE: masked diffusion with a mixture of experts (Zhu et al. 2025, <https://arxiv.org/abs/2509.24389>; reference
//! implementation <https://github.com/inclusionAI/LLaDA-MoE>).
//!
//! Attention in both directions, an RMS norm over each head of Q and K, no biases, RoPE on halves. Every layer's second
//! part is a mixture of experts, weighted by their softmax probabilities. Row i predicts token i.

use super::pre_norm::Parts;

pub(super) const PARTS: Parts = Parts { qk_norm: true, experts: true, ..Parts::PLAIN };
