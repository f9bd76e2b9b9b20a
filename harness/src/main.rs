//! The `ggml-parity` binary.

fn main() -> std::process::ExitCode {
    ggml_parity::cli::main()
}
