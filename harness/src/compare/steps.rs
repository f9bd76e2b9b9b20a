//! NMSE step by step, of logits and of the keys and values that each step computed: where a divergence begins, in
//! which layer, and how it grows.

use super::kv::{BadCache, LayerNmse};
use super::nmse::Nmse;
use super::nonfinite::NonFinite;
use super::order::{badness, worst_index};
use super::{CompareError, alignment, block_rows};
use crate::capture::{Cache, CaptureReader, KvSet};
use crate::verdict::within;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// NMSE per step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Steps {
    /// The first step whose logits or caches are over their limits.
    pub first_bad: Option<BadStep>,
    /// The step with the worst logits.
    pub worst: StepNmse,
    /// Every step, in order.
    pub list: Vec<StepNmse>,
    /// K and V of every layer over the rows of all steps, where captures hold them as each step left them; where
    /// they do not, or every position was computed once, this would repeat [`KvNmse::layers`](super::KvNmse::layers)
    /// and is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerNmse>,
}

/// NMSE of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepNmse {
    /// The step, from 0.
    pub step: i32,
    /// Its rows of logits.
    pub rows: u64,
    /// NMSE of its logits; `None` where it has no row.
    #[serde(default, with = "crate::figure::MaybeFigure")]
    pub nmse: Option<f64>,
    /// The keys and values that it computed; `None` where captures do not tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<StepKv>,
}

/// NMSE of the keys and values of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepKv {
    /// Positions that the step computed.
    pub positions: u64,
    /// K over all layers.
    #[serde(with = "crate::figure::Figure")]
    pub k: f64,
    /// V over all layers.
    #[serde(with = "crate::figure::Figure")]
    pub v: f64,
    /// The worst cache.
    pub worst: BadCache,
}

/// Where a divergence begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BadStep {
    /// The step.
    pub step: i32,
    /// NMSE of its logits.
    #[serde(default, with = "crate::figure::MaybeFigure")]
    pub nmse: Option<f64>,
    /// The first cache over its limit in this step, K before V; `None` where only the logits are.
    #[serde(default)]
    pub cache: Option<BadCache>,
}

impl Steps {
    /// The step with the worst cache, and its keys and values; `None` where captures do not tell them.
    pub fn worst_kv(&self) -> Option<(i32, StepKv)> {
        let told: Vec<_> = self.list.iter().filter_map(|step| Some((step.step, step.kv?))).collect();
        let worst = worst_index(told.iter().map(|(_, kv)| kv.worst.nmse))?;
        told.get(worst).copied()
    }
}

/// Sums of one step.
#[derive(Default)]
struct Sums {
    rows: u64,
    logits: Nmse,
    positions: u64,
    /// By layer, K and V.
    caches: Vec<[Nmse; 2]>,
}

/// Gathers [`Steps`].
#[derive(Default)]
pub(super) struct StepSums {
    steps: BTreeMap<i32, Sums>,
    /// Whether the caches' rows are those of each step, not those that are left at the end.
    by_step: bool,
}

impl StepSums {
    /// Adds one row of logits.
    pub(super) fn push(&mut self, step: i32, row: Nmse) {
        let sums = self.steps.entry(step).or_default();
        sums.rows += 1;
        sums.logits.merge(row);
    }

    /// Adds the keys and values of all steps, where both captures tell which step computed which.
    pub(super) fn push_caches(
        &mut self,
        reference: &mut CaptureReader,
        test: &mut CaptureReader,
        nonfinite: &mut NonFinite,
    ) -> Result<(), CompareError> {
        let Some(rows) = reference.step_rows().filter(|_| alignment::has_steps(reference, test)).cloned()
        else {
            return Ok(());
        };
        self.by_step = reference.layers_of(KvSet::Steps) > 0;
        let set = if self.by_step { KvSet::Steps } else { KvSet::Stored };
        let layers = reference.layers_of(set);
        // For each row of the tensors the step that it is of.
        let entries = rows.step.iter().zip(&rows.position).enumerate();
        let step_of: BTreeMap<usize, i32> = entries
            .map(|(entry, (&step, &position))| (if self.by_step { entry } else { position as usize }, step))
            .collect();
        for &step in &rows.step {
            let sums = self.steps.entry(step).or_default();
            sums.positions += 1;
            sums.caches.resize(layers, <[Nmse; 2]>::default());
        }
        let (mut r, mut x) = (Vec::new(), Vec::new());
        for layer in 0..layers {
            for &cache in Cache::ALL {
                let [total, heads, width] = reference.kv_shape_of(set, cache, layer);
                let name = set.tensor(cache, layer);
                let width = heads * width;
                for first in (0..total).step_by(block_rows(width)) {
                    let count = block_rows(width).min(total - first);
                    reference.kv_of(set, cache, layer, first, count, &mut r)?;
                    test.kv_of(set, cache, layer, first, count, &mut x)?;
                    let both = r.chunks_exact(width).zip(x.chunks_exact(width));
                    for (row, (r, x)) in (first..).zip(both) {
                        let Some(sums) = step_of.get(&row).and_then(|step| self.steps.get_mut(step)) else {
                            continue;
                        };
                        if self.by_step {
                            nonfinite.scan(&name, row, r, x);
                        }
                        sums.caches[layer][cache as usize].merge(Nmse::of(r, x));
                    }
                }
            }
        }
        Ok(())
    }

    /// The metric; `None` where there is one step. `kv_limit` holds for each cache of a step.
    pub(super) fn finish(self, limit: f64, kv_limit: Option<f64>) -> Option<Steps> {
        if self.steps.len() < 2 {
            return None;
        }
        let mut totals: Vec<[Nmse; 2]> = Vec::new();
        for sums in self.steps.values().filter(|_| self.by_step) {
            totals.resize(totals.len().max(sums.caches.len()), <[Nmse; 2]>::default());
            for (total, caches) in totals.iter_mut().zip(&sums.caches) {
                total.iter_mut().zip(caches).for_each(|(total, part)| total.merge(*part));
            }
        }
        let layers = totals.into_iter().zip(0..).map(|([k, v], layer)| LayerNmse {
            layer,
            k: k.value(),
            v: v.value(),
        });
        let first_bad = self.steps.iter().find_map(|(&step, sums)| {
            let nmse = (sums.rows > 0).then(|| sums.logits.value());
            let cache = kv_limit.and_then(|limit| sums.figures().find(|found| !within(found.nmse, limit)));
            let bad = cache.is_some() || nmse.is_some_and(|nmse| !within(nmse, limit));
            bad.then_some(BadStep { step, nmse, cache })
        });
        let list: Vec<StepNmse> = self.steps.iter().map(|(&step, sums)| sums.figure(step)).collect();
        // A step without rows is no candidate: nothing is worse than the least of figures.
        let worst = worst_index(list.iter().map(|step| step.nmse.unwrap_or(f64::NEG_INFINITY)))?;
        Some(Steps { first_bad, worst: list[worst], list, layers: layers.collect() })
    }
}

impl Sums {
    /// NMSE of every cache, layer by layer, K before V.
    fn figures(&self) -> impl Iterator<Item = BadCache> {
        let layers = self.caches.iter().zip(0..);
        layers.flat_map(|(sums, layer)| {
            Cache::ALL.iter().map(move |&cache| BadCache { cache, layer, nmse: sums[cache as usize].value() })
        })
    }

    fn figure(&self, step: i32) -> StepNmse {
        let over_layers = |cache: Cache| {
            let mut total = Nmse::default();
            self.caches.iter().for_each(|sums| total.merge(sums[cache as usize]));
            total.value()
        };
        let worse = |a: BadCache, b: BadCache| if badness(b.nmse, a.nmse).is_gt() { b } else { a };
        let kv = self.figures().reduce(worse).map(|worst| StepKv {
            positions: self.positions,
            k: over_layers(Cache::K),
            v: over_layers(Cache::V),
            worst,
        });
        StepNmse { step, rows: self.rows, nmse: (self.rows > 0).then(|| self.logits.value()), kv }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::sample::Sample;
    use crate::capture::{CaptureWriter, StepRows};
    use std::path::Path;

    fn steps(errors: &[(i32, f64)], limit: f64) -> Option<Steps> {
        let mut sums = StepSums::default();
        for &(step, error) in errors {
            sums.push(step, Nmse::of(&[1.0, 0.0], &[1.0, error]));
        }
        sums.finish(limit, None)
    }

    #[test]
    fn the_first_step_over_the_limit_and_the_worst_are_named() {
        let found = steps(&[(0, 0.0), (0, 0.0), (1, 0.1), (2, 0.5), (3, 0.2)], 0.02).unwrap();
        let rows: Vec<u64> = found.list.iter().map(|step| step.rows).collect();
        assert_eq!(rows, [2, 1, 1, 1]);
        assert_eq!(found.first_bad.unwrap(), BadStep { step: 2, nmse: Some(0.25), cache: None });
        assert_eq!(found.worst.step, 2);
        assert_eq!(steps(&[(0, 0.0), (1, 0.1)], 0.02).unwrap().first_bad, None);
    }

    #[test]
    fn a_nan_is_over_every_limit() {
        let found = steps(&[(0, 0.0), (4, f64::NAN), (5, 9.0)], f64::INFINITY).unwrap();
        assert_eq!((found.first_bad.unwrap().step, found.worst.step), (4, 4));
    }

    #[test]
    fn rows_of_one_step_have_no_course() {
        assert_eq!(steps(&[(0, 0.1), (0, 0.2)], 1.0), None);
    }

    /// Two layers of one head of two elements; logits of steps 0 and 2 are 1.
    fn capture(path: &Path, rows: &StepRows, end: [f32; 4], by_step: Option<[f32; 4]>) -> CaptureReader {
        let mut writer = CaptureWriter::new(1);
        for step in [0, 2] {
            writer.row(step, step, &[1f32]);
        }
        writer.tokens(&[1, 2]);
        let ones = [1f32; 4];
        writer.layer(&ones, [2, 1, 2], &ones, [2, 1, 2]);
        writer.layer(&ones, [2, 1, 2], &end, [2, 1, 2]);
        writer.step_rows(rows);
        if let Some(values) = by_step {
            writer.layer_by_step(0, &values, &ones, [2, 1, 2]);
            writer.layer_by_step(1, &ones, &ones, [2, 1, 2]);
        }
        writer.write(path, &Sample::new(1, 1).meta).unwrap();
        CaptureReader::open(path).unwrap()
    }

    fn compared(rows: &StepRows, end: [f32; 4], by_step: Option<[f32; 4]>) -> (Steps, NonFinite) {
        let work = tempfile::tempdir().unwrap();
        let ones = by_step.map(|_| [1f32; 4]);
        let mut reference = capture(&work.path().join("r"), rows, [1.0; 4], ones);
        let mut test = capture(&work.path().join("x"), rows, end, by_step);
        let (mut sums, mut nonfinite) = (StepSums::default(), NonFinite::default());
        for step in [0, 2] {
            sums.push(step, Nmse::of(&[1.0], &[1.0]));
        }
        sums.push_caches(&mut reference, &mut test, &mut nonfinite).unwrap();
        (sums.finish(0.1, Some(0.1)).unwrap(), nonfinite)
    }

    #[test]
    fn what_is_left_at_the_end_is_grouped_by_the_step_that_computed_it() {
        let rows = StepRows { step: vec![0, 1], position: vec![1, 0] };
        // Of V of layer 1: position 0 is right, of position 1 one of two elements is off by a half.
        let (found, _) = compared(&rows, [1.0, 1.0, 1.5, 1.0], None);
        let figures: Vec<_> = found.list.iter().map(|s| (s.step, s.nmse, s.kv.map(|kv| kv.v))).collect();
        assert_eq!(figures, [(0, Some(0.0), Some(0.0625)), (1, None, Some(0.0)), (2, Some(0.0), None)]);
        let cache = BadCache { cache: Cache::V, layer: 1, nmse: 0.125 };
        assert_eq!(found.first_bad, Some(BadStep { step: 0, nmse: Some(0.0), cache: Some(cache) }));
        assert_eq!(found.list[0].kv.unwrap().worst, cache);
        assert!(found.layers.is_empty(), "it is what the caches at the end say");
    }

    #[test]
    fn a_row_that_is_overwritten_later_still_counts_in_its_step() {
        let rows = StepRows { step: vec![1, 2], position: vec![0, 0] };
        let (found, nonfinite) = compared(&rows, [1.0; 4], Some([1.0, 3.0, f32::NAN, 1.0]));
        let bad = found.first_bad.unwrap();
        assert_eq!((bad.step, bad.nmse), (1, None));
        assert_eq!(bad.cache, Some(BadCache { cache: Cache::K, layer: 0, nmse: 2.0 }));
        assert_eq!(found.layers.len(), 2);
        assert!(found.layers[0].k.is_nan() && found.layers[0].v == 0.0);
        assert_eq!(nonfinite.first.unwrap().tensor, "step_k.0");
    }
}
