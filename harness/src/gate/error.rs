//! Gate files that cannot be used: what is wrong, and where it stands.

use std::ops::Range;
use std::path::PathBuf;

/// A gate file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{file}:{line}:{column}: {message}")]
    At {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A preset that the file does not have.
    #[error("preset `{name}`: {file} has none of that name{hint}; known: {known}")]
    NoPreset {
        /// The file.
        file: String,
        /// The name asked for.
        name: String,
        /// A name that is near it, in words.
        hint: String,
        /// The names there are.
        known: String,
    },
}

/// A text and how to speak of places in it.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// An error at a range of bytes.
    pub(super) fn error(&self, span: &Range<usize>, message: impl Into<String>) -> GateError {
        let (line, column) = self.position(span.start);
        GateError::At { file: self.name.to_owned(), line, column, message: message.into() }
    }

    /// Line and column of a byte, from 1, the column in characters.
    pub(super) fn position(&self, byte: usize) -> (usize, usize) {
        let mut end = byte.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &self.text[..end];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }
}
