//! `ggml-parity bisect trial`: one trial for `git bisect run`.

use super::Failed;
use super::bisect::{Making, Means, backend_for, store};
use crate::bisect::{Bench, Outcome, Subject, Trial, Until, sources_in};
use crate::builds::cache;
use crate::builds::catalogue::hex;
use crate::builds::source::{self, TreeBuild};
use crate::builds::{self, BuildError};
use crate::pipeline::RunError;
use crate::verdict::ExitCode;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  git bisect start BAD GOOD && git bisect run ggml-parity bisect trial 'gen-llama/f32/prefill@CPU'
      builds ggml of the commit that git has checked out, and tries it
  ggml-parity bisect trial 'gen-llama/f32/prefill@Vulkan0' --ggml build/bin --until 'nmse>1e-5'
      tries a build that is there
  ggml-parity bisect trial 'gen-llama/f32/generate@CPU' --until greedy --against npm-3.21.1

This command ends with codes of its own, as `git bisect run` reads them: 0 good, 1 bad, 125 skip (it does not build or load,
lacks the device or what the case needs), 128 an error that no other commit would mend, which ends git's search.";

/// Arguments of `bisect trial`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A case on a device, as gen-llama/f32/prefill@CPU
    #[arg(value_name = "CASE")]
    subject: Subject,
    /// The checkout whose ggml is built, where --ggml names no build
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "ggml")]
    checkout: PathBuf,
    /// What makes it bad
    #[arg(long, value_name = "QUESTION", default_value = "verdict")]
    until: Until,
    /// The good end for greedy, change and speed: a folder, or the name of a fetched build
    #[arg(long, value_name = "DIR|NAME", required_if_eq("until", "greedy"))]
    against: Option<String>,
    #[command(flatten)]
    means: Means,
    #[command(flatten)]
    making: Making,
}

/// git's code for a commit that cannot be tried.
const SKIP: u8 = 125;
/// The first code that ends git's search.
pub(super) const ERROR: u8 = 128;

/// Makes the trial; the code that the process ends with.
pub(super) fn main(args: &Args) -> u8 {
    match trial(args) {
        Ok((outcome, why)) => {
            println!("{}: {why}", outcome.name());
            match outcome {
                Outcome::Good => 0,
                Outcome::Bad => 1,
                Outcome::Skip => SKIP,
            }
        }
        Err(failed) => {
            eprintln!("error: {}", failed.message);
            ERROR
        }
    }
}

fn trial(args: &Args) -> Result<(Outcome, String), Failed> {
    if args.until.is_relative() && args.against.is_none() {
        let why = format!("--until {}: --against has to name the good end", args.until);
        return Err(Failed::new(ExitCode::Usage, why));
    }
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RunError::Io { path, source }
    };
    let work = tempfile::tempdir().map_err(io(&std::env::temp_dir()))?;
    let workplace = args.means.workplace(work.path())?;
    let plan = args.means.plan(&args.subject, work.path())?;
    let captures = work.path().join("captures");
    let mut bench = Bench::new(&args.subject, plan, &workplace, captures, Some(store()?))?;
    let good = match &args.against {
        None => None,
        Some(name) => {
            let folder = builds::resolve(Some(name))?;
            let good = bench.run("good", &folder, None, None)?;
            if good.compute_seconds.is_none() {
                let why = good.unusable.as_ref().unwrap_or(&good.reason);
                return Err(Failed::new(ExitCode::Environment, format!("--against {name}: {why}")));
            }
            Some(good)
        }
    };
    let folder = match &args.means.shared.ggml {
        Some(name) => builds::resolve(Some(name))?,
        None => match build(args)? {
            Ok(folder) => folder,
            Err(why) => return Ok((Outcome::Skip, why)),
        },
    };
    let label = "trial";
    let trial: Trial = bench.run(label, &folder, good.as_ref().map(|_| "good"), None)?;
    Ok(args.until.judge(&trial, good.as_ref()))
}

/// Builds the checkout as it stands, in a folder of the cache; or says why it does not build.
fn build(args: &Args) -> Result<Result<PathBuf, String>, Failed> {
    let sources = sources_in(&args.checkout)?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RunError::Io { path, source }
    };
    let sources = sources.canonicalize().map_err(io(&sources))?;
    let name = hex(&Sha256::digest(sources.as_os_str().as_encoded_bytes()));
    let home = cache::root()?.join("bisect").join(&name[..16]);
    std::fs::create_dir_all(&home).map_err(io(&home))?;
    let into = home.join("build");
    match std::fs::remove_dir_all(&into) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            return Err(RunError::Io { path: into, source }.into());
        }
        _ => {}
    }
    let backend = args.making.backend.unwrap_or_else(|| backend_for(&args.subject));
    let job = TreeBuild {
        sources: &sources,
        tree: &home.join("cmake"),
        into: &into,
        flags: &source::flags(backend, &args.making.cmake_flag)?,
        jobs: args.making.jobs,
        log: &home.join("build.log"),
    };
    match source::build_tree(&job) {
        Ok(()) => Ok(Ok(into)),
        Err(error @ (BuildError::ToolFailed { .. } | BuildError::BadArchive { .. })) => {
            Ok(Err(format!("it does not build: {error}")))
        }
        Err(error) => Err(error.into()),
    }
}
