//! Generation in f64, free or along a recorded trajectory, with the margin of every decision.
//!
//! A trajectory forced on every arm keeps one flipped near-tie from spoiling all later steps. A free run is
//! compared up to the first decision whose margin is within the noise, so margins are in units of logits.

pub mod autoregressive;
pub mod block;
pub mod entropy;
pub mod masked;
pub mod profile;
pub mod speculative;

/// A token chosen from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its logit less that of the best other candidate: how far the choice is from another. 0 on a tie,
    /// infinite without another candidate, negative for an imposed token that is not the best.
    pub margin: f64,
}

/// The most likely token of a row, the lowest of equals, `never` being no candidate. `None` if the row has a
/// NaN, or no candidate above minus infinity.
pub fn most_likely(row: &[f64], never: Option<u32>) -> Option<Choice> {
    let mut best: Option<(u32, f64)> = None;
    for (token, &logit) in (0u32..).zip(row) {
        if logit.is_nan() {
            return None;
        }
        if Some(token) != never && logit > best.map_or(f64::NEG_INFINITY, |(_, b)| b) {
            best = Some((token, logit));
        }
    }
    let (token, _) = best?;
    Some(Choice { token, margin: margin(row, token, never) })
}

/// The margin of a token in a row without NaN: see [`Choice::margin`].
///
/// # Panics
/// If the token is outside the row.
pub fn margin(row: &[f64], token: u32, never: Option<u32>) -> f64 {
    let others = (0u32..).zip(row).filter(|(t, _)| *t != token && Some(*t) != never);
    let best = others.map(|(_, &z)| z).fold(f64::NEG_INFINITY, f64::max);
    let own = row[token as usize];
    // Two infinities of one sign are a tie, not a NaN.
    if own == best { 0.0 } else { own - best }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_equals_wins_and_the_mask_never() {
        let row = [1.0, 9.0, 4.0, 4.0, 3.5];
        assert_eq!(most_likely(&row, None), Some(Choice { token: 1, margin: 5.0 }));
        assert_eq!(most_likely(&row, Some(1)), Some(Choice { token: 2, margin: 0.0 }));
        assert_eq!(most_likely(&row, Some(2)).unwrap().token, 1);
        assert_eq!(margin(&row, 4, Some(1)), -0.5);
    }

    #[test]
    fn rows_without_a_candidate_choose_nothing() {
        assert_eq!(most_likely(&[1.0, f64::NAN], None), None);
        assert_eq!(most_likely(&[f64::NEG_INFINITY; 3], None), None);
        assert_eq!(most_likely(&[1.0, f64::NEG_INFINITY], Some(0)), None);
        assert_eq!(most_likely(&[], None), None);
        assert_eq!(most_likely(&[f64::INFINITY, f64::INFINITY], None).unwrap().margin, 0.0);
        assert_eq!(most_likely(&[2.0, f64::NEG_INFINITY], None).unwrap().margin, f64::INFINITY);
    }
}
