//! ggml's C API, opened at run time from a folder of libraries.
