//! `ggml-parity capture`: captures of cells, to be compared elsewhere.

use super::Failed;
use super::cells::default_threads;
use super::teller::Teller;
use crate::capture::CaptureReader;
use crate::pairs::Captures;
use crate::pipeline::{self, Build, Captured, Folders, OracleUse, Plan, RunError};
use crate::plan::inputs::Wishes;
use crate::plan::models::{self, ResolvedModel};
use crate::plan::{Case, CellId, DeviceSelector};
use crate::planted::Plantings;
use crate::verdict::{ExitCode, Outcome, Status, Tolerances, exit_code};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ggml-parity capture gen-qwen2/f32/decode gen-llama/f32/prefill --out reference
      two cases on the plain CPU, each on its own trajectory
  ggml-parity capture --replay reference --device CUDA0 --out device
      on another machine: every case of those captures, along their trajectories
  ggml-parity compare reference device
      the comparison, which needs neither machine";

/// Arguments of `capture`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A case by its id, as gen-qwen2/f32/decode?kv=q8_0 [default: every case of --replay]
    #[arg(value_name = "CASE", required_unless_present = "replay")]
    case: Vec<Case>,
    /// A device, by exact name; repeat for several
    #[arg(long, value_name = "NAME", default_value = "CPU")]
    device: Vec<DeviceSelector>,
    /// A model: a GGUF file, a generated model, one of corpus/models.toml or of GGML_PARITY_MODELS; repeat for several
    /// [default: what the cases name]
    #[arg(long, value_name = "FILE|NAME")]
    model: Vec<String>,
    /// A ggml build: a folder, or the name of a fetched build
    #[arg(long, value_name = "DIR|NAME")]
    ggml: Option<String>,
    /// Captures of the reference, whose trajectory modes with steps follow
    #[arg(long, value_name = "DIR|FILE")]
    replay: Option<PathBuf>,
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
    /// Where the captures go
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    std::fs::create_dir_all(&args.out).map_err(|source| RunError::Io { path: args.out.clone(), source })?;
    let workplace = super::workplace(work.path(), Duration::from_secs(args.timeout))?;
    let references = references(args)?;
    let plan = plan(args, &references, Build::open(args.ggml.as_deref(), &workplace)?, work.path())?;
    let replay = replay(&plan, &references)?;
    let mut teller = Teller::new(plan.cells.len(), true);
    let folders = Folders { captures: args.out.clone() };
    let captured = pipeline::capture(&plan, &workplace, &folders, &replay, |p| teller.tell(&p))?;
    teller.finish();
    let mut outcomes = Vec::new();
    for (id, captured) in &captured {
        let (status, told) = match captured {
            Captured::Written(path) => (Status::Pass, path.display().to_string()),
            Captured::Failed(verdict) => (verdict.status, verdict.reason.clone()),
        };
        let word = if status == Status::Pass { "captured" } else { status.name() };
        println!("{word}: {id}: {told}");
        outcomes.push(Outcome { status, declared: false, compared: status == Status::Pass });
    }
    Ok(exit_code(outcomes))
}

/// The captures of `--replay` by case.
fn references(args: &Args) -> Result<BTreeMap<Case, PathBuf>, Failed> {
    let Some(given) = &args.replay else { return Ok(BTreeMap::new()) };
    let refuse = |error| Failed::new(ExitCode::Usage, error);
    let captures = Captures::open(given).map_err(refuse)?;
    let entries = captures.references().map_err(refuse)?;
    Ok(entries.into_iter().map(|(case, entry)| (case, entry.path.clone())).collect())
}

fn plan(
    args: &Args,
    references: &BTreeMap<Case, PathBuf>,
    build: Build,
    work: &Path,
) -> Result<Plan, RunError> {
    let cases: Vec<Case> =
        if args.case.is_empty() { references.keys().cloned().collect() } else { args.case.clone() };
    let mut given = args.model.clone();
    if given.is_empty() {
        given.extend(cases.iter().map(models::name_of));
        given.sort();
        given.dedup();
    }
    let models: Vec<ResolvedModel> =
        given.iter().map(|name| models::resolve(name, work)).collect::<Result<_, _>>()?;
    let mut cells = Vec::new();
    for case in &cases {
        case.check().map_err(|error| RunError::Usage(format!("case {case}: {error}")))?;
        let model = models.iter().find(|model| model.name == case.model && model.weights == case.weights);
        if !model.is_some_and(|model| crate::plan::matrix::has_mode(model, case.mode)) {
            let known: Vec<String> =
                models.iter().map(|model| format!("{}/{}", model.name, model.weights)).collect();
            let known = known.join(", ");
            return Err(RunError::Usage(format!("case {case}: no model that has this mode among {known}")));
        }
        for device in &args.device {
            build.check(device)?;
            let id = CellId::new(case.clone(), &build.info.name, device);
            if id.build != build.info.name {
                return Err(RunError::Environment(format!(
                    "device {device}: the build is {}",
                    build.info.name
                )));
            }
            if !cells.contains(&id) {
                cells.push(id);
            }
        }
    }
    Ok(Plan {
        builds: vec![build],
        models,
        cells,
        wishes: Wishes {
            prompt: args.prompt.clone(),
            generate: args.generate.map(|n| n as usize),
            steps: args.steps.map(|n| n as usize),
            draft: args.draft.clone(),
            sample: 0,
        },
        threads: args.threads.map_or_else(default_threads, |n| n as usize),
        tolerances: Tolerances::embedded(),
        oracle: OracleUse::Never,
        planted: Plantings::default(),
    })
}

/// The capture that each cell follows; each must be of the model that is here.
fn replay(plan: &Plan, references: &BTreeMap<Case, PathBuf>) -> Result<BTreeMap<CellId, PathBuf>, RunError> {
    let mut replay = BTreeMap::new();
    for id in plan.cells.iter().filter(|_| !references.is_empty()) {
        let path = references
            .get(&id.case)
            .ok_or_else(|| RunError::Usage(format!("case {}: no capture of it in --replay", id.case)))?;
        let reference = CaptureReader::open(path).map_err(|error| RunError::Usage(error.to_string()))?;
        let model = plan.models.iter().find(|m| m.name == id.case.model && m.weights == id.case.weights);
        let here = model.map_or("none", |model| &model.sha256);
        let there = &reference.meta().model.sha256;
        if there != here {
            let path = path.display();
            return Err(RunError::Usage(format!(
                "{path}: model.sha256 is {there}, the model here has {here}"
            )));
        }
        replay.insert(id.clone(), path.clone());
    }
    Ok(replay)
}
