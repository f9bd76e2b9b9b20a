//! Matrix products.

use super::{EvalError, Node};
use rayon::prelude::*;

/// `[k, m] x [k, n] -> [m, n]`, matrices of the first repeated over those of the second.
pub(super) fn product(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let fits = |d: usize| a.ne[d] > 0 && b.ne[d].is_multiple_of(a.ne[d]);
    if a.ne[0] != b.ne[0] || !fits(2) || !fits(3) {
        return Err(EvalError::lacks(node.info, format!("{:?} times {:?}", a.ne, b.ne)));
    }
    let (k, m, n) = (a.ne[0], a.ne[1], b.ne[1]);
    let columns = b.values()?;
    let mut out = vec![0.0; m * n * b.ne[2] * b.ne[3]];
    for batch in 0..b.ne[2] * b.ne[3] {
        let (i2, i3) = (batch % b.ne[2], batch / b.ne[2]);
        let first = (i2 / (b.ne[2] / a.ne[2]) + a.ne[2] * (i3 / (b.ne[3] / a.ne[3]))) * m;
        let columns = &columns[batch * k * n..][..k * n];
        // One row of the result for each row of `a`, which is read once.
        let rows = (0..m)
            .into_par_iter()
            .map(|r| {
                let row = a.row(first + r)?;
                Ok(columns.chunks_exact(k).map(|column| dot(&row, column)).collect::<Vec<f64>>())
            })
            .collect::<Result<Vec<_>, EvalError>>()?;
        let out = &mut out[batch * m * n..][..m * n];
        for (r, row) in rows.into_iter().enumerate() {
            row.into_iter().enumerate().for_each(|(column, value)| out[column * m + r] = value);
        }
    }
    Ok(out)
}

/// For each index in `[used, n]` the product of that matrix of `a [k, m, matrices]` with a column of `b [k, used or 1,
/// n]`: `[m, used, n]`.
pub(super) fn product_of_chosen(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let (a, b, chosen) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (used, n) = (chosen.ne[0], chosen.ne[1]);
    let fits = a.ne[0] == b.ne[0] && b.ne[1] > 0 && used.is_multiple_of(b.ne[1]) && b.ne[2] == n;
    if !fits || chosen.rows() != n || a.ne[3] != 1 || b.ne[3] != 1 {
        let what = format!("{:?} times {:?} by {:?}", a.ne, b.ne, chosen.ne);
        return Err(EvalError::lacks(node.info, what));
    }
    let (m, matrices) = (a.ne[1], a.ne[2]);
    let each = (0..n * used).into_par_iter().map(|i| {
        let (token, place) = (i / used, i % used);
        let at = chosen.row(token)?[place];
        if !(at >= 0.0 && at < matrices as f64) {
            let what = format!("`{}`: matrix {at} of {matrices}", node.info.name);
            return Err(EvalError::Malformed(what));
        }
        let column = b.row(token * b.ne[1] + place % b.ne[1])?;
        let first = at as usize * m;
        (first..first + m).map(|row| Ok(dot(&a.row(row)?, &column))).collect::<Result<Vec<f64>, EvalError>>()
    });
    Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
}

/// The sum of products, in order, in eight parts that follow each other.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut parts = [0.0; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a8.zip(b8) {
        for i in 0..8 {
            parts[i] += x[i] * y[i];
        }
    }
    parts.iter().sum::<f64>() + rest
}
