//! `ggml-parity pin`: which part of a cell's work has to move to the CPU for parity to return.

use super::Failed;
use crate::pipeline::{Build, OracleUse, Plan, RunError};
use crate::plan::CellId;
use crate::plan::inputs::Wishes;
use crate::plan::models;
use crate::planted::Plantings;
use crate::trace::pin::{Finding, Found, PinError, Trials};
use crate::trace::pin_report::{PinReport, line};
use crate::verdict::{ExitCode, Tolerances, exit_code};
use runtime::{Pins, Unit};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the subcommand is called, for the command that runs a finding again.
const COMMAND: &[&str] = &["pin"];

const EXAMPLES: &str = "\
Examples:
  ggml-parity pin 'adv-activations/f32/prefill@npm-3.21.1:Vulkan0' --out pins
      searches; started again with the same folder it goes on where it was
  ggml-parity pin 'adv-activations/f32/prefill@npm-3.21.1:Vulkan0' --at MUL_MAT@0,MUL_MAT@1
      one run with these units on the CPU

A unit is the compute nodes of one op in one layer; the final norm and the head are the layer after the last.
Exit codes: 0 a set was found, or there is nothing to find; 1 no placement restores parity. With --at those of `run`.";

/// Arguments of `pin`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The cell by its id, as reports name it
    #[arg(value_name = "CELL")]
    cell: CellId,
    /// Only run the cell with these units on the CPU, as MUL_MAT@3; repeat or separate by commas for several
    #[arg(long, value_name = "UNIT", value_delimiter = ',')]
    at: Vec<Unit>,
    /// The ggml build: a folder, or the name of a fetched build [default: that of the cell]
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Option<String>,
    /// The model: a GGUF file, a generated model, or one of corpus/models.toml [default: that of the cell]
    #[arg(long, value_name = "FILE|NAME")]
    model: Option<String>,
    /// A text to start from, instead of the model's own or generated tokens
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Tokens to generate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    generate: Option<u32>,
    /// Steps of a masked generation
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// CPU threads [default: physical cores less one, at least one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds a trial may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Leave the oracle out: the CPU and the device alone are compared
    #[arg(long)]
    no_oracle: bool,
    /// Where trials, captures and findings go [default: reports/pin-CELL]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl From<PinError> for Failed {
    fn from(error: PinError) -> Self {
        match error {
            PinError::Run(error) => error.into(),
            PinError::Journal(error) => Self::new(ExitCode::Usage, error),
        }
    }
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let name = crate::plan::safe_name(&format!("pin-{}", args.cell).replace(['/', '?', '@', ':', '&'], "_"));
    let out = args.out.clone().unwrap_or_else(|| Path::new("reports").join(name));
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let workplace = super::workplace(work.path(), Duration::from_secs(args.timeout))?;
    let plan = plan(args, &workplace, work.path())?;
    if !args.at.is_empty() {
        return at(args, &plan, &workplace, work.path());
    }
    std::fs::create_dir_all(&out).map_err(|source| RunError::Io { path: out.clone(), source })?;
    let trials = Trials::new(&plan, &workplace, &out)?;
    let found = trials.search(&out, |trial, known| {
        println!("{}{}", line(trial), if known { " (from the journal)" } else { "" });
    })?;
    let report = PinReport::new(args.cell.to_string(), rerun(args, &found), found);
    report.write(&out).map_err(|source| RunError::Io { path: out.clone(), source })?;
    print!("\n{}", report.text());
    println!("report: {}", out.join("pin.md").display());
    Ok(match report.found.finding {
        Finding::NothingToFind | Finding::Smallest(_) | Finding::Scheduling => ExitCode::Success,
        Finding::NotPlacement => ExitCode::Diverged,
    })
}

/// One run with the units of `--at` on the CPU.
fn at(
    args: &Args,
    plan: &Plan,
    workplace: &crate::worker::Workplace,
    folder: &Path,
) -> Result<ExitCode, Failed> {
    let pins = Pins::These(args.at.iter().cloned().collect());
    let trial = Trials::new(plan, workplace, folder)?.run(Some(pins))?;
    println!("{}", line(&trial));
    if !trial.reason.is_empty() {
        println!("{}", trial.reason);
    }
    let none: Vec<String> =
        args.at.iter().filter(|unit| !trial.pinned.contains_key(unit)).map(Unit::to_string).collect();
    if trial.logits_nmse.is_some() && !none.is_empty() {
        let why = format!("cell {} has no compute node of {} on the CPU", args.cell, none.join(", "));
        return Err(Failed::new(ExitCode::Usage, why));
    }
    Ok(exit_code([trial.cell_outcome()]))
}

fn plan(args: &Args, workplace: &crate::worker::Workplace, work: &Path) -> Result<Plan, RunError> {
    let id = &args.cell;
    let build = Build::open(Some(args.ggml.as_deref().unwrap_or(&id.build)), workplace)?;
    if build.info.name != id.build {
        let (wanted, opened) = (&id.build, &build.info.name);
        return Err(RunError::Environment(format!("cell {id}: no build `{wanted}`; opened: {opened}")));
    }
    build.check(&id.device)?;
    id.case.check().map_err(|error| RunError::Usage(format!("cell {id}: {error}")))?;
    let model = args.model.clone().unwrap_or_else(|| models::name_of(&id.case));
    Ok(Plan {
        builds: vec![build],
        models: vec![models::resolve(&model, work)?],
        cells: vec![id.clone()],
        wishes: Wishes {
            prompt: args.prompt.clone(),
            generate: args.generate.map(|n| n as usize),
            steps: args.steps.map(|n| n as usize),
            draft: None,
            sample: 0,
        },
        threads: args.threads.map_or_else(super::cells::default_threads, |n| n as usize),
        tolerances: Tolerances::embedded(),
        oracle: if args.no_oracle { OracleUse::Never } else { OracleUse::Affordable },
        planted: Plantings::default(),
    })
}

/// The command that runs the cell with what was found.
fn rerun(args: &Args, found: &Found) -> Option<String> {
    let Finding::Smallest(units) = &found.finding else { return None };
    let mut words: Vec<String> = ["ggml-parity"].iter().chain(COMMAND).map(|&word| word.to_owned()).collect();
    words.push(args.cell.to_string());
    let mut flag = |name: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [format!("--{name}"), value]));
    };
    flag("at", Some(units.iter().map(Unit::to_string).collect::<Vec<_>>().join(",")));
    flag("ggml", args.ggml.clone());
    flag("model", args.model.clone());
    flag("prompt", args.prompt.clone());
    flag("generate", args.generate.map(|n| n.to_string()));
    flag("steps", args.steps.map(|n| n.to_string()));
    flag("threads", args.threads.map(|n| n.to_string()));
    if args.no_oracle {
        words.push("--no-oracle".to_owned());
    }
    Some(shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" ")))
}
