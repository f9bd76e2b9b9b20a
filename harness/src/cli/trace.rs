//! `ggml-parity trace`: where in a graph a device parts from the reference.

use super::Failed;
use super::cells::{Shared, open_builds, out_folder};
use super::trace_pin::{self, Search};
use crate::pipeline::{Build, OracleUse, Plan, RunError};
use crate::plan::{CellId, DeviceSelector, Mode, models};
use crate::trace::model::NodeReport;
use crate::trace::repro::Repro;
use crate::trace::spool::Walked;
use crate::trace::{Bench, Culprit, GraphChoice, Trace, TraceError, columns, render, repro};
use crate::verdict::{ExitCode, Tolerances};
use crate::worker::{self, Job, JobCell, ReplayJob, RunJob, Workplace};
use runtime::Unit;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ggml-parity trace 'gen-llama/q4_k_m/prefill@npm-3.21.1:Vulkan0'
      the first graph that is off, node by node, with the node that goes into repro.safetensors
  ggml-parity trace 'gen-llama/f32/decode?kv=q8_0@npm-3.21.1:Vulkan0' --graph last
  ggml-parity trace --model model.gguf 'model/q4_1/prefill?n=32@npm-3.21.1:CPU@x64'
  ggml-parity trace 'gen-llama/q4_k/prefill@npm-3.21.1:CUDA0' --columns 1,2,4,7,8,16,32,33,64
      what products of weights introduce by the number of columns, and where backends switch kernels
  ggml-parity trace --repro repro.safetensors --device Vulkan0
      the node of an earlier trace alone, against its f64 value
  ggml-parity trace --pin 'adv-activations/f32/prefill@npm-3.21.1:Vulkan0' --out pins
      a smallest set of ops and layers that have to move to the CPU for parity to return; started again with the same
      folder it goes on where it was
  ggml-parity trace --pin 'adv-activations/f32/prefill@npm-3.21.1:Vulkan0' --at MUL_MAT@0,MUL_MAT@1
      one run with these units on the CPU

A unit is the compute nodes of one op in one layer; the final norm and the head are the layer after the last.
Here 0 means that nothing is over a limit and 1 that something is; with --pin 0 that a set was found or there is nothing to
find, and 1 that no placement restores parity; with --at as for `run`.";

/// Arguments of `trace`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A cell by its id, as `run --cell` takes it
    #[arg(value_name = "CASE", required_unless_present = "repro", conflicts_with = "repro")]
    cell: Option<CellId>,
    #[command(flatten)]
    shared: Shared,
    /// The model file of the cell, where its id names none that is known
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "repro")]
    model: Option<String>,
    /// The graph to walk through: first-bad, first, worst, last, or its number from 0
    #[arg(long, value_name = "WHICH", default_value = "first-bad", conflicts_with = "repro")]
    graph: GraphChoice,
    /// Lengths to trace one after the other, for modes prefill and full
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', conflicts_with_all = ["repro", "write_repro", "prompt"],
          value_parser = clap::value_parser!(u32).range(1..))]
    columns: Vec<u32>,
    /// The node that goes into repro.safetensors [default: the first bad one]
    #[arg(long, value_name = "NODE", conflicts_with = "repro")]
    write_repro: Option<String>,
    /// Look for a smallest set of ops and layers that have to move to the CPU for the cell to pass
    #[arg(long, conflicts_with_all = ["repro", "columns", "write_repro", "graph"])]
    pin: bool,
    /// Only run the cell with these units on the CPU, as MUL_MAT@3; repeat or separate by commas for several
    #[arg(long, value_name = "UNIT", value_delimiter = ',', requires = "pin")]
    at: Vec<Unit>,
    /// With --pin: leave the oracle out, so that the CPU and the device alone are compared
    #[arg(long, requires = "pin")]
    no_oracle: bool,
    /// A file that an earlier trace wrote: its node is computed on --device
    #[arg(long, value_name = "FILE", requires = "device")]
    repro: Option<PathBuf>,
    /// The device for --repro
    #[arg(long, value_name = "NAME", requires = "repro")]
    device: Option<DeviceSelector>,
}

impl From<TraceError> for Failed {
    fn from(error: TraceError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

impl From<repro::ReproError> for Failed {
    fn from(error: repro::ReproError) -> Self {
        Self::new(ExitCode::Usage, error)
    }
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    if let (true, Some(cell)) = (args.pin, &args.cell) {
        let Args { shared, model, at, no_oracle, .. } = args;
        return trace_pin::main(&Search { cell, shared, model: model.as_deref(), at, no_oracle: *no_oracle });
    }
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let workplace = super::workplace(work.path(), Duration::from_secs(args.shared.timeout))?;
    match (&args.cell, &args.repro, &args.device) {
        (Some(cell), ..) if !args.columns.is_empty() => by_columns(args, cell, &workplace, work.path()),
        (Some(cell), ..) => one(args, cell, &workplace, work.path()),
        (None, Some(file), Some(device)) => again(args, file, device, &workplace, work.path()),
        _ => Err(Failed::new(ExitCode::Usage, "a CASE, or --repro with --device, is wanted")),
    }
}

/// Traces one cell and writes what was found.
fn one(args: &Args, cell: &CellId, workplace: &Workplace, work: &Path) -> Result<ExitCode, Failed> {
    let (_, _, out) = out_folder(args.shared.out.as_ref())?;
    let plan = plan(args, cell.clone(), workplace, work)?;
    let bench = Bench { workplace, work, tell: &|line| eprintln!("{line}") };
    let (mut trace, spools) = crate::trace::trace(&plan, args.graph, &bench)?;
    trace.rerun = rerun(args, cell);
    print!("{}", render::console(&trace));
    let wanted = match &args.write_repro {
        Some(name) => Some(trace.nodes.iter().find(|node| node.name == *name).ok_or_else(|| {
            Failed::new(ExitCode::Usage, format!("node `{name}`: the graph has none of this name"))
        })?),
        None => trace.bad_node(),
    };
    if let Some(node) = wanted {
        write_repro(args, &plan, &trace, node, &spools.reference, &out.join("repro.safetensors"))?;
    }
    write(
        &out,
        &[
            ("trace.json", serde_json::to_string_pretty(&trace).expect("traces are plain data") + "\n"),
            ("trace.md", render::markdown(&trace)),
            ("nodes.csv", render::csv(&trace)),
        ],
    )?;
    println!("report: {}", out.join("trace.md").display());
    Ok(trace.exit_code())
}

fn write(out: &Path, files: &[(&str, String)]) -> Result<(), RunError> {
    for (name, text) in files {
        let path = out.join(name);
        crate::atomic::write_with(&path, |partial| std::fs::write(partial, text))
            .map_err(|source: std::io::Error| RunError::Io { path, source })?;
    }
    Ok(())
}

fn write_repro(
    args: &Args,
    plan: &Plan,
    trace: &Trace,
    node: &NodeReport,
    reference: &Path,
    path: &Path,
) -> Result<(), Failed> {
    let model = &plan.models[0];
    let file = path.display().to_string();
    let device = trace.cell.device.to_string();
    let build = args.shared.ggml.clone().unwrap_or_else(|| trace.cell.build.clone());
    let words = ["ggml-parity", "trace", "--repro", &file, "--device", &device, "--ggml", &build];
    let command = shlex::try_join(words).unwrap_or_else(|_| words.join(" "));
    let mut walked = Walked::open(reference).map_err(TraceError::from)?;
    let repro = Repro::of(&mut walked, &model.model.file, node, &trace.cell, command.clone())?;
    repro.write(path)?;
    println!("\n{} alone: {command}", node.name);
    Ok(())
}

/// Traces the case at each length.
fn by_columns(args: &Args, cell: &CellId, workplace: &Workplace, work: &Path) -> Result<ExitCode, Failed> {
    if !matches!(cell.case.mode, Mode::Prefill | Mode::Full) {
        let message = format!("--columns is for modes prefill and full, not {}", cell.case.mode);
        return Err(Failed::new(ExitCode::Usage, message));
    }
    let (_, _, out) = out_folder(args.shared.out.as_ref())?;
    let mut traces = Vec::new();
    let mut plan = plan(args, cell.clone(), workplace, work)?;
    for &n in &args.columns {
        let mut id = cell.clone();
        id.case.options.n = Some(n);
        plan.cells = vec![id];
        // Spools of one length go before those of the next are written.
        let spools =
            tempfile::tempdir_in(work).map_err(|source| RunError::Io { path: work.to_owned(), source })?;
        let bench = Bench { workplace, work: spools.path(), tell: &|line| eprintln!("{n} columns: {line}") };
        let (trace, _) = crate::trace::trace(&plan, args.graph, &bench)?;
        eprintln!("{n} columns: {}", render::verdict(&trace));
        traces.push((n as usize, trace));
    }
    let table = columns::table(&traces);
    if table.is_empty() {
        return Err(Failed::new(ExitCode::Incomplete, "no product of a weight was compared"));
    }
    print!("{}", render::columns(&table));
    write(
        &out,
        &[("columns.json", serde_json::to_string_pretty(&table).expect("tables are plain data") + "\n")],
    )?;
    println!("report: {}", out.join("columns.json").display());
    Ok(ExitCode::worst(traces.iter().map(|(_, trace)| trace.exit_code())))
}

fn plan(args: &Args, cell: CellId, workplace: &Workplace, work: &Path) -> Result<Plan, RunError> {
    let builds = open_builds(args.shared.ggml.as_slice(), [cell.build.as_str()], workplace)?;
    let check = |build: &Build| -> Result<(), RunError> {
        if build.info.name != cell.build {
            let why = format!("cell {cell}: no build `{}`; opened: {}", cell.build, build.info.name);
            return Err(RunError::Environment(why));
        }
        build.check(&cell.device)
    };
    builds.iter().try_for_each(check)?;
    cell.case.check().map_err(|error| RunError::Usage(format!("cell {cell}: {error}")))?;
    let given = args.model.clone().unwrap_or_else(|| crate::plan::models::name_of(&cell.case));
    let model = models::resolve(&given, work)?;
    if !crate::plan::matrix::has_mode(&model, cell.case.mode) {
        return Err(RunError::Usage(format!(
            "cell {cell}: architecture {} has no mode {}",
            model.model.hparams.architecture.name(),
            cell.case.mode
        )));
    }
    Ok(Plan {
        builds,
        models: vec![model],
        cells: vec![cell],
        wishes: args.shared.wishes(),
        threads: args.shared.threads(),
        tolerances: Tolerances::embedded(),
        oracle: OracleUse::Never,
        planted: crate::planted::Plantings::default(),
    })
}

/// The command that does the same again.
fn rerun(args: &Args, cell: &CellId) -> String {
    let mut words = vec!["ggml-parity".to_owned(), "trace".to_owned(), cell.to_string()];
    words.extend(args.model.iter().flat_map(|model| ["--model".to_owned(), model.clone()]));
    words.extend(args.shared.flags());
    let graph = match args.graph {
        GraphChoice::FirstBad => None,
        GraphChoice::Worst => Some("worst".to_owned()),
        GraphChoice::Last => Some("last".to_owned()),
        GraphChoice::Number(n) => Some(n.to_string()),
    };
    if let Some(graph) = graph {
        words.extend(["--graph".to_owned(), graph]);
    }
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

/// Computes the node of a file on a device and on the CPU, and compares both with the f64 value.
fn again(
    args: &Args,
    file: &Path,
    device: &DeviceSelector,
    workplace: &Workplace,
    work: &Path,
) -> Result<ExitCode, Failed> {
    let mut repro = Repro::open(file)?;
    let named = device.build.as_deref().unwrap_or(&repro.document.cell.build).to_owned();
    let builds = open_builds(args.shared.ggml.as_slice(), [named.as_str()], workplace)?;
    let [build] = &builds[..] else {
        return Err(Failed::new(ExitCode::Usage, "one build is wanted"));
    };
    let device = device.without_build();
    build.check(&device)?;
    let truth = match repro.evaluate() {
        Ok(truth) => truth,
        Err(error) => {
            eprintln!("{error}; held against the reference's value instead");
            repro.reference.clone()
        }
    };
    let node = repro.node();
    println!("{} {} {:?} of {}", node.op, node.name, node.ne, repro.document.cell);
    let limit = repro.document.limit;
    let report = |who: &str, values: &[f64]| {
        let nmse = crate::trace::figures::Figures::of(&truth, values, truth.len().max(1)).nmse;
        println!(
            "  {who:<28} {} {}",
            crate::report::format::scientific(nmse),
            if nmse <= limit { "" } else { "over the limit" }
        );
        !(nmse <= limit)
    };
    report("reference, as it was traced", &repro.reference);
    let mut arms = vec![DeviceSelector::cpu()];
    if device != DeviceSelector::cpu() {
        arms.push(device);
    }
    let mut off = Culprit::Neither;
    for arm in arms {
        let into = work.join(arm.to_string());
        let id =
            CellId { device: arm.clone(), build: build.info.name.clone(), ..repro.document.cell.clone() };
        let cell = JobCell {
            id,
            path: PathBuf::new(),
            model: crate::capture::ModelInfo::default(),
            inputs: crate::plan::inputs::Inputs::none(),
            replay: None,
            capture: PathBuf::new(),
            lost: None,
            fault: None,
            pins: None,
        };
        let run = RunJob {
            folder: build.folder.clone(),
            build: build.info.clone(),
            device: arm.clone(),
            threads: args.shared.threads(),
            cells: vec![cell],
        };
        let job = |run| Job::Replay(Box::new(ReplayJob { run, file: file.to_owned(), into: into.clone() }));
        let ended = worker::one(workplace, &run, &build.environment, job).map_err(RunError::from)?;
        TraceError::of(&format!("the node on {arm}"), ended)?;
        let (backend, values) = repro::outcome(&repro, &into)?;
        let mark = if backend == arm.base { String::new() } else { format!(" (ran on {backend})") };
        if report(&format!("{arm}{mark}"), &values) {
            off = Culprit::Device;
        }
    }
    println!("  {:<28} {}", "limit", crate::report::format::scientific(limit));
    Ok(if off == Culprit::Device { ExitCode::Diverged } else { ExitCode::Success })
}
