//! What workers of `run` and `calibrate` may take and what cells are held to: of a flag, the environment, the gate file and
//! the default, the first that says something.

use super::Failed;
use super::cells::default_threads;
use crate::gate::Gate;
use crate::pipeline::RunError;
use crate::verdict::{ExitCode, Tolerances};
use crate::worker::{MemoryLimit, Workplace, memory};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The seconds that a cell may take where nothing says.
const TIMEOUT: u64 = 600;

/// Arguments on threads, limits of workers and limits of cells.
#[derive(Debug, clap::Args)]
pub(super) struct Means {
    /// CPU threads [default: physical cores less one, at least one]
    #[arg(long, value_name = "N", env = "GGML_PARITY_THREADS", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Seconds a cell may take [default: 600]
    #[arg(
        long,
        value_name = "SECONDS",
        env = "GGML_PARITY_TIMEOUT",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    timeout: Option<u64>,
    /// Memory that a worker may take, as 4GiB, on Linux; that of a device is not counted [default: no limit]
    #[arg(long, value_name = "SIZE", env = "GGML_PARITY_MEMORY")]
    memory: Option<MemoryLimit>,
    /// A file of limits in place of those of the gate file and of those that ship, as `calibrate` writes them
    #[arg(long, value_name = "FILE")]
    tolerances: Option<PathBuf>,
}

/// The limits of workers.
pub(super) struct WorkerLimits {
    time: Duration,
    memory: Option<MemoryLimit>,
}

impl WorkerLimits {
    /// A place for workers, whose standard error goes to `folder`.
    pub(super) fn workplace(&self, folder: &Path) -> Result<Workplace, Failed> {
        Ok(Workplace { memory: self.memory, ..super::workplace(folder, self.time)? })
    }
}

impl Means {
    /// The limits of workers.
    pub(super) fn settle(&self, gate: &Gate) -> Result<WorkerLimits, Failed> {
        let of_gate = gate.settings.timeout.map(|seconds| seconds.get().into());
        let seconds = self.timeout.or(of_gate).unwrap_or(TIMEOUT);
        let memory = self.memory.or(gate.settings.memory);
        if memory.is_some() && !memory::OFFERED {
            let message = "--memory: this system offers no limit of a process's memory";
            return Err(Failed::new(ExitCode::Usage, message));
        }
        Ok(WorkerLimits { time: Duration::from_secs(seconds), memory })
    }

    /// CPU threads.
    pub(super) fn threads(&self, gate: &Gate) -> usize {
        let of_gate = gate.settings.threads.map(NonZeroU32::get);
        self.threads.or(of_gate).map_or_else(default_threads, |n| n as usize)
    }

    /// What cells are held to.
    pub(super) fn tolerances(&self, gate: &Gate) -> Result<Tolerances, RunError> {
        match (&self.tolerances, &gate.tolerances) {
            (None, Some(of_gate)) => Ok(of_gate.clone()),
            (file, _) => super::tolerances(file.as_deref()),
        }
    }
}
