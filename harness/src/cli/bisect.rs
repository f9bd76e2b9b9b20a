//! `ggml-parity bisect`: since which build, and by which change?

use super::Failed;
use super::bisect_over::{self, Over};
use super::bisect_trial;
use super::cells::Shared;
use crate::atomic;
use crate::bisect::{
    self, Bench, BisectError, CheckoutSpec, NotASubject, Outcome, Range, RangeError, Scope, Subject, Until,
};
use crate::builds::{Backend, npm};
use crate::keep::{CaptureStore, executable_digest};
use crate::pipeline::{OracleUse, Plan, RunError};
use crate::plan::models;
use crate::planted::Plantings;
use crate::verdict::ExitCode;
use crate::worker::Workplace;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ggml-parity bisect 'gen-llama/q4_k_m/prefill@Vulkan0' --builds nightly-builds --good b9000 --bad b9016
      since which build of a folder the cell does not pass
  ggml-parity bisect 'gen-llama/f32/prefill@CPU' --npm --good 3.6.0 --bad 3.22.1 --until 'change>0'
      since which version of the package the CPU's numbers are not those of 3.6.0
  ggml-parity bisect 'gen-llama/f32/decode@Vulkan0' --npm --scan
      every version, with the figure over the versions and where numbers changed
  ggml-parity bisect 'gen-llama/q8_0/decode@CUDA0' --checkout ../llama.cpp --good b9000 --bad master --until 'speed>1.5'
      which commit made it slow; commits are built in a worktree
  ggml-parity bisect --resume reports/bisect-gen-llama_f32_decode_Vulkan0
      a search that was interrupted goes on; so does the same command with the same --out
  ggml-parity bisect 'gen-llama/f32/prefill@CUDA0' --over switches --ggml build/bin
      a smallest set of the backend's environment switches with which the cell passes; where it passes as it is, which switch
      changes its numbers most
  git bisect run ggml-parity bisect trial 'gen-llama/f32/prefill@CPU'
      one trial on the checkout of this folder, for git's own search

A question is verdict (the cell does not pass; a crash is bad), crash, greedy (other tokens than the good end), nmse>LIMIT,
kv>LIMIT, oracle>LIMIT, change>LIMIT (logits NMSE against the good end on the same device) or speed>RATIO. A build that
does not load or build, lacks the device or what the case needs is skipped, and with figures so is a crash; what is skipped
beside the change makes the answer a range. Where --good comes after --bad the range is walked backwards, to find what made
it good.

Here 0 means that one first bad build was found, 3 that skips left a range, 2 that both ends are good or both bad, 4 that an
end cannot be tried. With --scan 1 means that a build is bad, with --over that no set of switches restores parity.";

/// Arguments of `bisect`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(group(clap::ArgGroup::new("range").args(["builds", "npm", "checkout", "over"])))]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) trial: Option<Command>,
    /// A case on a device, as gen-llama/f32/prefill@Vulkan0; the build of a cell's id says nothing here
    #[arg(value_name = "CASE", required_unless_present = "resume")]
    subject: Option<Subject>,
    /// Ready builds in order: a folder of builds, a file that lists them, or a list separated by commas
    #[arg(long, value_name = "LIST|FOLDER")]
    builds: Option<String>,
    /// Versions of an npm package, fetched one at a time [default package: @node-llama-cpp/linux-x64-vulkan]
    #[arg(long, value_name = "PACKAGE", num_args = 0..=1, require_equals = true, default_missing_value = npm::PACKAGE)]
    npm: Option<String>,
    /// Commits of a ggml or llama.cpp checkout
    #[arg(long, value_name = "DIR", requires = "good", requires = "bad")]
    checkout: Option<PathBuf>,
    /// Not builds but what can be switched in one: switches (environment variables of the backend), attention, kv (types of
    /// the cache), flavours (libraries and buffers of the CPU); several separated by commas
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',', conflicts_with_all = ["good", "bad", "scan", "skip", "until"])]
    over: Vec<Over>,
    /// With --over: try every switch alone, even where the cell does not pass
    #[arg(long, requires = "over")]
    largest: bool,
    /// The good end: a build, a version or a commit [default: the first]
    #[arg(long, value_name = "NAME")]
    good: Option<String>,
    /// The bad end [default: the last]
    #[arg(long, value_name = "NAME")]
    bad: Option<String>,
    /// What is looked for
    #[arg(long, value_name = "QUESTION", default_value = "verdict")]
    until: Until,
    /// Try every place, and show stretches of good and bad
    #[arg(long)]
    scan: bool,
    /// A place that is not to be tried; repeat for several
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    #[command(flatten)]
    means: Means,
    #[command(flatten)]
    making: Making,
    /// Go on with the interrupted search in this folder; no other flag may stand beside this one
    #[arg(long, value_name = "DIR", exclusive = true)]
    resume: Option<PathBuf>,
}

/// What a trial is told.
#[derive(Debug, clap::Args)]
pub(super) struct Means {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// The model file of the case, where its id names none that is known
    #[arg(long, value_name = "FILE|NAME")]
    pub(super) model: Option<String>,
    /// Leave the oracle out, so that the CPU and the device alone are compared
    #[arg(long)]
    pub(super) no_oracle: bool,
    /// A file of limits in place of those that ship
    #[arg(long, value_name = "FILE")]
    pub(super) tolerances: Option<PathBuf>,
}

/// How commits are built.
#[derive(Debug, clap::Args)]
pub(super) struct Making {
    /// What to build of a checkout [default: what the device needs]
    #[arg(long, value_name = "BACKEND")]
    pub(super) backend: Option<Backend>,
    /// A further flag for CMake, as -DCMAKE_CUDA_ARCHITECTURES=90; repeat for several
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(super) cmake_flag: Vec<String>,
    /// Compilers at once [default: one for each processor]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(super) jobs: usize,
}

/// Subcommands of `bisect`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// One trial for `git bisect run`: 0 is good, 1 is bad, 125 is skip, 128 is an error that ends git's search
    Trial(Box<bisect_trial::Args>),
}

impl From<BisectError> for Failed {
    fn from(error: BisectError) -> Self {
        match error {
            BisectError::Run(error) => error.into(),
            BisectError::Journal(error) => Self::new(ExitCode::Usage, error),
        }
    }
}

impl From<NotASubject> for Failed {
    fn from(error: NotASubject) -> Self {
        Self::new(ExitCode::Usage, error)
    }
}

impl From<RangeError> for Failed {
    fn from(error: RangeError) -> Self {
        RunError::from(error).into()
    }
}

impl Means {
    /// The plan of trials, without builds and cells; a generated model goes to `work`.
    pub(super) fn plan(&self, subject: &Subject, work: &Path) -> Result<Plan, RunError> {
        let given = self.model.clone().unwrap_or_else(|| models::name_of(&subject.case));
        let model = models::resolve(&given, work)?;
        let case = &subject.case;
        if (&model.name, &model.weights) != (&case.model, &case.weights) {
            return Err(RunError::Usage(format!(
                "case {case}: the model `{given}` is {}/{}",
                model.name, model.weights
            )));
        }
        if !crate::plan::matrix::has_mode(&model, case.mode) {
            let architecture = model.model.hparams.architecture.name();
            let why = format!("case {case}: architecture {architecture} has no mode {}", case.mode);
            return Err(RunError::Usage(why));
        }
        Ok(Plan {
            builds: Vec::new(),
            models: vec![model],
            cells: Vec::new(),
            wishes: self.shared.wishes(),
            threads: self.shared.threads(),
            tolerances: super::tolerances(self.tolerances.as_deref())?,
            oracle: if self.no_oracle { OracleUse::Never } else { OracleUse::Affordable },
            planted: Plantings::default(),
        })
    }

    /// Where workers run.
    pub(super) fn workplace(&self, work: &Path) -> Result<Workplace, Failed> {
        super::workplace(work, Duration::from_secs(self.shared.timeout))
    }
}

/// The store of references and oracles.
pub(super) fn store() -> Result<CaptureStore, Failed> {
    let program = executable_digest().map_err(|error| {
        Failed::new(ExitCode::Environment, format!("this binary cannot be read: {error}"))
    })?;
    Ok(CaptureStore::new(super::cache::folder()?, super::cache::limit(None)?, program))
}

/// What `--resume` reads.
#[derive(Debug, Serialize, Deserialize)]
struct Started {
    folder: PathBuf,
    arguments: Vec<String>,
}

/// The file that it is in.
const STARTED: &str = "command.json";

pub(super) fn main(args: &Args) -> Result<ExitCode, Failed> {
    let Some(folder) = &args.resume else {
        let arguments = std::env::args().skip(1).collect();
        let folder = std::env::current_dir().unwrap_or_default();
        return go(args, Started { folder, arguments }, None);
    };
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| RunError::Io { path, source }
    };
    let out = std::path::absolute(folder).map_err(at(folder))?;
    let path = out.join(STARTED);
    let text = std::fs::read_to_string(&path).map_err(at(&path))?;
    let started: Started = serde_json::from_str(&text)
        .map_err(|error| Failed::new(ExitCode::Usage, format!("{}: {error}", path.display())))?;
    std::env::set_current_dir(&started.folder).map_err(at(&started.folder))?;
    let again = super::bisect_arguments(&started.arguments)?;
    go(&again, started, Some(out))
}

/// Searches as `args` say.
fn go(args: &Args, started: Started, out: Option<PathBuf>) -> Result<ExitCode, Failed> {
    let Some(subject) = &args.subject else {
        return Err(Failed::new(ExitCode::Usage, "a CASE is wanted"));
    };
    if args.over.is_empty() && args.means.shared.ggml.is_some() {
        let why = "--ggml: the builds are those of --builds, --npm or --checkout";
        return Err(Failed::new(ExitCode::Usage, why));
    }
    let out = out.or_else(|| args.means.shared.out.clone()).unwrap_or_else(|| default_out(subject));
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| RunError::Io { path, source }
    };
    let out = std::path::absolute(&out).map_err(at(&out))?;
    let range = if args.over.is_empty() { Some(range(args, subject, &out)?) } else { None };
    std::fs::create_dir_all(&out).map_err(at(&out))?;
    let command = [&["ggml-parity".to_owned()], started.arguments.as_slice()].concat();
    let text = serde_json::to_string_pretty(&started).expect("arguments are text") + "\n";
    let path = out.join(STARTED);
    atomic::write_with(&path, |partial| std::fs::write(partial, &text)).map_err(at(&path))?;
    let work = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
    let workplace = args.means.workplace(work.path())?;
    let plan = args.means.plan(subject, work.path())?;
    let command = shlex::try_join(command.iter().map(String::as_str)).unwrap_or_else(|_| command.join(" "));
    let Some(mut range) = range else {
        let (ggml, kinds) = (args.means.shared.ggml.as_deref(), args.over.as_slice());
        let search = bisect_over::Search { subject, ggml, kinds, largest: args.largest, out: &out, command };
        return bisect_over::main(search, plan, &workplace);
    };
    let mut bench = Bench::new(subject, plan, &workplace, out.join("captures"), Some(store()?))?;
    let scope = Scope {
        until: args.until,
        scan: args.scan,
        skip: args.skip.iter().cloned().collect(),
        subject: subject.to_string(),
        command,
    };
    let mut count = 0;
    let found = bisect::run(&scope, &mut range, &mut bench, &out, |judged, places| {
        count += 1;
        let of = if args.scan { format!("{count} of {places}") } else { count.to_string() };
        println!("{of}. {}", bisect::line(judged));
    });
    let found = found.map_err(|error| {
        let failed = Failed::from(error);
        let hint = format!("to go on: ggml-parity bisect --resume {}", out.display());
        Failed { message: format!("{}\nthe trials are kept; {hint}", failed.message), ..failed }
    })?;
    found.write(&out).map_err(at(&out))?;
    range.close()?;
    bench.clear()?;
    print!("\n{}", found.text());
    println!("report: {}", out.join("index.html").display());
    let answered = found.trials.iter().any(|judged| judged.outcome != Outcome::Skip);
    Ok(if answered { found.exit_code() } else { ExitCode::Environment })
}

fn default_out(subject: &Subject) -> PathBuf {
    let name = format!("bisect-{subject}").replace(['/', '?', '@', ':', '&'], "_");
    Path::new("reports").join(crate::plan::safe_name(&name))
}

fn range(args: &Args, subject: &Subject, out: &Path) -> Result<Range, Failed> {
    if let (Some(folder), Some(good), Some(bad)) = (&args.checkout, &args.good, &args.bad) {
        let backend = args.making.backend.unwrap_or_else(|| backend_for(subject));
        return Ok(Range::checkout(CheckoutSpec {
            folder: folder.clone(),
            good: good.clone(),
            bad: bad.clone(),
            backend,
            flags: args.making.cmake_flag.clone(),
            home: out.join("commits"),
            jobs: args.making.jobs,
        })?);
    }
    let range = match (&args.builds, &args.npm) {
        (Some(builds), _) => Range::builds(builds)?,
        (None, Some(package)) => Range::npm(package)?,
        (None, None) => {
            return Err(Failed::new(
                ExitCode::Usage,
                "one of --builds, --npm, --checkout and --over is wanted",
            ));
        }
    };
    let (first, last) = (range.labels[0].clone(), range.labels[range.labels.len() - 1].clone());
    let ends = (args.good.as_deref().unwrap_or(&first), args.bad.as_deref().unwrap_or(&last));
    Ok(range.between(ends.0, ends.1)?)
}

/// What has to be built for a device.
pub(super) fn backend_for(subject: &Subject) -> Backend {
    let device = &subject.device;
    match device.base.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "CPU" if device.variant.is_some() => Backend::CpuVariants,
        "CUDA" => Backend::Cuda,
        "Vulkan" => Backend::Vulkan,
        "MTL" | "Metal" => Backend::Metal,
        "BLAS" => Backend::Blas,
        _ => Backend::Cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_says_what_has_to_be_built() {
        for (device, backend) in [
            ("CPU", Backend::Cpu),
            ("CPU@x64", Backend::CpuVariants),
            ("CUDA0", Backend::Cuda),
            ("Vulkan1", Backend::Vulkan),
            ("MTL0", Backend::Metal),
            ("BLAS", Backend::Blas),
        ] {
            let subject = format!("m/f32/prefill@{device}").parse().unwrap();
            assert_eq!(backend_for(&subject), backend, "{device}");
        }
    }
}
