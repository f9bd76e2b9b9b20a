//! `ggml-parity gate`: check a gate file before a run does.

use super::{Failed, run};
use crate::gate::Gate;
use crate::pipeline::RunError;
use crate::verdict::ExitCode;
use clap::Parser;
use std::path::PathBuf;
use std::time::SystemTime;

const EXAMPLES: &str = "\
Examples:
  ggml-parity gate check
      the built-in gate file: its presets, its declarations, and which of those have expired
  ggml-parity gate check my-gate.toml --list --preset nightly
      which cells that preset makes with the default build on this machine";

/// Subcommands of `gate`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Command {
    /// Read a gate file and say what is wrong with it, or what it holds
    #[command(after_help = EXAMPLES)]
    Check {
        /// The file [default: ci/gate.toml as built in]
        #[arg(value_name = "FILE", env = super::selection::GATE_ENV)]
        file: Option<PathBuf>,
        /// Print the cells that it makes with this build on this machine
        #[arg(long)]
        list: bool,
        /// The preset to list
        #[arg(long, value_name = "NAME", requires = "list")]
        preset: Option<String>,
        /// The ggml build to list for: a folder, or the name of a fetched build
        #[arg(long, value_name = "DIR|NAME", requires = "list")]
        ggml: Option<String>,
    },
}

/// The arguments of `run`, to be made of those of `gate check`.
#[derive(Parser)]
struct RunOnly {
    #[command(flatten)]
    args: run::Args,
}

pub(super) fn main(command: &Command) -> Result<ExitCode, Failed> {
    let Command::Check { file, list, preset, ggml } = command;
    let gate = file.as_deref().map(Gate::read).transpose().map_err(RunError::from)?;
    let gate = gate.unwrap_or_else(Gate::embedded);
    if *list {
        let mut words = vec!["run".into(), "--list".into()];
        let mut flag = |name: &str, value: Option<std::ffi::OsString>| {
            words.extend(value.into_iter().flat_map(|value| [name.into(), value]));
        };
        flag("--gate", file.clone().map(Into::into));
        flag("--preset", preset.clone().map(Into::into));
        flag("--ggml", ggml.clone().map(Into::into));
        let run = RunOnly::try_parse_from(words).map_err(|error| Failed::new(ExitCode::Usage, error))?;
        return run::list(&run.args);
    }
    for name in gate.preset_names() {
        let preset = gate.preset(Some(name)).map_err(RunError::from)?;
        let default = if name == gate.settings.preset { " (default)" } else { "" };
        println!("preset {name}{default}: {} rows: {}", preset.rows.len(), preset.description);
    }
    println!("{} declarations", gate.declarations());
    let today = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    for (line, reason) in gate.expired(today.get(..10).unwrap_or(&today)) {
        println!("expired: {}:{line}: {reason}", gate.name);
    }
    println!("{}: no fault found", gate.name);
    Ok(ExitCode::Success)
}
