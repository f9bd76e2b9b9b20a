//! `ggml-parity calibrate`: the noise floor of devices, and the limits that follow.

use super::Failed;
use super::means::Means;
use super::selection::{Declared, Selection, declared};
use super::teller::Teller;
use crate::calibrate::samples::{Sample, Source};
use crate::calibrate::{Alarm, Calibration, SCHEMA, floor, propose, render, samples};
use crate::gate::Gate;
use crate::pipeline::{self, Folders, OracleUse, Plan, RunError};
use crate::plan::CellId;
use crate::plan::calibration;
use crate::plan::inputs::Wishes;
use crate::report::{Cell, Run};
use crate::verdict::{DeviceClass, ExitCode, Outcome, Status, exit_code};
use crate::worker::Workplace;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

const EXAMPLES: &str = "\
Examples:
  ggml-parity calibrate --device Vulkan0
      the noise floor of one device on the cases of the default gate and their variations
  ggml-parity run --tolerances reports/calibrate/calibrated.toml
      the default gate under the limits that it proposed
  ggml-parity calibrate --plain --seeds 1 --repeats 100
      the default gate a hundred times: every cell that does not pass is an alarm, and the exit code says so";

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    which: Selection,
    /// Only the cases as they are, without variations of length, threads, batch, attention and cache
    #[arg(long)]
    plain: bool,
    /// Draws of tokens: generated ones, or the model's own prompts in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// How often the first draw is run
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// What a limit is of the largest figure
    #[arg(long, value_name = "X", default_value_t = propose::FACTOR, value_parser = factor)]
    factor: f64,
    #[command(flatten)]
    means: Means,
    /// Where calibrated.toml, calibrate.md and calibrate.json go
    #[arg(long, value_name = "DIR", default_value = "reports/calibrate")]
    out: PathBuf,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor >= 1.0 && factor.is_finite() => Ok(factor),
        _ => Err("a number from 1 on is wanted".to_owned()),
    }
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let (started, clock) = (SystemTime::now(), Instant::now());
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RunError::Io { path, source }
    };
    let gate = args.which.open_gate()?;
    let limits = args.means.settle(&gate)?;
    std::fs::create_dir_all(&args.out).map_err(io(&args.out))?;
    let work = tempfile::tempdir().map_err(io(&std::env::temp_dir()))?;
    let workplace = limits.workplace(work.path())?;
    let folders = Folders { captures: work.path().join("captures") };
    std::fs::create_dir_all(&folders.captures).map_err(io(&folders.captures))?;
    let (mut plan, absent) = plan(args, &gate, &workplace, work.path())?;

    let runs: Vec<(u32, u32)> =
        (0..args.seeds).map(|seed| (seed, 0)).chain((1..args.repeats).map(|repeat| (0, repeat))).collect();
    let mut teller = Teller::new(plan.captures() * runs.len(), true);
    let mut gathered = Gathered::default();
    // Nothing is measured on a device that is not there, and whoever requires it is told.
    gathered.take(&plan, &absent.into_iter().map(Cell::on_absent_device).collect::<Vec<_>>(), 0, 0);
    let mut environment = None;
    for (seed, repeat) in runs {
        plan.wishes.sample = seed;
        let report = pipeline::run(&plan, &workplace, &folders, Run::default(), |p| teller.tell(&p))?;
        gathered.take(&plan, &report.cells, seed, repeat);
        environment = Some(report.environment);
    }
    teller.finish();
    let code = exit_code(gathered.outcomes.iter().copied());
    let found = Calibration {
        schema: SCHEMA,
        run: Run {
            name: "calibrate".to_owned(),
            started: humantime::format_rfc3339_seconds(started).to_string(),
            seconds: clock.elapsed().as_secs_f64(),
            command: super::command_line(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Run::default()
        },
        environment: environment.unwrap_or_default(),
        seeds: args.seeds,
        repeats: args.repeats,
        factor: args.factor,
        judged: gathered.outcomes.len(),
        alarms: gathered.alarms,
        unsupported: gathered.unsupported.into_iter().collect(),
        steadiness: floor::steadiness(&gathered.samples),
        floors: floor::floors(&gathered.samples),
        proposals: propose::proposals(&gathered.samples, args.factor),
    };
    write(&args.out, &found, &plan)?;
    tell(&found, &args.out, code);
    Ok(code)
}

/// What the runs gave.
#[derive(Default)]
struct Gathered {
    samples: Vec<Sample>,
    alarms: Vec<Alarm>,
    outcomes: Vec<Outcome>,
    unsupported: BTreeSet<String>,
}

impl Gathered {
    fn take(&mut self, plan: &Plan, cells: &[Cell], seed: u32, repeat: u32) {
        let source =
            Source { models: &plan.models, wishes: &plan.wishes, tolerances: &plan.tolerances, seed, repeat };
        for cell in cells {
            // A variation that a device lacks is not measured, and no fault.
            if cell.status == Status::Unsupported {
                self.unsupported.insert(format!("{}: {}", cell.id, cell.reason));
                continue;
            }
            self.outcomes.push(cell.outcome());
            if !cell.status.is_good() {
                self.alarms.push(Alarm {
                    cell: cell.id.to_string(),
                    seed,
                    repeat,
                    status: cell.status.to_string(),
                    reason: cell.reason.clone(),
                    rerun: cell.rerun.clone(),
                });
            }
            let build = plan.builds.iter().find(|build| build.info.name == cell.build);
            let Some(device) = build.and_then(|build| build.device(&cell.device)) else { continue };
            self.samples.extend(samples::of(cell, DeviceClass::of(device.kind), &source));
        }
    }
}

/// The plan, and the cells on required devices that are not there.
fn plan(
    args: &Args,
    gate: &Gate,
    workplace: &Workplace,
    work: &Path,
) -> Result<(Plan, Vec<CellId>), RunError> {
    let vary = |rows, models: &[_]| {
        // Options that are named are the only ones.
        let plain = args.plain || args.which.has_options();
        calibration::vary(rows, models, plain)
    };
    let oracle = OracleUse::Affordable;
    let Declared { builds, models, cells, absent } =
        declared(&args.which, gate, oracle, workplace, work, vary)?;
    let mut seen: BTreeSet<CellId> = BTreeSet::new();
    let cells = cells.into_iter().filter(|id| seen.insert(id.clone())).collect();
    let plan = Plan {
        builds,
        models,
        cells,
        wishes: Wishes::default(),
        threads: args.means.threads(gate),
        tolerances: args.means.tolerances(gate)?,
        oracle,
        planted: crate::planted::Plantings::default(),
    };
    Ok((plan, absent))
}

fn write(out: &Path, found: &Calibration, plan: &Plan) -> Result<(), RunError> {
    let files = [
        ("calibrated.toml", render::tolerances(found, &plan.tolerances)),
        ("calibrate.md", render::markdown(found)),
        ("calibrate.json", render::json(found)),
    ];
    for (name, text) in files {
        let path = out.join(name);
        crate::atomic::write_with(&path, |partial| std::fs::write(partial, text))
            .map_err(|source| RunError::Io { path, source })?;
    }
    Ok(())
}

fn tell(found: &Calibration, out: &Path, code: ExitCode) {
    for proposal in &found.proposals {
        let limit = proposal.limit.map_or("none".to_owned(), |limit| format!("{limit:e}"));
        let above = if proposal.is_above() { "  ABOVE" } else { "" };
        println!(
            "{:<6} {:<9} kv {:<4} {:<3}  max {:.1e} of {:>4}  limit {limit:<6} in use {:e}{above}",
            proposal.metric,
            proposal.weights,
            proposal.kv,
            proposal.device,
            proposal.measured.max,
            proposal.measured.samples,
            proposal.in_use
        );
    }
    for alarm in found.alarms.iter().take(20) {
        println!("alarm: {} {}: {}", alarm.status, alarm.cell, alarm.reason);
    }
    let steady = &found.steadiness;
    println!(
        "{} cells judged, {} alarms; {} of {} repeated figures changed; {:.0} s; exit {} ({})",
        found.judged,
        found.alarms.len(),
        steady.changing,
        steady.repeated,
        found.run.seconds,
        code.code(),
        code.meaning()
    );
    println!("limits: {}", out.join("calibrated.toml").display());
}
