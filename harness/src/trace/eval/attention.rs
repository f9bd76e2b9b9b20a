//! Rotation, soft-max and attention in one node.

use super::matrix::dot;
use super::{EvalError, Node, View};

/// Rotary embedding of `[head_dim, heads, n]`; frequency `i` of `dims / 2` is `base^(-2i / dims)`, over its factor
/// where there are any.
pub(super) fn rope(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    const NEOX: i32 = 2;
    let (a, positions) = (node.input(0)?, node.input(1)?.values()?);
    let factors = node.inputs.get(2).map(View::values).transpose()?;
    let info = node.info;
    let dims = usize::try_from(info.params[1]).unwrap_or(0);
    let [base, scale, extension, attention] = [5, 6, 7, 8].map(|i| info.float(i));
    let plain = extension == 0.0 && [0, NEOX].contains(&info.params[2]) && a.ne[3] == 1;
    if !plain || dims == 0 || !dims.is_multiple_of(2) || dims > a.ne[0] || positions.len() != a.ne[2] {
        return Err(EvalError::lacks(info, format!("parameters {:?}", &info.params[..11])));
    }
    let mut out = a.values()?;
    for (row, values) in out.chunks_exact_mut(a.ne[0]).enumerate() {
        let position = positions[row / a.ne[1]];
        for i in 0..dims / 2 {
            let factor = factors.as_ref().and_then(|f| f.get(i)).copied().unwrap_or(1.0);
            let angle = position * scale * base.powf(-2.0 * i as f64 / dims as f64) / factor;
            let (x, y) = if info.params[2] == NEOX { (i, i + dims / 2) } else { (2 * i, 2 * i + 1) };
            let (sin, cos) = (angle.sin() * attention, angle.cos() * attention);
            (values[x], values[y]) = (values[x] * cos - values[y] * sin, values[x] * sin + values[y] * cos);
        }
    }
    Ok(out)
}

/// Soft-max over rows of `a * scale + mask`.
pub(super) fn soft_max(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let (a, scale) = (node.input(0)?, node.info.float(0));
    let mask = node.inputs.get(1);
    if node.info.float(1) != 0.0 || mask.is_some_and(|m| m.ne[0] != a.ne[0] || m.rows() < a.ne[1]) {
        return Err(EvalError::lacks(node.info, "a bias by head, or a mask of another shape"));
    }
    let mut out = Vec::with_capacity(a.ne.iter().product());
    for row in 0..a.rows() {
        let mask = mask.map(|mask| mask.row(row % a.ne[1])).transpose()?;
        out.extend(weights(a.row(row)?, mask.as_deref(), scale));
    }
    Ok(out)
}

/// The soft-max of `scores * scale + mask`; a row that sees nothing has no weights.
fn weights(mut scores: Vec<f64>, mask: Option<&[f64]>, scale: f64) -> Vec<f64> {
    for (i, score) in scores.iter_mut().enumerate() {
        *score = *score * scale + mask.map_or(0.0, |mask| mask[i]);
    }
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|score| *score = (*score - top).exp());
    let total: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
    scores
}

/// `softmax(K^T Q scale + mask) V`: `q [head_dim, n, heads]`, `k`, `v [head_dim, n_kv, kv_heads]`; the result is
/// `[head_dim, heads, n]`.
pub(super) fn flash(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let (q, k, v) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let mask = node.inputs.get(3);
    let (scale, bias, cap) = (node.info.float(0), node.info.float(1), node.info.float(2));
    let (n, heads, n_kv, kv_heads) = (q.ne[1], q.ne[2], k.ne[1], k.ne[2]);
    let fits = q.ne[0] == k.ne[0] && v.ne[1] == n_kv && v.ne[2] == kv_heads && q.ne[3] == 1;
    let masked = mask.is_none_or(|m| m.ne[0] == n_kv && m.rows() >= n);
    if bias != 0.0 || cap != 0.0 || !fits || !masked || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(EvalError::lacks(node.info, format!("{:?} {:?} {:?}", q.ne, k.ne, v.ne)));
    }
    let width = v.ne[0];
    let mut out = vec![0.0; width * heads * n];
    for head in 0..heads {
        let of = head / (heads / kv_heads);
        let rows =
            |view: &View<'_>| (0..n_kv).map(|i| view.row(of * n_kv + i)).collect::<Result<Vec<_>, _>>();
        let (keys, values) = (rows(k)?, rows(v)?);
        for i in 0..n {
            let query = q.row(head * n + i)?;
            let mask = mask.map(|mask| mask.row(i)).transpose()?;
            let scores = keys.iter().map(|key| dot(key, &query)).collect();
            let mixed = &mut out[(i * heads + head) * width..][..width];
            for (weight, value) in weights(scores, mask.as_deref(), scale).into_iter().zip(&values) {
                mixed.iter_mut().zip(value).for_each(|(m, v)| *m += weight * v);
            }
        }
    }
    Ok(out)
}
