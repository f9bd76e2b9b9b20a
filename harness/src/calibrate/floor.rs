//! The noise floor of a group of samples.

use super::Steadiness;
use super::samples::{Metric, Pair, Place, Sample, worse};
use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// How many figures.
    pub samples: usize,
    /// The largest; NaN where one was.
    #[serde(with = "crate::figure::Figure")]
    pub max: f64,
    /// What 99 of 100 do not exceed (nearest rank).
    #[serde(with = "crate::figure::Figure")]
    pub p99: f64,
    /// The median.
    #[serde(with = "crate::figure::Figure")]
    pub p50: f64,
    /// The largest of each pair of arms.
    pub pairs: BTreeMap<Pair, Figure>,
    /// The cell that the largest is of, and its pair.
    pub worst: String,
}

/// A figure in a table of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Figure(#[serde(with = "crate::figure::Figure")] pub f64);

/// The noise floor of one place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// What moves it.
    #[serde(flatten)]
    pub place: Place,
    /// What the figures are held to.
    pub metric: Metric,
    /// The figures.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Measured {
    /// The figures of `samples`, of which there is at least one.
    ///
    /// # Panics
    /// On no samples.
    #[must_use]
    pub fn of(samples: &[&Sample]) -> Self {
        let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        // A NaN is larger than everything, whatever its sign.
        sorted.sort_by(|a, b| a.is_nan().cmp(&b.is_nan()).then(a.abs().total_cmp(&b.abs())));
        let quantile = |q: f64| {
            let rank = (q * sorted.len() as f64).ceil() as usize;
            sorted[rank.clamp(1, sorted.len()) - 1]
        };
        let max = quantile(1.0);
        let mut pairs: BTreeMap<Pair, Figure> = BTreeMap::new();
        for sample in samples {
            let most = pairs.entry(sample.pair).or_insert(Figure(sample.value));
            *most = Figure(worse(most.0, sample.value));
        }
        let same = |sample: &&&Sample| sample.value == max || sample.value.is_nan() && max.is_nan();
        let worst = samples.iter().find(same).expect("the largest is one of them");
        let worst = format!("{}, {}", worst.cell, worst.pair);
        Self { samples: sorted.len(), max, p99: quantile(0.99), p50: quantile(0.5), pairs, worst }
    }
}

/// The noise floor of every place, in order.
#[must_use]
pub fn floors(samples: &[Sample]) -> Vec<Floor> {
    let mut groups: BTreeMap<(Place, Metric), Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        groups.entry((sample.place.clone(), sample.metric)).or_default().push(sample);
    }
    let floor = |((place, metric), samples): ((Place, Metric), Vec<&Sample>)| Floor {
        place,
        metric,
        measured: Measured::of(&samples),
    };
    groups.into_iter().map(floor).collect()
}

/// Whether the same cells with the same tokens gave the same figures.
#[must_use]
pub fn steadiness(samples: &[Sample]) -> Steadiness {
    // The figures of each repeat.
    type Repeats = BTreeMap<u32, Vec<f64>>;
    let mut groups: BTreeMap<(String, u32, Metric, Pair), Repeats> = BTreeMap::new();
    for sample in samples {
        let key = (sample.cell.to_string(), sample.seed, sample.metric, sample.pair);
        groups.entry(key).or_default().entry(sample.repeat).or_default().push(sample.value);
    }
    let mut found = Steadiness { spread: 1.0, ..Steadiness::default() };
    for repeats in groups.into_values().filter(|repeats| repeats.len() > 1) {
        found.repeated += 1;
        let bits = |values: &Vec<f64>| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let mut all = repeats.values();
        let first = all.next().map(bits);
        if all.all(|values| Some(bits(values)) == first) {
            continue;
        }
        found.changing += 1;
        let most: Vec<f64> = repeats.values().map(|values| values.iter().copied().fold(0.0, worse)).collect();
        let (large, small) =
            (most.iter().copied().fold(0.0, worse), most.iter().copied().fold(f64::INFINITY, f64::min));
        found.spread = worse(found.spread, large / small);
    }
    found
}
