//! The harness's own test: faults are planted into captures that real workers wrote, and each must be caught, and its
//! place be named, by the comparison and the verdict that a run ends with.
//!
//! Two cells are run as any other: a generated model in F32, whose limits are the tightest there are, and the same in
//! Q4_K_M. Their captures are kept. For each [`Kind`] a fault is planted into a copy of the device's capture, and the
//! cell is judged again from the files ([`pipeline::judge_captured`]): *caught* is a cell that is not good, *named* a
//! reason that names the place. Nothing else is asked, so a kind cannot be declared caught.
//!
//! Two things keep the test honest. The unchanged captures must pass, and so must every fault that has a size where its
//! size is 0. And `kinds` alone says what must be caught: all but a flip of the lowest bit of a mantissa, which is less
//! than any two arms differ by.
//!
//! In F32 the faults have the sizes that their names tell. In Q4_K_M, where limits are wide, `sizes` looks for the
//! smallest of each kind that is caught.

mod bench;
mod image;
mod kinds;
mod place;
mod plant;
mod report;
mod sizes;

pub use kinds::Kind;
pub use report::{Control, Found, SCHEMA, SelfTest, Smallest};

use crate::capture::CaptureError;
use crate::pipeline::{Folders, Plan, RunError};
use crate::plan::CellId;
use bench::Bench;
use std::path::{Path, PathBuf};

/// A self-test that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// The cells cannot be run or judged.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A capture is none.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A capture lacks what a fault needs.
    #[error("{}: a fault cannot be planted: the capture lacks {what}", path.display())]
    Lacks {
        /// The capture.
        path: PathBuf,
        /// What it lacks.
        what: String,
    },
}

impl SelftestError {
    fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// Plants faults into the captures in `folders`: every kind in its own size into those of `exact`, and into those of
/// `coarse` whatever size is the smallest that is caught. Changed captures are written into `scratch`.
///
/// # Errors
/// Captures that are not there or lack what a fault needs, and files that cannot be written.
pub fn test(
    plan: &Plan,
    folders: &Folders,
    scratch: &Path,
    exact: &CellId,
    coarse: &CellId,
) -> Result<SelfTest, SelftestError> {
    let bench = Bench::new(plan, folders, scratch, exact)?;
    let mut controls = vec![bench.control()?];
    let mut faults = Vec::new();
    for &kind in Kind::ALL {
        faults.push(bench.find(kind)?);
    }
    let bench = Bench::new(plan, folders, scratch, coarse)?;
    controls.push(bench.control()?);
    let mut smallest = Vec::new();
    for &kind in Kind::ALL {
        smallest.push(sizes::smallest(&bench, kind)?);
    }
    Ok(SelfTest {
        schema: SCHEMA.to_owned(),
        controls,
        cell: exact.clone(),
        faults,
        coarse: coarse.clone(),
        smallest,
    })
}
