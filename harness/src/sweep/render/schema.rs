//! The JSON Schema of `sweep.json`, published as `reports/sweep.schema.json`: made from the result's own types and
//! their documentation, so that it cannot say anything else than what is written.

use crate::sweep::result::{SCHEMA, Sweep};
use schemars::generate::SchemaSettings;
use serde_json::json;

/// The schema, draft 2020-12, indented, with a final newline.
#[must_use]
pub fn render() -> String {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<Sweep>();
    schema.insert("title".to_owned(), json!(format!("ggml-parity: sweep.json ({SCHEMA})")));
    if let Some(version) = schema.pointer_mut("/properties/schema").and_then(|field| field.as_object_mut()) {
        version.insert("const".to_owned(), json!(SCHEMA));
    }
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema has string keys");
    text.push('\n');
    text
}
