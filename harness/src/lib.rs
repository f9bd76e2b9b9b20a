//! ggml-parity: the harness.

pub mod builds;
