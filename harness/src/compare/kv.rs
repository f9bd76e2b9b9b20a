//! NMSE of the K/V caches per layer, and per head and position for the worst of them.

use super::nmse::Nmse;
use super::nonfinite::NonFinite;
use super::order::{badness, worst_index};
use super::{CompareError, block_rows};
use crate::capture::{Cache, CaptureReader, KvSet};
use crate::verdict::within;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// NMSE of the caches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvNmse {
    /// K over all layers.
    #[serde(with = "crate::figure::Figure")]
    pub k: f64,
    /// V over all layers.
    #[serde(with = "crate::figure::Figure")]
    pub v: f64,
    /// Every layer, in order.
    pub layers: Vec<LayerNmse>,
    /// The first cache over the limit.
    pub first_bad: Option<BadCache>,
    /// The worst cache.
    pub worst: WorstCache,
}

/// NMSE of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LayerNmse {
    /// The layer, from 0.
    pub layer: u64,
    /// Of K.
    #[serde(with = "crate::figure::Figure")]
    pub k: f64,
    /// Of V.
    #[serde(with = "crate::figure::Figure")]
    pub v: f64,
}

/// A cache that is named for its figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BadCache {
    /// Which cache.
    pub cache: Cache,
    /// Its layer.
    pub layer: u64,
    /// Its NMSE.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
}

/// The worst cache, in detail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorstCache {
    /// Which cache.
    pub cache: Cache,
    /// Its layer.
    pub layer: u64,
    /// Its NMSE.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
    /// The worst K/V head in it.
    pub head: u64,
    /// The worst position in it.
    pub position: u64,
    /// NMSE of every K/V head.
    #[serde(with = "crate::figure::Figures")]
    pub heads: Vec<f64>,
    /// NMSE of every position.
    #[serde(with = "crate::figure::Figures")]
    pub positions: Vec<f64>,
}

impl KvNmse {
    /// The worst layer of one cache and its NMSE.
    pub fn worst_of(&self, cache: Cache) -> (u64, f64) {
        let of = |layer: &LayerNmse| if cache == Cache::K { layer.k } else { layer.v };
        let worst = worst_index(self.layers.iter().map(of)).unwrap_or(0);
        (worst as u64, self.layers.get(worst).map_or(0.0, of))
    }
}

/// Sums of one cache of one layer.
struct CacheSums {
    total: Nmse,
    heads: Vec<Nmse>,
    positions: Vec<Nmse>,
}

/// Compares all caches; `None` when the captures hold none. Shapes were checked to be equal.
pub(super) fn compare(
    reference: &mut CaptureReader,
    test: &mut CaptureReader,
    set: KvSet,
    limit: f64,
    nonfinite: &mut NonFinite,
) -> Result<Option<KvNmse>, CompareError> {
    let mut totals = [Nmse::default(); 2];
    let mut layers = Vec::new();
    let mut first_bad = None;
    let mut worst: Option<WorstCache> = None;
    for layer in 0..reference.layers_of(set) {
        let mut values = [0.0; 2];
        for &cache in Cache::ALL {
            let sums = sum_cache(reference, test, set, cache, layer, nonfinite)?;
            let nmse = sums.total.value();
            totals[cache as usize].merge(sums.total);
            values[cache as usize] = nmse;
            if first_bad.is_none() && !within(nmse, limit) {
                first_bad = Some(BadCache { cache, layer: layer as u64, nmse });
            }
            if worst.as_ref().is_none_or(|so_far| badness(nmse, so_far.nmse).is_gt()) {
                worst = Some(sums.detail(cache, layer));
            }
        }
        let [k, v] = values;
        layers.push(LayerNmse { layer: layer as u64, k, v });
    }
    let [k, v] = totals.map(Nmse::value);
    Ok(worst.map(|worst| KvNmse { k, v, layers, first_bad, worst }))
}

fn sum_cache(
    reference: &mut CaptureReader,
    test: &mut CaptureReader,
    set: KvSet,
    cache: Cache,
    layer: usize,
    nonfinite: &mut NonFinite,
) -> Result<CacheSums, CompareError> {
    let [positions, heads, width] = reference.kv_shape_of(set, cache, layer);
    let name = set.tensor(cache, layer);
    let block = block_rows(heads * width);
    let (mut r, mut x) = (Vec::new(), Vec::new());
    let mut sums =
        CacheSums { total: Nmse::default(), heads: vec![Nmse::default(); heads], positions: Vec::new() };
    for first in (0..positions).step_by(block) {
        let count = block.min(positions - first);
        reference.kv_of(set, cache, layer, first, count, &mut r)?;
        test.kv_of(set, cache, layer, first, count, &mut x)?;
        let rows = r.chunks_exact(heads * width).zip(x.chunks_exact(heads * width));
        for (offset, (r, x)) in rows.enumerate() {
            nonfinite.scan(&name, first + offset, r, x);
            let mut position = Nmse::default();
            for (head, (r, x)) in r.chunks_exact(width).zip(x.chunks_exact(width)).enumerate() {
                let part = Nmse::of(r, x);
                sums.heads[head].merge(part);
                position.merge(part);
            }
            sums.total.merge(position);
            sums.positions.push(position);
        }
    }
    Ok(sums)
}

impl CacheSums {
    fn detail(self, cache: Cache, layer: usize) -> WorstCache {
        let values = |sums: Vec<Nmse>| sums.into_iter().map(Nmse::value).collect::<Vec<_>>();
        let (heads, positions) = (values(self.heads), values(self.positions));
        let worst = |list: &[f64]| worst_index(list.iter().copied()).unwrap_or(0) as u64;
        WorstCache {
            cache,
            layer: layer as u64,
            nmse: self.total.value(),
            head: worst(&heads),
            position: worst(&positions),
            heads,
            positions,
        }
    }
}
