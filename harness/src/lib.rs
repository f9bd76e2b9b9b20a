//! ggml-parity: the harness.
