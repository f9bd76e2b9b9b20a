//! The metadata of a capture: where its numbers came from.

use super::{BufferUse, Placement, SamplerCost, Traffic};
use crate::named::named_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The schema of captures that this version writes and reads.
pub const SCHEMA: &str = "ggml-parity.capture/1";

/// What the oracle is called where a device is named: it runs on none.
pub const ORACLE: &str = "oracle";

/// Everything that is known of a capture beside its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureMeta {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The id of the case, without build and device.
    pub case: String,
    /// The model.
    pub model: ModelInfo,
    /// The ggml build.
    pub build: BuildInfo,
    /// The device.
    pub device: DeviceInfo,
    /// What the backend reported of itself: cooperative matrices, integer dot products, ….
    #[serde(default)]
    pub features: BTreeMap<String, String>,
    /// The environment switches that were set: `GGML_*`, `VK_*`, `CUDA_*`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Where the scheduler placed the work; that of a draft model is added, here and in what follows.
    pub placement: Placement,
    /// Bytes moved between host and device, where the worker counted them.
    #[serde(default)]
    pub traffic: Option<Traffic>,
    /// Bytes of every buffer.
    #[serde(default)]
    pub bytes: Vec<BufferUse>,
    /// The worker's peak resident size, where the system tells it.
    pub peak_rss_bytes: Option<u64>,
    /// Threads of the CPU backend.
    pub threads: u32,
    /// Seconds by name: `load`, `compute`, ….
    #[serde(default)]
    pub timings: BTreeMap<String, f64>,
    /// The text that was generated, where the case generates.
    #[serde(default)]
    pub text: Option<String>,
    /// How the worker before died at this cell, where a second one computed it.
    #[serde(default)]
    pub retried: Option<String>,
    /// Anything a reader of the report should know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What the worker found when it compared the device with itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// What a step of the dense sampler costs, where the case is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampler: Option<SamplerCost>,
}

named_enum! {
    /// What the figure of a check is held to.
    pub enum CheckBound as "bound" {
        /// It must be 0.
        Exact = "exact",
        /// The cell's limit of logits NMSE.
        Logits = "logits",
        /// The cell's limit of K/V NMSE.
        Kv = "kv",
        /// Nothing: it is reported.
        Reported = "reported",
    }
}

/// Something that a device was found to do against itself: going on from a restored cache, say, against going on
/// without a pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// What was compared.
    pub name: String,
    /// The figure.
    #[serde(with = "crate::figure::Figure")]
    pub value: f64,
    /// What it is held to.
    pub bound: CheckBound,
    /// What a reader should know beside it; may be empty.
    #[serde(default)]
    pub detail: String,
}

/// The model of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its name, as in the case id.
    pub name: String,
    /// SHA-256 of the model file, lower-case hex.
    pub sha256: String,
    /// `general.architecture`.
    pub architecture: String,
}

/// The ggml build of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildInfo {
    /// The name of the build, as in cell ids.
    pub name: String,
    /// ggml's version, where the build tells it.
    pub version: Option<String>,
    /// ggml's commit, where the build tells it.
    pub commit: Option<String>,
    /// The libraries that were loaded.
    #[serde(default)]
    pub files: Vec<BuildFile>,
}

/// One library of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildFile {
    /// Its file name.
    pub name: String,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

named_enum! {
    /// What kind of device ggml says it is.
    pub enum DeviceKind as "device kind" {
        /// The CPU backend.
        Cpu = "CPU",
        /// A GPU with its own memory.
        Gpu = "GPU",
        /// A GPU that shares the host's memory.
        IntegratedGpu = "integrated",
        /// An accelerator that works beside the CPU backend, such as BLAS.
        Accelerator = "accelerator",
    }
}

impl DeviceKind {
    /// Whether it is a GPU of either kind.
    pub fn is_gpu(self) -> bool {
        matches!(self, Self::Gpu | Self::IntegratedGpu)
    }
}

/// The device of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceInfo {
    /// The selector that chose it, without build.
    pub selector: String,
    /// ggml's name.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// ggml's description.
    pub description: String,
    /// The driver, where it is known.
    pub driver: Option<String>,
    /// Its memory in bytes, where the backend tells it.
    pub memory_total: Option<u64>,
}

impl CaptureMeta {
    /// Whether the oracle computed the capture.
    pub fn is_oracle(&self) -> bool {
        self.device.selector == ORACLE
    }

    /// The metadata of a file that has none: nothing is known of it but its name.
    pub(super) fn foreign(name: &str) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            case: String::new(),
            model: ModelInfo { name: name.to_owned(), ..ModelInfo::default() },
            build: BuildInfo { name: "foreign".to_owned(), ..BuildInfo::default() },
            device: DeviceInfo {
                selector: "foreign".to_owned(),
                name: "foreign".to_owned(),
                kind: DeviceKind::Cpu,
                description: "a capture without metadata, written by another runtime".to_owned(),
                driver: None,
                memory_total: None,
            },
            features: BTreeMap::new(),
            environment: BTreeMap::new(),
            placement: Placement::default(),
            traffic: None,
            bytes: Vec::new(),
            peak_rss_bytes: None,
            threads: 0,
            timings: BTreeMap::new(),
            text: None,
            retried: None,
            notes: Vec::new(),
            checks: Vec::new(),
            sampler: None,
        }
    }
}
