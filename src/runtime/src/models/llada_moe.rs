//! LLaDA-MoE (Zhu et al. 2025, <https://arxiv.org/abs/2509.24389>): masked diffusion; every token sees every other,
//! queries and keys normalised head by head, a mixture of experts in every layer; row i of the logits predicts token i.

use super::Decoder;
use crate::attention::AttentionParts;

pub(super) const DECODER: Decoder = Decoder {
    causal: false,
    attention: AttentionParts { qk_norm: true, ..Decoder::PLAIN.attention },
    ..Decoder::PLAIN
};
