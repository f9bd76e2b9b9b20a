//! What is to be run: cases, devices and the ids that name them everywhere.

pub mod calibration;
pub mod canvas;
pub mod case;
pub mod causal;
pub mod decimal;
pub mod declare;
pub mod draws;
pub mod inputs;
pub mod masked;
pub mod matrix;
pub mod models;
pub mod options;
pub mod sampler;
pub mod selector;
pub mod shard;

pub use case::{Case, CellId, Mode};
pub use causal::CausalOptions;
pub use draws::Draws;
pub use masked::MaskedOptions;
pub use options::{Attention, KvType, Options};
pub use sampler::SamplerOptions;
pub use selector::DeviceSelector;
pub use shard::Shard;

/// An id that does not parse: the field, the text found there and what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} `{value}`: {wanted}")]
pub struct IdError {
    /// The part of the id that is wrong.
    pub field: &'static str,
    /// The text found there.
    pub value: String,
    /// What was wanted.
    pub wanted: String,
}

impl IdError {
    fn new(field: &'static str, value: &str, wanted: impl Into<String>) -> Self {
        Self { field, value: value.to_owned(), wanted: wanted.into() }
    }
}

/// Whether a character may stand in a name of an id: none of the marks that separate its parts.
fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Checks one name of an id.
fn check_name(field: &'static str, name: &str) -> Result<(), IdError> {
    if !name.is_empty() && name.chars().all(is_name_char) {
        return Ok(());
    }
    Err(IdError::new(field, name, "a name of letters, digits, `.`, `_` and `-` is wanted"))
}

/// Turns any text (say a file's stem) into a name that an id can hold: other characters become `-`.
pub fn safe_name(text: &str) -> String {
    let name: String = text.chars().map(|c| if is_name_char(c) { c } else { '-' }).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}
