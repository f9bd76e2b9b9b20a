//! Perplexity: how surprised a model is by a text, and by how much more on another arm.
//!
//! A passage's loss is the sum of `-ln p(token)` over its scored tokens; perplexity is `exp(loss / tokens)`, all
//! passages together. The ratio of two arms is `exp` of the difference of their losses per token, and its interval
//! comes from resampling passages (see [`super::bootstrap`]). A ratio of 1 is no change. For masked models a loss is
//! the negative log-likelihood of the masked tokens at fixed masks, and the same formulas hold.

use super::bootstrap::{Estimate, Resampling, Share, ratio_of_sums};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One passage on two arms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Sum of `-ln p` on the reference, in nats.
    pub reference: f64,
    /// The same on the arm under test.
    pub test: f64,
    /// How many tokens were scored.
    pub tokens: u64,
}

/// Perplexities of a corpus on two arms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Perplexity {
    /// Tokens that were scored.
    pub tokens: u64,
    /// On the reference.
    #[serde(with = "crate::figure::Figure")]
    pub reference: f64,
    /// On the arm under test.
    #[serde(with = "crate::figure::Figure")]
    pub test: f64,
    /// Test over reference.
    pub ratio: Estimate,
}

/// The perplexities of all passages and their ratio. Without tokens all figures are NaN.
#[must_use]
pub fn compare(passages: &[Loss], how: &Resampling) -> Perplexity {
    let tokens: u64 = passages.iter().map(|passage| passage.tokens).sum();
    let perplexity = |loss: fn(&Loss) -> f64| (passages.iter().map(loss).sum::<f64>() / tokens as f64).exp();
    let differences: Vec<Share> = passages
        .iter()
        .map(|passage| Share { sum: passage.test - passage.reference, weight: passage.tokens as f64 })
        .collect();
    Perplexity {
        tokens,
        reference: perplexity(|passage| passage.reference),
        test: perplexity(|passage| passage.test),
        ratio: ratio_of_sums(&differences, how).map(f64::exp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare_default(passages: &[Loss]) -> Perplexity {
        compare(passages, &Resampling::default())
    }

    fn loss(per_token: f64, excess: f64, tokens: u64) -> Loss {
        let reference = per_token * tokens as f64;
        Loss { reference, test: reference + excess * tokens as f64, tokens }
    }

    #[test]
    fn a_uniform_model_has_the_size_of_its_vocabulary() {
        let found = compare_default(&[loss(64f64.ln(), 0.0, 100), loss(64f64.ln(), 0.0, 300)]);
        assert!((found.reference - 64.0).abs() < 1e-9 && (found.test - 64.0).abs() < 1e-9);
        assert_eq!(found.ratio.value, 1.0);
        assert_eq!(found.tokens, 400);
    }

    #[test]
    fn tokens_weigh_and_not_passages() {
        // (100 x 0.1 + 300 x 0.02) / 400 nats.
        let found = compare_default(&[loss(3.0, 0.1, 100), loss(2.0, 0.02, 300)]);
        assert!((found.ratio.value - (16.0f64 / 400.0).exp()).abs() < 1e-12, "{found:?}");
        assert!((found.test / found.reference - found.ratio.value).abs() < 1e-12);
    }

    #[test]
    fn a_paired_difference_shows_under_a_large_spread() {
        // Passages from 1 to 5 nats a token; every one of them 0.01 to 0.02 worse.
        let passages: Vec<Loss> = (0..40u32)
            .map(|i| loss(1.0 + f64::from(i) / 10.0, 0.01 + f64::from(i % 5) / 500.0, 300 + u64::from(i)))
            .collect();
        let interval = compare_default(&passages).ratio.interval.unwrap();
        assert!(interval.low > 1.01 && interval.high < 1.02, "{interval:?}");
    }

    #[test]
    fn an_impossible_token_is_seen() {
        let found =
            compare_default(&[loss(2.0, 0.0, 10), Loss { reference: 20.0, test: f64::INFINITY, tokens: 10 }]);
        assert_eq!((found.test, found.ratio.value), (f64::INFINITY, f64::INFINITY));
        assert!(!found.ratio.interval.unwrap().contains(1.0));
        assert!(compare_default(&[]).ratio.value.is_nan());
    }
}
