//! Qwen3 (reference implementation `models/qwen3` of <https://github.com/huggingface/transformers>): autoregressive,
//! no biases, queries and keys normalised head by head.

use super::Decoder;
use crate::attention::AttentionParts;

pub(super) const DECODER: Decoder =
    Decoder { attention: AttentionParts { qk_norm: true, ..Decoder::PLAIN.attention }, ..Decoder::PLAIN };
