//! From logits to tokens: on the host, in f64, the same for every device and on every platform.

pub mod autoregressive;
pub mod block;
pub mod masked;
pub mod profile;
pub mod sampler;
pub mod speculative;

/// A token and how sure the model is of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Its probability under a soft-max over the whole row.
    pub probability: f64,
    /// Its logit less that of the best other allowed token; infinite where there is none.
    pub margin: f64,
}

/// The most likely token of a row of logits, the lowest among equals, leaving out `never`. A NaN is never
/// the largest; in a row of nothing else the first allowed token stands with probability NaN.
///
/// # Panics
/// When the row has no token that is allowed.
#[must_use]
pub fn most_likely(row: &[f32], never: Option<u32>) -> Candidate {
    let mut best: Option<(u32, f64)> = None;
    let mut second = f64::NEG_INFINITY;
    for (token, &z) in (0u32..).zip(row).filter(|&(token, _)| Some(token) != never) {
        let z = f64::from(z);
        match best {
            Some((_, top)) if !(z > top || (top.is_nan() && !z.is_nan())) => second = second.max(z),
            _ => {
                second = best.map_or(second, |(_, top)| second.max(top));
                best = Some((token, z));
            }
        }
    }
    let (token, z) = best.expect("a row with at least one allowed token");
    let max = row.iter().map(|&v| f64::from(v)).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|&v| libm::exp(f64::from(v) - max)).sum();
    Candidate { token, probability: libm::exp(z - max) / sum, margin: z - second }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_equal_tokens_wins_and_the_mask_never_does() {
        assert_eq!(most_likely(&[1.0, 3.0, 3.0], None).token, 1);
        assert_eq!(most_likely(&[1.0, 3.0, 3.0], Some(1)).token, 2);
        assert_eq!(most_likely(&[f32::NAN, -1.0, f32::NEG_INFINITY], None).token, 1);
        let sure = most_likely(&[0.0, 2.0f32.ln()], None);
        assert!((sure.probability - 2.0 / 3.0).abs() < 1e-7, "{sure:?}");
    }

    #[test]
    fn the_margin_is_that_to_the_best_other_allowed_token() {
        assert_eq!(most_likely(&[1.0, 3.5, 3.0], None).margin, 0.5);
        assert_eq!(most_likely(&[3.5, 3.0, 1.0], Some(0)).margin, 2.0);
        assert_eq!(most_likely(&[3.0, 3.0], None).margin, 0.0);
        assert_eq!(most_likely(&[3.0, 1.0], Some(1)).margin, f64::INFINITY);
    }

    #[test]
    fn a_row_of_nan_has_no_probability() {
        assert!(most_likely(&[f32::NAN, f32::NAN], None).probability.is_nan());
    }
}
