//! LLaDA: masked diffusion trained from scratch (Nie et al. 2025, <https://arxiv.org/abs/2502.09992>; reference
//! implementation <https://github.com/ML-GSAI/LLaDA>).
//!
//! Llama's network with attention in both directions, no biases, as many K/V heads as query heads in the
//! published sizes. Row i predicts token i.

use super::pre_norm::Parts;

pub(super) const PARTS: Parts = Parts::PLAIN;
