//! Gate files that are wrong, and declarations against reports.

mod declarations;
mod files;

use super::{Gate, GateError, file};
use std::path::Path;

/// A file with one preset; `more` follows.
fn text(more: &str) -> String {
    format!(
        "schema = \"ggml-parity.gate/1\"\n[run]\npreset = \"p\"\n[preset.p]\ndescription = \"d\"\n\
         [[preset.p.row]]\nmodel = \"gen-qwen2\"\nmode = \"decode\"\n{more}"
    )
}

fn read(text: &str) -> Result<Gate, GateError> {
    file::parse(text, "ci/gate.toml", Path::new("/nowhere"))
}

/// A declaration: fields of the selector, fields of the outcome, other fields.
fn expect(cells: &str, outcome: &str, more: &str) -> String {
    format!("[[expect]]\nreason = \"r\"\n{more}\n[expect.cells]\n{cells}\n[expect.outcome]\n{outcome}\n")
}

fn refused(text: &str) -> String {
    read(text).expect_err(text).to_string()
}
