//! `report.json`: the report itself.

use super::{Report, ReportError, SCHEMA};
use serde::Deserialize;

/// The report as JSON, indented, with a final newline.
pub fn render(report: &Report) -> String {
    let mut text =
        serde_json::to_string_pretty(report).expect("a report has string keys and no foreign types");
    text.push('\n');
    text
}

/// Reads a report back.
///
/// # Errors
/// Text that is no report, or one of another schema.
pub fn parse(text: &str) -> Result<Report, ReportError> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    let head: Head = serde_json::from_str(text)?;
    if head.schema != SCHEMA {
        return Err(ReportError::Schema(head.schema));
    }
    Ok(serde_json::from_str(text)?)
}
