//! `ggml-parity selftest`: does the gate catch what it is there for?

use super::Failed;
use crate::pipeline::{self, Build, Folders, OracleUse, Plan, RunError};
use crate::plan::inputs::Wishes;
use crate::plan::models::{self, ResolvedModel};
use crate::plan::{CellId, DeviceSelector, Mode, Options, matrix};
use crate::planted::Plantings;
use crate::report::Run;
use crate::selftest::{self, SelftestError};
use crate::verdict::{ExitCode, Status, Tolerances};
use crate::worker::Progress;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Faults are planted into captures of gen-llama that a device and its reference have just computed, and the cell is
judged again: each fault must turn it red, and the reason must name the place. The exit code is 0 only when all are
caught that must be, and the captures pass as they were.

Examples:
  ggml-parity selftest
      on a second flavour of the CPU
  ggml-parity selftest --device Vulkan0 --out reports/selftest
      under the limits of a GPU; writes selftest.json and selftest.md";

/// The model whose captures are changed, which has fewer K/V heads than query heads.
const MODEL: &str = "gen-llama";
/// Its options: without a penalty the run soon repeats one token, and rows, keys and values that hardly differ from
/// those before them would hide that they were taken from there.
const OPTIONS: &str = "penalty=1.5";
/// Tokens to generate, one a step.
const STEPS: usize = 8;

/// Arguments of `selftest`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A ggml build: a folder, or the name of a fetched build
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Option<String>,
    /// The device whose captures are changed [default: a second flavour of the CPU, or else the first device]
    #[arg(long, value_name = "NAME")]
    device: Option<DeviceSelector>,
    /// CPU threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// Seconds a cell may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Write selftest.json and selftest.md into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl From<SelftestError> for Failed {
    fn from(error: SelftestError) -> Self {
        match error {
            SelftestError::Run(error) => error.into(),
            SelftestError::Capture(_) | SelftestError::Lacks { .. } => Self::new(ExitCode::Incomplete, error),
            SelftestError::Io { .. } => Self::new(ExitCode::Usage, error),
        }
    }
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let workplace = super::workplace(work.path(), Duration::from_secs(args.timeout))?;
    let folder = |name: &str| {
        let path = work.path().join(name);
        std::fs::create_dir(&path).map_err(|source| RunError::Io { path: path.clone(), source })?;
        Ok::<_, RunError>(path)
    };
    let (captures, scratch) = (folder("captures")?, folder("changed")?);
    let build = Build::open(args.ggml.as_deref(), &workplace)?;
    let [exact, coarse] = [MODEL.to_owned(), format!("{MODEL}:q4_k_m")]
        .map(|name| models::resolve(&name, work.path()).map_err(RunError::from));
    let models = [exact?, coarse?];
    let device = device(args.device.as_ref(), &build, &models)?;
    let options: Options = OPTIONS.parse().expect("options as ids write them");
    let [exact, coarse] = models
        .each_ref()
        .map(|model| CellId::new(matrix::case(model, Mode::Generate, options), &build.info.name, &device));
    let plan = Plan {
        builds: vec![build],
        models: models.into(),
        cells: vec![exact.clone(), coarse.clone()],
        wishes: Wishes { generate: Some(STEPS), ..Wishes::default() },
        threads: args.threads as usize,
        tolerances: Tolerances::embedded(),
        oracle: OracleUse::Always,
        planted: Plantings::default(),
    };
    let folders = Folders { captures };
    let report = pipeline::run(&plan, &workplace, &folders, Run::default(), |progress| {
        if let Progress::Ended(id, _) = progress {
            eprintln!("{id} ended");
        }
    })?;
    if let Some(cell) = report.cells.iter().find(|cell| cell.status != Status::Pass) {
        let message =
            format!("faults cannot be planted into {}, which is {}: {}", cell.id, cell.status, cell.reason);
        return Err(Failed::new(report.exit_code(), message));
    }
    let found = selftest::test(&plan, &folders, &scratch, &exact, &coarse)?;
    if let Some(out) = &args.out {
        found.write(out).map_err(|error| Failed::new(ExitCode::Usage, error))?;
    }
    print!("{}", if args.json { found.json() } else { found.console() });
    Ok(found.exit_code())
}

/// The device that is asked for, or a second flavour of the CPU, or else the first device that takes the models.
fn device(
    given: Option<&DeviceSelector>,
    build: &Build,
    models: &[ResolvedModel],
) -> Result<DeviceSelector, RunError> {
    if let Some(device) = given {
        if device.build.as_ref().is_some_and(|name| *name != build.info.name) {
            return Err(RunError::Usage(format!("device {device}: the build is {}", build.info.name)));
        }
        let device = device.without_build();
        build.check(&device)?;
        if device == DeviceSelector::cpu() {
            return Err(RunError::Usage("device CPU: it is the reference; another one is wanted".to_owned()));
        }
        return Ok(device);
    }
    let offered: Vec<DeviceSelector> = build.probed.devices.iter().map(|d| d.selector.clone()).collect();
    let probed = &build.probed;
    let mut devices = matrix::default_devices(&offered, &probed.cpu_variants, probed.cpu_variant.as_deref());
    devices.retain(|device| models.iter().all(|model| build.takes(device, model)));
    let flavour = devices.iter().find(|device| device.is_cpu()).or_else(|| devices.first());
    flavour.cloned().ok_or_else(|| {
        RunError::Environment(format!(
            "build {} has no device beside the reference, the plain CPU, that takes {MODEL}",
            build.info.name
        ))
    })
}
