//! A mixture of experts (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>): a router gives each token a
//! probability for every expert, and those with the highest work on it.

use model_file::Experts;

use crate::Error;
use crate::matrix::Matrix;
use crate::ops::{add, softmax};

/// What a router decided for the tokens of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Scores before the softmax, `[n, experts]`.
    pub logits: Vec<f64>,
    /// The experts that worked on each token, `[n, used]`, the most probable first, of equal ones the first.
    pub chosen: Vec<usize>,
}

/// The experts of a layer: the rows of each matrix are those of one expert after the other.
#[derive(Debug)]
pub(crate) struct Mixture {
    pub(crate) sizes: Experts,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

impl Mixture {
    /// What the experts that `logits` `[n, experts]` choose give for `x` `[n, width]`, `activate(gate, up)` being what
    /// is between the projections.
    pub(crate) fn apply(
        &self,
        x: &[f64],
        logits: Vec<f64>,
        activate: impl Fn(&mut [f64], &[f64]),
    ) -> Result<(Vec<f64>, Routing), Error> {
        let Experts { count, used, normalised, .. } = self.sizes;
        let width = x.len() / (logits.len() / count).max(1);
        let mut out = vec![0.0; x.len()];
        let mut chosen = Vec::new();
        for ((x, out), logits) in
            x.chunks_exact(width).zip(out.chunks_exact_mut(width)).zip(logits.chunks_exact(count))
        {
            let mut shares = logits.to_vec();
            softmax(&mut shares);
            let best = highest(&shares, used);
            let total: f64 = if normalised { best.iter().map(|&e| shares[e]).sum() } else { 1.0 };
            for &e in &best {
                let mut hidden = self.gate.apply_one(e, count, x)?;
                activate(&mut hidden, &self.up.apply_one(e, count, x)?);
                let mut given = self.down.apply_one(e, count, &hidden)?;
                given.iter_mut().for_each(|v| *v *= shares[e] / total);
                add(out, &given);
            }
            chosen.extend(best);
        }
        Ok((out, Routing { logits, chosen }))
    }
}

/// The indices of the `n` highest, the highest first, of equal ones the first.
fn highest(values: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(n);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_come_first_and_equal_ones_in_order() {
        assert_eq!(highest(&[0.1, 0.4, 0.1, 0.4], 3), [1, 3, 0]);
        assert_eq!(highest(&[2.0], 1), [0]);
    }
}
