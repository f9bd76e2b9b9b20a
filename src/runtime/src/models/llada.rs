//! LLaDA: masked diffusion; every token sees every other, no biases; row i of the logits predicts token i.

use super::Decoder;

pub(super) const DECODER: Decoder = Decoder { causal: false, ..Decoder::PLAIN };
