//! A mixture of experts: a router chooses for each token which of many feed-forward parts work on it
//! (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>).

use ggml_sys::{DType, Tensor};
use model_file::Experts;

use crate::blocks::{Builder, Gate, named};
use crate::cache::as_i64;
use crate::error::Error;

/// What the router of one layer decided for the tokens of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// What the soft-max is of, `[tokens, experts]`, row-major.
    pub logits: Vec<f32>,
    /// The experts that the router chose for each token, which worked on it unless others were given, `[tokens,
    /// used]`, row-major, the most probable first.
    pub chosen: Vec<i32>,
}

/// What the routers of all layers decided in one graph.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutedPass {
    /// The position of each token.
    pub positions: Vec<usize>,
    /// Layer by layer, of those that have experts and were not left out.
    pub layers: Vec<Routing>,
}

/// Experts that are to work on the rows of the graphs to come, whatever the routers choose: those of the reference, so
/// that a near tie of a router that falls the other way does not spoil everything after it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GivenExperts {
    /// The position of each row, in the order in which they are computed.
    pub positions: Vec<usize>,
    /// Layer by layer, of those that have experts and are not left out, `[rows, used]`.
    pub layers: Vec<Vec<i32>>,
}

impl GivenExperts {
    /// Those that the routers chose in these passes.
    #[must_use]
    pub fn of(passes: &[RoutedPass]) -> Self {
        let mut given = Self::default();
        for pass in passes {
            given.positions.extend_from_slice(&pass.positions);
            given.layers.resize(pass.layers.len(), Vec::new());
            for (all, layer) in given.layers.iter_mut().zip(&pass.layers) {
                all.extend_from_slice(&layer.chosen);
            }
        }
        given
    }

    /// Those of the rows at `positions` that follow `taken` others, layer by layer.
    pub(crate) fn rows(
        &self,
        taken: usize,
        positions: &[usize],
        experts: Experts,
    ) -> Result<Vec<Vec<i32>>, Error> {
        let range = taken..taken + positions.len();
        let there = self.positions.get(range.clone());
        if there != Some(positions) {
            return Err(Error::Input(format!(
                "experts are given for rows at {:?} after {taken} others, not {positions:?}",
                there.unwrap_or(&[])
            )));
        }
        let part = |layer: &Vec<i32>| {
            let part = layer.get(range.start * experts.used..range.end * experts.used);
            let known = |e: &i32| usize::try_from(*e).is_ok_and(|e| e < experts.count);
            part.filter(|part| part.iter().all(known)).map(<[i32]>::to_vec).ok_or_else(|| {
                Error::Input(format!("experts are not given as {} of {} a row", experts.used, experts.count))
            })
        };
        self.layers.iter().map(part).collect()
    }
}

/// The tensors that hold it.
pub(crate) struct Routed {
    /// F32 `[experts, n]`.
    logits: Tensor,
    /// I32 `[experts, n]`: all experts, the most probable first.
    order: Tensor,
    /// I32 `[experts, n]` to be filled with what is given instead, in the first of each column.
    given: Option<(Tensor, Vec<i32>)>,
}

impl Routed {
    /// Fills what is given.
    pub(crate) fn fill(&self, experts: Experts) -> Result<(), Error> {
        let Some((input, chosen)) = &self.given else { return Ok(()) };
        let mut columns = vec![0; chosen.len() / experts.used * experts.count];
        for (column, row) in columns.chunks_exact_mut(experts.count).zip(chosen.chunks_exact(experts.used)) {
            column[..experts.used].copy_from_slice(row);
        }
        Ok(input.write_i32(&columns)?)
    }

    /// Bytes that reading it moves.
    pub(crate) fn bytes(&self) -> usize {
        self.logits.bytes() + self.order.bytes()
    }

    /// Reads it, when it was computed and kept.
    pub(crate) fn read(&self, experts: Experts) -> Result<Routing, Error> {
        let order = self.order.read_i32()?;
        let chosen =
            order.chunks_exact(experts.count).flat_map(|row| &row[..experts.used]).copied().collect();
        Ok(Routing { logits: self.logits.read_f32()?, chosen })
    }
}

impl Builder<'_> {
    /// Routes the columns of `x` by `logits`, `[experts, n]`: the weighted sum of what the chosen experts give,
    /// `[n_embd, n]`.
    ///
    /// # Errors
    /// When the build lacks an op.
    pub(crate) fn experts(
        &mut self,
        x: &Tensor,
        logits: &Tensor,
        experts: Experts,
        gate: Gate,
        layer: usize,
    ) -> Result<Tensor, Error> {
        let [count, used, n] = [experts.count, experts.used, self.n].map(as_i64);
        let logits = if self.keep_routing { logits.clone().output() } else { logits.clone() };
        let probabilities = named(self.ctx.soft_max(&logits, None, 1.0), "router_soft_max", layer);
        let order = named(self.ctx.argsort(&probabilities)?, "router_order", layer);
        let order = if self.keep_routing { order.output() } else { order };
        let given = match &self.given {
            None => None,
            Some(layers) => {
                let chosen = layers.get(self.routed.len()).ok_or_else(|| {
                    Error::Input(format!(
                        "experts are given for {} layers, layer {layer} has some",
                        layers.len()
                    ))
                })?;
                let input =
                    Self::input(&self.ctx, DType::I32, &[count, n], &format!("given_experts-{layer}"));
                // Nothing depends on it now, and it is wanted.
                self.graph.expand(&order);
                Some((input, chosen.clone()))
            }
        };
        // In the shape and with the strides of what the router gives.
        let by_column = given.as_ref().map_or(&order, |(input, _)| input);
        let chosen = self.ctx.view_2d(by_column, [used, n], by_column.nb()[1], 0);
        let chosen = named(chosen, "experts_chosen", layer);
        self.routed.push(Routed { logits, order: order.clone(), given });

        let each = self.ctx.reshape_3d(&probabilities, [1, count, n]);
        let mut weights = named(self.ctx.get_rows(&each, &chosen), "expert_weights", layer);
        if experts.normalised {
            let flat = self.ctx.reshape_2d(&weights, [used, n]);
            let sums = named(self.ctx.sum_rows(&flat)?, "expert_weights_sum", layer);
            let given = match self.weights.find(&format!("blk.{layer}.ffn_down_exps.scale")) {
                // A factor of each expert, which the sum does not count.
                Some(factors) => {
                    let scaled = named(self.ctx.mul(&probabilities, factors), "expert_factors", layer);
                    let scaled = self.ctx.reshape_3d(&scaled, [1, count, n]);
                    let given = named(self.ctx.get_rows(&scaled, &chosen), "expert_weights_scaled", layer);
                    self.ctx.reshape_2d(&given, [used, n])
                }
                None => flat,
            };
            let share = named(self.ctx.div(&given, &sums)?, "expert_weights_norm", layer);
            weights = self.ctx.reshape_3d(&share, [1, used, n]);
        }

        let product = |x: &Tensor, what: &str| -> Result<Tensor, Error> {
            let matrices = self.weight(layer, &format!("{what}.weight"));
            Ok(named(self.ctx.mul_mat_id(matrices, x, &chosen)?, what, layer))
        };
        let columns = self.ctx.reshape_3d(x, [x.ne()[0], 1, n]);
        let (opened, up) = match self.weights.find(&format!("blk.{layer}.ffn_gate_up_exps.weight")) {
            // Both in one matrix, the gate's rows first.
            Some(_) => {
                let both = product(&columns, "ffn_gate_up_exps")?;
                let (width, nb) = (both.ne()[0] / 2, both.nb());
                let half = |offset: usize, what: &str| {
                    let view = self.ctx.view_3d(&both, [width, used, n], [nb[1], nb[2]], offset);
                    named(self.ctx.cont(&view), what, layer)
                };
                (half(0, "ffn_gate_part"), half(nb[1] / 2, "ffn_up_part"))
            }
            None => (product(&columns, "ffn_gate_exps")?, product(&columns, "ffn_up_exps")?),
        };
        let gated = self.gate(&opened, gate, layer)?;
        let hidden = named(self.ctx.mul(&gated, &up), "ffn_gated", layer);
        let given = product(&hidden, "ffn_down_exps")?;
        let weighted = named(self.ctx.mul(&given, &weights), "expert_weighted", layer);

        let (width, stride) = (weighted.ne()[0], weighted.nb());
        let mut parts =
            (0..experts.used).map(|i| self.ctx.view_2d(&weighted, [width, n], stride[2], i * stride[1]));
        let first = parts.next().expect("at least one expert works");
        let sum = match experts.used {
            1 => named(self.ctx.cont(&first), "expert_sum", layer),
            _ => parts.fold(first, |sum, part| named(self.ctx.add(&sum, &part), "expert_sum", layer)),
        };
        Ok(self.planted_columns(sum, layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_experts_are_those_of_the_rows_that_are_computed() {
        let layer = |chosen: &[i32]| Routing { logits: Vec::new(), chosen: chosen.to_vec() };
        let pass = |positions: &[usize], chosen: &[i32]| RoutedPass {
            positions: positions.to_vec(),
            layers: vec![layer(chosen), layer(&chosen.iter().map(|e| 3 - e).collect::<Vec<_>>())],
        };
        let given = GivenExperts::of(&[pass(&[0, 1], &[0, 1, 2, 3]), pass(&[4], &[3, 0])]);
        assert_eq!(given.positions, [0, 1, 4]);
        let sizes = Experts { count: 4, used: 2, n_ff: 1, normalised: true };
        let rows = |taken, positions: &[usize]| given.rows(taken, positions, sizes);
        assert_eq!(rows(1, &[1, 4]).unwrap(), [[2, 3, 3, 0], [1, 0, 0, 3]]);
        for (taken, positions) in [(0, &[1][..]), (2, &[4, 5]), (3, &[5])] {
            assert!(
                rows(taken, positions).unwrap_err().to_string().contains("experts are given for rows at")
            );
        }
        let few = Experts { count: 3, ..sizes };
        assert!(given.rows(0, &[0, 1], few).unwrap_err().to_string().contains("2 of 3 a row"));
    }
}
