//! From logits to tokens: on the host, in f64, the same for every device.

pub mod autoregressive;
pub mod masked;

/// A token and how sure the model is of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Its probability under a soft-max over the whole row.
    pub probability: f64,
}

/// The most likely token of a row of logits, the lowest among equals, leaving out `never`. A NaN is never
/// the largest; in a row of nothing else the first allowed token stands with probability NaN.
///
/// # Panics
/// When the row has no token that is allowed.
#[must_use]
pub fn most_likely(row: &[f32], never: Option<u32>) -> Candidate {
    let mut best: Option<(u32, f64)> = None;
    for (token, &z) in (0u32..).zip(row) {
        let z = f64::from(z);
        if Some(token) != never && best.is_none_or(|(_, top)| z > top || (top.is_nan() && !z.is_nan())) {
            best = Some((token, z));
        }
    }
    let (token, z) = best.expect("a row with at least one allowed token");
    let max = row.iter().map(|&v| f64::from(v)).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    Candidate { token, probability: (z - max).exp() / sum }
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
    fn a_row_of_nan_has_no_probability() {
        assert!(most_likely(&[f32::NAN, f32::NAN], None).probability.is_nan());
    }
}
