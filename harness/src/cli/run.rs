//! `ggml-parity run`: plan, run, compare, judge, report.

use super::Failed;
use crate::builds;
use crate::gate::Gate;
use crate::pipeline::{self, Build, Folders, OracleUse, Plan, PlantedFiles, RunError};
use crate::plan::declare::{DeclaredCells, Declaring, declare};
use crate::plan::inputs::Wishes;
use crate::plan::matrix::Row;
use crate::plan::models::{self, ModelError, ResolvedModel};
use crate::plan::{CellId, DeviceSelector, Mode, Options};
use crate::report::{self, Cell, Run};
use crate::verdict::{ExitCode, Tolerances};
use crate::worker::{Ended, MemoryLimit, Progress, Workplace, memory};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

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
      one cell by its id, as reports name it
  ggml-parity run --gate my-gate.toml --preset nightly --memory 8GiB
      a preset of a gate file of one's own, each worker within 8 GiB

Of a flag, an environment variable, the gate file and the default, the first that says something counts.";

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
    /// A gate file: what is declared and which divergences are known [default: ci/gate.toml as built in]
    #[arg(long, value_name = "FILE", env = "GGML_PARITY_GATE")]
    gate: Option<PathBuf>,
    /// A preset of the gate file; the built-in one has quick (its default), full and nightly
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "cell"])]
    preset: Option<String>,
    /// Print the cells that would run, and run nothing
    #[arg(long)]
    list: bool,
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
    #[arg(long, value_name = "N", env = "GGML_PARITY_THREADS", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds a cell may take [default: 600]
    #[arg(
        long,
        value_name = "SECONDS",
        env = "GGML_PARITY_TIMEOUT",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    timeout: Option<u64>,
    /// Memory that a worker may take, as 4GiB, on Linux; that of a device is not counted [default: no limit]
    #[arg(long, value_name = "SIZE", env = "GGML_PARITY_MEMORY")]
    memory: Option<MemoryLimit>,
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

/// The seconds that a cell may take where nothing says.
const TIMEOUT: u64 = 600;

/// The gate file that counts.
fn open_gate(args: &Args) -> Result<Gate, RunError> {
    Ok(args.gate.as_deref().map(Gate::read).transpose()?.unwrap_or_else(Gate::embedded))
}

/// Where workers run, with the limits that flags, environment or gate give them.
fn workplace(args: &Args, gate: &Gate, work: &Path) -> Result<Workplace, Failed> {
    let of_gate = gate.settings.timeout.map(|seconds| seconds.get().into());
    let seconds = args.timeout.or(of_gate).unwrap_or(TIMEOUT);
    let memory = args.memory.or(gate.settings.memory);
    if memory.is_some() && !memory::OFFERED {
        let message = "--memory: this system offers no limit of a process's memory";
        return Err(Failed::new(ExitCode::Usage, message));
    }
    Ok(Workplace { memory, ..super::workplace(work, Duration::from_secs(seconds))? })
}

/// Prints the cells that would run, one a line, and those that a required device lacks.
pub(super) fn list(args: &Args) -> Result<ExitCode, Failed> {
    let gate = open_gate(args)?;
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let (plan, absent) = plan(args, &gate, &workplace(args, &gate, work.path())?, work.path())?;
    for id in &plan.cells {
        println!("{id}");
    }
    for id in &absent {
        println!("missing: {id}");
    }
    Ok(if absent.is_empty() { ExitCode::Success } else { ExitCode::Incomplete })
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    if args.list {
        return list(args);
    }
    let gate = open_gate(args)?;
    let started = SystemTime::now();
    let stamp = humantime::format_rfc3339_seconds(started).to_string();
    let name = args.out.as_ref().and_then(|out| out.file_name()).map_or_else(
        || format!("{}-{}", stamp.replace(':', ""), std::process::id()),
        |name| name.to_string_lossy().into_owned(),
    );
    let out = args.out.clone().unwrap_or_else(|| Path::new("reports").join(&name));
    std::fs::create_dir_all(&out).map_err(|source| RunError::Io { path: out.clone(), source })?;
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let captures = if args.keep_captures { out.join("captures") } else { work.path().join("captures") };
    std::fs::create_dir_all(&captures).map_err(|source| RunError::Io { path: captures.clone(), source })?;
    let workplace = workplace(args, &gate, work.path())?;

    let (plan, absent) = plan(args, &gate, &workplace, work.path())?;
    let command = std::env::args().collect::<Vec<_>>();
    let header = Run {
        name,
        started: stamp.clone(),
        seconds: 0.0,
        command: shlex::try_join(command.iter().map(String::as_str)).unwrap_or_else(|_| command.join(" ")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut teller = Teller::new(&plan);
    let folders = Folders { captures };
    let mut report = pipeline::run(&plan, &workplace, &folders, header, |p| teller.tell(&p))?;
    teller.finish();
    report.cells.extend(absent.into_iter().map(Cell::on_absent_device));
    gate.apply(&mut report, stamp.get(..10).unwrap_or(&stamp));
    if args.show_steps {
        print!("{}", super::show_steps::render(&plan, &folders));
    }
    report::write(&out, &report).map_err(|error| Failed::new(ExitCode::Usage, error))?;
    print!("{}", report::console::render(&report, super::colour()));
    println!("report: {}", out.join("summary.md").display());
    Ok(report.exit_code())
}

/// The plan, and the cells that it lacks because a required device is not there.
fn plan(
    args: &Args,
    gate: &Gate,
    workplace: &Workplace,
    work: &Path,
) -> Result<(Plan, Vec<CellId>), RunError> {
    let rows = rows(args, gate)?;
    let builds = open_builds(args, gate, workplace)?;
    let mut models: Vec<ResolvedModel> = Vec::new();
    for row in &rows {
        if !models.iter().any(|model| model.given == row.model) {
            match models::resolve(&row.model, work) {
                Ok(model) => models.push(model),
                Err(error @ ModelError::NotFetched { .. }) if row.if_fetched => {
                    eprintln!("left out: {error}")
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let oracle = match (args.no_oracle, args.oracle) {
        (true, _) => OracleUse::Never,
        (false, true) => OracleUse::Always,
        (false, false) => gate.settings.oracle.unwrap_or_default(),
    };
    let DeclaredCells { cells, absent } = if args.cell.is_empty() {
        declare(&Declaring {
            rows: &rows,
            builds: &builds,
            models: &models,
            devices: &args.device,
            models_named: !args.model.is_empty(),
            changed: !args.mode.is_empty() || args.options.is_some(),
            oracle: oracle != OracleUse::Never,
        })?
    } else {
        DeclaredCells { cells: args.cell.clone(), absent: Vec::new() }
    };
    for id in &cells {
        let build = builds.iter().find(|build| build.info.name == id.build).ok_or_else(|| {
            let names: Vec<&str> = builds.iter().map(|build| build.info.name.as_str()).collect();
            RunError::Environment(format!("cell {id}: no build `{}`; opened: {}", id.build, names.join(", ")))
        })?;
        build.check(&id.device)?;
        id.case.check().map_err(|error| RunError::Usage(format!("cell {id}: {error}")))?;
    }
    if cells.is_empty() && absent.is_empty() {
        let offered: Vec<String> =
            builds.iter().flat_map(|build| build.selectors()).map(|device| device.to_string()).collect();
        return Err(RunError::Environment(format!(
            "nothing to test: beside the reference, the plain CPU, there is no device (there are: {})",
            offered.join(", ")
        )));
    }
    let of_gate = gate.settings.threads.map(std::num::NonZeroU32::get);
    let plan = Plan {
        builds,
        models,
        cells,
        wishes: Wishes {
            prompt: args.prompt.clone(),
            generate: args.generate.map(|n| n as usize),
            steps: args.steps.map(|n| n as usize),
            draft: args.draft.clone(),
        },
        threads: args.threads.or(of_gate).map_or_else(default_threads, |n| n as usize),
        tolerances: gate.tolerances.clone().unwrap_or_else(Tolerances::embedded),
        fault: None,
        oracle,
        planted: PlantedFiles::default(),
    };
    Ok((plan, absent))
}

/// The builds named by `--ggml`, or by cells, or by the environment, or by the gate, or the default one.
fn open_builds(args: &Args, gate: &Gate, workplace: &Workplace) -> Result<Vec<Build>, RunError> {
    let mut given: Vec<Option<&str>> = args.ggml.iter().map(|name| Some(name.as_str())).collect();
    if given.is_empty() {
        let named = args.cell.iter().map(|id| id.build.as_str());
        let named = named.chain(args.device.iter().filter_map(|device| device.build.as_deref()));
        for name in named {
            if !given.contains(&Some(name)) {
                given.push(Some(name));
            }
        }
    }
    if given.is_empty() && std::env::var_os(builds::GGML_ENV).is_none() {
        given.extend(gate.settings.ggml.iter().map(|name| Some(name.as_str())));
    }
    if given.is_empty() {
        given.push(None);
    }
    given.into_iter().map(|name| Build::open(name, workplace)).collect()
}

/// What is asked for: the models named by `--model`, those of cells, or a preset of the gate.
fn rows(args: &Args, gate: &Gate) -> Result<Vec<Row>, RunError> {
    let options = args.options.unwrap_or_default();
    let row = |model: String| Row {
        model,
        modes: args.mode.clone(),
        options: vec![options],
        devices: Vec::new(),
        required: Vec::new(),
        if_fetched: false,
        place: None,
    };
    if !args.model.is_empty() {
        return Ok(args.model.iter().cloned().map(row).collect());
    }
    if !args.cell.is_empty() {
        // A generated or known model of another weight type than its own is converted.
        let name = |id: &CellId| {
            let own = models::own_weights(&id.case.model);
            if own.as_deref() == Some(&id.case.weights) || own.is_none() {
                id.case.model.clone()
            } else {
                format!("{}:{}", id.case.model, id.case.weights)
            }
        };
        return Ok(args.cell.iter().map(name).map(row).collect());
    }
    let mut rows = gate.preset(args.preset.as_deref())?.rows.clone();
    for row in &mut rows {
        if !args.mode.is_empty() {
            row.modes.clone_from(&args.mode);
        }
        if args.options.is_some() {
            row.options = vec![options];
        }
    }
    Ok(rows)
}

fn default_threads() -> usize {
    num_cpus::get_physical().saturating_sub(1).max(1)
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
