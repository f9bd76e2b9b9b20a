//! Why a run cannot begin.

use crate::builds;
use crate::plan::models::ModelError;
use crate::verdict::{ExitCode, ToleranceError};
use crate::worker::{Failure, FailureKind};
use std::path::PathBuf;

/// A run that cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A build cannot be found.
    #[error(transparent)]
    Build(#[from] builds::BuildError),
    /// A build does not load, or a device is not there.
    #[error("{0}")]
    Environment(String),
    /// No limit applies to a case.
    #[error(transparent)]
    Tolerance(#[from] ToleranceError),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl RunError {
    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Model(_) | Self::Tolerance(_) | Self::Io { .. } => ExitCode::Usage,
            Self::Build(_) | Self::Environment(_) => ExitCode::Environment,
        }
    }
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            FailureKind::Input => Self::Usage(failure.message),
            _ => Self::Environment(failure.message),
        }
    }
}
