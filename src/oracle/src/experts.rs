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
    /// The experts that the router chooses for each token, which work on it unless others are given, `[n, used]`, the
    /// most probable first, of equal ones the first.
    pub chosen: Vec<usize>,
}

/// Experts that are to work whatever the routers choose: those of the reference, so that a near tie of a router that
/// falls the other way does not spoil everything after it. Rows are in the order in which passes compute them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenExperts<'a> {
    /// Layer by layer, of those that have experts, `[rows, used]`.
    layers: &'a [Vec<usize>],
    /// Rows that passes have taken.
    taken: usize,
    used: usize,
}

impl<'a> GivenExperts<'a> {
    /// Those of all rows of all passes, `used` a row.
    pub fn new(layers: &'a [Vec<usize>], used: usize) -> Self {
        Self { layers, taken: 0, used }
    }

    /// Those of the next `rows` rows, layer by layer.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn take(&mut self, rows: usize) -> Result<Vec<&'a [usize]>, Error> {
        let range = self.taken * self.used..(self.taken + rows) * self.used;
        let part = |layer: &'a Vec<usize>| {
            layer.get(range.clone()).ok_or_else(|| {
                Error::Plan(format!(
                    "experts of {} rows are given, more are computed",
                    layer.len() / self.used.max(1)
                ))
            })
        };
        let part = self.layers.iter().map(part).collect::<Result<_, _>>()?;
        self.taken += rows;
        Ok(part)
    }
}

/// Checks the experts that a pass over `n` rows is to use, in `layers` layers.
pub(crate) fn check(
    given: &[&[usize]],
    sizes: Option<Experts>,
    layers: usize,
    n: usize,
) -> Result<(), Error> {
    let Some(sizes) = sizes else {
        return Err(Error::Plan("experts are given to a network that has none".to_owned()));
    };
    if given.len() != layers || given.iter().any(|layer| layer.len() != n * sizes.used) {
        return Err(Error::Plan(format!(
            "experts for {layers} layers of {n} rows, {} each, are to be given",
            sizes.used
        )));
    }
    match given.iter().flat_map(|layer| *layer).find(|&&expert| expert >= sizes.count) {
        Some(bad) => Err(Error::Plan(format!("expert {bad} of {}", sizes.count))),
        None => Ok(()),
    }
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
    /// What the experts that `logits` `[n, experts]` choose, or those that are `given`, make of `x` `[n, width]`,
    /// `activate(gate, up)` being what is between the projections; the choice is that of `logits`.
    pub(crate) fn apply(
        &self,
        x: &[f64],
        logits: Vec<f64>,
        given: Option<&[usize]>,
        activate: impl Fn(&mut [f64], &[f64]),
    ) -> Result<(Vec<f64>, Routing), Error> {
        let Experts { count, used, normalised, .. } = self.sizes;
        let width = x.len() / (logits.len() / count).max(1);
        let mut out = vec![0.0; x.len()];
        let mut chosen = Vec::new();
        let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width)).zip(logits.chunks_exact(count));
        for (row, ((x, out), logits)) in rows.enumerate() {
            let mut shares = logits.to_vec();
            softmax(&mut shares);
            let best = highest(&shares, used);
            let work = given.map_or(&best[..], |given| &given[row * used..][..used]);
            let total: f64 = if normalised { work.iter().map(|&e| shares[e]).sum() } else { 1.0 };
            for &e in work {
                let mut hidden = self.gate.apply_one(e, count, x)?;
                activate(&mut hidden, &self.up.apply_one(e, count, x)?);
                let mut part = self.down.apply_one(e, count, &hidden)?;
                part.iter_mut().for_each(|v| *v *= shares[e] / total);
                add(out, &part);
            }
            chosen.extend(best);
        }
        Ok((out, Routing { logits, chosen }))
    }
}

/// The indices of the `n` highest, the highest first, of equal ones the first.
pub(crate) fn highest(values: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(n);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_experts_are_taken_row_by_row_and_checked() {
        let layers = [vec![0, 1, 2, 0, 1, 2], vec![2, 1, 0, 2, 1, 0]];
        let mut given = GivenExperts::new(&layers, 2);
        assert_eq!(given.take(1).unwrap(), [[0, 1], [2, 1]]);
        let next = given.take(2).unwrap();
        assert_eq!(next, [[2, 0, 1, 2], [0, 2, 1, 0]]);
        assert!(given.take(1).unwrap_err().to_string().contains("experts of 3 rows"));
        let sizes = Experts { count: 3, used: 2, n_ff: 1, normalised: true };
        check(&next, Some(sizes), 2, 2).unwrap();
        let refused =
            |given: &[&[usize]], sizes, layers, n| check(given, sizes, layers, n).unwrap_err().to_string();
        assert!(refused(&next, None, 2, 2).contains("has none"));
        assert!(refused(&next, Some(sizes), 3, 2).contains("3 layers of 2 rows, 2 each"));
        assert!(refused(&next, Some(sizes), 2, 1).contains("2 layers of 1 rows"));
        assert!(refused(&[&[0, 3]], Some(sizes), 1, 1).contains("expert 3 of 3"));
    }

    #[test]
    fn the_highest_come_first_and_equal_ones_in_order() {
        assert_eq!(highest(&[0.1, 0.4, 0.1, 0.4], 3), [1, 3, 0]);
        assert_eq!(highest(&[2.0], 1), [0]);
    }
}
