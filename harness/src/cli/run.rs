//! `ggml-parity run`: plan, run, compare, judge, report.

use super::Failed;
use super::cells::{default_threads, model_of_cell, open_builds, out_folder};
use crate::pipeline::{self, Build, Folders, OracleUse, Plan, PlantedFiles, RunError};
use crate::plan::inputs::Wishes;
use crate::plan::matrix::{self, Preset, Row};
use crate::plan::models::{self, ResolvedModel};
use crate::plan::{Case, CellId, DeviceSelector, Mode, Options};
use crate::report::{self, Run};
use crate::verdict::{ExitCode, Tolerances};
use crate::worker::{Ended, Progress, Workplace};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ggml-parity run
      the default gate: generated models and dream-arith on every device of the default build
  ggml-parity run --model model.gguf --device Vulkan0
      one model file on one device, in every mode its architecture has
  ggml-parity run --model dream-arith --mode generate --prompt '15*23?' --device Vulkan0
  ggml-parity run --model gen-qwen2 --mode decode --options 'attn=flash&kv=q8_0' --device CUDA0
      flash attention on a quantised K/V cache
  ggml-parity run --model dream-arith --mode generate --options 'cache=sparse&keep=1' --show-steps
      what a sparse cache makes of a generation, step by step
  ggml-parity run --model gen-llama --device CPU
      the plain CPU, which is the reference of all others, against the f64 oracle
  ggml-parity run --cell 'gen-qwen2/f32/decode@npm-3.21.1:Vulkan0'
      one cell by its id, as reports name it";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A ggml build: a folder, or the name of a fetched build; repeat for several
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Vec<String>,
    /// A model: a GGUF file, a generated model, or one of corpus/models.toml; repeat for several
    #[arg(long, value_name = "FILE|NAME")]
    model: Vec<String>,
    /// A ready-made matrix: quick (the default gate) or full (every weight type and size class)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "cell"])]
    preset: Option<Preset>,
    /// A device under test, by exact name: Vulkan0, CPU@x64, CPU+repack, BUILD:CUDA0; repeat for several
    #[arg(long, value_name = "NAME")]
    device: Vec<DeviceSelector>,
    /// A mode (full, full-cache, sparse, generate; prefill, decode, batch, profile, speculative, lifecycle);
    /// repeat for several
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
    /// Options of the cases as ids write them: `kv=f16&n=64`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<Options>,
    /// A cell by its id, instead of models x modes x devices; repeat for several
    #[arg(long, value_name = "ID", conflicts_with_all = ["device", "mode", "options"])]
    cell: Vec<CellId>,
    /// A text to start from, instead of the model's own or generated tokens
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Tokens to generate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    generate: Option<u32>,
    /// A GGUF file whose model proposes tokens in mode speculative [default: the model without half its layers]
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    /// Steps of a masked generation
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// CPU threads [default: physical cores less one, at least one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds a cell may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Leave the oracle out: the CPU and the device alone are compared
    #[arg(long, conflicts_with = "oracle")]
    no_oracle: bool,
    /// Compute the oracle however large the case [default: up to 2.5e10 tokens x parameters, two minutes or so]
    #[arg(long)]
    oracle: bool,
    /// Where the report goes [default: reports/NAME, NAME made of the time]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Keep the captures beside the report
    #[arg(long)]
    keep_captures: bool,
    /// Print the canvas of masked generations after every step
    #[arg(long)]
    show_steps: bool,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let (name, stamp, out) = out_folder(args.out.as_ref())?;
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let captures = if args.keep_captures { out.join("captures") } else { work.path().join("captures") };
    std::fs::create_dir_all(&captures).map_err(|source| RunError::Io { path: captures.clone(), source })?;
    let workplace = super::workplace(work.path(), Duration::from_secs(args.timeout))?;

    let plan = plan(args, &workplace, work.path())?;
    let command = std::env::args().collect::<Vec<_>>();
    let header = Run {
        name,
        started: stamp,
        seconds: 0.0,
        command: shlex::try_join(command.iter().map(String::as_str)).unwrap_or_else(|_| command.join(" ")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut teller = Teller::new(&plan);
    let folders = Folders { captures };
    let report = pipeline::run(&plan, &workplace, &folders, header, |p| teller.tell(&p))?;
    teller.finish();
    if args.show_steps {
        print!("{}", super::show_steps::render(&plan, &folders));
    }
    report::write(&out, &report).map_err(|error| Failed::new(ExitCode::Usage, error))?;
    print!("{}", report::console::render(&report, std::io::stdout().is_terminal()));
    println!("report: {}", out.join("summary.md").display());
    Ok(report.exit_code())
}

fn plan(args: &Args, workplace: &Workplace, work: &Path) -> Result<Plan, RunError> {
    let named = args.cell.iter().map(|id| id.build.as_str());
    let named = named.chain(args.device.iter().filter_map(|device| device.build.as_deref()));
    let builds = open_builds(&args.ggml, named, workplace)?;
    let rows = rows(args);
    let mut models: Vec<ResolvedModel> = Vec::new();
    for row in &rows {
        if !models.iter().any(|model| model.given == row.model) {
            models.push(models::resolve(&row.model, work)?);
        }
    }
    let cells =
        if args.cell.is_empty() { declare(args, &rows, &builds, &models)? } else { args.cell.clone() };
    for id in &cells {
        let build = builds.iter().find(|build| build.info.name == id.build).ok_or_else(|| {
            let names: Vec<&str> = builds.iter().map(|build| build.info.name.as_str()).collect();
            RunError::Environment(format!("cell {id}: no build `{}`; opened: {}", id.build, names.join(", ")))
        })?;
        build.check(&id.device)?;
        id.case.check().map_err(|error| RunError::Usage(format!("cell {id}: {error}")))?;
    }
    if cells.is_empty() {
        let offered: Vec<String> =
            builds.iter().flat_map(|build| build.selectors()).map(|device| device.to_string()).collect();
        return Err(RunError::Environment(format!(
            "nothing to test: beside the reference, the plain CPU, there is no device (there are: {})",
            offered.join(", ")
        )));
    }
    Ok(Plan {
        builds,
        models,
        cells,
        wishes: Wishes {
            prompt: args.prompt.clone(),
            generate: args.generate.map(|n| n as usize),
            steps: args.steps.map(|n| n as usize),
            draft: args.draft.clone(),
        },
        threads: args.threads.map_or_else(default_threads, |n| n as usize),
        tolerances: Tolerances::embedded(),
        fault: None,
        oracle: match (args.no_oracle, args.oracle) {
            (true, _) => OracleUse::Never,
            (false, true) => OracleUse::Always,
            (false, false) => OracleUse::Affordable,
        },
        planted: PlantedFiles::default(),
    })
}

/// What is asked for: the models named by `--model`, those of cells, or a preset.
fn rows(args: &Args) -> Vec<Row> {
    let options = args.options.unwrap_or_default();
    let row = |model: String| Row { model, modes: args.mode.clone(), options: vec![options] };
    if !args.model.is_empty() {
        return args.model.iter().cloned().map(row).collect();
    }
    if !args.cell.is_empty() {
        return args.cell.iter().map(model_of_cell).map(row).collect();
    }
    let mut rows = args.preset.unwrap_or(Preset::Quick).rows();
    for row in &mut rows {
        if !args.mode.is_empty() {
            row.modes.clone_from(&args.mode);
        }
        if args.options.is_some() {
            row.options = vec![options];
        }
    }
    rows
}

/// Rows x devices.
fn declare(
    args: &Args,
    rows: &[Row],
    builds: &[Build],
    models: &[ResolvedModel],
) -> Result<Vec<CellId>, RunError> {
    let mut cells = Vec::new();
    for row in rows {
        let Some(model) = models.iter().find(|model| model.given == row.model) else { continue };
        let modes = if row.modes.is_empty() { matrix::default_modes(model) } else { row.modes.clone() };
        // With several models a mode applies to those that have it; a single one must. Of the default modes those
        // count to which the options mean something.
        let takes = |case: &Case| !row.modes.is_empty() || case.check().is_ok();
        let fitting: Vec<Case> = modes
            .iter()
            .filter(|&&mode| matrix::has_mode(model, mode))
            .flat_map(|&mode| row.options.iter().map(move |&options| matrix::case(model, mode, options)))
            .filter(takes)
            .collect();
        if fitting.is_empty() && rows.len() == 1 {
            let modes: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
            return Err(RunError::Usage(format!(
                "model {}: architecture {} has no mode {} that these options apply to",
                model.name,
                model.model.hparams.architecture.name(),
                modes.join(", ")
            )));
        }
        for case in fitting {
            for (i, build) in builds.iter().enumerate() {
                for device in devices(args, build, model, i > 0)? {
                    cells.push(CellId::new(case.clone(), &build.info.name, &device));
                }
            }
        }
    }
    Ok(cells)
}

/// The devices of `build` on which `model` is tested. In a further build the plain CPU is one of them, since
/// there it is compared with the first build's.
fn devices(
    args: &Args,
    build: &Build,
    model: &ResolvedModel,
    further: bool,
) -> Result<Vec<DeviceSelector>, RunError> {
    if !args.device.is_empty() {
        let mine = |d: &&DeviceSelector| d.build.as_ref().is_none_or(|name| *name == build.info.name);
        let named: Vec<_> = args.device.iter().filter(mine).map(DeviceSelector::without_build).collect();
        named.iter().try_for_each(|device| build.check(device))?;
        // A ready-made matrix holds models that an extra buffer type does not take; a named model must fit.
        let fits = |device: &DeviceSelector| !args.model.is_empty() || build.takes(device, model);
        return Ok(named.into_iter().filter(fits).collect());
    }
    let offered: Vec<DeviceSelector> =
        build.probed.devices.iter().map(|device| device.selector.clone()).collect();
    let in_use = build.probed.cpu_variant.as_deref();
    let all = matrix::default_devices(&offered, &build.probed.cpu_variants, in_use);
    let all = further.then(DeviceSelector::cpu).into_iter().chain(all);
    let devices: Vec<DeviceSelector> = all.filter(|device| build.takes(device, model)).collect();
    // A machine that has nothing but the plain CPU holds it against the oracle.
    let only_cpu = offered.iter().all(|device| *device == DeviceSelector::cpu());
    Ok(if devices.is_empty() && only_cpu && !args.no_oracle { vec![DeviceSelector::cpu()] } else { devices })
}

/// Says how far the run is: a bar on a terminal, a line a cell elsewhere.
struct Teller {
    bar: Option<ProgressBar>,
    done: usize,
    total: usize,
}

impl Teller {
    fn new(plan: &Plan) -> Self {
        let total = plan.captures();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (left {eta}) {msg}");
            ProgressBar::new(total as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, done: 0, total }
    }

    fn tell(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Started(id) => {
                if let Some(bar) = &self.bar {
                    bar.set_message(id.to_string());
                }
            }
            Progress::Ended(id, how) => {
                self.done += 1;
                let word = match how {
                    Ended::Captured => "computed",
                    Ended::Failed(failure) => failure.kind.name(),
                    Ended::Crashed(_) => "crashed",
                    Ended::TimedOut(_) => "timed out",
                };
                match &self.bar {
                    Some(bar) => bar.inc(1),
                    None => eprintln!("[{:>3}/{}] {id} {word}", self.done, self.total),
                }
            }
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
