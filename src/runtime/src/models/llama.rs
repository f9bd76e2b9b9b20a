//! Llama: autoregressive; some files carry biases on Q, K and V, or frequency factors for RoPE.

use super::Decoder;
use crate::attention::AttentionParts;

pub(super) const DECODER: Decoder =
    Decoder { attention: AttentionParts { bias: true, ..Decoder::PLAIN.attention }, ..Decoder::PLAIN };
