//! Why a run cannot begin, or cannot go on.

use crate::atomic;
use crate::builds;
use crate::keep::{JournalError, StoreError};
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
    /// There is no space for a capture.
    #[error("no space is left: {0}")]
    Storage(String),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A capture cannot be taken from the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RunError {
    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Io { source, .. }
            | Self::Journal(JournalError::Io { source, .. })
            | Self::Store(StoreError { source, .. })
                if atomic::is_storage_full(source) =>
            {
                ExitCode::Environment
            }
            Self::Usage(_)
            | Self::Model(_)
            | Self::Tolerance(_)
            | Self::Io { .. }
            | Self::Journal(_)
            | Self::Store(_) => ExitCode::Usage,
            Self::Build(_) | Self::Environment(_) | Self::Storage(_) => ExitCode::Environment,
        }
    }
}

impl From<crate::gate::GateError> for RunError {
    fn from(error: crate::gate::GateError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            FailureKind::Input => Self::Usage(failure.message),
            FailureKind::Storage => Self::Storage(failure.message),
            _ => Self::Environment(failure.message),
        }
    }
}
