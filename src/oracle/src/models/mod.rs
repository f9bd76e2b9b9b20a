//! The networks, one file an architecture, each the twin of the runtime's file of that name. What they
//! share, a pre-norm decoder, is in [`pre_norm`].

mod diffusion_gemma;
mod dream;
mod experts;
mod gemma3;
mod llada;
mod llada_moe;
mod llama;
mod pre_norm;
mod qwen2;
mod qwen3;

use model_file::{Architecture, Model};

use crate::Error;

pub(crate) use diffusion_gemma::{DiffusionGemma, Rows};
pub(crate) use pre_norm::PreNorm;

/// Opens the network of a model.
pub(crate) fn open(model: &Model) -> Result<PreNorm, Error> {
    let parts = match model.hparams.architecture {
        Architecture::Dream => dream::PARTS,
        Architecture::Llada => llada::PARTS,
        Architecture::Qwen2 => qwen2::PARTS,
        Architecture::Llama => llama::PARTS,
        Architecture::Qwen3 => qwen3::PARTS,
        Architecture::Gemma3 => gemma3::PARTS,
        Architecture::LladaMoe => llada_moe::PARTS,
        Architecture::DiffusionGemma => {
            let message = "diffusion-gemma computes in two phases: it is a block network";
            return Err(Error::Unsupported(message.to_string()));
        }
    };
    PreNorm::open(model, parts)
}
