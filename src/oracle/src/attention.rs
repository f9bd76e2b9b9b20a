//! Scaled dot-product attention with grouped K/V heads
//! (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>; Ainslie et al. 2023,
//! <https://arxiv.org/abs/2305.13245>).

use std::ops::Range;

use model_file::LayerShape;
use rayon::prelude::*;

use crate::matrix::products;
use crate::ops::softmax;

/// Keys whose scores are computed together.
const KEYS: usize = 4;

/// Attention of every query over the rows it may see.
///
/// `q` is `[n, n_head, head_dim]`; `k` and `v` are `[rows, n_head_kv, head_dim]`; query `i` sees the rows
/// `visible[i]`, never none. Query head h reads K/V head `h / (n_head / n_head_kv)`. Scores are multiplied by
/// `scale`. Gives `[n, n_head, head_dim]`.
pub(crate) fn attend(
    shape: &LayerShape,
    scale: f64,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    visible: &[Range<usize>],
) -> Vec<f64> {
    let (dim, group, width) = (shape.head_dim, shape.heads_per_kv(), shape.kv_width());
    let mut out = vec![0.0; q.len()];
    out.par_chunks_mut(dim).zip(q.par_chunks(dim)).enumerate().for_each_init(
        Vec::new,
        |scores, (i, (out, q))| {
            let seen = visible[i / shape.n_head].clone();
            let head = i % shape.n_head / group * dim;
            let key = |row: usize| &k[row * width + head..][..dim];
            scores.clear();
            let mut row = seen.start;
            while row + KEYS <= seen.end {
                let keys = [key(row), key(row + 1), key(row + 2), key(row + 3)];
                scores.extend(products([q], keys)[0].map(|s| s * scale));
                row += KEYS;
            }
            scores.extend((row..seen.end).map(|row| products([q], [key(row)])[0][0] * scale));
            softmax(scores);
            for (row, p) in seen.zip(scores.iter()) {
                for (out, v) in out.iter_mut().zip(&v[row * width + head..][..dim]) {
                    *out += p * v;
                }
            }
        },
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four query heads on two K/V heads of two elements, three rows.
    fn shape() -> LayerShape {
        let h = model_file::GenerateSpec::preset("gen-llama").unwrap().hparams();
        LayerShape { n_head: 4, n_head_kv: 2, head_dim: 2, ..h.layer(0) }
    }

    const SCALE: f64 = std::f64::consts::FRAC_1_SQRT_2;

    #[test]
    fn query_heads_share_their_groups_rows() {
        // Scores of 0: the mean of the visible V rows of the right head.
        let v = [1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0, 100.0, 100.0, 100.0, 100.0];
        let out = attend(&shape(), SCALE, &[0.0; 8], &[1.0; 12], &v, std::slice::from_ref(&(0..2)));
        assert_eq!(out, [2.0, 3.0, 2.0, 3.0, 20.0, 30.0, 20.0, 30.0]);
    }

    #[test]
    fn scores_are_scaled() {
        // Head 0's score for row 0 is ln 3 * sqrt 2 before scaling, for row 1 it is 0.
        let q = [3f64.ln(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let k = [2f64.sqrt(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let v = [4.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let out = attend(&shape(), SCALE, &q, &k, &v, std::slice::from_ref(&(0..2)));
        assert!((out[0] - 3.0).abs() < 1e-14 && (out[1] - 6.0).abs() < 1e-14, "{out:?}");
        assert_eq!(out[2..4], [2.0, 4.0], "head 1 has a zero query");
    }

    #[test]
    fn a_query_sees_its_window_only() {
        let v: Vec<f64> = (0..7 * 4).map(f64::from).collect();
        // Seven rows: four keys at once and three alone.
        let out = attend(&shape(), SCALE, &[0.0; 16], &[0.5; 28], &v, &[2..7, 6..7]);
        let mean = (2..7).map(|r| f64::from(r * 4)).sum::<f64>() / 5.0;
        assert!((out[0] - mean).abs() < 1e-14);
        assert_eq!(out[8..10], [24.0, 25.0]);
    }
}
