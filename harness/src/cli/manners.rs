//! `ggml-parity completions` and `ggml-parity man`: both are made from the definitions of the command line.

use super::Failed;
use crate::pipeline::RunError;
use crate::verdict::ExitCode;
use std::path::PathBuf;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  ggml-parity completions bash > ~/.local/share/bash-completion/completions/ggml-parity"
)]
pub(super) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ggml-parity man ~/.local/share/man/man1")]
pub(super) struct Man {
    /// The folder to write ggml-parity.1 and a page for each subcommand into; it is made if need be
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn completions(args: &Completions) -> Result<ExitCode, Failed> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "ggml-parity", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(ExitCode::Success)
}

pub(super) fn man(args: &Man) -> Result<ExitCode, Failed> {
    let io = |source| RunError::Io { path: args.folder.clone(), source };
    std::fs::create_dir_all(&args.folder).map_err(io)?;
    clap_mangen::generate_to(super::command(), &args.folder).map_err(io)?;
    println!("{}", args.folder.join("ggml-parity.1").display());
    Ok(ExitCode::Success)
}
