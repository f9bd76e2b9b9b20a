//! The entropy-bound sampler of block diffusion: a row of logits gives its most likely token, its entropy and a draw;
//! a canvas of such rows says which positions are accepted and whether it is finished (Ben-Hamu et al. 2025,
//! <https://arxiv.org/abs/2505.24857>; reference implementation `models/diffusion_gemma` of
//! <https://github.com/huggingface/transformers>).

use model_file::EntropyBound;

/// What one row of logits gives at a temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The first of the most likely tokens.
    pub argmax: u32,
    /// Entropy of the row's distribution, in nats.
    pub entropy: f64,
    /// The first token at which the running sum of probabilities reaches the draw.
    pub sampled: u32,
    /// How far the draw is from the running sums on either side of the sampled token, as a probability.
    pub sampled_margin: f64,
}

/// Reads a row with the draw `u`, at least 0 and below 1. `None` where it has a NaN or no finite maximum.
///
/// With `z = logit / temperature`, `m = max z`, `e = exp(z - m)`, `Z = sum e` and `T = sum (z - m) e`, the entropy is
/// `ln Z - T / Z`, and a token is drawn when the running sum of `e` reaches `u Z`; the last one if none does.
pub fn sample(row: &[f64], temperature: f64, u: f64) -> Option<Sample> {
    let argmax = super::most_likely(row, None)?.token;
    let max = row[argmax as usize] / temperature;
    if !max.is_finite() {
        return None;
    }
    let e: Vec<f64> = row.iter().map(|z| (z / temperature - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    // A logit of minus infinity has e = 0 and adds nothing.
    let spread: f64 =
        row.iter().zip(&e).filter(|(_, e)| **e > 0.0).map(|(z, e)| (z / temperature - max) * e).sum();
    let target = u * sum;
    let (mut before, mut after, mut sampled) = (0.0, 0.0, row.len() - 1);
    for (i, e) in e.iter().enumerate() {
        (before, after) = (after, after + e);
        if after >= target {
            sampled = i;
            break;
        }
    }
    let sampled_margin = (target - before).abs().min((after - target).abs()) / sum;
    let sampled = u32::try_from(sampled).expect("tokens fit 32 bits");
    Some(Sample { argmax, entropy: sum.ln() - spread / sum, sampled, sampled_margin })
}

/// The temperature of a step, counted from 0, of `steps`: from `t_max` on the first towards `t_min`, which a step after
/// the last would have.
pub fn temperature(sampler: &EntropyBound, step: usize, steps: usize) -> f64 {
    let (min, max) = (f64::from(sampler.t_min), f64::from(sampler.t_max));
    min + (max - min) * (steps.saturating_sub(step) as f64 / steps as f64)
}

/// Which positions are accepted: as many of the lowest entropies as together, the highest of them left out, stay within
/// the bound, and of equal entropies the lower position first. At least one.
///
/// The second value is how near a sum came to the bound: noise below it accepts the same positions, unless it changes
/// their order.
pub fn accepted(entropies: &[f64], bound: f64) -> (Vec<bool>, f64) {
    let mut order: Vec<usize> = (0..entropies.len()).collect();
    order.sort_by(|&a, &b| entropies[a].total_cmp(&entropies[b]));
    let (mut accepted, mut sum, mut margin) = (vec![false; entropies.len()], 0.0f64, f64::INFINITY);
    for position in order {
        margin = margin.min((sum - bound).abs());
        // A NaN ends it too.
        if !(sum <= bound) {
            break;
        }
        accepted[position] = true;
        sum += entropies[position];
    }
    (accepted, margin)
}

/// When a canvas is finished.
#[derive(Debug, Clone)]
pub struct Stop {
    history: Vec<Vec<u32>>,
    steps: usize,
    confidence: f64,
}

impl Stop {
    /// For a canvas at its first step.
    pub fn new(sampler: &EntropyBound) -> Self {
        Self { history: Vec::new(), steps: sampler.stability, confidence: f64::from(sampler.confidence) }
    }

    /// Whether the canvas is finished after a step with these most likely tokens and entropies: the tokens are those of
    /// each of the last `stability` steps, and the mean entropy is below the confidence.
    pub fn finished(&mut self, argmax: &[u32], entropies: &[f64]) -> bool {
        let stable = self.history.len() == self.steps && self.history.iter().all(|old| old == argmax);
        self.history.push(argmax.to_vec());
        if self.history.len() > self.steps {
            self.history.remove(0);
        }
        let mean = entropies.iter().sum::<f64>() / entropies.len() as f64;
        stable && mean < self.confidence
    }
}

/// The noise of a run: every number depends on the seed and on what it is for, so that a replayed run has the same.
///
/// With `mix` the finaliser of SplitMix64 (Steele et al. 2014, <https://doi.org/10.1145/2660193.2660195>) after adding
/// its constant, `h = mix(seed)`, then `h = mix(h xor word)` for the canvas, the step, the position and the purpose.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    /// The seed.
    pub seed: u64,
}

impl Noise {
    fn number(self, canvas: usize, step: usize, position: usize, purpose: u64) -> u64 {
        [canvas as u64, step as u64, position as u64, purpose].iter().fold(mix(self.seed), |h, w| mix(h ^ w))
    }

    /// The random token that a position holds when `step` reads it without having accepted one.
    pub fn token(self, canvas: usize, step: usize, position: usize, n_vocab: usize) -> u32 {
        let wide = u128::from(self.number(canvas, step, position, 0)) * n_vocab as u128;
        u32::try_from(wide >> 64).expect("below the vocabulary's size")
    }

    /// The draw of a position's row: at least 0 and below 1.
    pub fn draw(self, canvas: usize, step: usize, position: usize) -> f64 {
        (self.number(canvas, step, position, 1) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_by_hand() {
        // Probabilities 1/8, 1/2, 1/4, 1/8 at temperature 2.
        let row = [0.0, 2.0 * 4f64.ln(), 2.0 * 2f64.ln(), 0.0];
        let at = |u| sample(&row, 2.0, u).unwrap();
        assert_eq!(at(0.5).argmax, 1);
        assert!((at(0.5).entropy - 1.75 * 2f64.ln()).abs() < 1e-14);
        for (u, token) in [(0.0, 0), (0.12, 0), (0.13, 1), (0.62, 1), (0.63, 2), (0.9, 3), (0.999, 3)] {
            assert_eq!(at(u).sampled, token, "{u}");
        }
        assert!((at(0.13).sampled_margin - 0.005).abs() < 1e-14);
        assert_eq!(sample(&[3.0, 3.0, 1.0], 1.0, 0.0).unwrap().argmax, 0, "the first of equals");
    }

    #[test]
    fn rows_that_draw_nothing_and_logits_that_cannot_be_drawn() {
        assert_eq!(sample(&[1.0, f64::NAN], 1.0, 0.5), None);
        assert_eq!(sample(&[f64::NEG_INFINITY; 2], 1.0, 0.5), None);
        let hidden = sample(&[f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY], 1.0, 0.5).unwrap();
        assert_eq!((hidden.sampled, hidden.entropy), (1, 0.0));
    }

    #[test]
    fn the_temperature_falls_in_a_line_and_never_reaches_its_lowest() {
        let sampler = EntropyBound { t_min: 0.5, t_max: 1.0, ..EntropyBound::default() };
        let all: Vec<f64> = (0..4).map(|step| temperature(&sampler, step, 4)).collect();
        assert_eq!(all, [1.0, 0.875, 0.75, 0.625]);
        assert_eq!(temperature(&sampler, 0, 1), 1.0);
    }

    #[test]
    fn the_lowest_entropies_within_the_bound_are_accepted() {
        // Sorted 0.01, 0.05, 0.06, 0.3: sums without the highest 0, 0.01, 0.06, 0.12.
        let (mask, margin) = accepted(&[0.3, 0.05, 0.01, 0.06], 0.1);
        assert_eq!(mask, [false, true, true, true]);
        assert!((margin - 0.02).abs() < 1e-12, "{margin}");
        assert_eq!(accepted(&[5.0, 7.0], 0.1).0, [true, false], "one at least");
        assert_eq!(accepted(&[0.2, 0.2, 0.2], 0.1).0, [true, false, false], "the lower position of equals");
        assert_eq!(accepted(&[0.0, 0.0, 0.1], 0.0).0, [true, true, true], "a sum on the bound is within it");
        assert_eq!(accepted(&[f64::NAN, 0.0, 0.0], 0.1).0, [true, true, true]);
        assert_eq!(accepted(&[f64::NAN, 1.0], f64::NAN).0, [false, false]);
    }

    #[test]
    fn a_canvas_is_finished_when_it_is_stable_and_sure() {
        let sampler = EntropyBound { stability: 2, ..EntropyBound::default() };
        let mut stop = Stop::new(&sampler);
        let sure = [0.004, 0.005];
        assert!(!stop.finished(&[1, 2], &sure) && !stop.finished(&[1, 2], &sure));
        assert!(stop.finished(&[1, 2], &sure), "the third of the same");
        assert!(!stop.finished(&[1, 3], &sure) && !stop.finished(&[1, 3], &sure));
        assert!(!stop.finished(&[1, 3], &[0.004, 0.006]), "a mean of just the confidence is not below it");
        assert!(!stop.finished(&[1, 3], &[f64::NAN, 0.0]));
        let mut at_once = Stop::new(&EntropyBound { stability: 0, ..sampler });
        assert!(at_once.finished(&[1, 2], &sure));
    }

    #[test]
    fn noise_is_even_and_its_own_for_every_purpose() {
        let noise = Noise { seed: 7 };
        // The first number of SplitMix64 seeded with 0, published with the generator.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        let mut seen = vec![0; 6];
        for position in 0..6000 {
            seen[noise.token(0, 0, position, 6) as usize] += 1;
            let u = noise.draw(1, 2, position);
            assert!((0.0..1.0).contains(&u));
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
        let one = noise.number(1, 2, 3, 0);
        for other in [noise.number(2, 1, 3, 0), noise.number(1, 2, 4, 0), noise.number(1, 2, 3, 1)] {
            assert_ne!(one, other);
        }
    }
}
