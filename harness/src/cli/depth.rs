//! `ggml-parity depth`: one cell by context length.

use super::Failed;
use super::cells::out_folder;
use super::means::Means;
use super::teller::Teller;
use crate::depth::grid::{self, Lengths};
use crate::depth::report::DepthReport;
use crate::depth::run::{Depth, DepthError, Told, at};
use crate::gate::Gate;
use crate::keep::{CaptureStore, executable_digest};
use crate::pipeline::{Build, OracleUse, Plan, RunError};
use crate::plan::inputs::Wishes;
use crate::plan::matrix::has_mode;
use crate::plan::{CellId, models};
use crate::planted::Plantings;
use crate::report::{INDEX, Run};
use crate::verdict::ExitCode;
use crate::worker::Workplace;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  ggml-parity depth 'gen-llama/f32/prefill@npm-3.21.1:CPU@x64'
      every length to 9, then powers of two and what lies around them, to 256
  ggml-parity depth 'gen-llama/f32/prefill?attn=flash&kv=f16@npm-3.10.0:Vulkan0' --max 64 --no-oracle
      finds that the flash attention of ggml b5640 is right at 32 and 64 and wrong between them
  ggml-parity depth 'model/q4_1/decode@npm-3.21.1:CUDA0' --model model.gguf --at 1..64,128,256,1024,4096
      lengths of your own; where neighbours differ, what lies between them is halved

A length is the tokens of the prompt; for masked diffusion, of the sequence, half of which is masks. What was computed is kept:
the same command with the same --out goes on where it was, and with a larger --max or more --at adds to it.";

/// The longest length of the default grid.
const MAX: u32 = 256;

/// Arguments of `depth`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A cell by its id, as `run --cell` takes it, without the option n
    #[arg(value_name = "CELL")]
    cell: CellId,
    /// The model file of the cell, where its id names none that is known
    #[arg(long, value_name = "FILE|NAME")]
    model: Option<String>,
    /// A ggml build: a folder, or the name of a fetched build [default: the one that the cell names]
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Option<String>,
    /// The longest length of the default grid
    #[arg(long, value_name = "N", default_value_t = MAX, conflicts_with = "at", value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// The lengths to try first, instead of the default grid: 1,2,33,60..70
    #[arg(long, value_name = "N,N..N,...", value_delimiter = ',')]
    at: Vec<Lengths>,
    /// Try no more lengths than this
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    most: u32,
    /// Tokens to generate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    generate: Option<u32>,
    /// Steps of a masked generation
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Another draw of the tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    sample: u32,
    #[command(flatten)]
    means: Means,
    /// Leave the oracle out: the CPU and the device alone are compared
    #[arg(long, conflicts_with = "oracle")]
    no_oracle: bool,
    /// Compute the oracle however large the case [default: up to 2.5e10 tokens x parameters]
    #[arg(long)]
    oracle: bool,
    /// Compute references and oracles anew, and store none for the next run
    #[arg(long)]
    no_cache: bool,
    /// Where the report goes [default: reports/NAME, NAME made of the time]
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
    /// Print the report as JSON on standard output and nothing else there
    #[arg(long)]
    json: bool,
    /// Print no progress and no table: only what is known and where the report is
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
}

impl From<DepthError> for Failed {
    fn from(error: DepthError) -> Self {
        match error {
            DepthError::Run(error) => error.into(),
            DepthError::Journal(error) => Self::new(ExitCode::Usage, error),
        }
    }
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let grid = grid(args)?;
    let gate = Gate::embedded();
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let workplace = args.means.settle(&gate)?.workplace(work.path())?;
    let plan = plan(args, &gate, &grid, &workplace, work.path())?;
    let program = executable_digest().map_err(|error| {
        Failed::new(ExitCode::Environment, format!("this binary cannot be read: {error}"))
    })?;
    let store = match args.no_cache {
        true => None,
        false => {
            Some(CaptureStore::new(super::cache::folder()?, super::cache::limit(None)?, program.clone()))
        }
    };
    let (name, started, out) = out_folder(args.out.as_ref())?;
    let header = Run {
        name,
        started,
        command: super::command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Run::default()
    };
    let depth = Depth {
        cell: args.cell.clone(),
        grid,
        most: args.most as usize,
        plan,
        workplace: &workplace,
        folder: &out,
        store,
        program,
    };
    let report = depth.run(header, tell(!args.quiet)).map_err(|error| {
        let failed = Failed::from(error);
        let go_on = format!(
            "{}\nwhat was computed is kept; the same command with --out {} goes on",
            failed.message,
            out.display()
        );
        Failed { message: go_on, ..failed }
    })?;
    report.write(&out).map_err(|source| RunError::Io { path: out.clone(), source })?;
    announce(args, &out, &report);
    Ok(report.exit_code())
}

/// Says how far the sweep is, on standard error.
fn tell(shown: bool) -> impl FnMut(Told<'_>) {
    let mut teller = Teller::new(0, shown);
    move |told| match told {
        Told::Known(count) if shown => eprintln!("{count} lengths are known from an earlier start"),
        Told::Round(lengths, captures) => {
            teller.finish();
            if shown {
                let lengths: Vec<String> = lengths.iter().map(|(n, _)| n.to_string()).collect();
                eprintln!("lengths {}", lengths.join(", "));
            }
            teller = Teller::new(captures, shown);
        }
        Told::Progress(progress) => teller.tell(&progress),
        Told::Point(_) => teller.finish(),
        Told::Known(_) => {}
    }
}

/// Says what was found; the last line names the file to open.
fn announce(args: &Args, out: &Path, report: &DepthReport) {
    let place = format!("report: {}", out.join(INDEX).display());
    if args.json {
        print!("{}", report.json());
        eprintln!("{}\n{place}", report.summary());
    } else if args.quiet {
        println!("{}\n{}\n{place}", report.known().join("\n"), report.summary());
    } else {
        println!("{}{place}", report.text());
    }
}

/// The lengths to try first.
fn grid(args: &Args) -> Result<Vec<u32>, Failed> {
    let usage = |why: String| Failed::new(ExitCode::Usage, why);
    let cell = &args.cell;
    if let Some(n) = cell.case.options.n {
        return Err(usage(format!(
            "cell {cell}: option n is {n}, and lengths are what is varied: leave it out"
        )));
    }
    let least = grid::least(cell.case.mode);
    let mode = cell.case.mode;
    if args.at.is_empty() && args.max < least {
        return Err(usage(format!("--max is {}, and mode {mode} needs {least} tokens", args.max)));
    }
    if let Some(short) = args.at.iter().find(|lengths| lengths.first < least) {
        return Err(usage(format!("--at has {}, and mode {mode} needs {least} tokens", short.first)));
    }
    let named: usize = args.at.iter().map(|lengths| (lengths.last - lengths.first) as usize + 1).sum();
    let grid = match args.at.is_empty() {
        true => grid::standard(least, args.max),
        false if named > args.most as usize => {
            return Err(usage(format!("--at names {named} lengths, and --most is {}", args.most)));
        }
        false => {
            let all: std::collections::BTreeSet<u32> =
                args.at.iter().flat_map(|lengths| lengths.first..=lengths.last).collect();
            all.into_iter().collect()
        }
    };
    if grid.len() > args.most as usize {
        return Err(usage(format!("the grid has {} lengths, and --most is {}", grid.len(), args.most)));
    }
    Ok(grid)
}

/// Build, model and limits; the cells come round by round.
fn plan(
    args: &Args,
    gate: &Gate,
    grid: &[u32],
    workplace: &Workplace,
    work: &Path,
) -> Result<Plan, RunError> {
    let id = &args.cell;
    let build = Build::open(Some(args.ggml.as_deref().unwrap_or(&id.build)), workplace)?;
    if build.info.name != id.build {
        let (wanted, opened) = (&id.build, &build.info.name);
        return Err(RunError::Environment(format!("cell {id}: no build `{wanted}`; opened: {opened}")));
    }
    build.check(&id.device)?;
    let first = at(id, grid.first().copied().unwrap_or(1));
    first.case.check().map_err(|error| RunError::Usage(format!("cell {id}: {error}")))?;
    let given = args.model.clone().unwrap_or_else(|| models::name_of(&id.case));
    let model = models::resolve(&given, work)?;
    if (&model.name, &model.weights) != (&id.case.model, &id.case.weights) || !has_mode(&model, id.case.mode)
    {
        return Err(RunError::Usage(format!(
            "cell {id}: model {}/{} is not its model, or has no mode {}",
            model.name, model.weights, id.case.mode
        )));
    }
    let oracle = match (args.no_oracle, args.oracle) {
        (true, _) => OracleUse::Never,
        (false, true) => OracleUse::Always,
        (false, false) => OracleUse::Affordable,
    };
    Ok(Plan {
        builds: vec![build],
        models: vec![model],
        cells: Vec::new(),
        wishes: Wishes {
            generate: args.generate.map(|n| n as usize),
            steps: args.steps.map(|n| n as usize),
            sample: args.sample,
            ..Wishes::default()
        },
        threads: args.means.threads(gate),
        tolerances: args.means.tolerances(gate)?,
        oracle,
        planted: Plantings::default(),
    })
}
