//! Captures that cannot be compared.

use crate::capture::CaptureError;

/// Why two captures cannot be compared. A verdict makes this red; it never skips the cell.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A capture could not be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The captures are not of the same thing.
    #[error("the captures differ in {what}: {reference} in the reference, {test} in the test")]
    Differs {
        /// What differs, with its place.
        what: String,
        /// What the reference holds.
        reference: String,
        /// What the test holds.
        test: String,
    },
}

impl CompareError {
    /// The same, said of two named arms.
    #[must_use]
    pub(crate) fn of(self, arms: &str) -> Self {
        match self {
            Self::Differs { what, reference, test } => {
                Self::Differs { what: format!("{what} ({arms})"), reference, test }
            }
            other => other,
        }
    }

    /// Returns this error unless both sides are equal.
    pub(super) fn unless_equal<T: PartialEq + std::fmt::Display>(
        what: impl ToString,
        reference: T,
        test: T,
    ) -> Result<(), Self> {
        if reference == test {
            return Ok(());
        }
        Err(Self::Differs {
            what: what.to_string(),
            reference: reference.to_string(),
            test: test.to_string(),
        })
    }
}
