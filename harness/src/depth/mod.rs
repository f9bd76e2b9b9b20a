//! The depth sweep: how one case fares by context length.
//!
//! A fault need not grow with the length, nor stay: kernels change at some numbers of columns, and ggml b5640's flash
//! attention is right at 32 and 64 and wrong between them. So a [`grid`] of lengths is tried first; then the [`search`]
//! halves the gap between neighbours whose verdict differs until they stand side by side, and looks into the gaps of the
//! grid on both sides of every change, whose ends agree and whose inside may not. What was not tried is not claimed:
//! [`ranges`] say what is known and where nothing is.
//!
//! Every length is a cell that [`crate::pipeline::run_keeping`] computes and judges as `run` does, oracle and store of
//! captures included ([`run`]). [`report`] holds the result, [`page`] draws it.

pub mod grid;
pub mod page;
pub mod ranges;
pub mod report;
pub mod run;
pub mod search;

use crate::named::named_enum;
use crate::verdict::Status;

named_enum! {
    /// What one length says.
    pub enum Standing as "standing" {
        /// The cell passes.
        Good = "good",
        /// It has figures, and they or the placement are beyond a limit.
        Bad = "bad",
        /// It has no verdict: it crashed, took too long, or the device cannot do it.
        Lost = "lost",
    }
}

impl From<Status> for Standing {
    fn from(status: Status) -> Self {
        match status {
            Status::Pass | Status::Expected => Self::Good,
            Status::Diverged | Status::Fallback | Status::UnexpectedPass => Self::Bad,
            Status::Unsupported
            | Status::Crashed
            | Status::Timeout
            | Status::OutOfMemory
            | Status::Missing => Self::Lost,
        }
    }
}

named_enum! {
    /// Why a length was tried.
    pub enum Origin as "origin" {
        /// It is one of the grid.
        Grid = "grid",
        /// It lies between neighbours whose verdict differs.
        Bisection = "bisection",
        /// It lies in a gap next to one in which the verdict changes.
        Look = "look",
    }
}
