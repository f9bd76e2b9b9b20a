//! Limits of a cell, each with the reason why it is what it is.

use serde::{Deserialize, Serialize};

/// Whether a figure is within a limit. NaN never is, whichever side it is on.
pub fn within(value: f64, limit: f64) -> bool {
    value <= limit
}

/// An upper limit and its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The largest figure that passes.
    #[serde(with = "crate::figure")]
    pub limit: f64,
    /// Why it is not smaller.
    pub reason: String,
}

impl Bound {
    /// A limit and its reason.
    pub fn new(limit: f64, reason: impl Into<String>) -> Self {
        Self { limit, reason: reason.into() }
    }

    /// Whether `value` is within the limit; NaN is not.
    pub fn holds(&self, value: f64) -> bool {
        within(value, self.limit)
    }
}

/// The limits of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// NMSE over all logits.
    pub logits_nmse: Bound,
    /// NMSE of the worst row of logits.
    pub row_nmse: Bound,
    /// NMSE of K and of V in every layer. `None` leaves the caches out of the comparison.
    pub kv_nmse: Option<Bound>,
    /// Mean KL divergence in nats, where it is limited.
    #[serde(default)]
    pub kl_mean: Option<Bound>,
    /// Top-token mismatches that no allowed noise explains.
    pub max_real_mismatches: u64,
    /// Compute nodes on the CPU while another device is selected. `None` does not limit them.
    pub fallback_nodes: Option<u64>,
}
