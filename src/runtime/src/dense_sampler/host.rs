//! The fall-back: all logits on the host, sampled by its threads. Exponentials in F32, sums in F64.

use super::tables::BLOCK;
use super::{Sampled, Shape};

/// How far the running sum may be from its target, over the whole, where another draw is a near tie.
const NEAR_TIE: f64 = 1e-5;

/// What one row gives, and which draws are near ties of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The row.
    pub row: Sampled,
    /// The first draw that is a near tie.
    pub lowest: usize,
    /// The last one.
    pub highest: usize,
}

/// Samples `logits [rows, vocab]`, row-major, with one `u` a row, on so many threads.
///
/// # Panics
/// When the numbers do not fit the shape: that is a fault of the caller.
#[must_use]
pub fn sample(logits: &[f32], shape: Shape, u: &[f32], inv_temp: f32, threads: usize) -> Vec<Option<Drawn>> {
    assert_eq!((logits.len(), u.len()), (shape.vocab * shape.rows, shape.rows), "logits of {shape:?}");
    let mut all = vec![None; shape.rows];
    let share = shape.rows.div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let parts = all.chunks_mut(share).zip(logits.chunks(share * shape.vocab.max(1))).zip(u.chunks(share));
        for ((out, logits), u) in parts {
            scope.spawn(move || {
                for ((out, row), &u) in out.iter_mut().zip(logits.chunks_exact(shape.vocab)).zip(u) {
                    *out = one(row, u, inv_temp);
                }
            });
        }
    });
    all
}

fn one(row: &[f32], u: f32, inv_temp: f32) -> Option<Drawn> {
    let (mut argmax, mut largest, mut nan) = (0, f32::NEG_INFINITY, false);
    for (i, &logit) in row.iter().enumerate() {
        nan |= logit.is_nan();
        if logit > largest {
            (argmax, largest) = (i, logit);
        }
    }
    if nan || !largest.is_finite() {
        return None;
    }
    let weight = |logit: f32| {
        let scaled = (logit - largest) * inv_temp;
        (scaled, scaled.exp())
    };
    let (mut total, mut mean) = (0f64, 0f64);
    let mut sums = Vec::with_capacity(row.len().div_ceil(BLOCK));
    for block in row.chunks(BLOCK) {
        let mut sum = 0f64;
        for &logit in block {
            let (scaled, weight) = weight(logit);
            if weight > 0.0 {
                sum += f64::from(weight);
                mean += f64::from(scaled) * f64::from(weight);
            }
        }
        total += sum;
        sums.push(sum);
    }
    let entropy = (total.ln() - mean / total) as f32;
    // The first index whose running sum is enough: the block first, then the column in it.
    let first = |enough: &dyn Fn(f64) -> bool| {
        let mut before = 0f64;
        for (i, (block, sum)) in row.chunks(BLOCK).zip(&sums).enumerate() {
            if enough(before + sum) {
                let mut reached = before;
                for (j, &logit) in block.iter().enumerate() {
                    reached += f64::from(weight(logit).1);
                    if enough(reached) {
                        return i * BLOCK + j;
                    }
                }
            }
            before += sum;
        }
        row.len() - 1
    };
    let (target, near) = (f64::from(u) * total, NEAR_TIE * total);
    let token = index(first(&|sum| sum >= target));
    Some(Drawn {
        row: Sampled { argmax: index(argmax), entropy, token },
        lowest: first(&|sum| sum >= target - near),
        highest: first(&|sum| sum > target + near),
    })
}

fn index(i: usize) -> u32 {
    u32::try_from(i).expect("a vocabulary fits 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(logits: &[f32], vocab: usize, u: &[f32], threads: usize) -> Vec<Option<Drawn>> {
        sample(logits, Shape { vocab, rows: u.len() }, u, 1.0, threads)
    }

    #[test]
    fn by_hand_and_the_same_on_any_number_of_threads() {
        let none = f32::NEG_INFINITY;
        let logits = [
            [0.0, 2f32.ln(), 0.0, none],
            [none; 4],
            [1.0, 1.0, f32::NAN, 0.0],
            [none, 3.0, 3.0, none],
            [f32::INFINITY, 0.0, 0.0, 0.0],
        ]
        .concat();
        let u = [0.7, 0.5, 0.5, 0.0, 0.5];
        let drawn = rows(&logits, 4, &u, 1);
        let first = drawn[0].unwrap().row;
        assert_eq!((first.argmax, first.token), (1, 1));
        assert!((first.entropy - 1.5 * 2f32.ln()).abs() < 1e-6);
        assert_eq!([drawn[1], drawn[2], drawn[4]], [None; 3]);
        // A sum of 0 reaches a target of 0.
        assert_eq!(drawn[3].map(|s| (s.row.argmax, s.row.token)), Some((1, 0)));
        for threads in [2, 3, 9] {
            assert_eq!(rows(&logits, 4, &u, threads), drawn);
        }
    }

    #[test]
    fn it_is_the_oracles_sampler_to_seven_digits() {
        let vocab = 1537;
        let wave = |i: usize| ((i * 7919 % 1009) as f32 - 500.0) / 90.0;
        let logits: Vec<f32> = (0..3 * vocab).map(wave).collect();
        let u = [0.0, 0.37, 1.0 - f32::EPSILON / 2.0];
        let exact = oracle::sampler::draw_rows(&logits, vocab, &u, 1.0);
        for (mine, exact) in rows(&logits, vocab, &u, 2).into_iter().zip(exact) {
            let (mine, exact) = (mine.unwrap(), exact.unwrap());
            assert_eq!(mine.row.argmax as usize, exact.argmax);
            assert!((f64::from(mine.row.entropy) - exact.entropy).abs() < 1e-6);
            assert!((exact.lowest..=exact.highest).contains(&(mine.row.token as usize)));
            assert!(mine.lowest <= mine.row.token as usize && mine.row.token as usize <= mine.highest);
        }
    }
}
