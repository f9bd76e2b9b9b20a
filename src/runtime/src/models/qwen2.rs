//! Qwen2: autoregressive, biases on Q, K and V, often a tied head.

use super::Decoder;
use crate::attention::AttentionParts;

pub(super) const DECODER: Decoder =
    Decoder { attention: AttentionParts { bias: true, ..Decoder::PLAIN.attention }, ..Decoder::PLAIN };
