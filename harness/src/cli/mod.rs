//! The command line: one file a subcommand.

mod cells;
mod devices;
mod ggml;
mod model;
mod run;
mod show_steps;
mod trace;

use crate::verdict::ExitCode;
use crate::worker::Workplace;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::Path;
use std::time::Duration;

/// Does this backend still compute what the model says, and if not, where?
#[derive(Debug, Parser)]
#[command(name = "ggml-parity", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run models on devices, compare them with the CPU, write a report
    Run(Box<run::Args>),
    /// Find the node at which a device parts from the CPU
    Trace(Box<trace::Args>),
    /// List the devices a ggml build offers on this machine
    Devices(devices::Args),
    /// Make and look at model files
    #[command(subcommand)]
    Model(model::Command),
    /// Get and list ggml builds
    #[command(subcommand)]
    Ggml(ggml::Command),
    /// Run cells for a parent process
    #[command(hide = true)]
    Worker,
}

/// An error that ends a command, and the exit code it ends with.
struct Failed {
    code: ExitCode,
    message: String,
}

impl Failed {
    fn new(code: ExitCode, message: impl std::fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }
}

impl From<crate::pipeline::RunError> for Failed {
    fn from(error: crate::pipeline::RunError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

impl From<crate::builds::BuildError> for Failed {
    fn from(error: crate::builds::BuildError) -> Self {
        Self::new(ExitCode::Environment, error)
    }
}

/// Workers are this binary; their standard error goes to `folder`.
fn workplace(folder: &Path, time_limit: Duration) -> Result<Workplace, Failed> {
    let binary = std::env::current_exe().map_err(|error| {
        Failed::new(ExitCode::Environment, format!("this binary cannot be found: {error}"))
    })?;
    Ok(Workplace { binary, folder: folder.to_owned(), time_limit })
}

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let matches = Cli::command().after_help(ExitCode::table()).get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let result = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Devices(args) => devices::main(&args),
        Command::Model(command) => model::main(&command),
        Command::Ggml(command) => ggml::main(&command),
        Command::Worker => Ok(crate::worker::child::main()),
    };
    match result {
        Ok(code) => code.into(),
        Err(failed) => {
            eprintln!("error: {}", failed.message);
            failed.code.into()
        }
    }
}
