//! `ggml-parity run`: plan, run, compare, judge, report.

use super::Failed;
use super::announce::Output;
use super::home::Home;
use super::means::Means;
use super::selection::{Declared, Selection, declared};
use super::teller::Teller;
use crate::gate::Gate;
use crate::keep::{CaptureStore, Head, Journal, Keep, executable_digest};
use crate::pipeline::{self, Folders, OracleUse, Plan, RunError};
use crate::plan::inputs::Wishes;
use crate::plan::{Case, CellId, Shard};
use crate::planted::Plantings;
use crate::report::{self, Cell, Run, ShardOf};
use crate::verdict::ExitCode;
use crate::worker::Workplace;
use bytesize::ByteSize;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

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
  ggml-parity run --resume reports/2026-11-29T101500Z-4711
      a run that was interrupted goes on: what was computed counts
  ggml-parity run --gate my-gate.toml --preset nightly --memory 8GiB
      a preset of a gate file of one's own, each worker within 8 GiB

Of a flag, an environment variable, the gate file and the default, the first that says something counts.";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    which: Selection,
    /// Print the cells that would run, and run nothing
    #[arg(long)]
    list: bool,
    /// A text to start from, instead of the model's own or generated tokens
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Tokens to generate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    generate: Option<u32>,
    /// A GGUF file whose model proposes tokens in mode speculative [default: the model without half its layers]
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    /// Another draw of generated tokens, or the model's own prompts in turn
    #[arg(long, value_name = "N", default_value_t = 0)]
    sample: u32,
    /// Steps of a masked generation
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    #[command(flatten)]
    means: Means,
    /// Leave the oracle out: the CPU and the device alone are compared
    #[arg(long, conflicts_with = "oracle")]
    no_oracle: bool,
    /// Compute the oracle however large the case [default: up to 2.5e10 tokens x parameters, two minutes or so]
    #[arg(long)]
    oracle: bool,
    /// Run part i of n of the matrix, as 1/3; `merge` puts the reports of all parts together
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Where the report goes [default: reports/NAME, NAME made of the time]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Keep the captures beside the report
    #[arg(long)]
    keep_captures: bool,
    /// Go on with the interrupted run in this folder, with the arguments that it was started with; no other flag may stand
    /// beside this one
    #[arg(long, value_name = "DIR")]
    pub(super) resume: Option<PathBuf>,
    /// Compute references and oracles anew, and store none for the next run
    #[arg(long)]
    no_cache: bool,
    /// Bytes that the store of captures may hold (`ggml-parity cache list`)
    /// [default: 4 GiB, or GGML_PARITY_CACHE_LIMIT]
    #[arg(long, value_name = "SIZE")]
    cache_limit: Option<ByteSize>,
    /// Print the canvas of masked generations after every step
    #[arg(long, conflicts_with = "json")]
    show_steps: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    if args.list {
        return list(args);
    }
    let Some(folder) = &args.resume else { return go(args, None) };
    let folder =
        std::path::absolute(folder).map_err(|source| RunError::Io { path: folder.clone(), source })?;
    let journal = Journal::resume(&folder).map_err(RunError::from)?;
    let head = journal.head();
    let at = |source| RunError::Io { path: head.folder.clone(), source };
    std::env::set_current_dir(&head.folder).map_err(at)?;
    let mut again = super::run_arguments(&head.arguments)?;
    again.out = Some(folder);
    go(&again, Some(journal))
}

/// Runs what `args` say, or goes on with it where there is a journal.
fn go(args: &Args, journal: Option<Journal>) -> Result<ExitCode, Failed> {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let head = journal.as_ref().map(Journal::head);
    let stamp = head.map_or(now, |head| head.started.clone());
    let arguments = head.map_or_else(|| std::env::args().skip(1).collect(), |head| head.arguments.clone());
    let name = args.out.as_ref().and_then(|out| out.file_name()).map_or_else(
        || format!("{}-{}", stamp.replace(':', ""), std::process::id()),
        |name| name.to_string_lossy().into_owned(),
    );
    let out = args.out.clone().unwrap_or_else(|| Path::new("reports").join(&name));
    let gate = args.which.open_gate()?;
    let limits = args.means.settle(&gate)?;
    let home = Home::open(&out)?;
    let planned = limits.workplace(&home.work).and_then(|workplace| {
        let parts = plan(args, &gate, &workplace, &home.work)?;
        Ok((parts, workplace))
    });
    let (Planned { plan, absent, shard }, workplace) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            home.leave();
            return Err(error);
        }
    };
    let program = executable_digest().map_err(|error| {
        Failed::new(ExitCode::Environment, format!("this binary cannot be read: {error}"))
    })?;
    let mut identity = plan.identity(&program);
    // The declarations are no part of the plan, and decide as much of the outcome.
    identity.settings.insert("gate".to_owned(), gate.digest.clone());
    let journal = match journal {
        Some(journal) => journal.check(&identity).map(|()| journal),
        None => {
            let folder = std::env::current_dir().unwrap_or_default();
            Journal::begin(&out, Head::new(stamp.clone(), arguments.clone(), folder, identity))
        }
    };
    let journal = journal.map_err(RunError::from)?;
    let store = match args.no_cache {
        true => None,
        false => {
            Some(CaptureStore::new(super::cache::folder()?, super::cache::limit(args.cache_limit)?, program))
        }
    };
    let mut keep = Keep { journal: Some(journal), store };
    let words = [&["ggml-parity".to_owned()], arguments.as_slice()].concat();
    let header = Run {
        name,
        started: stamp.clone(),
        command: shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" ")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        shard,
        ..Run::default()
    };
    let go_on = format!("to go on: ggml-parity run --resume {}", quoted(&out));
    let told = go_on.clone();
    // Without the handler the run would end all the same, only with less to say.
    let _ = ctrlc::set_handler(move || {
        eprintln!("\ninterrupted; what was computed is kept; {told}");
        std::process::exit(INTERRUPTED);
    });
    let mut teller = Teller::new(plan.captures(), args.output.shows_progress());
    let folders = Folders { captures: home.captures.clone() };
    let hint = |error: Failed| {
        let message = format!("{}\nwhat was computed is kept; {go_on}", error.message);
        Failed { message, ..error }
    };
    let mut report =
        pipeline::run_keeping(&plan, &workplace, &folders, &mut keep, header, |p| teller.tell(&p))
            .map_err(|error| hint(error.into()))?;
    if args.keep_captures {
        report.keep_captures(&out);
    } else {
        report.cells.iter_mut().for_each(|cell| cell.captures = None);
    }
    teller.finish();
    report.cells.extend(absent.into_iter().map(Cell::on_absent_device));
    gate.apply(&mut report, stamp.get(..10).unwrap_or(&stamp));
    if let Some(gate) = &mut report.gate {
        gate.whole = args.which.is_whole() && report.run.shard.is_none();
    }
    if args.show_steps {
        print!("{}", super::show_steps::render(&plan, &folders));
    }
    report::write(&out, &report).map_err(|error| hint(Failed::new(ExitCode::Usage, error)))?;
    if let Some(journal) = keep.journal {
        journal.close().map_err(RunError::from)?;
    }
    home.close(args.keep_captures)?;
    args.output.announce(&out, &report);
    Ok(report.exit_code())
}

/// What shells report of a program that ended on an interrupt.
pub(super) const INTERRUPTED: i32 = 130;

/// A path as a shell takes it.
pub(super) fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    shlex::try_quote(&path).map_or_else(|_| path.clone().into_owned(), |quoted| quoted.into_owned())
}

/// What a run is to do.
struct Planned {
    plan: Plan,
    /// The cells that are declared on required devices that are not there.
    absent: Vec<CellId>,
    shard: Option<ShardOf>,
}

/// The cells of one shard. A cell on a required device that is not there is of the shard that has its case, so that it is
/// missing once.
fn take_part(plan: &mut Plan, absent: &mut Vec<CellId>, part: Shard) -> Result<ShardOf, RunError> {
    let declared: Vec<CellId> = plan.cells.iter().chain(absent.iter()).cloned().collect();
    let mine = part.pick(&declared);
    if mine.is_empty() {
        let cases: std::collections::BTreeSet<&Case> = declared.iter().map(|id| &id.case).collect();
        let cases = cases.len();
        return Err(RunError::Usage(format!(
            "--shard {part}: nothing is left for it, for all cells of a case stay together and the matrix has \
             {cases} cases; at most {cases} shards"
        )));
    }
    plan.cells.retain(|id| mine.contains(id));
    absent.retain(|id| mine.contains(id));
    Ok(ShardOf { part, declared })
}

fn plan(args: &Args, gate: &Gate, workplace: &Workplace, work: &Path) -> Result<Planned, Failed> {
    let oracle = match (args.no_oracle, args.oracle) {
        (true, _) => OracleUse::Never,
        (false, true) => OracleUse::Always,
        (false, false) => gate.settings.oracle.unwrap_or_default(),
    };
    let Declared { builds, models, cells, mut absent } =
        declared(&args.which, gate, oracle, workplace, work, |rows, _| rows)?;
    let mut plan = Plan {
        builds,
        models,
        cells,
        wishes: Wishes {
            prompt: args.prompt.clone(),
            generate: args.generate.map(|n| n as usize),
            steps: args.steps.map(|n| n as usize),
            draft: args.draft.clone(),
            sample: args.sample,
        },
        threads: args.means.threads(gate),
        tolerances: args.means.tolerances(gate)?,
        oracle,
        planted: Plantings::default(),
    };
    let shard = args.shard.map(|shard| take_part(&mut plan, &mut absent, shard)).transpose()?;
    Ok(Planned { plan, absent, shard })
}

/// Prints the cells that would run, one a line, and those that a required device lacks.
pub(super) fn list(args: &Args) -> Result<ExitCode, Failed> {
    let gate = args.which.open_gate()?;
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let workplace = args.means.settle(&gate)?.workplace(work.path())?;
    let Planned { plan, absent, .. } = plan(args, &gate, &workplace, work.path())?;
    for id in &plan.cells {
        println!("{id}");
    }
    for id in &absent {
        println!("missing: {id}");
    }
    Ok(if absent.is_empty() { ExitCode::Success } else { ExitCode::Incomplete })
}
