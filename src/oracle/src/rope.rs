//! Rotary position embedding (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).

use model_file::{LayerShape, RopeKind};
use rayon::prelude::*;

/// The rotation of Q and K in layers of one shape.
#[derive(Debug)]
pub(crate) struct Rope {
    /// Radians a position, for each pair: `base^(-2i/d)`, divided by the pair's factor if there are factors.
    frequencies: Vec<f64>,
    kind: RopeKind,
    head_dim: usize,
}

impl Rope {
    /// Of layers of this shape; with factors where the file has them for such layers, `[rope_dim / 2]`.
    pub(crate) fn new(shape: &LayerShape, kind: RopeKind, factors: Option<&[f64]>) -> Self {
        let (base, dim) = (f64::from(shape.rope_base), shape.rope_dim as f64);
        let frequencies = (0..shape.rope_dim / 2)
            .map(|i| base.powf(-2.0 * i as f64 / dim) / factors.map_or(1.0, |f| f[i]))
            .collect();
        Self { frequencies, kind, head_dim: shape.head_dim }
    }

    /// Rotates every head of every row of `x` `[n, heads, head_dim]` by its row's position. Positions may
    /// be negative: that takes a rotation back. Elements from `rope_dim` on stay.
    pub(crate) fn rotate(&self, x: &mut [f64], positions: &[f64]) {
        if positions.is_empty() {
            return;
        }
        let half = self.frequencies.len();
        let width = x.len() / positions.len();
        x.par_chunks_mut(width).zip(positions).for_each(|(row, position)| {
            let turns: Vec<(f64, f64)> = self.frequencies.iter().map(|f| (position * f).sin_cos()).collect();
            for head in row.chunks_exact_mut(self.head_dim) {
                for (i, (sin, cos)) in turns.iter().enumerate() {
                    let (a, b) = match self.kind {
                        RopeKind::Norm => (2 * i, 2 * i + 1),
                        RopeKind::Neox => (i, i + half),
                    };
                    let (x, y) = (head[a], head[b]);
                    head[a] = x * cos - y * sin;
                    head[b] = x * sin + y * cos;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(kind: RopeKind, frequencies: &[f64], head_dim: usize) -> Rope {
        Rope { frequencies: frequencies.to_vec(), kind, head_dim }
    }

    /// A quarter turn at position 1 for the first pair, none for the second.
    const QUARTER: [f64; 2] = [std::f64::consts::FRAC_PI_2, 0.0];

    #[test]
    fn kinds_pair_their_elements() {
        let close =
            |a: &[f64], b: &[f64]| assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-13), "{a:?}");
        // Two heads, five elements each: the fifth is not rotated.
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0];
        let mut norm = x;
        rope(RopeKind::Norm, &QUARTER, 5).rotate(&mut norm, &[1.0]);
        close(&norm, &[-2.0, 1.0, 3.0, 4.0, 5.0, -20.0, 10.0, 30.0, 40.0, 50.0]);
        let mut neox = x;
        rope(RopeKind::Neox, &QUARTER, 5).rotate(&mut neox, &[1.0]);
        close(&neox, &[-3.0, 2.0, 1.0, 4.0, 5.0, -30.0, 20.0, 10.0, 40.0, 50.0]);
    }

    #[test]
    fn a_negative_position_takes_the_rotation_back() {
        let r = rope(RopeKind::Neox, &[0.7, 0.01], 4);
        let x = [1.0, -2.0, 0.5, 4.0];
        let mut y = x;
        r.rotate(&mut y, &[37.0]);
        r.rotate(&mut y, &[-37.0]);
        assert!(x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-14));
    }
}
