//! A mixture of experts: a router chooses for each token which of many feed-forward parts work on it
//! (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>).

use ggml_sys::Tensor;
use model_file::Experts;

use crate::blocks::{Builder, Gate, named};
use crate::cache::as_i64;
use crate::error::Error;

/// What the router of one layer decided for the tokens of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// What the soft-max is of, `[tokens, experts]`, row-major.
    pub logits: Vec<f32>,
    /// The experts that worked on each token, `[tokens, used]`, row-major, the most probable first.
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

/// The tensors that hold it.
pub(crate) struct Routed {
    /// F32 `[experts, n]`.
    logits: Tensor,
    /// I32 `[experts, n]`: all experts, the most probable first.
    order: Tensor,
}

impl Routed {
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
        self.routed.push(Routed { logits, order: order.clone() });
        let chosen = self.ctx.view_2d(&order, [used, n], order.nb()[1], 0);

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
