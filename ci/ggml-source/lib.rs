//! Empty: this package only pins the ggml sources.
