//! Prints the JSON Schema of `report.json`, which is published as `reports/report.schema.json`:
//!
//! ```text
//! cargo run --release --example report_schema > reports/report.schema.json
//! ```

fn main() {
    print!("{}", ggml_parity::report::schema::render());
}
