//! The architectures: one file each, saying what its layers are made of. The oracle has a twin of each file
//! that shares no code with it.

mod diffusion_gemma;
mod dream;
mod gemma3;
mod llada;
mod llada_moe;
mod llama;
mod pre_norm;
mod qwen2;
mod qwen3;

use model_file::Architecture;

pub(crate) use diffusion_gemma::layers as block_layers;
pub(crate) use pre_norm::Decoder;

/// What layers of `architecture` are made of.
pub(crate) fn decoder(architecture: Architecture) -> Decoder {
    match architecture {
        Architecture::Dream => dream::DECODER,
        Architecture::Llada => llada::DECODER,
        Architecture::Qwen2 => qwen2::DECODER,
        Architecture::Llama => llama::DECODER,
        Architecture::Qwen3 => qwen3::DECODER,
        Architecture::Gemma3 => gemma3::DECODER,
        Architecture::LladaMoe => llada_moe::DECODER,
        // Its layers are its own; which tokens see which is a matter of the phase.
        Architecture::DiffusionGemma => Decoder { causal: false, ..Decoder::PLAIN },
    }
}
