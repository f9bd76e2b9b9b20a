//! `ggml-parity report`: a report written again, or judged again under other limits.

use super::Failed;
use crate::capture::CaptureReader;
use crate::comparison::{self, Captures};
use crate::gate::Gate;
use crate::pipeline::RunError;
use crate::report::{self, Cell, Report, json};
use crate::verdict::{ExitCode, Key, Tolerances};
use std::convert::Infallible;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  ggml-parity run --keep-captures --out reports/today
  ggml-parity report reports/today --tolerances calibrated.toml
      the cells of that run under other limits: their captures are compared again, nothing is run
  ggml-parity report reports/today --gate my-gate.toml
      the same cells under other declarations
  ggml-parity report reports/today
      the same report in every form that this version writes";

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The folder of a run, with its report.json
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Judge every cell again under the limits of this file; the run must have kept its captures
    #[arg(long, value_name = "FILE")]
    tolerances: Option<PathBuf>,
    /// Hold the cells against the declarations of this gate file, on the day of the run [default with --tolerances, where
    /// the run had a gate: GGML_PARITY_GATE, or ci/gate.toml as built in]
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
    /// Where the report goes [default: DIR; with --tolerances or --gate DIR/rejudged-NAME, NAME that of the file]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let path = args.dir.join("report.json");
    let text =
        std::fs::read_to_string(&path).map_err(|source| RunError::Io { path: path.clone(), source })?;
    let mut found = json::parse(&text)
        .map_err(|error| Failed::new(ExitCode::Usage, format!("{}: {error}", path.display())))?;
    let out = out(args);
    if args.tolerances.is_some() {
        let tolerances = super::tolerances(args.tolerances.as_deref())?;
        judge_again(&mut found, &args.dir, &tolerances)?;
    }
    if let Some(gate) = gate(args, &found)? {
        let day = found.run.started.get(..10).unwrap_or(&found.run.started).to_owned();
        gate.apply(&mut found, &day);
    }
    if args.tolerances.is_some() || args.gate.is_some() {
        found.run.command = format!("{}; {}", found.run.command, super::command_line());
        if let Some(name) = out.file_name() {
            found.run.name = name.to_string_lossy().into_owned();
        }
    }
    let captures = seen_from(&out, &args.dir)?;
    for kept in found.cells.iter_mut().filter_map(|cell| cell.captures.as_mut()) {
        let Ok(moved) = kept.map(|file| Ok::<_, Infallible>(captures.join(file)));
        *kept = moved;
    }
    report::write(&out, &found).map_err(|error| Failed::new(ExitCode::Usage, error))?;
    print!("{}", report::console::render(&found, super::colour()));
    println!("report: {}", out.join("summary.md").display());
    Ok(found.exit_code())
}

/// The gate file that the cells are held against: the one that is named, or, where cells were judged again, the one that a
/// run would have. Other runs than those of `run` have none.
fn gate(args: &Args, report: &Report) -> Result<Option<Gate>, RunError> {
    let again = args.tolerances.is_some() && report.gate.is_some();
    let of_environment = || std::env::var_os(super::selection::GATE_ENV).filter(|_| again).map(PathBuf::from);
    match args.gate.clone().or_else(of_environment) {
        Some(file) => Ok(Some(Gate::read(&file)?)),
        None => Ok(again.then(Gate::embedded)),
    }
}

fn out(args: &Args) -> PathBuf {
    match (&args.out, args.tolerances.as_ref().or(args.gate.as_ref())) {
        (Some(out), _) => out.clone(),
        (None, None) => args.dir.clone(),
        (None, Some(file)) => {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            args.dir.join(format!("rejudged-{name}"))
        }
    }
}

/// Judges the cells that were judged by figures; the others stay as they are.
fn judge_again(report: &mut Report, dir: &Path, tolerances: &Tolerances) -> Result<(), Failed> {
    for cell in &mut report.cells {
        match cell.captures.clone() {
            Some(captures) => judge_cell(cell, &captures, dir, tolerances)?,
            None if cell.metrics.is_some() => {
                let why = format!(
                    "cell {}: its captures were not kept; run it with --keep-captures to judge it again",
                    cell.id
                );
                return Err(Failed::new(ExitCode::Usage, why));
            }
            None => {}
        }
    }
    Ok(())
}

fn judge_cell(
    cell: &mut Cell,
    captures: &Captures,
    dir: &Path,
    tolerances: &Tolerances,
) -> Result<(), Failed> {
    let usage = |error: String| Failed::new(ExitCode::Usage, format!("cell {}: {error}", cell.id));
    let files = captures.map(|file| {
        let path = dir.join(file);
        // One that is gone says nothing about the device.
        CaptureReader::open(&path).map(|_| path).map_err(|error| usage(error.to_string()))
    })?;
    let device = CaptureReader::open(&files.device).map_err(|error| usage(error.to_string()))?;
    let kind = device.meta().device.kind;
    let key = Key::new(&cell.id.case, kind).map_err(RunError::from)?;
    let limits = tolerances.limits(&key).map_err(RunError::from)?;
    comparison::settle(cell, &files, &limits);
    Ok(())
}

/// The way from a report in `out` to files that are named relative to `dir`.
fn seen_from(out: &Path, dir: &Path) -> Result<PathBuf, RunError> {
    std::fs::create_dir_all(out).map_err(|source| RunError::Io { path: out.to_owned(), source })?;
    let absolute =
        |path: &Path| path.canonicalize().map_err(|source| RunError::Io { path: path.to_owned(), source });
    let (out, dir) = (absolute(out)?, absolute(dir)?);
    Ok(match out.strip_prefix(&dir) {
        Ok(below) => below.components().map(|_| "..").collect(),
        Err(_) => dir,
    })
}
