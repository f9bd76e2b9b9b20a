//! The logits that a case of the mode `sampler` makes: a function of its options, the step, the row and the column, in
//! sums and products alone, so that they are the same on every platform. The draws are too.

use super::sampler::{Dist, SamplerOptions, Uniform};

/// The largest number of 32 bits below 1.
const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// Likely tokens of a row of [`Dist::Peaked`].
const LIKELY: u64 = 24;

/// Makes canvases.
#[derive(Debug, Clone, Copy)]
pub struct Canvases {
    options: SamplerOptions,
    vocab: usize,
    seed: u64,
}

/// Numbers that look like nothing: Steele's SplitMix64 at a place of its sequence.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// From 0 up to 1, in steps that F32 holds.
fn unit(word: u64) -> f32 {
    (word >> 40) as f32 / (1u32 << 24) as f32
}

/// About normal with a deviation of 1: the sum of four uniform numbers.
fn noise(word: u64) -> f32 {
    let part = |shift: u32| ((word >> shift) & 0xFFFF) as f32 / 65536.0;
    (part(0) + part(16) + part(32) + part(48) - 2.0) * 1.732_050_8
}

/// Fills a row with noise of this deviation.
fn background(out: &mut [f32], key: u64, size: f32) {
    for (i, logit) in out.iter_mut().enumerate() {
        *logit = size * noise(mixed(key ^ i as u64));
    }
}

impl Canvases {
    /// Canvases of `vocab` columns.
    #[must_use]
    pub fn new(options: SamplerOptions, vocab: usize, seed: u64) -> Self {
        Self { options, vocab, seed }
    }

    /// A word for a row of a step.
    fn word(&self, step: usize, row: usize, what: u64) -> u64 {
        mixed(mixed(mixed(self.seed ^ (what << 56)) ^ step as u64) ^ ((row as u64) << 24))
    }

    /// What the rows of `step` are drawn by.
    #[must_use]
    pub fn u(&self, step: usize, rows: usize) -> Vec<f32> {
        let one = |row| match self.options.u {
            Uniform::Draw => unit(self.word(step, row, 1)),
            Uniform::Zero => 0.0,
            Uniform::Last => BELOW_ONE,
        };
        (0..rows).map(one).collect()
    }

    /// The logits `[rows, vocab]` of `step`, row-major.
    #[must_use]
    pub fn logits(&self, step: usize) -> Vec<f32> {
        use rayon::prelude::*;
        let mut all = vec![0f32; self.options.rows() * self.vocab];
        all.par_chunks_exact_mut(self.vocab).enumerate().for_each(|(row, out)| self.fill(step, row, out));
        all
    }

    fn fill(&self, step: usize, row: usize, out: &mut [f32]) {
        let key = self.word(step, row, 2);
        let at = |i: u64| (mixed(key ^ (i << 32)) % self.vocab as u64) as usize;
        match self.options.dist {
            Dist::Steps | Dist::Flat => background(out, key, 0.5),
            Dist::Peaked => {
                background(out, key, 1.0);
                // Above the whole background together by a little at first, and by more with every step.
                let bits = (usize::BITS - self.vocab.leading_zeros()) as f32;
                let sharper = 0.25 * step as f32;
                for i in 0..LIKELY {
                    out[at(i)] = 0.7 * bits + 3.0 + sharper - 0.7 * i as f32 + 0.5 * noise(mixed(key ^ !i));
                }
            }
            Dist::Uniform => out.fill(4.0 * unit(key) - 2.0),
            Dist::Plateau => {
                // No binary fraction after the soft-max.
                out.fill(-0.1 - 0.9 * unit(key));
                (out[at(0)], out[at(1)]) = (0.5, 0.5);
            }
            Dist::OneHot => {
                out.fill(0.0);
                out[at(0)] = 60.0;
            }
            Dist::Ties => {
                background(out, key, 1.0);
                let most: f32 = 7.0;
                for i in 0..6 {
                    out[at(10 + i)] = most.next_down();
                }
                for i in 0..4 {
                    out[at(i)] = most;
                }
            }
            Dist::Inf => {
                background(out, key, 2.0);
                for (i, logit) in out.iter_mut().enumerate() {
                    if row % 4 == 3 || !mixed(key ^ !(i as u64)).is_multiple_of(10) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            Dist::Nan => {
                background(out, key, 2.0);
                match row % 4 {
                    0 => out[at(0)] = f32::NAN,
                    1 => out.fill(f32::NAN),
                    2 => out[at(0)] = f32::INFINITY,
                    _ => {}
                }
            }
        }
    }
}

/// A number for a row of logits that another row hardly has, as F32 holds it: from 1 to 2^24.
#[must_use]
pub fn checksum(row: &[f32]) -> f32 {
    let sum = row.iter().fold(0xCBF2_9CE4_8422_2325, |sum: u64, logit| {
        (sum ^ u64::from(logit.to_bits())).wrapping_mul(0x0000_0100_0000_01B3)
    });
    1.0 + (mixed(sum) >> 41) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canvases(options: &str, vocab: usize) -> Canvases {
        let options: crate::plan::Options = options.parse().unwrap();
        Canvases::new(options.sampler, vocab, options.draws.seed())
    }

    #[test]
    fn canvases_are_the_same_every_time_and_others_at_another_step_or_seed() {
        let a = canvases("dist=peaked", 1000);
        let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(a.logits(2)), bits(a.logits(2)));
        assert_ne!(bits(a.logits(2)), bits(a.logits(3)));
        assert_ne!(bits(a.logits(2)), bits(canvases("dist=peaked&seed=1", 1000).logits(2)));
        assert_eq!(a.u(0, 8), a.u(0, 8));
        assert_ne!(a.u(0, 8), a.u(1, 8));
        assert!(a.u(5, 500).iter().all(|u| (0.0..1.0).contains(u)));
        assert_eq!(canvases("dist=flat&u=last", 4).u(0, 2), [BELOW_ONE; 2]);
        // Pinned, so that figures of different machines are of the same canvas: SplitMix64 from 0 begins with this word,
        // and the rest was worked out by another program.
        assert_eq!(mixed(0), 0xE220_A839_7B1D_CDAF);
        let flat = canvases("dist=flat", 3).logits(0);
        assert_eq!(flat[..3], [-0.419_018_54, 0.206_767_26, -0.825_258_7]);
        assert_eq!(a.u(3, 6)[5], 0.780_557_5);
    }

    #[test]
    fn peaked_canvases_are_as_sure_as_a_trained_model_is() {
        for (vocab, rows) in [(1000, 64), (49_152, 8), (262_144, 3)] {
            let canvases = canvases(&format!("dist=peaked&canvas={rows}"), vocab);
            let mut sum = 0.0;
            for step in 0..15 {
                let drawn =
                    oracle::sampler::draw_rows(&canvases.logits(step), vocab, &canvases.u(step, rows), 1.0);
                sum += drawn.iter().map(|drawn| drawn.unwrap().entropy).sum::<f64>();
            }
            let mean = sum / (15 * rows) as f64;
            println!("{vocab}: mean entropy {mean:.2}");
            assert!((0.5..4.0).contains(&mean), "{vocab}: mean entropy {mean}");
        }
    }

    #[test]
    fn every_distribution_is_what_it_is_called() {
        let rows = |dist: &str| canvases(&format!("dist={dist}"), 300).logits(0);
        let yields = |dist: &str| {
            let drawn = oracle::sampler::draw_rows(&rows(dist), 300, &[0.5; 8], 1.0);
            drawn.iter().map(Option::is_some).collect::<Vec<_>>()
        };
        assert_eq!(yields("nan"), [false, false, false, true, false, false, false, true]);
        assert_eq!(yields("inf"), [true, true, true, false, true, true, true, false]);
        let ties = rows("ties");
        for row in ties.chunks(300) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            assert!(row.iter().filter(|logit| **logit == most).count() > 1);
        }
        assert!(rows("uniform")[..300].windows(2).all(|pair| pair[0] == pair[1]));
        let one_hot = oracle::sampler::draw(&rows("one-hot")[..300], 0.5, 1.0).unwrap();
        assert!(one_hot.entropy < 1e-20 && one_hot.argmax == one_hot.sampled);
        let flat = oracle::sampler::draw(&rows("flat")[..300], 0.5, 1.0).unwrap();
        assert!(flat.entropy > 5.0);
    }

    #[test]
    fn another_row_has_another_checksum() {
        let row = [1.0, f32::NAN, f32::NEG_INFINITY];
        assert_eq!(checksum(&row), checksum(&row));
        assert_ne!(checksum(&row), checksum(&[1.0, f32::NEG_INFINITY, f32::NAN]));
        assert_ne!(checksum(&[0.0]), checksum(&[-0.0]));
        assert!((1.0..=8_388_608.0).contains(&checksum(&row)));
    }
}
