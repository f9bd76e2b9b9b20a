//! A mixture of experts beside a dense branch, as Gemma 4 has it.
//!
//! ```text
//! scores = (rms_norm(x) * scale / sqrt(width)) Wrouter
//! chosen = the highest `used` of softmax(scores), their probabilities scaled to a sum of 1, times each expert's factor
//! out = sum over chosen: p * (gelu(y Wgate) * (y Wup)) Wdown
//! ```

use model_file::Model;

use super::pre_norm::Tensors;
use crate::Error;
use crate::experts::{Routing, highest};
use crate::matrix::Matrix;
use crate::ops::{geglu, rms_norm, softmax};

/// A layer's router and experts.
#[derive(Debug)]
pub(super) struct Experts {
    router: Matrix,
    /// The router's scale over the root of the width, `[n_embd]`.
    scale: Vec<f64>,
    /// `[2 * n_ff_expert, n_embd]` an expert: gate, then up.
    gate_up: Matrix,
    /// `[n_embd, n_ff_expert]` an expert.
    down: Matrix,
    /// `[n_expert]`
    factors: Vec<f64>,
    used: usize,
}

impl Experts {
    /// Those of layer `i`.
    pub(super) fn open(model: &Model, used: usize, i: usize) -> Result<Self, Error> {
        let tensors = Tensors(model);
        let name = |part: &str| format!("blk.{i}.{part}");
        let root = (model.hparams.n_embd as f64).sqrt();
        Ok(Self {
            router: tensors.matrix(&name("ffn_gate_inp.weight"))?,
            scale: tensors.vector(&name("ffn_gate_inp.scale"))?.iter().map(|s| s / root).collect(),
            gate_up: tensors.matrix(&name("ffn_gate_up_exps.weight"))?,
            down: tensors.matrix(&name("ffn_down_exps.weight"))?,
            factors: tensors.vector(&name("ffn_down_exps.scale"))?,
            used,
        })
    }

    /// Which experts the router chooses for each row of `x` `[n, n_embd]`, and with which weights `[n, used]` they
    /// work, or those that are `given`.
    pub(super) fn route(
        &self,
        x: &[f64],
        eps: f64,
        given: Option<&[usize]>,
    ) -> Result<(Routing, Vec<f64>), Error> {
        let scores = self.router.apply(&rms_norm(x, &self.scale, eps), None)?;
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        for (row, scores) in scores.chunks_exact(self.router.rows()).enumerate() {
            let best = highest(scores, self.used);
            let mut probabilities = scores.to_vec();
            softmax(&mut probabilities);
            let work = given.map_or(&best[..], |given| &given[row * self.used..][..self.used]);
            let sum: f64 = work.iter().map(|&e| probabilities[e]).sum();
            weights.extend(work.iter().map(|&e| probabilities[e] / sum * self.factors[e]));
            chosen.extend(best);
        }
        Ok((Routing { logits: scores, chosen }, weights))
    }

    /// The sum of what the experts `work` `[n, used]` make of each row of `y` `[n, n_embd]`.
    pub(super) fn apply(&self, y: &[f64], work: &[usize], weights: &[f64]) -> Result<Vec<f64>, Error> {
        let (width, count) = (self.scale.len(), self.factors.len());
        let gate_up = self.gate_up.rows() / count;
        // Each expert once, for all its rows; each row adds its experts in the order in which they were chosen.
        let mut parts = vec![Vec::new(); work.len()];
        for expert in 0..count {
            let places: Vec<usize> = (0..work.len()).filter(|&i| work[i] == expert).collect();
            if places.is_empty() {
                continue;
            }
            let rows: Vec<f64> =
                places.iter().flat_map(|p| &y[p / self.used * width..][..width]).copied().collect();
            let both = self.gate_up.apply_one(expert, count, &rows)?;
            let mut hidden = Vec::with_capacity(both.len() / 2);
            for row in both.chunks_exact(gate_up) {
                let (gate, up) = row.split_at(gate_up / 2);
                let mut gate = gate.to_vec();
                geglu(&mut gate, up);
                hidden.extend(gate);
            }
            let out = self.down.apply_one(expert, count, &hidden)?;
            for (place, out) in places.iter().zip(out.chunks_exact(width)) {
                parts[*place] = out.to_vec();
            }
        }
        let mut sum = vec![0.0; y.len()];
        for (i, (part, weight)) in parts.iter().zip(weights).enumerate() {
            for (sum, part) in sum[i / self.used * width..][..width].iter_mut().zip(part) {
                *sum += weight * part;
            }
        }
        Ok(sum)
    }
}
