//! `ggml-parity run`: plan, run, compare, judge, report.

use super::Failed;
use super::announce::Output;
use super::cells::{default_threads, open_builds};
use super::home::Home;
use super::teller::Teller;
use crate::keep::{CaptureStore, Head, Journal, Keep, executable_digest};
use crate::pipeline::{self, Build, Folders, OracleUse, Plan, RunError};
use crate::plan::inputs::Wishes;
use crate::plan::matrix::{self, Preset, Row};
use crate::plan::models::{self, ResolvedModel};
use crate::plan::{Attention, Case, CellId, DeviceSelector, Mode, Options, Shard};
use crate::planted::Plantings;
use crate::report::{self, Run, ShardOf};
use crate::verdict::ExitCode;
use crate::worker::Workplace;
use bytesize::ByteSize;
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
  ggml-parity run --resume reports/2026-11-29T101500Z-4711
      a run that was interrupted goes on: what was computed counts";

/// Which cells: models x modes x options x devices of builds, or cells by their ids.
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
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
}

impl Selection {
    /// Whether options are named.
    pub(super) fn has_options(&self) -> bool {
        self.options.is_some()
    }
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    which: Selection,
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
    /// CPU threads [default: physical cores less one, at least one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds a cell may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// A file of limits in place of those that ship, as `calibrate` writes them
    #[arg(long, value_name = "FILE")]
    tolerances: Option<PathBuf>,
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
    /// Go on with the interrupted run in this folder, with the arguments that it was started with
    #[arg(long, value_name = "DIR", exclusive = true)]
    resume: Option<PathBuf>,
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
    let home = Home::open(&out)?;
    let workplace = super::workplace(&home.work, Duration::from_secs(args.timeout))?;

    let planned = plan(args, &workplace, &home.work).and_then(|mut plan| {
        let shard = args.shard.map(|shard| take_part(&mut plan, shard)).transpose()?;
        Ok((plan, shard))
    });
    let (plan, shard) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            home.leave();
            return Err(error.into());
        }
    };
    let program = executable_digest().map_err(|error| {
        Failed::new(ExitCode::Environment, format!("this binary cannot be read: {error}"))
    })?;
    let identity = plan.identity(&program);
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
        started: stamp,
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
    report.keep_captures(&out);
    teller.finish();
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
const INTERRUPTED: i32 = 130;

fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    shlex::try_quote(&path).map_or_else(|_| path.clone().into_owned(), |quoted| quoted.into_owned())
}

/// Leaves the cells of one shard in `plan`.
fn take_part(plan: &mut Plan, part: Shard) -> Result<ShardOf, RunError> {
    let cells = part.pick(&plan.cells);
    if cells.is_empty() {
        let cases: std::collections::BTreeSet<&Case> = plan.cells.iter().map(|id| &id.case).collect();
        let cases = cases.len();
        return Err(RunError::Usage(format!(
            "--shard {part}: nothing is left for it, for all cells of a case stay together and the matrix has \
             {cases} cases; at most {cases} shards"
        )));
    }
    Ok(ShardOf { part, declared: std::mem::replace(&mut plan.cells, cells) })
}

fn plan(args: &Args, workplace: &Workplace, work: &Path) -> Result<Plan, RunError> {
    let (builds, models, cells) = declared(&args.which, args.no_oracle, workplace, work, |rows, _| rows)?;
    Ok(Plan {
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
        threads: args.threads.map_or_else(default_threads, |n| n as usize),
        tolerances: super::tolerances(args.tolerances.as_deref())?,
        oracle: match (args.no_oracle, args.oracle) {
            (true, _) => OracleUse::Never,
            (false, true) => OracleUse::Always,
            (false, false) => OracleUse::Affordable,
        },
        planted: Plantings::default(),
    })
}

/// Builds, models and cells.
pub(super) type Declared = (Vec<Build>, Vec<ResolvedModel>, Vec<CellId>);

/// The builds, models and cells of a selection, at least one of each; `expand` may change what is asked for once the
/// models are known.
pub(super) fn declared(
    which: &Selection,
    no_oracle: bool,
    workplace: &Workplace,
    work: &Path,
    expand: impl FnOnce(Vec<Row>, &[ResolvedModel]) -> Vec<Row>,
) -> Result<Declared, RunError> {
    let named = which.cell.iter().map(|id| id.build.as_str());
    let named = named.chain(which.device.iter().filter_map(|device| device.build.as_deref()));
    let builds = open_builds(&which.ggml, named, workplace)?;
    let rows = rows(which);
    let mut models: Vec<ResolvedModel> = Vec::new();
    for row in &rows {
        if !models.iter().any(|model| model.given == row.model) {
            models.push(models::resolve(&row.model, work)?);
        }
    }
    let cells = if which.cell.is_empty() {
        declare(which, no_oracle, &expand(rows, &models), &builds, &models)?
    } else {
        which.cell.clone()
    };
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
    Ok((builds, models, cells))
}

/// What is asked for: the models named by `--model`, those of cells, or a preset.
fn rows(which: &Selection) -> Vec<Row> {
    let options = which.options.unwrap_or_default();
    let row = |model: String| Row { model, modes: which.mode.clone(), options: vec![options] };
    if !which.model.is_empty() {
        return which.model.iter().cloned().map(row).collect();
    }
    if !which.cell.is_empty() {
        return which.cell.iter().map(|id| models::name_of(&id.case)).map(row).collect();
    }
    let mut rows = which.preset.unwrap_or(Preset::Quick).rows();
    for row in &mut rows {
        if !which.mode.is_empty() {
            row.modes.clone_from(&which.mode);
        }
        if which.options.is_some() {
            row.options = vec![options];
        }
    }
    rows
}

/// Rows x devices.
fn declare(
    which: &Selection,
    no_oracle: bool,
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
                // A ready-made matrix leaves out what ends the process at random; a named model does not.
                let flash = case.options.attn == Attention::Flash && which.model.is_empty();
                let devices = devices(which, no_oracle, build, model, i > 0)?.into_iter();
                for device in devices.filter(|device| !(flash && build.is_llvmpipe(device))) {
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
    which: &Selection,
    no_oracle: bool,
    build: &Build,
    model: &ResolvedModel,
    further: bool,
) -> Result<Vec<DeviceSelector>, RunError> {
    if !which.device.is_empty() {
        let mine = |d: &&DeviceSelector| d.build.as_ref().is_none_or(|name| *name == build.info.name);
        let named: Vec<_> = which.device.iter().filter(mine).map(DeviceSelector::without_build).collect();
        named.iter().try_for_each(|device| build.check(device))?;
        // A ready-made matrix holds models that an extra buffer type does not take; a named model must fit.
        let fits = |device: &DeviceSelector| !which.model.is_empty() || build.takes(device, model);
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
    Ok(if devices.is_empty() && only_cpu && !no_oracle { vec![DeviceSelector::cpu()] } else { devices })
}
