//! Captures of cells without a comparison: what one machine contributes to a comparison elsewhere.

use super::{Folders, Plan, RunError, capture_path, job_cell, run_job};
use crate::plan::CellId;
use crate::verdict::Verdict;
use crate::worker::{self, Ended, Progress, Workplace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What became of one capture.
#[derive(Debug, Clone, PartialEq)]
pub enum Captured {
    /// It is in this file.
    Written(PathBuf),
    /// There is none, and this is why.
    Failed(Verdict),
}

/// Computes the capture of every cell of `plan` with the workers of a run, under the names that a run gives them. Cells
/// in `replay` follow the trajectory of the capture that it names; the others go their own way.
///
/// # Errors
/// When the workers cannot begin. What happens to a cell is in the answer.
pub fn capture(
    plan: &Plan,
    workplace: &Workplace,
    folders: &Folders,
    replay: &BTreeMap<CellId, PathBuf>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<BTreeMap<CellId, Captured>, RunError> {
    let mut ended: BTreeMap<CellId, Ended> = BTreeMap::new();
    for build in &plan.builds {
        let mine = || plan.cells.iter().filter(|id| id.build == build.info.name);
        let devices: BTreeSet<_> = mine().map(|id| &id.device).collect();
        for device in devices {
            let mut cells = Vec::new();
            for id in mine().filter(|id| id.device == *device) {
                let mut cell = job_cell(plan, folders, id, None, None)?;
                cell.replay = replay.get(id).cloned();
                // One of an earlier call must not stand for a cell that fails now.
                match std::fs::remove_file(&cell.capture) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(RunError::Io { path: cell.capture, source: error });
                    }
                    _ => {}
                }
                cells.push(cell);
            }
            let job = run_job(plan, build, device, cells);
            ended.extend(worker::run(workplace, &job, &build.environment, &mut progress)?);
        }
    }
    let told = |(id, ended): (CellId, Ended)| {
        let captured = match &ended {
            Ended::Captured => Captured::Written(capture_path(folders, &id)),
            failed => Captured::Failed(crate::comparison::without_capture(failed, "")),
        };
        (id, captured)
    };
    Ok(ended.into_iter().map(told).collect())
}
