//! `ggml-parity bisect --over`: which switches of one build restore parity, or change the numbers most.

use super::Failed;
use super::bisect::store;
use crate::bisect::Subject;
use crate::bisect::switches::{self, Kind, SwitchReport, Switches};
use crate::pipeline::{Build, Plan, RunError};
use crate::verdict::ExitCode;
use crate::worker::Workplace;
use clap::ValueEnum;
use std::path::Path;

/// What is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Over {
    /// Environment variables of the device's backend, where its library has their names.
    Switches,
    /// Explicit attention in place of flash, or flash in place of explicit.
    Attention,
    /// Types of the K/V cache.
    Kv,
    /// Libraries and buffers of the CPU backend.
    Flavours,
}

impl From<Over> for Kind {
    fn from(over: Over) -> Self {
        match over {
            Over::Switches => Self::Environment,
            Over::Attention => Self::Attention,
            Over::Kv => Self::Kv,
            Over::Flavours => Self::Flavour,
        }
    }
}

/// What is searched.
pub(super) struct Search<'a> {
    /// The case and the device.
    pub(super) subject: &'a Subject,
    /// The build [default: this machine's].
    pub(super) ggml: Option<&'a str>,
    /// What is switched.
    pub(super) kinds: &'a [Over],
    /// Whether every switch is tried alone.
    pub(super) largest: bool,
    /// Where the report goes.
    pub(super) out: &'a Path,
    /// The command line.
    pub(super) command: String,
}

pub(super) fn main(search: Search<'_>, plan: Plan, workplace: &Workplace) -> Result<ExitCode, Failed> {
    let Search { subject, ggml, kinds, largest, out, command } = search;
    let build = Build::open(ggml, workplace)?;
    build.check(&subject.device)?;
    let info = &build.info;
    let told = [info.version.clone(), info.commit.clone().map(|commit| format!("commit {commit}"))];
    let told: Vec<String> = std::iter::once(info.name.clone()).chain(told.into_iter().flatten()).collect();
    let device = build.device(&subject.device).map_or_else(String::new, |device| {
        format!("{} {}", device.description, device.driver.as_deref().unwrap_or("")).trim().to_owned()
    });
    let cell = format!("{}@{}:{}", subject.case, info.name, subject.device);
    let kinds = kinds.iter().map(|&kind| Kind::from(kind)).collect();
    let captures = out.join("captures");
    let mut trials =
        Switches::new(subject, build, plan, workplace, captures.clone(), Some(store()?), &kinds)?;
    let found = trials.search(largest, out, |trial, known| {
        println!("{}{}", switches::line(trial), if known { " (from the journal)" } else { "" });
    })?;
    let report = SwitchReport::new(cell, told.join(", "), device, command, found);
    let at = |source| RunError::Io { path: out.to_owned(), source };
    report.write(out).map_err(at)?;
    std::fs::remove_dir_all(&captures).map_err(at)?;
    print!("\n{}", report.text());
    println!("report: {}", out.join("index.html").display());
    Ok(report.exit_code())
}
