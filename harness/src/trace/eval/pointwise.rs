//! Ops that work on elements and on rows.

use super::{EvalError, Node, rounded};

/// `a op b`, `b` repeated over `a`.
pub(super) fn binary(node: &Node<'_>, op: impl Fn(f64, f64) -> f64) -> Result<Vec<f64>, EvalError> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    if (0..4).any(|d| b.ne[d] == 0 || !a.ne[d].is_multiple_of(b.ne[d])) {
        return Err(EvalError::lacks(node.info, format!("{:?} repeated over {:?}", b.ne, a.ne)));
    }
    let mut out = Vec::with_capacity(a.ne.iter().product());
    for row in 0..a.rows() {
        let at = [row % a.ne[1], row / a.ne[1] % a.ne[2], row / (a.ne[1] * a.ne[2])];
        let of_b = at[0] % b.ne[1] + b.ne[1] * (at[1] % b.ne[2] + b.ne[2] * (at[2] % b.ne[3]));
        let repeated = b.row(of_b)?;
        out.extend(a.row(row)?.into_iter().zip(repeated.iter().cycle()).map(|(a, &b)| op(a, b)));
    }
    Ok(out)
}

/// `a * scale + bias`.
pub(super) fn scale(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let (scale, bias) = (node.info.float(0), node.info.float(1));
    Ok(node.input(0)?.values()?.into_iter().map(|a| a * scale + bias).collect())
}

/// A function of each element.
pub(super) fn each(node: &Node<'_>, of: impl Fn(f64) -> f64) -> Result<Vec<f64>, EvalError> {
    Ok(node.input(0)?.values()?.into_iter().map(of).collect())
}

/// `a / (1 + exp(-a))`.
pub(super) fn silu(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    each(node, |a| a / (1.0 + (-a).exp()))
}

/// `a (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) / 2`.
pub(super) fn gelu(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let root = std::f64::consts::FRAC_2_PI.sqrt();
    each(node, |a| 0.5 * a * (1.0 + (root * a * (1.0 + 0.044_715 * a * a)).tanh()))
}

/// The sum of each row.
pub(super) fn sum_rows(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let a = node.input(0)?;
    (0..a.rows()).map(|row| Ok(a.row(row)?.iter().sum())).collect()
}

/// The indices that sort each row, the largest first; of equal ones any order is as good, this is the first's.
pub(super) fn argsort(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    if node.info.params[0] != 1 {
        return Err(EvalError::lacks(node.info, "any but a falling order"));
    }
    let a = node.input(0)?;
    let mut out = Vec::with_capacity(a.ne[0] * a.rows());
    for row in 0..a.rows() {
        let values = a.row(row)?;
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&i, &j| values[j].total_cmp(&values[i]));
        out.extend(order.into_iter().map(|i| i as f64));
    }
    Ok(out)
}

/// Each row over the root of its mean square.
pub(super) fn rms_norm(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let (a, eps) = (node.input(0)?, node.info.float(0));
    let mut out = Vec::with_capacity(a.ne.iter().product());
    for row in 0..a.rows() {
        let values = a.row(row)?;
        let mean = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        let root = (mean + eps).sqrt();
        out.extend(values.into_iter().map(|v| v / root));
    }
    Ok(out)
}

/// Rows of matrices by index: each row of indices is of one matrix.
pub(super) fn get_rows(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let (table, index) = (node.input(0)?, node.input(1)?);
    if index.ne[1] != table.ne[2] || index.ne[2] != table.ne[3] || index.ne[3] != 1 {
        return Err(EvalError::lacks(node.info, format!("rows {:?} of {:?}", index.ne, table.ne)));
    }
    let mut out = Vec::new();
    for matrix in 0..index.rows() {
        for at in index.row(matrix)? {
            if !(at >= 0.0 && at < table.ne[1] as f64) {
                return Err(EvalError::Malformed(format!(
                    "`{}`: row {at} of {}",
                    node.info.name, table.ne[1]
                )));
            }
            out.extend(table.row(matrix * table.ne[1] + at as usize)?);
        }
    }
    Ok(out)
}

/// One after the other along a dimension that is not the first.
pub(super) fn concat(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let both = [node.input(0)?, node.input(1)?];
    let along = usize::try_from(node.info.params[0]).unwrap_or(0);
    let alike = (0..4).all(|d| d == along || both[0].ne[d] == both[1].ne[d]);
    if !(1..4).contains(&along) || !alike {
        return Err(EvalError::lacks(node.info, format!("sources joined along dimension {along}")));
    }
    let mut out = Vec::new();
    for outer in 0..both[0].ne[along + 1..].iter().product() {
        for part in both {
            let rows: usize = part.ne[1..=along].iter().product();
            for row in outer * rows..(outer + 1) * rows {
                out.extend(part.row(row)?);
            }
        }
    }
    Ok(out)
}

/// The values of the first source in the type of the node.
pub(super) fn stored(node: &Node<'_>) -> Result<Vec<f64>, EvalError> {
    let ty = node
        .info
        .tensor_type()
        .ok_or_else(|| EvalError::lacks(node.info, format!("values of {}", node.info.type_name())))?;
    let a = node.input(0)?;
    let mut out = a.values()?;
    if ty != a.ty {
        rounded(ty, &mut out)?;
    }
    Ok(out)
}
