//! Findings: what is wrong with a cell, in a form that can be held against a declaration.

use crate::named::named_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

named_enum! {
    /// What a finding is about, named as gate files name the bound that forgives it.
    pub enum FindingKind as "figure" {
        /// NaN and infinities that the reference does not have; how many.
        NonFinite = "nonfinite",
        /// NMSE of all logits.
        Logits = "logits_nmse",
        /// NMSE of the worst row of logits.
        Row = "row_nmse",
        /// NMSE of K or V, the worst layer, at the end or over all steps.
        Kv = "kv_nmse",
        /// NMSE of what a quantised cache is given to store, the worst layer.
        BeforeStoring = "kv_before_storing_nmse",
        /// Top tokens that differ and that no allowed noise explains; how many.
        Mismatches = "mismatches",
        /// Sets of experts that differ and that no allowed noise explains; how many.
        Experts = "experts",
        /// Mean KL divergence in nats.
        Kl = "kl_mean",
        /// A greedy run that differs; how many tokens are equal before that.
        Greedy = "greedy",
        /// What a device was found to do against itself.
        Check = "check",
        /// Compute nodes that fell back to the CPU; how many.
        Fallback = "fallback",
        /// What no declaration forgives: captures that cannot be compared, a reference that is none, a device that did
        /// no work.
        Unforgivable = "unforgivable",
    }
}

/// One thing that is wrong with a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// What it is about.
    pub figure: FindingKind,
    /// The figure that is beyond its limit, in the unit of [`FindingKind`].
    #[serde(with = "crate::figure::Figure")]
    pub value: f64,
    /// What, where and by how much; empty where another finding says it.
    pub text: String,
}

impl Finding {
    /// A finding and its words.
    pub fn new(figure: FindingKind, value: f64, text: impl Into<String>) -> Self {
        Self { figure, value, text: text.into() }
    }

    /// Something that no declaration forgives.
    pub fn unforgivable(text: impl Into<String>) -> Self {
        Self::new(FindingKind::Unforgivable, f64::NAN, text)
    }
}

/// The words of `findings`, without those that are told by others.
pub(super) fn words(findings: &[Finding]) -> impl Iterator<Item = &str> {
    findings.iter().map(|finding| finding.text.as_str()).filter(|text| !text.is_empty())
}
