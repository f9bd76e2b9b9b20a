//! Workers: one process for one ggml build and one device.
//!
//! ggml ends the process on many faults, and two builds cannot share an address space, so the parent never
//! opens ggml itself. It starts the same binary as `ggml-parity worker`, hands it a [`Job`] as the first line
//! of standard input, and reads [`Event`]s, one JSON document a line, from its standard output. Standard
//! input stays open: when it closes, the parent is gone and the worker ends.
//!
//! [`dispatch`] is the parent's side, [`child`] the worker's; [`execute`] runs one case into a capture, and `oracle`
//! computes one in f64, for which no build is opened; `trace` looks into its graphs.

mod block;
mod causal;
mod causes;
pub mod child;
pub(crate) mod death;
pub mod dispatch;
mod exchange;
mod execute;
mod masked;
pub mod memory;
mod oracle;
mod oracle_block;
mod phases;
pub mod probe;
mod protocol;
mod sampler;
mod step_kv;
pub mod sweep;
mod trace;

pub use causes::Cause;
pub use death::Death;
pub use dispatch::{Ended, Progress, Workplace, compute, one, run};
pub(crate) use execute::switches;
pub use memory::MemoryLimit;
pub use oracle::{lacks, oracle_build, reads_logits};
pub use probe::probe;
pub use protocol::{
    Event, Failure, FailureKind, Job, JobCell, Probed, ProbedDevice, ProbedFile, ReplayJob, RunJob, TraceJob,
    TraceStage,
};
pub use runtime::Fault;
