//! What the dense sampler leaves in a capture.

use super::header::TensorFile;
use super::{CaptureError, reader::check_length};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a sampler says of each row; -1, -1 and NaN where it says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledRows {
    /// The index of the largest logit.
    pub argmax: Vec<i32>,
    /// The drawn index.
    pub sampled: Vec<i32>,
    /// The entropy in nats.
    pub entropy: Vec<f64>,
}

/// The draws that are near ties of each row, from one to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NearTies {
    /// The first.
    pub lowest: Vec<i32>,
    /// The last.
    pub highest: Vec<i32>,
}

/// What a step costs on the device and on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplerCost {
    /// Seconds of a step on the device: the draws are sent, the graph is computed, three numbers a row come back.
    pub device_seconds: f64,
    /// Seconds of a step on the host: all logits are fetched, and its threads sample them.
    pub host_seconds: f64,
    /// The part of those in which the logits are fetched.
    pub fetch_seconds: f64,
    /// Threads of the host.
    pub host_threads: u64,
    /// Bytes that a step moves to and from the device.
    pub device_bytes: u64,
    /// Bytes that a step on the host moves.
    pub host_bytes: u64,
    /// How the running sum is made: by ggml's `cumsum`, or as the row sums of a triangle.
    pub scan: String,
    /// The sampler that the backend brings itself, where it brings one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<String>,
    /// Seconds of a step of that one; none where it said that it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_seconds: Option<f64>,
}

impl SamplerCost {
    /// How many times longer a step takes on the host.
    #[must_use]
    pub fn speed_up(&self) -> f64 {
        self.host_seconds / self.device_seconds
    }

    /// How many times more a step on the host moves.
    #[must_use]
    pub fn saved(&self) -> f64 {
        self.host_bytes as f64 / self.device_bytes as f64
    }
}

/// The rows under `prefix`, one for each of `rows`; none where there are none.
pub(super) fn rows(
    file: &mut TensorFile,
    prefix: &str,
    rows: usize,
) -> Result<Option<SampledRows>, CaptureError> {
    let [argmax, sampled, entropy] = ["argmax", "sampled", "entropy"].map(|part| format!("{prefix}.{part}"));
    if !file.names().contains(&argmax) {
        return Ok(None);
    }
    let mut found = SampledRows {
        argmax: file.integers(&argmax)?,
        sampled: file.integers(&sampled)?,
        entropy: Vec::new(),
    };
    let [count] = file.float_shape(&entropy)?;
    for (name, length) in [(&argmax, found.argmax.len()), (&sampled, found.sampled.len()), (&entropy, count)]
    {
        check_length(file, name, length, rows)?;
    }
    file.rows(&entropy, 0, count, &mut found.entropy)?;
    Ok(Some(found))
}

/// The near ties of `rows` rows, where a capture has them.
pub(super) fn near_ties(file: &mut TensorFile, rows: usize) -> Result<Option<NearTies>, CaptureError> {
    let [lowest, highest] = ["sampler.lowest", "sampler.highest"];
    if !file.names().iter().any(|name| name == lowest) {
        return Ok(None);
    }
    let found = NearTies { lowest: file.integers(lowest)?, highest: file.integers(highest)? };
    check_length(file, lowest, found.lowest.len(), rows)?;
    check_length(file, highest, found.highest.len(), rows)?;
    Ok(Some(found))
}
