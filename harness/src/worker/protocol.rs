//! What parent and worker say to each other.

use super::sweep::SweepJob;
use crate::capture::{BuildInfo, CaptureError, DeviceInfo, ModelInfo};
use crate::named::named_enum;
use crate::plan::CellId;
use crate::plan::DeviceSelector;
use crate::plan::inputs::Inputs;
use runtime::{Fault, Pins};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a worker is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Say which devices the build in this folder offers.
    Probe(PathBuf),
    /// Run cells.
    Run(Box<RunJob>),
    /// Compute cells in f64, without any build.
    Oracle(Vec<JobCell>),
    /// Look into the graphs of one cell.
    Trace(Box<TraceJob>),
    /// Compute a single node.
    Replay(Box<ReplayJob>),
    /// Answer items of a corpus.
    Sweep(Box<SweepJob>),
}

/// A cell to be looked into.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TraceJob {
    /// The build, the device and one cell.
    pub run: RunJob,
    /// What is to be done.
    pub stage: TraceStage,
}

/// One stage of a trace; every folder is a spool.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceStage {
    /// Run the case as ever, and note down every graph and what it gave.
    Record {
        /// Where it goes.
        into: PathBuf,
    },
    /// Repeat the noted graphs up to one, and walk through that.
    Walk {
        /// The noted graphs.
        recorded: PathBuf,
        /// Which one.
        graph: usize,
        /// Where its values go.
        into: PathBuf,
        /// A walk whose values are imposed in a second pass, and where that goes.
        force: Option<(PathBuf, PathBuf)>,
    },
    /// Walk through a graph with a walk's values imposed, computing several nodes together, until the fewest are
    /// found whose result is over `limits`.
    Windows {
        /// The noted graphs.
        recorded: PathBuf,
        /// Which one.
        graph: usize,
        /// The walk whose values are imposed.
        reference: PathBuf,
        /// What each computed node may be off, in order.
        limits: Vec<f64>,
        /// Where what was found is written, as JSON, beside the spools it is found by.
        into: PathBuf,
    },
}

/// A node to be computed on its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplayJob {
    /// The build, the device and one cell, which names the job.
    pub run: RunJob,
    /// The node and its inputs.
    pub file: PathBuf,
    /// Where the result goes.
    pub into: PathBuf,
}

/// Cells to run, in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunJob {
    /// The folder of the build.
    pub folder: PathBuf,
    /// The build, for the captures.
    pub build: BuildInfo,
    /// The device; its `build` is empty.
    pub device: DeviceSelector,
    /// CPU threads of cells that do not say.
    pub threads: usize,
    /// The cells.
    pub cells: Vec<JobCell>,
}

/// One cell to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobCell {
    /// Its id.
    pub id: CellId,
    /// The model file.
    pub path: PathBuf,
    /// The model, for the capture.
    pub model: ModelInfo,
    /// What to compute on.
    pub inputs: Inputs,
    /// The reference's capture, whose trajectory is imposed; none for the reference itself.
    pub replay: Option<PathBuf>,
    /// Where the capture goes.
    pub capture: PathBuf,
    /// How the worker before died at this cell, where this is the second try.
    #[serde(default)]
    pub lost: Option<String>,
    /// A fault to plant, which the comparison must find; only tests of the harness set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Work that is to be computed on the CPU although the device could do it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<Pins>,
}

/// What a worker says, of cells or of other tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event<I = CellId> {
    /// The answer to [`Job::Probe`].
    Probed(Probed),
    /// A cell has begun.
    Started(I),
    /// Its capture is written.
    Finished(I),
    /// It has failed; the next one follows.
    Failed(I, Failure),
    /// The worker cannot do its job at all.
    Fatal(Failure),
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Of which kind it is.
    pub kind: FailureKind,
    /// What happened, in one line.
    pub message: String,
}

named_enum! {
    /// Kinds of failure, as verdicts and exit codes tell them apart.
    pub enum FailureKind as "failure" {
        /// A file or a request is wrong.
        Input = "input",
        /// No such build or device, or a library that does not load.
        Environment = "environment",
        /// The build or device lacks what the case needs.
        Unsupported = "unsupported",
        /// Memory is short.
        OutOfMemory = "out-of-memory",
        /// ggml reported a fault.
        Fault = "fault",
        /// A capture cannot be written for want of space.
        Storage = "storage",
    }
}

/// What a build offers on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// ggml's version, where the build states one.
    pub version: Option<String>,
    /// The commit, where the build states one.
    pub commit: Option<String>,
    /// The CPU variant in use, where there are several.
    pub cpu_variant: Option<String>,
    /// The CPU variants that run here, best first.
    pub cpu_variants: Vec<String>,
    /// Every selector there is, in ggml's order, with its device.
    pub devices: Vec<ProbedDevice>,
    /// The libraries that were looked at.
    pub files: Vec<ProbedFile>,
    /// Functions of newer builds that this one lacks.
    pub lacks: Vec<String>,
}

/// A device that a build offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedDevice {
    /// How to select it.
    pub selector: DeviceSelector,
    /// What it is.
    pub info: DeviceInfo,
    /// Free memory in bytes, where the backend tells it.
    pub memory_free: Option<u64>,
    /// What the backend says of itself.
    pub features: Vec<(String, String)>,
    /// Where the selector names an extra buffer type: the types of matrices that it takes.
    pub takes: Option<Vec<String>>,
}

/// A library of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Its part, as `base` or `cpu-zen4`.
    pub part: String,
    /// Why it was not loaded.
    pub skipped: Option<String>,
}

impl From<CaptureError> for Failure {
    fn from(error: CaptureError) -> Self {
        let kind = if error.is_storage_full() { FailureKind::Storage } else { FailureKind::Fault };
        Self { kind, message: error.to_string() }
    }
}

impl From<&runtime::Error> for Failure {
    fn from(error: &runtime::Error) -> Self {
        use runtime::Error as E;
        let kind = match error {
            E::Ggml(ggml) => return Self::from(ggml),
            E::Model(_) | E::Input(_) | E::CacheFull { .. } => FailureKind::Input,
            E::UnknownDevice { .. } => FailureKind::Environment,
            E::UnsupportedNode { .. } => FailureKind::Unsupported,
        };
        Self { kind, message: error.to_string() }
    }
}

impl From<&ggml_sys::Error> for Failure {
    fn from(error: &ggml_sys::Error) -> Self {
        use ggml_sys::Error as E;
        let kind = match error {
            E::NotABuild { .. }
            | E::Load { .. }
            | E::MissingSymbol { .. }
            | E::Abi { .. }
            | E::AlreadyOpen { .. } => FailureKind::Environment,
            E::Unsupported { .. } => FailureKind::Unsupported,
            E::OutOfMemory { .. } => FailureKind::OutOfMemory,
            E::Call { .. } => FailureKind::Fault,
        };
        Self { kind, message: error.to_string() }
    }
}
