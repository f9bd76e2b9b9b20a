//! What `run` and `trace` have in common: builds, models of cells, and where reports go.

use crate::pipeline::{Build, RunError};
use crate::worker::Workplace;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Arguments of commands that look at one case.
#[derive(Debug, clap::Args)]
pub(super) struct Shared {
    /// A ggml build: a folder, or the name of a fetched build [default: the one that the cell names]
    #[arg(long, value_name = "DIR|NAME")]
    pub(super) ggml: Option<String>,
    /// A text to start from, instead of the model's own or generated tokens
    #[arg(long, value_name = "TEXT")]
    pub(super) prompt: Option<String>,
    /// CPU threads [default: physical cores less one, at least one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds that a step may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: u64,
    /// Where the report goes [default: reports/NAME, NAME made of the time]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

impl Shared {
    pub(super) fn threads(&self) -> usize {
        self.threads.map_or_else(default_threads, |n| n as usize)
    }
}

pub(super) fn default_threads() -> usize {
    num_cpus::get_physical().saturating_sub(1).max(1)
}

/// The name of the run, when it started, and its folder, which is made: the given one, or one made of the time.
pub(super) fn out_folder(given: Option<&PathBuf>) -> Result<(String, String, PathBuf), RunError> {
    let stamp = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let name = given.and_then(|out| out.file_name()).map_or_else(
        || format!("{}-{}", stamp.replace(':', ""), std::process::id()),
        |name| name.to_string_lossy().into_owned(),
    );
    let out = given.cloned().unwrap_or_else(|| Path::new("reports").join(&name));
    std::fs::create_dir_all(&out).map_err(|source| RunError::Io { path: out.clone(), source })?;
    Ok((name, stamp, out))
}

/// The builds that are given, or those that are named elsewhere, or the default one.
pub(super) fn open_builds<'a>(
    given: &'a [String],
    named: impl IntoIterator<Item = &'a str>,
    workplace: &Workplace,
) -> Result<Vec<Build>, RunError> {
    let mut all: Vec<Option<&str>> = given.iter().map(|name| Some(name.as_str())).collect();
    if all.is_empty() {
        for name in named {
            if !all.contains(&Some(name)) {
                all.push(Some(name));
            }
        }
    }
    if all.is_empty() {
        all.push(None);
    }
    all.into_iter().map(|name| Build::open(name, workplace)).collect()
}
