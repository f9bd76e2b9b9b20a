//! `ggml-parity merge`: the reports, or the sweeps, of several machines or shards as one.

use super::Failed;
use crate::pipeline::RunError;
use crate::plan::safe_name;
use crate::report::merge::{Prefer, label, merge};
use crate::report::{self, Report, Run};
use crate::sweep::result::{FILE, Sweep, SweepRun};
use crate::sweep::{self, render};
use crate::verdict::ExitCode;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const EXAMPLES: &str = "\
Examples:
  ggml-parity merge reports/shard-1 reports/shard-2 --out reports/all
  ggml-parity merge artifacts --out reports/all
      every run's folder in a folder, as CI systems download them
  ggml-parity merge sweeps/shard-1 sweeps/shard-2 --out sweeps/all
      shards of one sweep: every row once, and the statistics over all of them
  ggml-parity merge h100=reports/a mi300=reports/b --out reports/all
      Vulkan0 of two machines side by side: the build is called NAME.h100 in one and NAME.mi300 in the other";

/// Arguments of `merge`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A run's folder, its report.json, or a folder of runs' folders; the same of sweeps, whose file is sweep.json; with
    /// LABEL= before it, the label follows the build's name in every cell, so that equal names of devices on different
    /// machines do not collide
    #[arg(value_name = "[LABEL=]DIR", required = true)]
    dir: Vec<String>,
    /// Which report of a cell, or of an item on an arm, counts where they differ: newest or worst [default: differing is
    /// an error]
    #[arg(long, value_name = "WHICH")]
    prefer: Option<Prefer>,
    /// Where the merged report goes
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// The file of a run in its folder.
const REPORT: &str = "report.json";

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let usage = |error: &dyn std::fmt::Display| Failed::new(ExitCode::Usage, error);
    let (of_sweeps, others): (Vec<_>, Vec<_>) =
        args.dir.iter().map(|given| labelled(given).1).partition(|dir| is_of_sweeps(dir));
    match (of_sweeps.first(), others.first()) {
        (Some(_), None) => return sweeps(args),
        (Some(sweep), Some(other)) => {
            let (sweep, other) = (sweep.display(), other.display());
            let why = format!("{sweep} is of sweeps and {other} is not: reports and sweeps are merged apart");
            return Err(Failed::new(ExitCode::Usage, why));
        }
        (None, _) => {}
    }
    let mut reports: Vec<Report> = Vec::new();
    for given in &args.dir {
        let (name, dir) = labelled(given);
        for path in runs(dir, &args.out, REPORT)? {
            let mut report = report::read(&path).map_err(|error| usage(&error))?;
            if let Some(name) = name {
                label(&mut report, name);
            }
            reports.push(report);
        }
    }
    let name = args.out.file_name().map_or_else(|| "merged".to_owned(), |n| n.to_string_lossy().into_owned());
    let run = Run {
        name,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: super::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Run::default()
    };
    let merged = merge(&reports, run, args.prefer).map_err(|error| usage(&error))?;
    report::write(&args.out, &merged.report).map_err(|error| usage(&error))?;
    print!("{}", report::console::render(&merged.report, super::colour()));
    for (shard, cells) in &merged.missing {
        println!("missing: shard {shard} with {cells} cells is not among the merged reports");
    }
    println!("report: {}", args.out.join("summary.md").display());
    // A shard that had no cell to run leaves no cell that is red.
    let missing = (!merged.missing.is_empty()).then_some(ExitCode::Incomplete);
    Ok(ExitCode::worst(missing.into_iter().chain([merged.report.exit_code()])))
}

/// Whether a path means sweeps: one, or a folder of them that holds no run.
fn is_of_sweeps(path: &Path) -> bool {
    let holds = |file: &str| {
        let below = std::fs::read_dir(path).into_iter().flatten().flatten();
        path.join(file).is_file() || below.into_iter().any(|entry| entry.path().join(file).is_file())
    };
    path.file_name().is_some_and(|name| name == FILE) || (holds(FILE) && !holds(REPORT))
}

/// Merges sweeps.
fn sweeps(args: &Args) -> Result<ExitCode, Failed> {
    let usage = |error: &dyn std::fmt::Display| Failed::new(ExitCode::Usage, error);
    let mut parts: Vec<Sweep> = Vec::new();
    for given in &args.dir {
        let (name, dir) = labelled(given);
        for path in runs(dir, &args.out, FILE)? {
            let mut part = render::read(&path).map_err(|error| usage(&error))?;
            if let Some(name) = name {
                sweep::merge::label(&mut part, name);
            }
            parts.push(part);
        }
    }
    let name = args.out.file_name().map_or_else(|| "merged".to_owned(), |n| n.to_string_lossy().into_owned());
    let run = SweepRun {
        name,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: super::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..SweepRun::default()
    };
    let merged = sweep::merge::merge(&parts, run, args.prefer).map_err(|error| usage(&error))?;
    render::write(&args.out, &merged).map_err(|error| usage(&error))?;
    super::sweep::announce(&merged, &args.out, false, false);
    Ok(merged.exit_code())
}

/// `LABEL=DIR` in its parts, unless there is a file of that name.
fn labelled(given: &str) -> (Option<&str>, &Path) {
    let parts = given.split_once('=').filter(|(name, _)| safe_name(name) == *name);
    match parts.filter(|_| !Path::new(given).exists()) {
        Some((name, dir)) => (Some(name), Path::new(dir)),
        None => (None, Path::new(given)),
    }
}

/// The runs that a path means: itself, or the folders in it that hold a report, by name. The folder of the merged report
/// may lie among them, from an earlier call.
fn runs(path: &Path, out: &Path, file: &str) -> Result<Vec<PathBuf>, Failed> {
    let out = out.canonicalize().ok();
    let is_out = |path: &Path| out.is_some() && path.canonicalize().ok() == out;
    if is_out(path) && path.join(file).is_file() {
        let path = path.display();
        return Err(Failed::new(ExitCode::Usage, format!("--out {path} is one of the reports to merge")));
    }
    if !path.is_dir() || path.join(file).is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let io = |source| Failed::from(RunError::Io { path: path.to_owned(), source });
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let folder = entry.map_err(io)?.path();
        if folder.join(file).is_file() && !is_out(&folder) {
            runs.push(folder);
        }
    }
    runs.sort();
    if runs.is_empty() {
        let path = path.display();
        return Err(Failed::new(ExitCode::Usage, format!("{path}: no {file} here or one folder below")));
    }
    Ok(runs)
}
