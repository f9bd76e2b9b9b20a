//! `ggml-parity golden`: devices against kept results of the oracle, and making these.

use super::Failed;
use super::cells::default_threads;
use super::teller::Teller;
use crate::golden::bless::bless;
use crate::golden::folder::{self, Opened};
use crate::golden::{GoldenError, cases, check};
use crate::pipeline::{Build, Folders, OracleUse, Plan, RunError};
use crate::plan::inputs::Wishes;
use crate::plan::{CellId, DeviceSelector};
use crate::report::{self, Run};
use crate::verdict::{ExitCode, Tolerances};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const CHECK: &str = "\
Examples:
  ggml-parity golden check --device Vulkan0
      every golden on one device: the device alone runs, and is held to the kept results of the oracle
  ggml-parity golden check --case gen-llama/f32/decode --device CUDA0 --ggml llama.cpp/build/bin
  ggml-parity golden check --verify
      before that, whether the oracle still puts out what the goldens hold";

const BLESS: &str = "\
Examples:
  ggml-parity golden bless
      all goldens; those whose figures are as before stay as they are
  ggml-parity golden bless --case gen-dream/f32/sparse";

/// Subcommands of `golden`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Example:\n  ggml-parity golden check --device Vulkan0")]
pub(super) enum Command {
    /// Hold devices to the goldens; neither a reference nor the oracle runs
    Check(CheckArgs),
    /// Compute the goldens again and write those that changed; refused where CI is set
    Bless(BlessArgs),
}

/// Arguments of `golden check`.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECK)]
pub(super) struct CheckArgs {
    /// The folder of the goldens [default: golden]
    #[arg(long, value_name = "DIR")]
    golden: Option<PathBuf>,
    /// A golden by its case, or by the beginning of it up to a `/` or `?`; repeat for several
    #[arg(long, value_name = "CASE")]
    case: Vec<String>,
    /// A ggml build: a folder, or the name of a fetched build; repeat for several
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Vec<String>,
    /// A device under test by its exact name; repeat for several [default: all, the plain CPU among them]
    #[arg(long, value_name = "NAME")]
    device: Vec<DeviceSelector>,
    /// CPU threads [default: physical cores less one, at least one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds a cell may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// A file of limits in place of those that ship
    #[arg(long, value_name = "FILE")]
    tolerances: Option<PathBuf>,
    /// First compute the oracle again, and compare what it puts out with the goldens
    #[arg(long)]
    verify: bool,
    /// Where the report goes [default: reports/golden-NAME, NAME made of the time]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Arguments of `golden bless`.
#[derive(Debug, clap::Args)]
#[command(after_help = BLESS)]
pub(super) struct BlessArgs {
    /// The folder of the goldens [default: golden]
    #[arg(long, value_name = "DIR")]
    golden: Option<PathBuf>,
    /// A golden by its case, or by the beginning of it up to a `/` or `?`; repeat for several
    #[arg(long, value_name = "CASE")]
    case: Vec<String>,
    /// The ggml build whose CPU chooses the trajectories: a folder, or the name of a fetched build
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Option<String>,
}

impl From<GoldenError> for Failed {
    fn from(error: GoldenError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

pub(super) fn main(command: &Command) -> Result<ExitCode, Failed> {
    match command {
        Command::Check(args) => check(args),
        Command::Bless(args) => bless_all(args),
    }
}

/// `--golden`, or the folder of that name in the working folder.
fn golden_folder(given: Option<&Path>) -> Result<PathBuf, Failed> {
    let folder = given.unwrap_or(Path::new("golden"));
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let why = format!("no folder {} here; --golden DIR names that of the goldens", folder.display());
    Err(Failed::new(ExitCode::Usage, why))
}

fn temporary() -> Result<tempfile::TempDir, RunError> {
    tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })
}

fn header(name: String, started: SystemTime) -> Run {
    Run {
        name,
        started: humantime::format_rfc3339_seconds(started).to_string(),
        seconds: 0.0,
        command: super::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Run::default()
    }
}

fn plan(builds: Vec<Build>, cells: Vec<CellId>, tolerances: Tolerances, threads: usize) -> Plan {
    Plan {
        builds,
        models: Vec::new(),
        cells,
        wishes: Wishes::default(),
        threads,
        tolerances,
        oracle: OracleUse::Always,
        planted: crate::planted::Plantings::default(),
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode, Failed> {
    let golden = golden_folder(args.golden.as_deref())?;
    let started = SystemTime::now();
    let work = temporary()?;
    let workplace = super::workplace(work.path(), Duration::from_secs(args.timeout))?;
    let tolerances = super::tolerances(args.tolerances.as_deref())?;
    let opened = folder::open(&golden, &args.case, work.path())?;
    if args.verify {
        check::verify(&opened, &workplace, work.path())?;
        println!("the oracle puts out what the {} goldens hold", opened.goldens.len());
    }
    let builds = builds(args, &workplace)?;
    let cells = check::cells(&opened, &builds, &args.device)?;
    let Opened { goldens, models } = opened;
    let threads = args.threads.map_or_else(default_threads, |n| n as usize);
    let plan = Plan { models, ..plan(builds, cells, tolerances, threads) };
    let files = goldens.iter().map(|golden| (golden.golden.case.to_string(), golden.file.clone())).collect();
    let mut header = header(String::new(), started);
    header.name = args.out.as_ref().and_then(|out| out.file_name()).map_or_else(
        || format!("golden-{}-{}", header.started.replace(':', ""), std::process::id()),
        |name| name.to_string_lossy().into_owned(),
    );
    let out = args.out.clone().unwrap_or_else(|| Path::new("reports").join(&header.name));
    let folders = Folders { captures: work.path().to_owned() };
    let mut teller = Teller::new(plan.cells.len(), true);
    let rerun = |id: &CellId| rerun(args, &golden, id);
    let report = check::run(&plan, &files, rerun, &workplace, &folders, header, |p| teller.tell(&p))?;
    teller.finish();
    let report = report::Report {
        cells: report.cells.into_iter().map(|cell| report::Cell { captures: None, ..cell }).collect(),
        ..report
    };
    report::write(&out, &report).map_err(|error| Failed::new(ExitCode::Usage, error))?;
    print!("{}", report::console::render(&report, super::colour()));
    println!("report: {}", out.join("summary.md").display());
    Ok(report.exit_code())
}

fn builds(args: &CheckArgs, workplace: &crate::worker::Workplace) -> Result<Vec<Build>, RunError> {
    let mut given: Vec<Option<&str>> = args.ggml.iter().map(|name| Some(name.as_str())).collect();
    if given.is_empty() {
        given.extend(args.device.iter().filter_map(|device| device.build.as_deref()).map(Some));
        given.dedup();
    }
    if given.is_empty() {
        given.push(None);
    }
    given.into_iter().map(|name| Build::open(name, workplace)).collect()
}

/// The command that checks this cell alone.
fn rerun(args: &CheckArgs, golden: &Path, id: &CellId) -> String {
    let (golden, case, device) = (golden.display().to_string(), id.case.to_string(), id.device.to_string());
    let mut words =
        vec!["ggml-parity", "golden", "check", "--golden", &golden, "--case", &case, "--device", &device];
    words.extend(args.ggml.iter().flat_map(|given| ["--ggml", given.as_str()]));
    if args.ggml.is_empty() && args.device.iter().any(|device| device.build.is_some()) {
        words.extend(["--ggml", &id.build]);
    }
    shlex::try_join(words.iter().copied()).unwrap_or_else(|_| words.join(" "))
}

fn bless_all(args: &BlessArgs) -> Result<ExitCode, Failed> {
    if std::env::var_os("CI").is_some_and(|value| !value.is_empty()) {
        let why =
            "goldens are not blessed where the variable CI is set: a change of them is for a person to see";
        return Err(Failed::new(ExitCode::Usage, why));
    }
    let golden = golden_folder(args.golden.as_deref())?;
    let work = temporary()?;
    let workplace = super::workplace(work.path(), Duration::from_secs(600))?;
    let chosen = cases::select(cases::declared(), &args.case)?;
    let models = cases::models(&chosen, work.path()).map_err(RunError::from)?;
    let build = Build::open(args.ggml.as_deref(), &workplace)?;
    let cpu = DeviceSelector::cpu();
    let cells = chosen.iter().map(|g| CellId::new(g.case.clone(), &build.info.name, &cpu)).collect();
    let plan = Plan { models, ..plan(vec![build], cells, Tolerances::embedded(), 1) };
    let folders = Folders { captures: work.path().to_owned() };
    let mut teller = Teller::new(plan.captures(), true);
    let header = header("bless".to_owned(), SystemTime::now());
    let tell = |p: crate::worker::Progress<'_>| teller.tell(&p);
    let blessed = bless(&golden, &chosen, args.case.is_empty(), &plan, &workplace, &folders, header, tell)?;
    teller.finish();
    for golden in &blessed {
        let what = if golden.changed { "written" } else { "unchanged" };
        println!("{what:<9} {:>8} bytes  {}", golden.bytes, golden.case);
    }
    let total: u64 = blessed.iter().map(|golden| golden.bytes).sum();
    println!("{} goldens, {total} bytes", blessed.len());
    Ok(ExitCode::Success)
}
