//! The crate's one error: what is wrong, in which file, in which field, with which value, at which offset.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Longest value shown in a message; the rest is cut.
const MAX_SHOWN: usize = 96;

/// What sort of thing went wrong. The finer details are in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused: no such file, no permission, disk full.
    Io,
    /// The file is something other than GGUF: a web page, a pointer file, an older format.
    NotGguf,
    /// A GGUF version or byte order that is not read here.
    Version,
    /// The container breaks the format's own rules, or the file ends too early.
    Malformed,
    /// A metadata key is missing, has another type, or a value that cannot be.
    Metadata,
    /// A tensor is missing, or has a shape or type that the model cannot have.
    Tensor,
    /// The tokenizer's metadata is incomplete or contradicts itself, or a text cannot be encoded.
    Tokenizer,
    /// The file is sound, but asks for something that is not implemented.
    Unsupported,
    /// What the caller asked for cannot be done: an impossible shape, an unknown name.
    Request,
}

/// An error with its place.
///
/// Displayed as `FILE: field NAME at offset N: value V: what is wrong`, leaving out what is not known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(Box<Details>);

#[derive(Debug)]
struct Details {
    kind: ErrorKind,
    file: Option<PathBuf>,
    field: Option<String>,
    value: Option<String>,
    offset: Option<u64>,
    message: String,
}

impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        match (&self.field, self.offset) {
            (Some(field), Some(offset)) => write!(f, "field {field} at offset {offset}: ")?,
            (Some(field), None) => write!(f, "field {field}: ")?,
            (None, Some(offset)) => write!(f, "at offset {offset}: ")?,
            (None, None) => {}
        }
        if let Some(value) = &self.value {
            write!(f, "value {value}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Details {
            kind,
            file: None,
            field: None,
            value: None,
            offset: None,
            message: message.into(),
        }))
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Malformed, message)
    }

    pub(crate) fn metadata(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Metadata, message)
    }

    pub(crate) fn tensor(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Tensor, message)
    }

    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Request, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::new(ErrorKind::Io, format!("{doing}: {error}"))
    }

    pub(crate) fn file(mut self, file: &Path) -> Self {
        self.0.file.get_or_insert_with(|| file.to_path_buf());
        self
    }

    pub(crate) fn field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    pub(crate) fn value(mut self, value: impl fmt::Display) -> Self {
        let mut shown = value.to_string();
        if shown.chars().count() > MAX_SHOWN {
            shown = shown.chars().take(MAX_SHOWN).collect::<String>() + "…";
        }
        self.0.value = Some(shown);
        self
    }

    pub(crate) fn offset(mut self, offset: impl Into<Option<u64>>) -> Self {
        self.0.offset = offset.into();
        self
    }

    /// The sort of error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file, where one is involved.
    pub fn path(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// The header field, metadata key or tensor at fault.
    pub fn field_name(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// The value found there, as text.
    pub fn field_value(&self) -> Option<&str> {
        self.0.value.as_deref()
    }

    /// Where in the file the field stands, in bytes from its start.
    pub fn file_offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

/// Text from a file as it may be shown on a terminal: quoted, control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_file_field_offset_and_value() {
        let e = Error::malformed("must be 2 or 3")
            .field("version")
            .value(7)
            .offset(4u64)
            .file(Path::new("models/a.gguf"));
        assert_eq!(e.to_string(), "models/a.gguf: field version at offset 4: value 7: must be 2 or 3");
    }

    #[test]
    fn display_leaves_out_what_is_not_known() {
        assert_eq!(Error::request("no such preset").to_string(), "no such preset");
        assert_eq!(Error::tensor("missing").field("blk.0").to_string(), "field blk.0: missing");
    }

    #[test]
    fn long_values_are_cut() {
        let e = Error::malformed("x").value("é".repeat(500));
        assert_eq!(e.field_value().unwrap().chars().count(), MAX_SHOWN + 1);
    }

    #[test]
    fn the_first_file_stays() {
        let e = Error::malformed("x").file(Path::new("a")).file(Path::new("b"));
        assert_eq!(e.path(), Some(Path::new("a")));
    }
}
