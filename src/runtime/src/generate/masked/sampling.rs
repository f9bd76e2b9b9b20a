//! Tokens by temperature, the same on every platform: integers of a fixed generator, sums in f64 in the order of the
//! vocabulary, and an exponential that does not come from the system.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::generate::{Candidate, most_likely};

/// How a token is chosen from a row of logits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the most likely token.
    pub temperature: f64,
    /// The seed of all draws.
    pub seed: u64,
}

/// The draws that belong to one position at one step. They depend on seed, step and position alone, so another
/// choice elsewhere does not move them.
pub(super) struct Draws {
    /// For the token.
    pub(super) token: f64,
    /// For the order of positions.
    pub(super) order: f64,
}

impl Sampling {
    pub(super) fn draws(self, step: usize, position: usize) -> Draws {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&(step as u64).to_le_bytes());
        seed[16..24].copy_from_slice(&(position as u64).to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(seed);
        let mut draw = || (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        Draws { token: draw(), order: draw() }
    }

    /// The token at `draw` (from 0 up to 1) of the distribution over the allowed tokens, by inverting its running
    /// sum. Its probability is that of the plain soft-max over the whole row. Its margin is the smallest noise of
    /// logits, times two, that moves the draw over an end of the token's share.
    pub(super) fn choose(self, row: &[f32], never: u32, draw: f64) -> Candidate {
        let best = most_likely(row, Some(never));
        if self.temperature <= 0.0 || !best.probability.is_finite() {
            return best;
        }
        let top = f64::from(row[best.token as usize]);
        let weight = |z: f32| libm::exp((f64::from(z) - top) / self.temperature);
        let allowed = || (0u32..).zip(row).filter(|&(token, _)| token != never);
        let total: f64 = allowed().map(|(_, &z)| weight(z)).sum();
        let target = draw * total;
        let mut below = 0.0;
        for (token, &z) in allowed() {
            let upto = below + weight(z);
            if target < upto {
                let shares = [(target - below, below / total), (upto - target, upto / total)];
                let margin = shares.map(|(distance, at)| {
                    let slope = at * (1.0 - at);
                    if slope > 0.0 { self.temperature * distance / total / slope } else { f64::INFINITY }
                });
                let probability = best.probability * libm::exp(f64::from(z) - top);
                return Candidate { token, probability, margin: margin[0].min(margin[1]) };
            }
            below = upto;
        }
        // Rounding has left the draw beyond the last share.
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: Sampling = Sampling { temperature: 1.0, seed: 7 };

    #[test]
    fn draws_depend_on_seed_step_and_position_and_are_pinned() {
        let draw = |seed, step, position| Sampling { temperature: 1.0, seed }.draws(step, position).token;
        assert_eq!(draw(7, 3, 5), draw(7, 3, 5));
        assert!(draw(7, 3, 5) != draw(8, 3, 5) && draw(7, 3, 5) != draw(7, 5, 3));
        // ChaCha8 under a key of zeros begins with the bytes 3e 00 ef 2f 89 5f 40 d6.
        assert_eq!(draw(0, 0, 0), (0xd640_5f89_2fef_003eu64 >> 11) as f64 / (1u64 << 53) as f64);
    }

    #[test]
    fn a_draw_falls_into_the_share_of_its_token_and_never_on_the_mask() {
        // Shares of tokens 0, 2, 3 are 1/4, 1/2, 1/4; token 1 is the mask.
        let row = [0.0, 50.0, 2f32.ln(), 0.0];
        let token = |draw| WARM.choose(&row, 1, draw).token;
        assert_eq!([0.0, 0.24, 0.26, 0.74, 0.76, 0.999].map(token), [0, 0, 2, 2, 3, 3]);
        let cold = Sampling { temperature: 0.01, ..WARM };
        assert_eq!(cold.choose(&row, 1, 0.001).token, 2);
        assert_eq!(Sampling::default().choose(&row, 1, 0.999).token, 2);
    }

    #[test]
    fn frequencies_are_the_probabilities() {
        let row = [0.0, 2f32.ln(), 0.0, 3f32.ln()];
        let mut counts = [0u32; 4];
        for position in 0..6000 {
            counts[WARM.choose(&row, 2, WARM.draws(1, position).token).token as usize] += 1;
        }
        assert_eq!(counts[2], 0);
        for (count, wanted) in [(counts[0], 1000.0), (counts[1], 2000.0), (counts[3], 3000.0)] {
            assert!((f64::from(count) - wanted).abs() < 150.0, "{counts:?}");
        }
    }

    #[test]
    fn the_margin_is_the_noise_that_flips_the_draw() {
        let row = [0.0f32, 1.0, 0.5];
        let (draw, warm) = (0.17, Sampling { temperature: 0.8, seed: 0 });
        let chosen = warm.choose(&row, 9, draw);
        assert_eq!(chosen.token, 1);
        // Half the margin on either side of the nearer end moves it over the draw, to first order.
        let flips = |part: f64| {
            let noise = (chosen.margin / 2.0 * part) as f32;
            warm.choose(&[row[0] + noise, row[1] - noise, row[2] - noise], 9, draw).token != 1
        };
        assert!(!flips(0.9) && flips(1.15), "{chosen:?}");
    }

    #[test]
    fn a_row_without_a_number_yields_the_first_allowed_token() {
        let nothing = WARM.choose(&[f32::NAN; 3], 0, 0.5);
        assert!(nothing.token == 1 && nothing.probability.is_nan());
        let rest = WARM.choose(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], 0, 0.99);
        assert_eq!(rest.token, 1);
    }
}
