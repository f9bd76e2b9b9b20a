//! The command line: one file a subcommand.

mod announce;
mod cache;
mod calibrate;
mod capture;
mod cells;
mod compare;
mod devices;
mod ggml;
mod golden;
mod home;
mod merge;
mod model;
mod report;
mod run;
mod selftest;
mod show_steps;
mod teller;
mod trace;
mod trace_pin;

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
    /// Plant faults into captures and see whether the gate catches them
    Selftest(selftest::Args),
    /// Compute captures of cells, to be compared elsewhere
    Capture(capture::Args),
    /// Compare captures that were made apart
    Compare(compare::Args),
    /// Put the reports of several machines or shards together
    Merge(merge::Args),
    /// Write a report again, or judge its cells again under other limits, without running anything
    Report(report::Args),
    /// Hold devices to kept results of the oracle, and make these
    #[command(subcommand)]
    Golden(golden::Command),
    /// Measure the noise floor of devices, and propose limits
    Calibrate(Box<calibrate::Args>),
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
    /// Look at the store of captures and make it smaller
    #[command(subcommand)]
    Cache(cache::Command),
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

/// The arguments of a `run` that was started before.
fn run_arguments(words: &[String]) -> Result<run::Args, Failed> {
    let words = std::iter::once("ggml-parity").chain(words.iter().map(String::as_str));
    match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Run(args) }) => Ok(*args),
        Ok(_) => Err(Failed::new(ExitCode::Usage, "the journal is not of a run")),
        Err(error) => Err(Failed::new(ExitCode::Usage, format!("the arguments in the journal: {error}"))),
    }
}

/// The limits of a file, or those that ship.
fn tolerances(file: Option<&Path>) -> Result<Tolerances, RunError> {
    let Some(path) = file else { return Ok(Tolerances::embedded()) };
    let text =
        std::fs::read_to_string(path).map_err(|source| RunError::Io { path: path.to_owned(), source })?;
    text.parse().map_err(|error| RunError::Usage(format!("{}: {error}", path.display())))
}

/// The command line as it was given, quoted for a shell.
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
        Command::Selftest(args) => selftest::main(&args),
        Command::Capture(args) => capture::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Merge(args) => merge::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Golden(command) => golden::main(&command),
        Command::Calibrate(args) => calibrate::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Devices(args) => devices::main(&args),
        Command::Model(command) => model::main(&command),
        Command::Ggml(command) => ggml::main(&command),
        Command::Cache(command) => cache::main(&command),
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

#[cfg(test)]
mod templates;
