//! The command line: one file a subcommand.

mod calibrate;
mod devices;
mod ggml;
mod golden;
mod model;
mod report;
mod run;
mod show_steps;

use crate::pipeline::RunError;
use crate::verdict::{ExitCode, Tolerances};
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
    /// Write a report again, or judge its cells again under other limits, without running anything
    Report(report::Args),
    /// Hold devices to kept results of the oracle, and make these
    #[command(subcommand)]
    Golden(golden::Command),
    /// Measure the noise floor of devices, and propose limits
    Calibrate(Box<calibrate::Args>),
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

impl From<RunError> for Failed {
    fn from(error: RunError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

impl From<crate::builds::BuildError> for Failed {
    fn from(error: crate::builds::BuildError) -> Self {
        Self::new(ExitCode::Environment, error)
    }
}

/// The limits of a file, or those that ship.
fn tolerances(file: Option<&Path>) -> Result<Tolerances, RunError> {
    let Some(path) = file else { return Ok(Tolerances::embedded()) };
    let text =
        std::fs::read_to_string(path).map_err(|source| RunError::Io { path: path.to_owned(), source })?;
    text.parse().map_err(|error| RunError::Usage(format!("{}: {error}", path.display())))
}

/// The command line as a shell takes it.
fn command_line() -> String {
    let words: Vec<String> = std::env::args().collect();
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
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
        Command::Report(args) => report::main(&args),
        Command::Golden(command) => golden::main(&command),
        Command::Calibrate(args) => calibrate::main(&args),
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
