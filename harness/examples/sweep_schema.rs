//! Prints the JSON Schema of `sweep.json`, which is published as `reports/sweep.schema.json`:
//!
//! ```text
//! cargo run --release --example sweep_schema > reports/sweep.schema.json
//! ```

fn main() {
    print!("{}", ggml_parity::sweep::render::schema::render());
}
