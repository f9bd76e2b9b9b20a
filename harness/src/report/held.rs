//! What a cell's figures are held to: the same list for every renderer that sets figures beside limits.

use super::Cell;
use crate::capture::{Cache, KvSet};
use crate::compare::{KvNmse, Metrics};
use crate::verdict::{Bound, Limits, within};

/// One figure and its limit.
pub(super) struct Held {
    /// What was measured.
    pub(super) name: &'static str,
    /// Where it is worst.
    pub(super) place: String,
    /// The figure.
    pub(super) value: f64,
    /// The largest value that passes; `None` is only reported.
    pub(super) limit: Option<f64>,
    /// Why the limit is what it is.
    pub(super) reason: String,
    /// Whether it counts things rather than measuring a size.
    pub(super) counts: bool,
}

impl Held {
    /// Whether it is within its limit.
    pub(super) fn ok(&self) -> bool {
        self.limit.is_none_or(|limit| within(self.value, limit))
    }

    /// The figure over its limit; infinite for a NaN, and for anything beyond a limit of 0.
    pub(super) fn ratio(&self) -> Option<f64> {
        let limit = self.limit?;
        Some(ratio(self.value, limit))
    }
}

/// `value / limit`, so that what fails is above 1 and a NaN infinitely so.
pub(super) fn ratio(value: f64, limit: f64) -> f64 {
    if !within(value, limit) && !(value / limit > 1.0) {
        f64::INFINITY
    } else if value == 0.0 {
        0.0
    } else {
        value / limit
    }
}

/// Every figure of a cell that has figures, with its limit.
pub(super) fn figures(cell: &Cell) -> Vec<Held> {
    let Some(metrics) = &cell.metrics else { return Vec::new() };
    let limits = cell.limits.as_ref();
    let worst = &metrics.logits.worst;
    let row =
        format!("row {}, position {}, step {}", worst.place.row, worst.place.position, worst.place.step);
    let of = |bound: fn(&Limits) -> Option<&Bound>| limits.and_then(bound);
    let mut held = vec![
        nmse("logits NMSE", String::new(), metrics.logits.overall, of(|l| Some(&l.logits_nmse))),
        nmse("worst row NMSE", row, worst.nmse, of(|l| Some(&l.row_nmse))),
    ];
    held.extend(caches(["K NMSE", "V NMSE"], metrics.kv.as_ref(), of(|l| l.kv_nmse.as_ref())));
    held.extend(caches(
        ["K NMSE before storing", "V NMSE before storing"],
        metrics.kv_before_storing.as_ref(),
        of(|l| l.kv_before_storing_nmse.as_ref()),
    ));
    held.push(nmse("mean KL", "nats".to_owned(), metrics.distribution.kl_mean, of(|l| l.kl_mean.as_ref())));
    held.extend(counts(cell, metrics, limits));
    held
}

/// The figure that is farthest beyond its limit, or closest to it: a cell's rank among others.
pub(super) fn worst_ratio(cell: &Cell) -> Option<f64> {
    figures(cell).iter().filter_map(Held::ratio).reduce(f64::max)
}

fn nmse(name: &'static str, place: String, value: f64, bound: Option<&Bound>) -> Held {
    let reason = bound.map(|bound| bound.reason.clone()).unwrap_or_default();
    Held { name, place, value, limit: bound.map(|bound| bound.limit), reason, counts: false }
}

/// The worst layer of either cache.
fn caches(names: [&'static str; 2], kv: Option<&KvNmse>, bound: Option<&Bound>) -> Vec<Held> {
    let Some(kv) = kv else { return Vec::new() };
    let worst = std::iter::zip(names, Cache::ALL).map(|(name, &cache)| {
        let (layer, value) = kv.worst_of(cache);
        nmse(name, format!("layer {layer}"), value, bound)
    });
    worst.collect()
}

fn counts(cell: &Cell, metrics: &Metrics, limits: Option<&Limits>) -> Vec<Held> {
    let count = |name, place, value: u64, limit: Option<u64>| Held {
        name,
        place,
        value: value as f64,
        limit: limit.map(|limit| limit as f64),
        reason: String::new(),
        counts: true,
    };
    let top = &metrics.top_token;
    let found = &metrics.nonfinite;
    let first = found.first.as_ref();
    let first = first.map(|at| format!("first in {} row {} column {}", at.tensor, at.row, at.column));
    let mut held = vec![
        count(
            "real top-token mismatches",
            format!("of {} rows, {} ties beside them", top.rows, top.ties),
            top.real,
            limits.map(|limits| limits.max_real_mismatches),
        ),
        count(
            "values that are not finite",
            first.unwrap_or_default(),
            found.nan() + found.unmatched_infinite(),
            Some(0),
        ),
    ];
    if let Some(sets) = &metrics.experts {
        let place = format!("of {}, {} ties beside them", sets.sets, sets.ties);
        held.push(count("sets of experts that really differ", place, sets.real, Some(0)));
    }
    if let Some(placement) = cell.placement.as_ref().filter(|_| !cell.device.is_cpu()) {
        let place = format!("of {}", placement.total());
        let limit = limits.and_then(|limits| limits.fallback_nodes);
        held.push(count("compute nodes on the CPU", place, placement.on_cpu(), limit));
    }
    held
}

/// The name of one cache's tensor and its NMSE in one layer.
pub(super) fn tensors(kv: &KvNmse, set: KvSet) -> impl Iterator<Item = (String, Cache, u64, f64)> + '_ {
    kv.layers.iter().flat_map(move |layer| {
        [(Cache::K, layer.k), (Cache::V, layer.v)]
            .map(|(cache, nmse)| (set.tensor(cache, layer.layer as usize), cache, layer.layer, nmse))
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{diverged, passed};
    use super::*;

    #[test]
    fn whatever_fails_is_above_one() {
        assert_eq!(ratio(2e-5, 1e-5), 2.0);
        assert_eq!(ratio(0.0, 0.0), 0.0);
        assert_eq!(ratio(0.0, 1e-5), 0.0);
        for (value, limit) in [(f64::NAN, 1.0), (1.0, 0.0), (f64::INFINITY, 1.0), (1.0, f64::NAN)] {
            assert_eq!(ratio(value, limit), f64::INFINITY, "{value} of {limit}");
        }
    }

    #[test]
    fn a_cell_passes_here_as_it_passes_the_verdict() {
        assert!(figures(&passed()).iter().all(Held::ok));
        assert!(worst_ratio(&passed()).unwrap() < 1.0);
        let red: Vec<&str> =
            figures(&diverged()).iter().filter(|held| !held.ok()).map(|held| held.name).collect();
        assert_eq!(
            red,
            [
                "logits NMSE",
                "worst row NMSE",
                "K NMSE",
                "V NMSE",
                "real top-token mismatches",
                "values that are not finite",
                "compute nodes on the CPU"
            ]
        );
        assert_eq!(worst_ratio(&diverged()), Some(f64::INFINITY));
    }
}
