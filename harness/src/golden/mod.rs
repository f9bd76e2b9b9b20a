//! Goldens: what the oracle computed for the generated models, kept as files, so that a device is held to it with
//! neither a reference nor an oracle at hand.
//!
//! | module | what it is for |
//! |---|---|
//! | [`cases`] | which cases have a golden |
//! | [`manifest`] | `cases.toml`: what each file is, where its trajectory came from, the checksum of every row |
//! | `tensors` | a golden's file: safetensors, F32, row by row |
//! | [`folder`] | whether folder and manifest fit each other, and the models and inputs of today |
//! | [`check`] | the device's arm along a golden's trajectory, and the oracle's again |
//! | [`bless`] | making them |
//!
//! A golden is a capture of the oracle rounded to F32, whose NMSE of about 1e-15 is far below every limit. Its
//! trajectory (tokens, the order of unmasking) and the tokens of the free run with their margins are those of the
//! reference at the time of blessing.

pub mod bless;
pub mod cases;
pub mod check;
pub mod folder;
pub mod manifest;
mod tensors;

use crate::pipeline::RunError;
use crate::plan::models::ModelError;
use crate::verdict::ExitCode;
use std::path::PathBuf;

/// Goldens that cannot be used or made.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file is malformed.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Folder, manifest, models and inputs do not fit each other: one line each.
    #[error("{}", .0.join("\n"))]
    Unfit(Vec<String>),
    /// Nothing has the asked-for name.
    #[error("case `{selector}` names no golden; there are: {}", known.join(", "))]
    NoSuchCase {
        /// What was asked for.
        selector: String,
        /// The cases there are.
        known: Vec<String>,
    },
    /// An arm that is to be blessed did not agree with the oracle.
    #[error("case {case} is not blessed: {why}")]
    NotBlessed {
        /// The case.
        case: String,
        /// What became of it.
        why: String,
    },
    /// A model cannot be made.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Workers cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl GoldenError {
    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Run(error) => error.exit_code(),
            Self::NotBlessed { .. } => ExitCode::Diverged,
            _ => ExitCode::Usage,
        }
    }

    fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
