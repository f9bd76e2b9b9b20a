//! Which experts the routers of two arms chose for each token, layer by layer. The reference's worked on both arms, so that
//! every set stands for itself.
//!
//! A set that differs is a `tie` when the row of router logits itself is within its NMSE limit **and** what separates
//! the experts that were lost from those that were taken is, in the reference's logits, at most
//! `4 sqrt(limit x mean(ref^2))`: the noise that the limit of the cell's logits allows. Every other one is `real`.

use super::nmse::Nmse;
use super::top_token::{MismatchKind, TIE_FACTOR, allowed_noise};
use super::{CompareError, block_rows};
use crate::capture::CaptureReader;
use crate::verdict::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many differences are listed one by one.
const LISTED: usize = 32;

/// Agreement of the chosen experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpertSets {
    /// Sets compared: tokens of all passes, times layers.
    pub sets: u64,
    /// Those that are near ties.
    pub ties: u64,
    /// Those that are real.
    pub real: u64,
    /// NMSE of the router's logits, layer by layer.
    #[serde(with = "crate::figure::Figures")]
    pub router_nmse: Vec<f64>,
    /// The smallest margin of any set in the reference: the lowest logit that was chosen less the highest that was not.
    #[serde(with = "crate::figure::Figure")]
    pub smallest_margin: f64,
    /// The first differences in the order of passes, layers and rows, real ones before ties.
    pub list: Vec<ExpertDifference>,
}

/// One set that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpertDifference {
    /// The pass.
    pub step: i32,
    /// The token's position.
    pub position: i32,
    /// The layer.
    pub layer: u64,
    /// What it means.
    pub kind: MismatchKind,
    /// Experts that the reference chose and the test did not.
    pub reference: Vec<i32>,
    /// Experts that the test chose and the reference did not.
    pub test: Vec<i32>,
    /// The reference's lowest chosen logit less its highest other one.
    #[serde(with = "crate::figure::Figure")]
    pub margin: f64,
    /// The highest of the reference's logits of what was lost less the lowest of what was taken.
    #[serde(with = "crate::figure::Figure")]
    pub gap: f64,
    /// The gap up to which the allowed noise explains it.
    #[serde(with = "crate::figure::Figure")]
    pub allowed: f64,
}

/// Compares the routing of two captures that were found to be of the same thing; none where neither has any.
pub(super) fn compare(
    reference: &mut CaptureReader,
    test: &mut CaptureReader,
    limits: &Limits,
) -> Result<Option<ExpertSets>, CompareError> {
    let (Some(ours), Some(theirs)) = (reference.routing().cloned(), test.routing().cloned()) else {
        return Ok(None);
    };
    let mut found = ExpertSets {
        sets: 0,
        ties: 0,
        real: 0,
        router_nmse: Vec::new(),
        smallest_margin: f64::INFINITY,
        list: Vec::new(),
    };
    let mut ties = Vec::new();
    let (count, experts, used) = (ours.rows.step.len(), ours.experts, ours.used);
    let (mut r, mut x) = (Vec::new(), Vec::new());
    for (layer, (chosen, others)) in ours.chosen.iter().zip(&theirs.chosen).enumerate() {
        let mut sums = Nmse::default();
        for first in (0..count).step_by(block_rows(experts)) {
            let block = block_rows(experts).min(count - first);
            reference.router(layer, first, block, &mut r)?;
            test.router(layer, first, block, &mut x)?;
            for (row, (r, x)) in (first..).zip(r.chunks_exact(experts).zip(x.chunks_exact(experts))) {
                let row_sums = Nmse::of(r, x);
                sums.merge(row_sums);
                found.sets += 1;
                let [chosen, others] = [chosen, others].map(|list| &list[row * used..(row + 1) * used]);
                let margin = lowest(r, chosen) - highest(r, &without(experts, chosen));
                found.smallest_margin = smaller(found.smallest_margin, margin);
                let [lost, taken] = [(chosen, others), (others, chosen)].map(|(a, b)| only(a, b));
                if lost.is_empty() {
                    continue;
                }
                let gap = highest(r, &lost) - lowest(r, &taken);
                let allowed = TIE_FACTOR * allowed_noise(limits.logits_nmse.limit, row_sums.mean_square());
                let explained = gap <= allowed && limits.row_nmse.holds(row_sums.value());
                let (kind, number, list) = if explained {
                    (MismatchKind::Tie, &mut found.ties, &mut ties)
                } else {
                    (MismatchKind::Real, &mut found.real, &mut found.list)
                };
                *number += 1;
                list.push(ExpertDifference {
                    step: ours.rows.step[row],
                    position: ours.rows.position[row],
                    layer: layer as u64,
                    kind,
                    reference: lost,
                    test: taken,
                    margin,
                    gap,
                    allowed,
                });
            }
        }
        found.router_nmse.push(sums.value());
    }
    for list in [&mut found.list, &mut ties] {
        list.sort_by_key(|d| (d.step, d.layer, d.position));
    }
    found.list.extend(ties);
    found.list.truncate(LISTED);
    Ok(Some(found))
}

/// What is in `a` and not in `b`.
fn only(a: &[i32], b: &[i32]) -> Vec<i32> {
    a.iter().copied().filter(|e| !b.contains(e)).collect()
}

/// The experts that are not among `chosen`.
fn without(experts: usize, chosen: &[i32]) -> Vec<i32> {
    (0i32..).take(experts).filter(|e| !chosen.contains(e)).collect()
}

fn logits<'a>(row: &'a [f64], of: &'a [i32]) -> impl Iterator<Item = f64> + 'a {
    of.iter().map(|&e| usize::try_from(e).ok().and_then(|e| row.get(e)).copied().unwrap_or(f64::NAN))
}

/// The smaller of two; NaN where one is.
fn smaller(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// The lowest logit; NaN where one is.
fn lowest(row: &[f64], of: &[i32]) -> f64 {
    logits(row, of).fold(f64::INFINITY, smaller)
}

/// The highest logit; NaN where one is.
fn highest(row: &[f64], of: &[i32]) -> f64 {
    logits(row, of).fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || a > b { a } else { b })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::sample::Sample;
    use crate::capture::{CaptureError, CaptureWriter, LayerRouting, StepRows};

    /// Two rows of one layer with four experts, two of which work.
    fn capture(rows: [([f64; 4], [i32; 2]); 2]) -> CaptureReader {
        read(rows).unwrap()
    }

    fn read(rows: [([f64; 4], [i32; 2]); 2]) -> Result<CaptureReader, CaptureError> {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("c");
        let mut writer = CaptureWriter::new(1);
        writer.row(0, 0, &[1f64]);
        writer.tokens(&[1]);
        let layer = LayerRouting {
            logits: rows.iter().flat_map(|(logits, _)| *logits).collect(),
            chosen: rows.iter().flat_map(|(_, chosen)| *chosen).collect(),
        };
        let places = StepRows { step: vec![0, 3], position: vec![7, 5] };
        writer.routing(&places, 4, 2, &[layer]);
        writer.write(&path, &Sample::new(1, 1).meta).unwrap();
        CaptureReader::open(&path)
    }

    fn sets(a: [([f64; 4], [i32; 2]); 2], b: [([f64; 4], [i32; 2]); 2], limit: f64) -> ExpertSets {
        compare(&mut capture(a), &mut capture(b), &Limits::uniform(limit)).unwrap().unwrap()
    }

    const ROWS: [([f64; 4], [i32; 2]); 2] =
        [([1.0, 4.0, 3.0, 2.0], [1, 2]), ([5.0, 1.0, 0.0, 4.999], [0, 3])];

    #[test]
    fn the_order_of_a_set_means_nothing() {
        let mut turned = ROWS;
        turned[0].1 = [2, 1];
        let found = sets(ROWS, turned, 1e-9);
        assert_eq!((found.sets, found.ties, found.real), (2, 0, 0));
        assert_eq!((found.router_nmse, found.smallest_margin), (vec![0.0], 1.0));
    }

    #[test]
    fn a_swap_within_the_allowed_noise_is_a_tie() {
        let mut near = ROWS;
        near[0].1 = [1, 3];
        // The gap is 1; the mean square of the row is 7.5, so 4 sqrt(limit 7.5) reaches 1 at 1 / 120.
        let found = sets(ROWS, near, 1.0 / 119.0);
        assert_eq!((found.ties, found.real), (1, 0));
        let first = &found.list[0];
        assert_eq!((first.step, first.position, first.layer), (0, 7, 0));
        assert_eq!((&first.reference[..], &first.test[..]), (&[2][..], &[3][..]));
        assert_eq!((first.margin, first.gap, first.kind), (1.0, 1.0, MismatchKind::Tie));
        assert_eq!(sets(ROWS, near, 1.0 / 121.0).real, 1, "a smaller limit explains less");
    }

    #[test]
    fn logits_beyond_their_limit_are_no_excuse() {
        let mut off = ROWS;
        off[1] = ([5.0, 6.0, 0.0, 4.999], [1, 0]);
        let found = sets(ROWS, off, 1e-3);
        assert_eq!((found.ties, found.real), (0, 1));
        assert_eq!((found.list[0].step, found.list[0].position), (3, 5));
        // 25 / (30 + 50.99)
        assert!((found.router_nmse[0] - 25.0 / (30.0 + 50.990_001)).abs() < 1e-6);
    }

    #[test]
    fn a_nan_is_real() {
        let mut nan = ROWS;
        nan[0] = ([1.0, f64::NAN, 3.0, 2.0], [3, 2]);
        assert_eq!(sets(nan, ROWS, 1e9).real, 1);
        assert!(sets(nan, ROWS, 1e9).smallest_margin.is_nan());
        assert_eq!(sets(ROWS, nan, 1e9).real, 1);
    }

    #[test]
    fn malformed_sets_are_refused() {
        let mut twice = ROWS;
        twice[0].1 = [1, 1];
        let mut outside = ROWS;
        outside[1].1 = [0, 4];
        for rows in [twice, outside] {
            assert!(read(rows).err().unwrap().to_string().contains("experts.0"));
        }
    }
}
