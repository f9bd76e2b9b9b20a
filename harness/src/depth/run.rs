//! Runs a depth sweep, round by round.
//!
//! What a length gave is in `points.jsonl` as soon as its round is over, and inside a round the journal of `run` notes
//! each capture; a sweep that is started again with the same folder goes on with both.

use super::Origin;
use super::report::{DepthReport, Point, SCHEMA};
use super::search::{Known, next};
use crate::keep::{CaptureStore, Head, Identity, Journal, Keep};
use crate::pipeline::{self, Folders, Plan, RunError};
use crate::plan::CellId;
use crate::report::{ByArm, Run, Work};
use crate::trace::journal::{Journal as Points, JournalError};
use crate::worker::{Progress, Workplace};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A sweep that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum DepthError {
    /// As a run's.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The journal's.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What is to be swept.
pub struct Depth<'a> {
    /// The cell, without a length.
    pub cell: CellId,
    /// The lengths to try first, in order.
    pub grid: Vec<u32>,
    /// No more lengths than this.
    pub most: usize,
    /// Builds, models, inputs and limits; its cells are set round by round.
    pub plan: Plan,
    /// Where workers run.
    pub workplace: &'a Workplace,
    /// The folder of the sweep, which is there.
    pub folder: &'a Path,
    /// The store of captures, where it is used.
    pub store: Option<CaptureStore>,
    /// The digest of this program.
    pub program: String,
}

/// What is told while it runs.
pub enum Told<'a> {
    /// So many lengths were known from an earlier start.
    Known(usize),
    /// A round begins, of so many captures.
    Round(&'a [(u32, Origin)], usize),
    /// What happens in it.
    Progress(Progress<'a>),
    /// What a length gave.
    Point(&'a Point),
}

/// What a journal is of: points of anything else say nothing about this cell.
#[derive(Serialize)]
struct Header {
    schema: &'static str,
    cell: CellId,
    device: String,
    limits: String,
    #[serde(flatten)]
    identity: Identity,
}

impl Depth<'_> {
    /// Runs the sweep; what happens to a cell is in the report.
    ///
    /// # Errors
    /// When it cannot begin or go on.
    pub fn run(mut self, header: Run, mut tell: impl FnMut(Told<'_>)) -> Result<DepthReport, DepthError> {
        let started = Instant::now();
        let (mut journal, mut points) =
            Points::<Point>::open(&self.folder.join("points.jsonl"), &self.header())?;
        if !points.is_empty() {
            tell(Told::Known(points.len()));
        }
        let mut known: Known =
            points.iter().map(|point| (point.length, (point.standing(), point.origin))).collect();
        let mut work = Work::default();
        let mut ended_at = None;
        loop {
            let mut wanted = next(&self.grid, &known);
            let left = self.most.saturating_sub(known.len());
            if wanted.len() > left {
                ended_at = Some(self.most);
                wanted.truncate(left);
            }
            if wanted.is_empty() {
                break;
            }
            for point in self.round(&wanted, &header, &mut work, &mut tell)? {
                journal.add(&point)?;
                tell(Told::Point(&point));
                known.insert(point.length, (point.standing(), point.origin));
                points.push(point);
            }
            self.clear()?;
            if ended_at.is_some() {
                break;
            }
        }
        let run = Run { seconds: started.elapsed().as_secs_f64(), work, ..header };
        let environment = pipeline::environment(&self.plan);
        Ok(DepthReport::new(run, environment, self.cell, self.grid, points, ended_at))
    }

    /// Computes and judges the cells of one round.
    fn round(
        &mut self,
        wanted: &[(u32, Origin)],
        header: &Run,
        work: &mut Work,
        tell: &mut impl FnMut(Told<'_>),
    ) -> Result<Vec<Point>, DepthError> {
        self.plan.cells = wanted.iter().map(|(length, _)| at(&self.cell, *length)).collect();
        let folder = self.round_folder();
        let folders = Folders { captures: folder.join("captures") };
        std::fs::create_dir_all(&folders.captures)
            .map_err(|source| RunError::Io { path: folders.captures.clone(), source })?;
        tell(Told::Round(wanted, self.plan.captures()));
        let identity = self.plan.identity(&self.program);
        let journal = match Journal::resume(&folder) {
            Ok(journal) if journal.check(&identity).is_ok() => journal,
            _ => Journal::begin(
                &folder,
                Head::new(header.started.clone(), Vec::new(), self.folder.to_owned(), identity),
            )
            .map_err(RunError::from)?,
        };
        let mut keep = Keep { journal: Some(journal), store: self.store.take() };
        let progress = |told: Progress<'_>| tell(Told::Progress(told));
        let report =
            pipeline::run_keeping(&self.plan, self.workplace, &folders, &mut keep, header.clone(), progress)?;
        self.store = keep.store;
        add(work, report.run.work);
        let points = wanted.iter().zip(report.cells).map(|(&(length, origin), mut cell)| {
            cell.captures = None;
            Point { length, origin, cell }
        });
        Ok(points.collect())
    }

    fn round_folder(&self) -> PathBuf {
        self.folder.join("round")
    }

    /// Removes the captures of a round that is over.
    fn clear(&self) -> Result<(), RunError> {
        let folder = self.round_folder();
        std::fs::remove_dir_all(&folder).map_err(|source| RunError::Io { path: folder, source })
    }

    fn header(&self) -> Header {
        let build = self.plan.builds.iter().find(|build| build.info.name == self.cell.build);
        let device = build.and_then(|build| build.device(&self.cell.device));
        let device = device.map(|d| format!("{} {}", d.description, d.driver.as_deref().unwrap_or("")));
        let limits = serde_json::to_string(&self.plan.tolerances).expect("limits are plain data");
        Header {
            schema: SCHEMA,
            cell: self.cell.clone(),
            device: device.unwrap_or_default(),
            limits,
            identity: Identity { cells: Vec::new(), ..self.plan.identity(&self.program) },
        }
    }
}

/// The cell at a length.
#[must_use]
pub fn at(cell: &CellId, length: u32) -> CellId {
    let mut cell = cell.clone();
    cell.case.options.n = Some(length);
    cell
}

fn add(sum: &mut Work, more: Work) {
    let arms = |sum: &mut ByArm, more: ByArm| {
        sum.reference += more.reference;
        sum.oracle += more.oracle;
        sum.device += more.device;
    };
    arms(&mut sum.computed, more.computed);
    arms(&mut sum.stored, more.stored);
}
