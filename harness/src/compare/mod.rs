//! Comparison of two captures: the reference and the device under test. It reads captures and nothing else.
//!
//! One file a metric. All sums are f64 in the order of the elements, so a report is bit-stable; rows are
//! streamed, so captures larger than memory can be compared.

mod alignment;
mod error;
mod expected;
mod experts;
mod greedy;
mod kl;
mod kv;
mod nmse;
mod nonfinite;
pub(crate) mod order;
mod steps;
mod top_token;

pub use error::CompareError;
pub use expected::Expected;
pub use experts::{ExpertDifference, ExpertSets};
pub use greedy::{FirstDifference, Greedy};
pub use kl::Distribution;
pub use kv::{BadCache, KvNmse, LayerNmse, WorstCache};
pub use nmse::{LogitsNmse, Nmse, WorstRow};
pub use nonfinite::{NonFinite, NonFiniteCounts, NonFinitePlace};
pub use steps::{BadStep, StepKv, StepNmse, Steps};
pub use top_token::{Mismatch, MismatchKind, TopToken};

use crate::capture::{CaptureReader, KvSet};
use crate::verdict::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything that was measured between two captures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metrics {
    /// NMSE of logits.
    pub logits: LogitsNmse,
    /// NMSE of logits, keys and values step by step; `None` where there is one step.
    #[serde(default)]
    pub steps: Option<Steps>,
    /// NMSE of the caches; `None` where they were not compared or neither capture holds any.
    pub kv: Option<KvNmse>,
    /// NMSE of what a quantised cache was given to store; `None` where that was not captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_before_storing: Option<KvNmse>,
    /// Top-token agreement.
    pub top_token: TopToken,
    /// Agreement of the chosen experts; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertSets>,
    /// Greedy equality; `None` where the case has no free run.
    pub greedy: Option<Greedy>,
    /// Values that are not finite.
    pub nonfinite: NonFinite,
    /// Figures of the distributions.
    pub distribution: Distribution,
}

/// Where a row of logits stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowPlace {
    /// Its index in the capture.
    pub row: u64,
    /// Its position in the sequence.
    pub position: i32,
    /// The step that computed it.
    pub step: i32,
}

/// How many elements of a tensor are held in memory at a time.
const BLOCK_ELEMENTS: usize = 1 << 18;

/// Rows of `width` elements to read at a time, at least one.
fn block_rows(width: usize) -> usize {
    (BLOCK_ELEMENTS / width.max(1)).max(1)
}

/// Compares `test` with `reference`. The limits decide only what is called a tie, a bad layer or required;
/// whether the figures pass is for [`crate::verdict::judge`] to say.
///
/// # Errors
/// Captures of different models, tokens, positions, steps or shapes, and files that cannot be read.
pub fn compare(
    reference: &mut CaptureReader,
    test: &mut CaptureReader,
    limits: &Limits,
) -> Result<Metrics, CompareError> {
    alignment::check(reference, test, limits.kv_nmse.is_some())?;
    let mut nonfinite = NonFinite::default();
    let mut sums = nmse::RowSums::default();
    let mut steps = steps::StepSums::default();
    let mut top_tokens = top_token::TopTokens::default();
    let mut distributions = kl::Distributions::default();
    let mut margins = greedy::Margins::of(reference);
    let greedy_tokens = reference.greedy().unwrap_or_default().to_vec();

    let places: Vec<RowPlace> = std::iter::zip(reference.positions(), reference.step())
        .enumerate()
        .map(|(row, (&position, &step))| RowPlace { row: row as u64, position, step })
        .collect();
    let (rows, vocab) = (reference.rows(), reference.vocab());
    let block = block_rows(vocab);
    let (mut r, mut x) = (Vec::new(), Vec::new());
    for first in (0..rows).step_by(block) {
        let count = block.min(rows - first);
        reference.logits(first, count, &mut r)?;
        test.logits(first, count, &mut x)?;
        for (row, (r, x)) in (first..).zip(r.chunks_exact(vocab).zip(x.chunks_exact(vocab))) {
            let row_sums = Nmse::of(r, x);
            nonfinite.scan("logits", row, r, x);
            sums.push(row_sums, r, x);
            steps.push(places[row].step, row_sums);
            top_tokens.push(places[row], r, x, row_sums, limits);
            distributions.push(r, x, row_sums);
            margins.push(row, &greedy_tokens, r, row_sums.mean_square());
        }
    }
    let kv = match &limits.kv_nmse {
        Some(bound) => kv::compare(reference, test, KvSet::Stored, bound.limit, &mut nonfinite)?,
        None => None,
    };
    let kv_before_storing = match &limits.kv_before_storing_nmse {
        Some(bound) => kv::compare(reference, test, KvSet::BeforeStoring, bound.limit, &mut nonfinite)?,
        None => None,
    };
    if limits.kv_nmse.is_some() {
        steps.push_caches(reference, test, &mut nonfinite)?;
    }
    let greedy = greedy::compare(reference, test, margins, sums.mean_square(), limits.logits_nmse.limit);
    Ok(Metrics {
        logits: sums.finish(|row| places[row]),
        steps: steps.finish(limits.logits_nmse.limit, limits.kv_nmse.as_ref().map(|bound| bound.limit)),
        kv,
        kv_before_storing,
        top_token: top_tokens.finish(),
        experts: experts::compare(reference, test, limits)?,
        greedy,
        nonfinite,
        distribution: distributions.finish(),
    })
}

#[cfg(test)]
mod tests;
