//! `ggml-parity compare`: captures that were made apart, paired, judged and reported.

use super::Failed;
use crate::capture::{CaptureReader, DeviceKind, ORACLE};
use crate::pairs::{self, Captures, Held, Pair};
use crate::pipeline::RunError;
use crate::plan::Case;
use crate::report::{self, Environment, Report, Run};
use crate::verdict::{ExitCode, Tolerances};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

const EXAMPLES: &str = "\
Examples:
  ggml-parity compare reference device
      two folders that `capture` or `run --keep-captures` wrote, paired by case
  ggml-parity compare transformers.safetensors reports/cpu/captures --case gen-qwen2/f32/prefill
      a capture by another runtime as the reference
  ggml-parity compare ours.safetensors results.gguf --out reports/llama.cpp
      a file of llama.cpp's llama-results, held to the limits of our side's case";

/// Arguments of `compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The reference: a capture, or a folder of captures
    #[arg(value_name = "A")]
    reference: PathBuf,
    /// What is compared with it: a capture, or a folder of captures
    #[arg(value_name = "B")]
    test: PathBuf,
    /// Captures by the oracle, which then decides which of the two is off
    #[arg(long, value_name = "DIR|FILE")]
    oracle: Option<PathBuf>,
    /// Limits of your own, in the form of harness/src/verdict/tolerances.toml
    #[arg(long, value_name = "FILE")]
    tolerances: Option<PathBuf>,
    /// The case of captures by other runtimes that do not say it [default: the other side's, where both are single]
    #[arg(long, value_name = "ID")]
    case: Option<Case>,
    /// The weight type whose limits apply [default: that of the case]
    #[arg(long, value_name = "TYPE")]
    weights: Option<String>,
    /// The kind of device whose limits apply where no capture tells it: CPU or GPU
    #[arg(long, value_name = "KIND", default_value = "CPU")]
    kind: DeviceKind,
    /// Where the report goes; none is written without it
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let (started, clock) = (SystemTime::now(), Instant::now());
    let usage = |error| Failed::new(ExitCode::Usage, error);
    let tolerances = tolerances(args.tolerances.as_deref())?;
    let mut reference = Captures::open(&args.reference).map_err(usage)?;
    let mut test = Captures::open(&args.test).map_err(usage)?;
    let mut oracle = args.oracle.as_deref().map(Captures::open).transpose().map_err(usage)?;
    let mut arms: Vec<&mut Captures> = vec![&mut reference, &mut test];
    arms.extend(oracle.as_mut());
    pairs::name_cases(&mut arms, args.case.as_ref()).map_err(usage)?;
    let pairs = pairs::pair(&reference, &test, oracle.as_ref()).map_err(usage)?;
    let held = Held { tolerances: &tolerances, weights: args.weights.as_deref(), kind: args.kind };
    let mut cells = Vec::new();
    for pair in &pairs {
        let mut cell = pairs::judge(pair, &held).map_err(|error| Failed::new(ExitCode::Usage, error))?;
        cell.rerun = rerun(args, pair);
        cells.push(cell);
    }
    let name = args.out.as_ref().and_then(|out| out.file_name());
    let run = Run {
        name: name.map_or_else(|| "compare".to_owned(), |name| name.to_string_lossy().into_owned()),
        started: humantime::format_rfc3339_seconds(started).to_string(),
        seconds: clock.elapsed().as_secs_f64(),
        command: super::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Run::default()
    };
    let declared: Vec<_> = pairs.iter().map(|pair| pair.id.clone()).collect();
    let report = Report::new(run, environment(&pairs)?, &declared, cells);
    print!("{}", report::console::render(&report, super::colour()));
    if let Some(out) = &args.out {
        report::write(out, &report).map_err(|error| Failed::new(ExitCode::Usage, error))?;
        println!("report: {}", out.join("summary.md").display());
    }
    Ok(report.exit_code())
}

fn tolerances(file: Option<&Path>) -> Result<Tolerances, Failed> {
    let Some(path) = file else { return Ok(Tolerances::embedded()) };
    let text =
        std::fs::read_to_string(path).map_err(|source| RunError::Io { path: path.to_owned(), source })?;
    text.parse().map_err(|error| Failed::new(ExitCode::Usage, format!("{}: {error}", path.display())))
}

/// The command that compares this pair alone.
fn rerun(args: &Args, pair: &Pair) -> String {
    let path = |path: &Path| path.display().to_string();
    let file = |entry: &Option<pairs::Entry>, arm: &Path| {
        entry.as_ref().map_or_else(|| path(arm), |entry| path(&entry.path))
    };
    let mut words = ["ggml-parity", "compare"].map(str::to_owned).to_vec();
    words.extend([file(&pair.reference, &args.reference), file(&pair.test, &args.test)]);
    let mut flag = |name: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [format!("--{name}"), value]));
    };
    let foreign = [&pair.reference, &pair.test].into_iter().flatten().any(|entry| entry.foreign);
    flag("case", foreign.then(|| pair.id.case.to_string()));
    flag("oracle", pair.oracle.as_ref().map(|entry| path(&entry.path)));
    flag("tolerances", args.tolerances.as_deref().map(path));
    flag("weights", args.weights.clone());
    flag("kind", foreign.then(|| args.kind.to_string()));
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

/// Builds and devices of all captures, and the machine that compared them.
fn environment(pairs: &[Pair]) -> Result<Environment, Failed> {
    let mut environment = Environment {
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        ..Environment::default()
    };
    for entry in pairs.iter().flat_map(|pair| [&pair.reference, &pair.test]).flatten() {
        let reader =
            CaptureReader::open_foreign(&entry.path).map_err(|error| Failed::new(ExitCode::Usage, error))?;
        let meta = reader.meta();
        if meta.device.selector != ORACLE {
            environment.include(std::slice::from_ref(&meta.build), std::slice::from_ref(&meta.device));
        }
        environment.switches.extend(meta.environment.clone());
    }
    Ok(environment)
}
