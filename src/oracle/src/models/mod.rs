//! The networks, one file an architecture, each the twin of the runtime's file of that name. What the four
//! share, a pre-norm decoder, is in [`pre_norm`].

mod diffusion_gemma;
mod dream;
mod experts;
mod llada;
mod llama;
mod pre_norm;
mod qwen2;

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
        other => return Err(Error::Unsupported(format!("{other} is not a plain decoder here"))),
    };
    PreNorm::open(model, parts)
}
