//! Limits of a cell, each with the reason why it is what it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a figure is within a limit. NaN never is, whichever side it is on.
pub fn within(value: f64, limit: f64) -> bool {
    value <= limit
}

/// An upper limit and its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The largest figure that passes.
    #[serde(with = "crate::figure::Figure")]
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

    /// `3.1e-2 > 1e-5` where `value` is beyond the limit.
    pub fn excess(&self, value: f64) -> Option<String> {
        (!self.holds(value)).then(|| {
            let limit = shortest(self.limit);
            let short = format!("{value:.1e}");
            // A figure just beyond its limit must not read like the limit.
            let short = if short.parse().is_ok_and(|v| self.holds(v)) { format!("{value:e}") } else { short };
            format!("{short} > {limit}")
        })
    }
}

/// A limit to three digits without trailing zeros: `1e-5`, `1.25e-3`.
fn shortest(limit: f64) -> String {
    let text = format!("{limit:.2e}");
    match text.split_once('e') {
        Some((digits, exponent)) if digits.contains('.') => {
            format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// The limits of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// NMSE over all logits.
    pub logits_nmse: Bound,
    /// NMSE of the worst row of logits.
    pub row_nmse: Bound,
    /// NMSE of K and of V in every layer. `None` leaves the caches out of the comparison.
    pub kv_nmse: Option<Bound>,
    /// NMSE of what a quantised cache is given to store, in every layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_before_storing_nmse: Option<Bound>,
    /// Mean KL divergence in nats, where it is limited.
    #[serde(default)]
    pub kl_mean: Option<Bound>,
    /// Top-token mismatches that no allowed noise explains.
    pub max_real_mismatches: u64,
    /// Compute nodes on the CPU while another device is selected. `None` does not limit them.
    pub fallback_nodes: Option<u64>,
    /// The dense sampler, where the case is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampler: Option<SamplerLimits>,
}

/// The limits of a dense sampler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplerLimits {
    /// Rows with another argmax.
    pub argmax: u64,
    /// The difference of entropies in nats, in every row.
    pub entropy: Bound,
    /// Draws that differ by more than a near tie.
    pub real: u64,
}

impl Limits {
    /// The same limit for logits and caches, ten times that for the worst row, nothing else forgiven.
    #[must_use]
    pub fn uniform(nmse: f64) -> Self {
        let bound = |limit| Bound::new(limit, "one limit for all");
        Self {
            logits_nmse: bound(nmse),
            row_nmse: bound(10.0 * nmse),
            kv_nmse: Some(bound(nmse)),
            kv_before_storing_nmse: None,
            kl_mean: None,
            max_real_mismatches: 0,
            fallback_nodes: Some(0),
            sampler: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_within_nothing() {
        for (value, limit) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::INFINITY)] {
            assert!(!within(value, limit));
        }
        assert!(within(1.0, 1.0) && !within(f64::INFINITY, 1e300));
    }

    #[test]
    fn an_excess_never_reads_like_the_limit() {
        let excess = |value| Bound::new(1e-5, "").excess(value);
        assert_eq!(excess(1e-5), None);
        assert_eq!(excess(3.14e-2).unwrap(), "3.1e-2 > 1e-5");
        assert_eq!(excess(1.000_01e-5).unwrap(), "1.00001e-5 > 1e-5");
        assert_eq!(excess(f64::NAN).unwrap(), "NaN > 1e-5");
        assert_eq!(excess(f64::INFINITY).unwrap(), "inf > 1e-5");
        assert_eq!(Bound::new(10.0 * 1e-9, "").excess(1.0).unwrap(), "1.0e0 > 1e-8");
        assert_eq!(Bound::new(1.25e-3, "").excess(1.0).unwrap(), "1.0e0 > 1.25e-3");
    }
}
