//! Gemma 3 (Gemma Team 2025, <https://arxiv.org/abs/2503.19786>; reference implementation `models/gemma3` of
//! <https://github.com/huggingface/transformers>).
//!
//! Causal. Five of six layers see a window only and rotate with a base of their own. Embeddings are multiplied with the
//! root of the width, each part has a norm before and one after it, heads of Q and K are normalised, the gate is a GELU,
//! the head is the embedding. The reference multiplies by 1 + w in its norms; converted files hold that sum.

use super::pre_norm::{Gate, Parts};

pub(super) const PARTS: Parts =
    Parts { qk_norm: true, post_norms: true, scaled_embedding: true, gate: Gate::Gelu, ..Parts::PLAIN };
