//! The ggml-parity binary.
fn main() {}
