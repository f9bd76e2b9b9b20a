//! `ggml-parity history`: what past runs measured, and what keeps growing within its limit.

use super::Failed;
use crate::atomic;
use crate::builds::cache;
use crate::history::render::{Shown, console, page, sentence};
use crate::history::{History, HistoryError, Key, Metric, Rule, drift};
use crate::pipeline::RunError;
use crate::verdict::ExitCode;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ggml-parity history add reports/*/report.json
      keeps the figures of runs; one that is there already is not added again
  ggml-parity history list
  ggml-parity history show gen-llama/f32/prefill --device Vulkan0 --html prefill.html
      a case over builds and over time
  ggml-parity history check
      ends with 1 where a figure stays within its limit and keeps growing";

const CHECKED: &str = "\
Example:
  ggml-parity history check --builds 8 --ratio 4

A drift is flagged where, over the last builds (at most 20, at least --builds), each with the median of its runs and all
within their limit, the one-sided trend test of Mann and Kendall has p <= --p and the last third of the builds is at least
--ratio times the first third. Here 0 means that no series drifts, 1 that one does, 3 that no series has enough builds.";

/// Keep and look at the figures of past runs
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Command {
    /// Keep the figures of runs
    #[command(after_help = EXAMPLES)]
    Add {
        /// Reports, or their folders
        #[arg(value_name = "REPORT", required = true)]
        reports: Vec<PathBuf>,
        #[command(flatten)]
        file: File,
    },
    /// Say which series there are
    #[command(after_help = EXAMPLES)]
    List {
        #[command(flatten)]
        file: File,
    },
    /// Show a case over builds and over time
    #[command(after_help = EXAMPLES)]
    Show {
        /// The case, as gen-llama/f32/prefill
        #[arg(value_name = "CASE")]
        case: String,
        /// Of this device only
        #[arg(long, value_name = "NAME")]
        device: Option<String>,
        /// logits, kv, oracle or seconds
        #[arg(long, value_name = "METRIC", default_value = "logits")]
        metric: Metric,
        /// Write a page with plots to this file
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        #[command(flatten)]
        file: File,
    },
    /// Look for figures that keep growing within their limits
    #[command(after_help = CHECKED)]
    Check {
        /// The fewest builds of a series
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..))]
        builds: u32,
        /// The least growth
        #[arg(long, value_name = "TIMES", default_value_t = 2.0)]
        ratio: f64,
        /// The largest probability that so much growth is chance
        #[arg(long, value_name = "P", default_value_t = 0.01)]
        p: f64,
        #[command(flatten)]
        file: File,
    },
}

/// Where past runs are kept.
#[derive(Debug, clap::Args)]
pub(super) struct File {
    /// The file of past runs [default: history.sqlite in the cache folder]
    #[arg(long, value_name = "FILE", env = "GGML_PARITY_HISTORY")]
    db: Option<PathBuf>,
}

impl File {
    fn open(&self) -> Result<History, Failed> {
        let path = match &self.db {
            Some(path) => path.clone(),
            None => cache::root()?.join("history.sqlite"),
        };
        Ok(History::open(&path)?)
    }
}

impl From<HistoryError> for Failed {
    fn from(error: HistoryError) -> Self {
        Self::new(ExitCode::Usage, error)
    }
}

pub(super) fn main(command: &Command) -> Result<ExitCode, Failed> {
    match command {
        Command::Add { reports, file } => {
            let mut history = file.open()?;
            for report in reports {
                let words = if history.add(report)? { "added" } else { "is there already" };
                println!("{}: {words}", report.display());
            }
            let (runs, points) = history.counts()?;
            println!("{runs} runs, {points} cells");
            Ok(ExitCode::Success)
        }
        Command::List { file } => {
            let history = file.open()?;
            for (Key { case, device, machine }, points, builds) in history.series()? {
                println!("{case}@{device}: {points} cells of {builds} builds on {machine}");
            }
            let (runs, points) = history.counts()?;
            println!("{runs} runs, {points} cells");
            Ok(ExitCode::Success)
        }
        Command::Show { case, device, metric, html, file } => {
            let history = file.open()?;
            let shown = select(&history, case, device.as_deref(), *metric)?;
            for shown in &shown {
                print!("{}", console(shown, *metric));
            }
            if let Some(path) = html {
                let text = page(case, &shown, *metric);
                atomic::write_with(path, |partial| std::fs::write(partial, &text))
                    .map_err(|source: std::io::Error| RunError::Io { path: path.clone(), source })?;
                println!("page: {}", path.display());
            }
            Ok(ExitCode::Success)
        }
        Command::Check { builds, ratio, p, file } => {
            if !(*ratio >= 1.0 && *p > 0.0 && *p < 1.0) {
                let why = format!(
                    "--ratio {ratio} --p {p}: a ratio of at least 1 and a p between 0 and 1 are wanted"
                );
                return Err(Failed::new(ExitCode::Usage, why));
            }
            check(&file.open()?, &Rule { builds: *builds as usize, ratio: *ratio, p: *p, ..Rule::default() })
        }
    }
}

/// The series of a case.
fn select(history: &History, case: &str, device: Option<&str>, metric: Metric) -> Result<Vec<Shown>, Failed> {
    let all = history.series()?;
    let is_wanted = |key: &&Key| key.case == case && device.is_none_or(|device| key.device == device);
    let keys: Vec<Key> = all.iter().map(|(key, ..)| key).filter(is_wanted).cloned().collect();
    if keys.is_empty() {
        let names: Vec<&str> = all.iter().map(|(key, ..)| key.case.as_str()).collect();
        let hint = crate::hint::nearest(case, names);
        let of = device.map_or_else(String::new, |device| format!(" on {device}"));
        return Err(Failed::new(ExitCode::Incomplete, format!("no run of {case}{of} is kept{hint}")));
    }
    let mut shown = Vec::new();
    for key in keys {
        let points = history.points(&key)?;
        let drift = drift::drift(&points, metric, &Rule::default());
        shown.push(Shown { key, points, drift });
    }
    Ok(shown)
}

fn check(history: &History, rule: &Rule) -> Result<ExitCode, Failed> {
    let (mut looked, mut drifts) = (0, 0);
    for (key, ..) in history.series()? {
        let points = history.points(&key)?;
        // Seconds have no limit to stay within, and vary with whatever else a machine does.
        for metric in [Metric::Logits, Metric::Kv, Metric::Oracle] {
            looked += usize::from(drift::is_enough(&points, metric, rule));
            if let Some(found) = drift::drift(&points, metric, rule) {
                drifts += 1;
                println!("{}@{} on {}: {}", key.case, key.device, key.machine, sentence(&found, metric));
            }
        }
    }
    println!("{drifts} drifts in {looked} figures of at least {} builds", rule.builds);
    Ok(match (looked, drifts) {
        (0, _) => ExitCode::Incomplete,
        (_, 0) => ExitCode::Success,
        _ => ExitCode::Diverged,
    })
}
