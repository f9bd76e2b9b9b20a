//! `sweep.json`: the result itself.

use crate::report::ReportError;
use crate::sweep::result::{SCHEMA, Sweep};
use serde::Deserialize;

/// The result as JSON, with a final newline. It is not indented: thousands of rows would be ten times as many lines.
#[must_use]
pub fn render(sweep: &Sweep) -> String {
    let mut text = serde_json::to_string(sweep).expect("a sweep has string keys and no foreign types");
    text.push('\n');
    text
}

/// Reads a result back.
///
/// # Errors
/// Text that is no sweep, or one of another schema.
pub fn parse(text: &str) -> Result<Sweep, ReportError> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    let head: Head = serde_json::from_str(text)?;
    if head.schema != SCHEMA {
        return Err(ReportError::Malformed(serde::de::Error::custom(format!(
            "`schema` is {}, expected {SCHEMA}",
            head.schema
        ))));
    }
    Ok(serde_json::from_str(text)?)
}
