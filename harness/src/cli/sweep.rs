//! `ggml-parity sweep`: a corpus on models, modes and devices, with statistics.

use super::Failed;
use super::cells::{default_threads, open_builds, out_folder};
use super::home::Home;
use super::sweep_teller::Teller;
use crate::keep::{Head, executable_digest};
use crate::pipeline::RunError;
use crate::plan::models::{self, ResolvedModel};
use crate::plan::{DeviceSelector, Shard, safe_name};
use crate::sweep::arms::{Baseline, Declared, Declaring, ModeSpec, declare};
use crate::sweep::corpus::Corpus;
use crate::sweep::items::select;
use crate::sweep::journal::SweepJournal;
use crate::sweep::result::{Settings, Sweep, SweepRun, Templates};
use crate::sweep::run::{SweepPlan, finish, run};
use crate::sweep::stats::bootstrap::Resampling;
use crate::sweep::{render, summary};
use crate::verdict::ExitCode;
use crate::worker::{MemoryLimit, Workplace};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  ggml-parity sweep --corpus arithmetic --model dream-arith --device Vulkan0
      501 problems on the CPU and on Vulkan0: accuracy, what is lost and gained, KL
  ggml-parity sweep --corpus arithmetic --model dream-arith --model dream-arith:q8_0 --device CPU+repack \\
      --mode full --mode full-cache --mode sparse --limit 40
      three cache modes x two weight types; each is held against the plain CPU in the same mode
  ggml-parity sweep --corpus arithmetic --model dream-arith --device CPU --mode sparse --reference mode=full
      what a sparse cache costs against none, on the same device
  ggml-parity sweep --corpus instruct --corpus passages --model smollm2-135m-instruct --device CPU \\
      --reference model=smollm2-135m-instruct:q8_0
      Q4_1 against a Q8_0 copy: answers, and the perplexity of texts
  ggml-parity sweep --corpus my.jsonl --model model.gguf --device CUDA0 --fail-if-drop 1
      exit 1 where accuracy drops significantly and by more than one percentage point
  ggml-parity sweep --resume reports/2026-11-29T101500Z-4711
      a sweep that was interrupted goes on: no finished item is computed again

Modes of masked models are what the steps of a generation take from the cache: full (nothing), full-cache, sparse.
A text is scored in windows of --context tokens that follow each other by --stride; by a masked model at masks that are
drawn with --seed.";

/// Arguments of `sweep`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A corpus: a file, or arithmetic, instruct, passages, long-context, edge; repeat for several
    #[arg(long, value_name = "FILE|NAME", required_unless_present = "resume")]
    corpus: Vec<String>,
    /// A model as `run` takes it (NAME:TYPE converts its weights), or NAME=FILE; repeat for several
    #[arg(long, value_name = "FILE|NAME", required_unless_present = "resume")]
    model: Vec<String>,
    /// A ggml build: a folder, or the name of a fetched build; repeat for several
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Vec<String>,
    /// A device, by exact name: Vulkan0, CPU@x64, CPU+repack, BUILD:CUDA0; repeat for several [default: all but the
    /// plain CPU, which they are held against]
    #[arg(long, value_name = "NAME")]
    device: Vec<DeviceSelector>,
    /// A mode with its options, as `generate?kv=f16`, `sparse?keep=1`; repeat for several [default: generate]
    #[arg(long, value_name = "MODE[?OPTIONS]")]
    mode: Vec<ModeSpec>,
    /// Hold every arm also against the one that differs from it so: mode=MODE, model=NAME, device=NAME; repeat to change
    /// several
    #[arg(long, value_name = "FIELD=VALUE")]
    reference: Vec<String>,
    /// Items of each corpus at most, evenly spaced
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Only items with this tag; repeat for several
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// New tokens at most, whatever items say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Steps of a masked generation [default: the model's, else half the masks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Put prompts, too, through the model's chat template, as a turn of the user's
    #[arg(long, conflicts_with = "no_chat")]
    chat: bool,
    /// Use no chat template: the contents of messages, joined by blank lines
    #[arg(long)]
    no_chat: bool,
    /// Tokens of one window when a text is scored
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..))]
    context: u32,
    /// Tokens by which windows follow each other [default: half the context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stride: Option<u32>,
    /// Per cent of a text's tokens that are masked when a masked model scores it
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100))]
    masked: u32,
    /// The seed of masks and of resampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Run part i of n of the items, as 1/3; `merge` puts the parts together
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Exit 1 where an arm answers significantly worse than what it is held against, after correction, and by more than
    /// so many percentage points
    #[arg(long, value_name = "POINTS", num_args = 0..=1, default_missing_value = "0", value_parser = points)]
    fail_if_drop: Option<f64>,
    /// CPU threads [default: physical cores less one, at least one]
    #[arg(long, value_name = "N", env = "GGML_PARITY_THREADS", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds an item may take on an arm
    #[arg(
        long,
        value_name = "SECONDS",
        env = "GGML_PARITY_TIMEOUT",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    timeout: u64,
    /// Memory that a worker may take, as 4GiB, on Linux [default: no limit]
    #[arg(long, value_name = "SIZE", env = "GGML_PARITY_MEMORY")]
    memory: Option<MemoryLimit>,
    /// Where the result goes [default: reports/NAME, NAME made of the time]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with the interrupted sweep in this folder, with the arguments that it was started with; no other flag may
    /// stand beside this one
    #[arg(long, value_name = "DIR")]
    pub(super) resume: Option<PathBuf>,
    /// Print the result as JSON on standard output and nothing else there
    #[arg(long)]
    json: bool,
    /// Print no progress and no table: only the summary and where the result is
    #[arg(long)]
    quiet: bool,
}

/// Percentage points of `--fail-if-drop`.
fn points(text: &str) -> Result<f64, String> {
    let points: f64 = text.parse().map_err(|_| "a number is wanted".to_owned())?;
    if (0.0..100.0).contains(&points) {
        Ok(points)
    } else {
        Err("a number from 0 to 100 is wanted".to_owned())
    }
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let Some(folder) = &args.resume else { return go(args, None) };
    let folder =
        std::path::absolute(folder).map_err(|source| RunError::Io { path: folder.clone(), source })?;
    let journal = SweepJournal::resume(&folder).map_err(RunError::from)?;
    let head = journal.head();
    let at = |source| RunError::Io { path: head.folder.clone(), source };
    std::env::set_current_dir(&head.folder).map_err(at)?;
    let mut again = super::sweep_arguments(&head.arguments)?;
    again.out = Some(folder);
    go(&again, Some(journal))
}

/// Runs what `args` say, or goes on with it where there is a journal.
fn go(args: &Args, journal: Option<SweepJournal>) -> Result<ExitCode, Failed> {
    let began = Instant::now();
    // A corpus that cannot be read leaves no folder behind.
    let corpora = args.corpus.iter().map(|given| Corpus::open(given)).collect::<Result<Vec<_>, _>>();
    let corpora = corpora.map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let made = args.out.as_ref().is_none_or(|out| !out.exists());
    let (name, now, out) = out_folder(args.out.as_ref())?;
    let head = journal.as_ref().map(SweepJournal::head);
    let started = head.map_or(now, |head| head.started.clone());
    let arguments = head.map_or_else(|| std::env::args().skip(1).collect(), |head| head.arguments.clone());
    let home = Home::open(&out)?;
    let planned = workplace(args, &home.work).and_then(|workplace| {
        let plan = plan(args, &corpora, &workplace, &home.work)?;
        Ok((plan, workplace))
    });
    let (plan, workplace) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            home.leave();
            if made {
                let _ = std::fs::remove_dir_all(&out);
            }
            return Err(error);
        }
    };
    for line in &plan.left_out {
        eprintln!("left out: {line}");
    }
    let program = executable_digest().map_err(|error| {
        Failed::new(ExitCode::Environment, format!("this binary cannot be read: {error}"))
    })?;
    let identity = plan.identity(&program);
    let journal = match journal {
        Some(journal) => journal.check(&identity).map(|()| journal),
        None => {
            let folder = std::env::current_dir().unwrap_or_default();
            SweepJournal::begin(&out, Head::new(started.clone(), arguments.clone(), folder, identity))
        }
    };
    let mut journal = journal.map_err(RunError::from)?;
    let go_on = format!("to go on: ggml-parity sweep --resume {}", super::run::quoted(&out));
    let told = go_on.clone();
    // Without the handler the sweep would end all the same, only with less to say.
    let _ = ctrlc::set_handler(move || {
        eprintln!("\ninterrupted; what was computed is kept; {told}");
        std::process::exit(super::run::INTERRUPTED);
    });
    let hint = |error: Failed| {
        let message = format!("{}\nwhat was computed is kept; {go_on}", error.message);
        Failed { message, ..error }
    };
    let mut teller = Teller::new(plan.rows(), journal.len(), !args.quiet);
    run(&plan, &workplace, &home.captures, &mut journal, |told| teller.tell(&told))
        .map_err(|error| hint(error.into()))?;
    teller.finish();
    let words = [&["ggml-parity".to_owned()], arguments.as_slice()].concat();
    let header = SweepRun {
        name,
        started,
        seconds: began.elapsed().as_secs_f64(),
        command: shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" ")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        computed: (journal.len() - journal.resumed()) as u64,
        resumed: journal.resumed() as u64,
        shard: args.shard,
    };
    let mut sweep = finish(&plan, &journal, header);
    if let Some(points) = args.fail_if_drop {
        summary::set_limit(&mut sweep, points);
    }
    render::write(&out, &sweep).map_err(|error| hint(Failed::new(ExitCode::Usage, error)))?;
    journal.close().map_err(RunError::from)?;
    home.close(false)?;
    announce(&sweep, &out, args.json, args.quiet);
    Ok(sweep.exit_code())
}

/// Says what a sweep has found. The last line names the file to open.
pub(super) fn announce(sweep: &Sweep, out: &Path, json: bool, quiet: bool) {
    let place = format!("result: {}", out.join(crate::report::INDEX).display());
    match (json, quiet) {
        (true, quiet) => {
            print!("{}", render::json::render(sweep));
            if !quiet {
                eprintln!("{}\n{place}", sweep.verdict());
            }
        }
        (false, true) => println!("{}\n{place}", sweep.verdict()),
        (false, false) => println!("{}{place}", render::console::render(sweep)),
    }
}

fn workplace(args: &Args, work: &Path) -> Result<Workplace, Failed> {
    if args.memory.is_some() && !crate::worker::memory::OFFERED {
        let message = "--memory: this system offers no limit of a process's memory";
        return Err(Failed::new(ExitCode::Usage, message));
    }
    let workplace = super::workplace(work, Duration::from_secs(args.timeout))?;
    Ok(Workplace { memory: args.memory, ..workplace })
}

fn plan(args: &Args, corpora: &[Corpus], workplace: &Workplace, work: &Path) -> Result<SweepPlan, Failed> {
    let (corpora, items) = select(corpora, &args.tag, args.limit.map(|n| n as usize), args.shard)?;
    let baseline = Baseline::parse(&args.reference)?;
    let mut models: Vec<ResolvedModel> = Vec::new();
    for given in &args.model {
        add(&mut models, given, work)?;
    }
    let declared_models = models.len();
    if let Some(given) = baseline.as_ref().and_then(|baseline| baseline.model.as_ref()) {
        add(&mut models, given, work)?;
    }
    let settings = settings(args);
    let inputs = SweepPlan::inputs(&models, &items, &settings)?;
    let named = args.device.iter().filter_map(|device| device.build.as_deref());
    let builds = open_builds(&args.ggml, named, workplace)?;
    let Declared { arms, left_out } = declare(&Declaring {
        builds: &builds,
        models: &models,
        declared_models,
        devices: &args.device,
        modes: &args.mode,
        baseline: baseline.as_ref(),
    })?;
    if arms.is_empty() {
        let why = "nothing to sweep: beside the plain CPU there is no device that takes these models; --device CPU \
                   sweeps the CPU itself";
        return Err(Failed::new(ExitCode::Environment, why));
    }
    Ok(SweepPlan { builds, models, arms, left_out, corpora, items, inputs, settings })
}

fn usage(error: &dyn std::fmt::Display) -> Failed {
    Failed::new(ExitCode::Usage, error)
}

/// Opens a model, unless it is there; `NAME=FILE` is the model of a file under another name.
fn add(models: &mut Vec<ResolvedModel>, given: &str, work: &Path) -> Result<(), Failed> {
    if models.iter().any(|model| model.given == given) {
        return Ok(());
    }
    let renamed = given.split_once('=').filter(|(name, _)| safe_name(name) == *name);
    let renamed = renamed.filter(|_| !Path::new(given).is_file());
    let mut model = models::resolve(renamed.map_or(given, |(_, file)| file), work).map_err(RunError::from)?;
    given.clone_into(&mut model.given);
    if let Some((name, _)) = renamed {
        name.clone_into(&mut model.name);
    }
    let same = |other: &&ResolvedModel| (&other.name, &other.weights) == (&model.name, &model.weights);
    if let Some(other) = models.iter().find(same) {
        return Err(usage(&format!(
            "--model {given}: {} is called {}/{} as well; NAME={given} gives it another name",
            other.given, other.name, other.weights
        )));
    }
    models.push(model);
    Ok(())
}

fn settings(args: &Args) -> Settings {
    let count = |n: Option<u32>| n.map(u64::from);
    let Resampling { resamples, level, .. } = Resampling::default();
    Settings {
        tags: args.tag.clone(),
        limit: count(args.limit),
        chat: match (args.chat, args.no_chat) {
            (true, _) => Templates::All,
            (_, true) => Templates::None,
            _ => Templates::Messages,
        },
        max_tokens: count(args.max_tokens),
        steps: count(args.steps),
        context: args.context.into(),
        stride: args.stride.unwrap_or(args.context / 2).into(),
        mask_share: f64::from(args.masked) / 100.0,
        threads: args.threads.map_or_else(default_threads, |n| n as usize) as u64,
        level: level.value(),
        resamples: resamples as u64,
        seed: args.seed,
    }
}
