//! Gemma 3 (reference implementation `models/gemma3` of <https://github.com/huggingface/transformers>): autoregressive,
//! scaled embeddings, five layers with a sliding window and a RoPE base of their own to one without, queries and keys
//! normalised head by head, norms before and after each part, a GELU as the gate, a tied head. Converted files hold the
//! scale of each norm with 1 added.

use super::Decoder;
use crate::attention::AttentionParts;
use crate::blocks::Gate;

pub(super) const DECODER: Decoder = Decoder {
    attention: AttentionParts { qk_norm: true, ..Decoder::PLAIN.attention },
    post_norms: true,
    gate: Gate::Gelu,
    ..Decoder::PLAIN
};
