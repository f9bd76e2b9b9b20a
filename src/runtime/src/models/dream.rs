//! Dream: masked diffusion; every token sees every other, biases on Q, K and V; row i - 1 of then//! logits predicts token i.

use super::Decoder;
use crate::attention::AttentionParts;

pub(super) const DECODER: Decoder = Decoder {
    causal: false,
    attention: AttentionParts { bias: true, ..Decoder::PLAIN.attention },
    ..Decoder::PLAIN
};
