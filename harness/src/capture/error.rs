//! What can be wrong with a capture file.

use std::io;
use std::path::{Path, PathBuf};

/// A capture that cannot be read or written. Every message names the file, the field and the value.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no safetensors file, or its data do not fit its header.
    #[error("{path}: not a capture: {reason}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor or a metadata key is not there.
    #[error("{path}: `{field}` is missing")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The name of what is missing.
        field: String,
    },
    /// A tensor or a metadata key has a value that a capture cannot have.
    #[error("{path}: `{field}` is {value}, expected {expected}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The name of the field.
        field: String,
        /// What was found.
        value: String,
        /// What was wanted.
        expected: String,
    },
}

impl CaptureError {
    /// Whether the disk is full.
    #[must_use]
    pub fn is_storage_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if crate::atomic::is_storage_full(source))
    }

    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn header(path: &Path, reason: impl ToString) -> Self {
        Self::Header { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(super) fn missing(path: &Path, field: impl ToString) -> Self {
        Self::Missing { path: path.to_owned(), field: field.to_string() }
    }

    pub(crate) fn field(
        path: &Path,
        field: impl ToString,
        value: impl ToString,
        expected: impl ToString,
    ) -> Self {
        Self::Field {
            path: path.to_owned(),
            field: field.to_string(),
            value: value.to_string(),
            expected: expected.to_string(),
        }
    }
}
