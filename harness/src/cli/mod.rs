//! The command line: one file a subcommand.

mod devices;
mod gate;
mod ggml;
mod manners;
mod model;
mod run;
mod show_steps;

use crate::verdict::ExitCode;
use crate::worker::{MemoryLimit, Workplace};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::Path;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ggml-parity run
      the default gate on every device of the default build
  ggml-parity devices
      the devices there are
  ggml-parity run --model model.gguf --device Vulkan0";

/// Does this backend still compute what the model says, and if not, where?
#[derive(Debug, Parser)]
#[command(name = "ggml-parity", version, about, max_term_width = 110, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run models on devices, compare them with the CPU, write a report
    Run(Box<run::Args>),
    /// List the devices a ggml build offers on this machine
    Devices(devices::Args),
    /// Make and look at model files
    #[command(subcommand)]
    Model(model::Command),
    /// Get and list ggml builds
    #[command(subcommand)]
    Ggml(ggml::Command),
    /// Check gate files
    #[command(subcommand)]
    Gate(gate::Command),
    /// Print a script that completes commands and flags in a shell
    Completions(manners::Completions),
    /// Write manual pages
    Man(manners::Man),
    /// Run cells for a parent process
    #[command(hide = true)]
    Worker {
        /// The most memory it may take
        #[arg(long)]
        memory: Option<MemoryLimit>,
    },
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
    Ok(Workplace { binary, folder: folder.to_owned(), time_limit, memory: None })
}

/// Whether standard output takes colours: a terminal does, unless `NO_COLOR` or `CLICOLOR` say otherwise.
fn colour() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// The command line, with the table of exit codes at the end of every help.
fn command() -> clap::Command {
    fn with_codes(command: clap::Command) -> clap::Command {
        let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        command.after_help(format!("{before}{}", ExitCode::table())).mut_subcommands(with_codes)
    }
    with_codes(Cli::command())
}

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let matches = command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let result = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Devices(args) => devices::main(&args),
        Command::Model(command) => model::main(&command),
        Command::Ggml(command) => ggml::main(&command),
        Command::Gate(command) => gate::main(&command),
        Command::Completions(args) => manners::completions(&args),
        Command::Man(args) => manners::man(&args),
        Command::Worker { memory } => Ok(crate::worker::child::main(memory)),
    };
    match result {
        Ok(code) => code.into(),
        Err(failed) => {
            eprintln!("error: {}", failed.message);
            failed.code.into()
        }
    }
}
