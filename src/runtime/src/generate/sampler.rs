//! From one row of logits to a token, drawn: repeat penalty, temperature, top-k, top-p, and a seeded generator
//! of integers, so that every platform draws the same.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// How tokens are drawn. The default takes the most likely one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; 0 takes the largest, the lowest token among equals.
    pub temperature: f64,
    /// Only the so many largest logits are drawn from; 0 is all.
    pub top_k: usize,
    /// Only the fewest tokens whose probabilities reach this sum are drawn from; 1 is all.
    pub top_p: f64,
    /// Positive logits of recent tokens are divided by this, others multiplied; 1 changes nothing.
    pub penalty: f64,
    /// How many tokens are recent.
    pub recent: usize,
    /// Of the generator.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, penalty: 1.0, recent: 64, seed: 0 }
    }
}

/// A drawn token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// How sure the draw was, in logits: while no two logits of the row move apart by this, the same token is
    /// drawn. Without temperature it is the lead over the next best.
    pub margin: f64,
}

/// Draws tokens of one sequence, one after the other.
#[derive(Debug, Clone)]
pub struct Sampler {
    how: Sampling,
    generator: ChaCha8Rng,
    history: Vec<u32>,
}

impl Sampler {
    /// A sampler for the sequence that begins with `prompt`.
    #[must_use]
    pub fn new(how: Sampling, prompt: &[u32]) -> Self {
        Self { how, generator: ChaCha8Rng::seed_from_u64(how.seed), history: prompt.to_vec() }
    }

    /// Draws the next token from a row of logits.
    ///
    /// # Panics
    /// When the row is empty.
    pub fn draw(&mut self, row: &[f32]) -> Drawn {
        let logits = self.penalised(row);
        let drawn = if self.how.temperature > 0.0 {
            // The upper 53 bits: every platform has the same number in [0, 1).
            let u = (self.generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            draw_at(&logits, &self.how, u)
        } else {
            largest(&logits)
        };
        self.history.push(drawn.token);
        drawn
    }

    /// Takes `token` as the next one of the sequence, as if it had been drawn.
    pub fn force(&mut self, row: &[f32], token: u32) -> Drawn {
        let drawn = self.draw(row);
        *self.history.last_mut().expect("just drawn") = token;
        drawn
    }

    fn penalised(&self, row: &[f32]) -> Vec<f64> {
        let mut logits: Vec<f64> = row.iter().map(|&z| f64::from(z)).collect();
        if self.how.penalty == 1.0 {
            return logits;
        }
        let recent = &self.history[self.history.len().saturating_sub(self.how.recent)..];
        let mut recent = recent.to_vec();
        recent.sort_unstable();
        recent.dedup();
        for token in recent {
            if let Some(z) = logits.get_mut(token as usize) {
                *z = if *z > 0.0 { *z / self.how.penalty } else { *z * self.how.penalty };
            }
        }
        logits
    }
}

/// Tokens from the largest logit to the smallest, the lower token first among equals; NaN comes last.
fn ranked(logits: &[f64]) -> Vec<usize> {
    let key = |&i: &usize| if logits[i].is_nan() { f64::NEG_INFINITY } else { logits[i] };
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.cmp(b)));
    order
}

fn largest(logits: &[f64]) -> Drawn {
    let order = ranked(logits);
    let margin = order.get(1).map_or(f64::INFINITY, |&second| logits[order[0]] - logits[second]);
    Drawn { token: id(order[0]), margin }
}

/// The token at which the running sum of probabilities, in the order of the vocabulary, passes `u`.
fn draw_at(logits: &[f64], how: &Sampling, u: f64) -> Drawn {
    // A shift of every logit by up to m / 2 shifts a running sum by at most m / (4 T).
    let in_logits = |distance: f64| 4.0 * how.temperature * distance;
    let mut order = ranked(logits);
    let mut margin = f64::INFINITY;
    if how.top_k > 0 && how.top_k < order.len() {
        margin = logits[order[how.top_k - 1]] - logits[order[how.top_k]];
        order.truncate(how.top_k);
    }
    let max = logits[order[0]];
    let weight = |i: usize| {
        let e = libm::exp((logits[i] - max) / how.temperature);
        if e.is_nan() { 0.0 } else { e }
    };
    if how.top_p < 1.0 {
        let total: f64 = order.iter().map(|&i| weight(i)).sum();
        let mut sum = 0.0;
        let mut kept = order.len();
        for (n, &i) in order.iter().enumerate() {
            margin = margin.min(in_logits((sum - how.top_p).abs()));
            sum += weight(i) / total;
            if sum >= how.top_p {
                margin = margin.min(in_logits(sum - how.top_p));
                kept = n + 1;
                break;
            }
        }
        order.truncate(kept);
    }
    order.sort_unstable();
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut sum = 0.0;
    let mut token = order[order.len() - 1];
    for &i in &order {
        let before = sum;
        sum += weight(i) / total;
        if u < sum {
            token = i;
            // The ends of the range of all sums move nowhere.
            let below = if before > 0.0 { u - before } else { f64::INFINITY };
            let above = if i == order[order.len() - 1] { f64::INFINITY } else { sum - u };
            margin = margin.min(in_logits(below.min(above)));
            break;
        }
    }
    Drawn { token: id(token), margin }
}

fn id(index: usize) -> u32 {
    u32::try_from(index).expect("token ids fit 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOT: Sampling =
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, penalty: 1.0, recent: 64, seed: 7 };

    fn row() -> Vec<f32> {
        // Probabilities 0.1, 0.2, 0.3, 0.4.
        [0.1f32, 0.2, 0.3, 0.4].map(f32::ln).to_vec()
    }

    fn wide(row: &[f32]) -> Vec<f64> {
        row.iter().map(|&z| f64::from(z)).collect()
    }

    #[test]
    fn without_temperature_the_largest_logit_wins_and_its_lead_is_the_margin() {
        let mut sampler = Sampler::new(Sampling::default(), &[]);
        let drawn = sampler.draw(&[1.0, 3.5, 3.0]);
        assert_eq!((drawn.token, drawn.margin), (1, 0.5));
        assert_eq!(sampler.draw(&[2.0, 2.0, f32::NAN]).token, 0);
    }

    #[test]
    fn the_running_sum_decides() {
        let logits = wide(&row());
        for (u, token) in [(0.0, 0), (0.099, 0), (0.101, 1), (0.299, 1), (0.31, 2), (0.61, 3), (0.9999, 3)] {
            assert_eq!(draw_at(&logits, &HOT, u).token, token, "{u}");
        }
        let drawn = draw_at(&logits, &HOT, 0.35);
        assert!((drawn.margin - 4.0 * 0.05).abs() < 1e-6, "{drawn:?}");
    }

    #[test]
    fn top_k_and_top_p_leave_out_the_unlikely() {
        let logits = wide(&row());
        let two = Sampling { top_k: 2, ..HOT };
        for i in 0..100 {
            let u = f64::from(i) / 100.0;
            assert!(draw_at(&logits, &two, u).token >= 2);
            // 0.4 + 0.3 is not 0.75 yet.
            assert!(draw_at(&logits, &Sampling { top_p: 0.75, ..HOT }, u).token >= 1);
            assert_eq!(draw_at(&logits, &Sampling { top_p: 0.3, ..HOT }, u).token, 3);
        }
    }

    #[test]
    fn a_margin_holds_while_logits_move_less() {
        let logits = wide(&row());
        let how = Sampling { top_k: 3, top_p: 0.9, temperature: 0.7, ..HOT };
        for i in 0..200 {
            let u = (f64::from(i) + 0.5) / 200.0;
            let drawn = draw_at(&logits, &how, u);
            let step = 0.499 * drawn.margin;
            for signs in 0..16u32 {
                let moved: Vec<f64> = logits
                    .iter()
                    .enumerate()
                    .map(|(i, z)| if signs >> i & 1 == 1 { z + step } else { z - step })
                    .collect();
                assert_eq!(draw_at(&moved, &how, u).token, drawn.token, "u {u}, signs {signs:b}");
            }
        }
    }

    #[test]
    fn a_penalty_turns_the_sampler_from_what_it_said() {
        let mut sampler = Sampler::new(Sampling { penalty: 1.5, ..Sampling::default() }, &[1]);
        assert_eq!(sampler.draw(&[2.0, 2.5, -1.0]).token, 0);
        // Both are recent now: 2 / 1.5 and 2.5 / 1.5.
        assert_eq!(sampler.draw(&[2.0, 2.5, -1.0]).token, 1);
        let mut forgets = Sampler::new(Sampling { penalty: 1.5, recent: 1, ..Sampling::default() }, &[1, 2]);
        assert_eq!(forgets.draw(&[2.0, 2.5, -1.0]).token, 1);
    }

    #[test]
    fn the_same_seed_draws_the_same_and_frequencies_follow_probabilities() {
        let draws = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..HOT }, &[]);
            (0..4000).map(|_| sampler.draw(&row()).token).collect::<Vec<_>>()
        };
        let first = draws(7);
        assert_eq!(first, draws(7));
        assert_ne!(first, draws(8));
        // Pinned: other platforms must draw the same.
        assert_eq!(first[..8], PINNED);
        for token in 0..4u32 {
            let share = first.iter().filter(|&&t| t == token).count() as f64 / 4000.0;
            assert!((share - 0.1 * f64::from(token + 1)).abs() < 0.025, "{token}: {share}");
        }
    }

    const PINNED: [u32; 8] = [1, 1, 3, 3, 3, 2, 0, 3];
}
