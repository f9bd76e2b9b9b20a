//! The command line: one file a subcommand.

mod announce;
mod answers;
mod cache;
mod calibrate;
mod capture;
mod cells;
mod compare;
mod depth;
mod devices;
mod gate;
mod ggml;
mod golden;
mod home;
mod manners;
mod means;
mod merge;
mod model;
mod power;
mod report;
mod run;
mod selection;
mod selftest;
mod show_steps;
mod sweep;
mod sweep_teller;
mod teller;
mod trace;
mod trace_pin;

use crate::pipeline::RunError;
use crate::verdict::{ExitCode, Tolerances};
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
    /// Ask a corpus of models on devices and in modes: accuracy and likelihood, with error bars
    Sweep(Box<sweep::Args>),
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
    /// Follow one cell over context lengths, and find those at which it is wrong
    Depth(Box<depth::Args>),
    /// Show the answers of a sweep, the same item side by side on all arms
    Answers(answers::Args),
    /// Say which differences of accuracies a corpus can find, before a sweep is run
    Power(power::Args),
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
    /// Look at the store of captures and make it smaller
    #[command(subcommand)]
    Cache(cache::Command),
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

/// The arguments of a `sweep` that was started before.
fn sweep_arguments(words: &[String]) -> Result<sweep::Args, Failed> {
    let words = std::iter::once("ggml-parity").chain(words.iter().map(String::as_str));
    match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Sweep(args) }) => Ok(*args),
        Ok(_) => Err(Failed::new(ExitCode::Usage, "the journal is not of a sweep")),
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

/// An argument that was given beside `--resume`. What the environment says is none, which clap's `exclusive` takes for one.
fn beside_resume(matches: &clap::ArgMatches) -> Option<String> {
    let (_, run) = matches.subcommand()?;
    let given =
        |id: &&clap::Id| run.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine);
    // Groups of flattened arguments are among the ids, under the names of their types.
    let flag = |id: &clap::Id| id.as_str().starts_with(char::is_lowercase) && id != "resume";
    run.ids().filter(given).find(|id| flag(id)).map(|id| format!("--{}", id.as_str().replace('_', "-")))
}

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let matches = command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let resumes = match &cli.command {
        Command::Run(args) => args.resume.is_some(),
        Command::Sweep(args) => args.resume.is_some(),
        _ => false,
    };
    if resumes && let Some(flag) = beside_resume(&matches) {
        let words = format!("--resume takes no other argument, and there is {flag}");
        command().error(clap::error::ErrorKind::ArgumentConflict, words).exit();
    }
    let result = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Sweep(args) => sweep::main(&args),
        Command::Selftest(args) => selftest::main(&args),
        Command::Capture(args) => capture::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Merge(args) => merge::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Golden(command) => golden::main(&command),
        Command::Calibrate(args) => calibrate::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Depth(args) => depth::main(&args),
        Command::Answers(args) => answers::main(&args),
        Command::Power(args) => power::main(&args),
        Command::Devices(args) => devices::main(&args),
        Command::Model(command) => model::main(&command),
        Command::Ggml(command) => ggml::main(&command),
        Command::Gate(command) => gate::main(&command),
        Command::Completions(args) => manners::completions(&args),
        Command::Man(args) => manners::man(&args),
        Command::Worker { memory } => Ok(crate::worker::child::main(memory)),
        Command::Cache(command) => cache::main(&command),
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
