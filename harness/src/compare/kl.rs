//! How far the distributions are apart: KL divergence, top-k overlap, entropy, largest errors.

use super::nmse::Nmse;
use super::order::{quantiles, worse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many top tokens the overlap looks at.
const TOP_K: usize = 10;

/// Figures of the distributions that the rows of logits stand for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// Mean of KL(ref || x) over the rows, in nats.
    #[serde(with = "crate::figure::Figure")]
    pub kl_mean: f64,
    /// The row that 99 of 100 do not exceed.
    #[serde(with = "crate::figure::Figure")]
    pub kl_p99: f64,
    /// The worst row.
    #[serde(with = "crate::figure::Figure")]
    pub kl_max: f64,
    /// How many top tokens the overlap looks at (fewer where the vocabulary is smaller).
    pub top_k: u64,
    /// Share of the reference's top k that are in the test's top k, mean over the rows.
    #[serde(with = "crate::figure::Figure")]
    pub overlap_mean: f64,
    /// The same in the worst row.
    #[serde(with = "crate::figure::Figure")]
    pub overlap_min: f64,
    /// Largest difference of entropy, in nats.
    #[serde(with = "crate::figure::Figure")]
    pub entropy_max_difference: f64,
    /// Largest absolute error of one logit.
    #[serde(with = "crate::figure::Figure")]
    pub max_abs_error: f64,
    /// Largest error of one logit relative to it, or to the row's root mean square where that is larger, since
    /// logits close to zero carry no relative accuracy.
    #[serde(with = "crate::figure::Figure")]
    pub max_rel_error: f64,
}

/// Gathers [`Distribution`] row by row.
#[derive(Default)]
pub(super) struct Distributions {
    kl: Vec<f64>,
    overlap_sum: f64,
    overlap_min: Option<f64>,
    top_k: usize,
    entropy: f64,
    absolute: f64,
    relative: f64,
}

impl Distributions {
    /// Adds a row, `row` being its sums.
    pub(super) fn push(&mut self, reference: &[f64], test: &[f64], row: Nmse) {
        let (kl, entropy_difference) = divergence(reference, test);
        self.kl.push(kl);
        self.entropy = worse(self.entropy, entropy_difference.abs());
        self.top_k = TOP_K.min(reference.len());
        let overlap = overlap(reference, test, self.top_k);
        self.overlap_sum += overlap;
        self.overlap_min = Some(self.overlap_min.map_or(overlap, |least| least.min(overlap)));
        let floor = row.mean_square().sqrt();
        for (&r, &x) in reference.iter().zip(test) {
            if r == x {
                continue;
            }
            let error = (x - r).abs();
            self.absolute = worse(self.absolute, error);
            self.relative = worse(self.relative, error / worse(r.abs(), floor));
        }
    }

    pub(super) fn finish(self) -> Distribution {
        let rows = self.kl.len().max(1) as f64;
        let [kl_p99] = quantiles(&self.kl, [0.99]);
        Distribution {
            kl_mean: self.kl.iter().sum::<f64>() / rows,
            kl_p99,
            kl_max: self.kl.iter().copied().fold(0.0, worse),
            top_k: self.top_k as u64,
            overlap_mean: self.overlap_sum / rows,
            overlap_min: self.overlap_min.unwrap_or(0.0),
            entropy_max_difference: self.entropy,
            max_abs_error: self.absolute,
            max_rel_error: self.relative,
        }
    }
}

/// KL(ref || x) and H(x) - H(ref) of two rows of logits. An infinity that both hold is left out.
pub(crate) fn divergence(reference: &[f64], test: &[f64]) -> (f64, f64) {
    let scored =
        || reference.iter().copied().zip(test.iter().copied()).filter(|(r, x)| r.is_finite() || r != x);
    if scored().next().is_none() {
        return (0.0, 0.0);
    }
    let norm_r = log_sum_exp(|| scored().map(|(r, _)| r));
    let norm_x = log_sum_exp(|| scored().map(|(_, x)| x));
    let (mut kl, mut entropy_r, mut entropy_x) = (0.0, 0.0, 0.0);
    for (r, x) in scored() {
        let (log_p, log_q) = (r - norm_r, x - norm_x);
        let (p, q) = (log_p.exp(), log_q.exp());
        // 0 log 0 is 0; a NaN is not equal to 0 and goes through.
        if p != 0.0 {
            kl += p * (log_p - log_q);
            entropy_r -= p * log_p;
        }
        if q != 0.0 {
            entropy_x -= q * log_q;
        }
    }
    // Rounding may leave a KL of -1e-17.
    (if kl < 0.0 { 0.0 } else { kl }, entropy_x - entropy_r)
}

/// log(sum(exp(v))), shifted by the maximum.
pub(crate) fn log_sum_exp<I: Iterator<Item = f64>>(values: impl Fn() -> I) -> f64 {
    let max = values().fold(f64::NEG_INFINITY, worse);
    max + values().map(|v| (v - max).exp()).sum::<f64>().ln()
}

/// Share of the top `k` of `reference` that are in the top `k` of `test`.
fn overlap(reference: &[f64], test: &[f64], k: usize) -> f64 {
    let (top, other) = (top_indices(reference, k), top_indices(test, k));
    top.iter().filter(|index| other.contains(index)).count() as f64 / k.max(1) as f64
}

/// The indices of the `k` largest values, the first of equals before later ones. NaN is never among them.
fn top_indices(row: &[f64], k: usize) -> Vec<usize> {
    let mut top: Vec<usize> = Vec::with_capacity(k + 1);
    for (index, &value) in row.iter().enumerate() {
        if value.is_nan() || (top.len() == k && top.last().is_some_and(|&last| value <= row[last])) {
            continue;
        }
        let place = top.partition_point(|&other| row[other] >= value);
        top.insert(place, index);
        top.truncate(k);
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEG: f64 = f64::NEG_INFINITY;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn divergence_of_two_coins() {
        let logits = |p: f64| [p.ln() + 7.0, (1.0 - p).ln() + 7.0];
        let (kl, entropy) = divergence(&logits(0.5), &logits(0.25));
        assert!(close(kl, 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln()), "{kl}");
        let h = |p: f64| -p * p.ln() - (1.0 - p) * (1.0 - p).ln();
        assert!(close(entropy, h(0.25) - h(0.5)), "{entropy}");
    }

    #[test]
    fn large_logits_do_not_overflow_and_equal_rows_have_no_divergence() {
        assert_eq!(divergence(&[5e4, 1.0, -5e4], &[5e4, 1.0, -5e4]), (0.0, 0.0));
    }

    #[test]
    fn infinities() {
        assert_eq!(divergence(&[NEG, 1.0, 2.0], &[NEG, 1.0, 2.0]), (0.0, 0.0));
        assert_eq!(divergence(&[NEG, NEG], &[NEG, NEG]), (0.0, 0.0));
        assert_eq!(divergence(&[1.0, 2.0], &[1.0, NEG]).0, f64::INFINITY);
        assert!(divergence(&[1.0, 2.0], &[1.0, f64::NAN]).0.is_nan());
        assert!(!(divergence(&[1.0, 2.0], &[NEG, NEG]).0 <= 1e9));
    }

    #[test]
    fn overlap_counts_shared_top_tokens() {
        assert_eq!(top_indices(&[1.0, 5.0, 5.0, f64::NAN, 2.0], 3), [1, 2, 4]);
        assert_eq!(overlap(&[3.0, 2.0, 1.0, 0.0], &[3.0, 0.0, 1.0, 2.0], 2), 0.5);
    }

    #[test]
    fn largest_errors() {
        let mut rows = Distributions::default();
        let (r, x) = ([4.0, 0.0, 3.0], [4.0, 0.5, 3.0]);
        rows.push(&r, &x, Nmse::of(&r, &x));
        let figures = rows.finish();
        assert_eq!(figures.max_abs_error, 0.5);
        assert!(close(figures.max_rel_error, 0.5 / (25.0f64 / 3.0).sqrt()));
        assert_eq!((figures.top_k, figures.overlap_min), (3, 1.0));
    }
}
