//! `ggml-parity trace --pin`: which part of a cell's work has to move to the CPU for parity to return.

use super::Failed;
use super::cells::Shared;
use crate::pipeline::{Build, OracleUse, Plan, RunError};
use crate::plan::CellId;
use crate::plan::models;
use crate::planted::Plantings;
use crate::trace::pin::{Finding, Found, PinError, Trials};
use crate::trace::pin_report::{PinReport, line};
use crate::verdict::{ExitCode, Tolerances, exit_code};
use runtime::{Pins, Unit};
use std::path::Path;
use std::time::Duration;

/// What is searched.
pub(super) struct Search<'a> {
    /// The cell.
    pub(super) cell: &'a CellId,
    /// Build, inputs, time limit and folder.
    pub(super) shared: &'a Shared,
    /// The model [default: that of the cell].
    pub(super) model: Option<&'a str>,
    /// Units of one run, instead of a search.
    pub(super) at: &'a [Unit],
    /// Whether the oracle is left out.
    pub(super) no_oracle: bool,
}

impl From<PinError> for Failed {
    fn from(error: PinError) -> Self {
        match error {
            PinError::Run(error) => error.into(),
            PinError::Journal(error) => Self::new(ExitCode::Usage, error),
        }
    }
}

pub(super) fn main(args: &Search<'_>) -> Result<ExitCode, Failed> {
    let name = crate::plan::safe_name(&format!("pin-{}", args.cell).replace(['/', '?', '@', ':', '&'], "_"));
    let out = args.shared.out.clone().unwrap_or_else(|| Path::new("reports").join(name));
    let work = tempfile::tempdir().map_err(|source| RunError::Io { path: std::env::temp_dir(), source })?;
    let workplace = super::workplace(work.path(), Duration::from_secs(args.shared.timeout))?;
    let plan = plan(args, &workplace, work.path())?;
    if !args.at.is_empty() {
        return at(args, &plan, &workplace, work.path());
    }
    std::fs::create_dir_all(&out).map_err(|source| RunError::Io { path: out.clone(), source })?;
    let trials = Trials::new(&plan, &workplace, &out)?;
    let found = trials.search(&out, |trial, known| {
        println!("{}{}", line(trial), if known { " (from the journal)" } else { "" });
    })?;
    let report = PinReport::new(args.cell.to_string(), rerun(args, &found), found);
    report.write(&out).map_err(|source| RunError::Io { path: out.clone(), source })?;
    print!("\n{}", report.text());
    println!("report: {}", out.join("pin.md").display());
    Ok(match report.found.finding {
        Finding::NothingToFind | Finding::Smallest(_) | Finding::Scheduling => ExitCode::Success,
        Finding::NotPlacement => ExitCode::Diverged,
    })
}

/// One run with the units of `--at` on the CPU.
fn at(
    args: &Search<'_>,
    plan: &Plan,
    workplace: &crate::worker::Workplace,
    folder: &Path,
) -> Result<ExitCode, Failed> {
    let pins = Pins::These(args.at.iter().cloned().collect());
    let trial = Trials::new(plan, workplace, folder)?.run(Some(pins))?;
    println!("{}", line(&trial));
    if !trial.reason.is_empty() {
        println!("{}", trial.reason);
    }
    let none: Vec<String> =
        args.at.iter().filter(|unit| !trial.pinned.contains_key(unit)).map(Unit::to_string).collect();
    if trial.logits_nmse.is_some() && !none.is_empty() {
        let why = format!("cell {} has no compute node of {} on the CPU", args.cell, none.join(", "));
        return Err(Failed::new(ExitCode::Usage, why));
    }
    Ok(exit_code([trial.cell_outcome()]))
}

fn plan(args: &Search<'_>, workplace: &crate::worker::Workplace, work: &Path) -> Result<Plan, RunError> {
    let id = args.cell;
    let build = Build::open(Some(args.shared.ggml.as_deref().unwrap_or(&id.build)), workplace)?;
    if build.info.name != id.build {
        let (wanted, opened) = (&id.build, &build.info.name);
        return Err(RunError::Environment(format!("cell {id}: no build `{wanted}`; opened: {opened}")));
    }
    build.check(&id.device)?;
    id.case.check().map_err(|error| RunError::Usage(format!("cell {id}: {error}")))?;
    let model = args.model.map_or_else(|| models::name_of(&id.case), str::to_owned);
    Ok(Plan {
        builds: vec![build],
        models: vec![models::resolve(&model, work)?],
        cells: vec![id.clone()],
        wishes: args.shared.wishes(),
        threads: args.shared.threads(),
        tolerances: Tolerances::embedded(),
        oracle: if args.no_oracle { OracleUse::Never } else { OracleUse::Affordable },
        planted: Plantings::default(),
    })
}

/// The command that runs the cell with what was found.
fn rerun(args: &Search<'_>, found: &Found) -> Option<String> {
    let Finding::Smallest(units) = &found.finding else { return None };
    let at = units.iter().map(Unit::to_string).collect::<Vec<_>>().join(",");
    let cell = args.cell.to_string();
    let mut words: Vec<String> =
        ["ggml-parity", "trace", "--pin", &cell, "--at", &at].map(str::to_owned).into();
    words.extend(args.model.into_iter().flat_map(|model| ["--model".to_owned(), model.to_owned()]));
    words.extend(args.shared.flags());
    if args.no_oracle {
        words.push("--no-oracle".to_owned());
    }
    Some(shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" ")))
}
