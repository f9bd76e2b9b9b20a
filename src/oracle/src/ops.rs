//! Arithmetic of rows: norms, activations, softmax. Sums run from the first element to the last.

use rayon::prelude::*;

/// RMS norm of each row of `x` `[n, width]`: `x / sqrt(mean(x^2) + eps) * weight`, `weight` `[width]`
/// (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
pub(crate) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let width = weight.len();
    let mut out = vec![0.0; x.len()];
    out.par_chunks_mut(width).zip(x.par_chunks(width)).for_each(|(out, x)| {
        let square: f64 = x.iter().map(|v| v * v).sum();
        let scale = 1.0 / (square / width as f64 + eps).sqrt();
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * w;
        }
    });
    out
}

/// SwiGLU's product: `gate <- silu(gate) * up`, element by element
/// (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
pub(crate) fn swiglu(gate: &mut [f64], up: &[f64]) {
    gate.par_iter_mut().zip(up).for_each(|(g, u)| *g = *g / (1.0 + (-*g).exp()) * u);
}

/// RMS norm of each row of `width` elements without a weight.
pub(crate) fn rms_norm_plain(x: &[f64], width: usize, eps: f64) -> Vec<f64> {
    rms_norm(x, &vec![1.0; width], eps)
}

/// GEGLU's product: `gate <- gelu(gate) * up`, element by element, with the hyperbolic tangent's approximation of the
/// normal distribution (Shazeer 2020, <https://arxiv.org/abs/2002.05202>; Hendrycks and Gimpel 2016,
/// <https://arxiv.org/abs/1606.08415>).
pub(crate) fn geglu(gate: &mut [f64], up: &[f64]) {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    gate.par_iter_mut().zip(up).for_each(|(g, u)| {
        let x = *g;
        *g = 0.5 * x * (1.0 + (root * (x + 0.044_715 * x * x * x)).tanh()) * u;
    });
}

/// `x <- cap * tanh(x / cap)`, element by element.
pub(crate) fn soft_cap(x: &mut [f64], cap: f64) {
    x.par_iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
}

/// `x <- x + y`, element by element.
pub(crate) fn add(x: &mut [f64], y: &[f64]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Softmax in place, of scores that are not empty.
pub(crate) fn softmax(scores: &mut [f64]) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for s in scores.iter_mut() {
        *s = (*s - max).exp();
        sum += *s;
    }
    for s in scores {
        *s /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_by_hand() {
        // mean(9 + 16) / 2 = 12.5
        let out = rms_norm(&[3.0, 4.0, 0.0, 0.0], &[1.0, 2.0], 0.0);
        assert_eq!(out[..2], [3.0 * (1.0 / 12.5f64.sqrt()), 4.0 * (1.0 / 12.5f64.sqrt()) * 2.0]);
        assert!(out[2].is_nan(), "0 / 0 without epsilon");
        assert_eq!(rms_norm(&[0.0, 0.0], &[1.0, 2.0], 1e-6), [0.0, 0.0]);
    }

    #[test]
    fn swiglu_by_hand() {
        let mut gate = [0.0, 1.0, -800.0];
        swiglu(&mut gate, &[5.0, 2.0, 3.0]);
        assert_eq!(gate[0], 0.0);
        assert!((gate[1] - 2.0 / (1.0 + (-1f64).exp())).abs() < 1e-15);
        assert_eq!(gate[2], 0.0, "no NaN far below zero");
    }

    #[test]
    fn geglu_by_hand() {
        let mut gate = [0.0, 1.0, -800.0, 800.0];
        geglu(&mut gate, &[5.0, 2.0, 3.0, 0.5]);
        // gelu(1) of the approximation: 0.841191990608...
        assert!((gate[1] - 2.0 * 0.841_191_990_608).abs() < 1e-11, "{}", gate[1]);
        assert_eq!((gate[0], gate[2], gate[3]), (0.0, 0.0, 400.0), "no NaN far from zero");
    }

    #[test]
    fn soft_capping_keeps_small_values_and_bounds_large_ones() {
        let mut x = [1e-6, 1e9, -1e9, 30.0];
        soft_cap(&mut x, 30.0);
        assert!((x[0] - 1e-6).abs() < 1e-18);
        assert_eq!((x[1], x[2]), (30.0, -30.0));
        assert!((x[3] - 30.0 * 1f64.tanh()).abs() < 1e-12);
    }

    #[test]
    fn softmax_by_hand() {
        let mut s = [1000.0, 1000.0 + 3f64.ln(), f64::NEG_INFINITY];
        softmax(&mut s);
        assert!((s[0] - 0.25).abs() < 1e-13 && (s[1] - 0.75).abs() < 1e-13);
        assert_eq!(s[2], 0.0);
        let mut nan = [0.0, f64::NAN];
        softmax(&mut nan);
        assert!(nan.iter().all(|v| v.is_nan()), "a NaN is not lost");
    }
}
