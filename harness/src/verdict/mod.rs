//! From figures to verdicts: limits, tolerances, the status of a cell and the exit code of a run.

mod attribution;
mod checks;
mod exit_code;
mod figures;
mod finding;
mod judge;
mod limits;
mod placing;
mod sampler;
mod tolerance;

pub use attribution::{Arm, Attribution, attribute};
pub use checks::with_checks;
pub use exit_code::{ExitCode, Outcome, exit_code};
pub use finding::{Finding, FindingKind};
pub use judge::{Verdict, judge, judge_figures, reference_fault};
pub use limits::{Bound, Limits, SamplerLimits, within};
pub(crate) use placing::ops_on_cpu;
pub use tolerance::{DeviceClass, Key, ToleranceError, Tolerances, WeightClass};

use crate::named::named_enum;

named_enum! {
    /// What became of a cell.
    pub enum Status as "status" {
        /// Every figure is within its limit.
        Pass = "pass",
        /// A figure is beyond its limit, or the captures cannot be compared.
        Diverged = "diverged",
        /// A declared divergence inside its declared bound, or a declared crash.
        Expected = "expected",
        /// A declared divergence that did not occur.
        UnexpectedPass = "unexpected-pass",
        /// The build lacks what the case needs, with proof.
        Unsupported = "unsupported",
        /// Work was not where it was to be: it fell back to the CPU beyond the limit, or left it.
        Fallback = "fallback",
        /// The worker died.
        Crashed = "crashed",
        /// The worker took too long.
        Timeout = "timeout",
        /// The worker or the device ran out of memory.
        OutOfMemory = "out-of-memory",
        /// Declared but not run.
        Missing = "missing",
    }
}

impl Status {
    /// Whether the cell did what was asked of it.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Pass | Self::Expected)
    }
}
