//! Discordances and accuracy of an earlier sweep.

use super::{Assumption, BadQuestion};
use crate::sweep::answers::labels;
use crate::sweep::result::{PairSummary, Summary, Sweep};
use crate::sweep::stats::{Level, clopper_pearson};
use std::collections::BTreeMap;

/// What an earlier sweep tells of the next one.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Items that were judged on an arm and on its reference: the most that any pair had.
    pub items: u64,
    /// The accuracy of the reference, where all pairs have the same.
    pub accuracy: Option<f64>,
    /// Discordances, with the upper end of the interval of each.
    pub assumptions: Vec<(Assumption, f64)>,
}

impl Measured {
    /// What a sweep measured, from the least discordance to the largest; arms that share one are named together.
    ///
    /// # Errors
    /// Where nothing was judged on two arms.
    pub fn of(sweep: &Sweep) -> Result<Self, BadQuestion> {
        let labels = labels(sweep);
        let name = |summary: &Summary, pair: &PairSummary| {
            let place = sweep.arms.iter().position(|arm| arm.id == summary.arm);
            let arm = place.map_or_else(|| summary.arm.to_string(), |place| labels[place].clone());
            format!("{arm} ({})", pair.kind)
        };
        let summaries = sweep.summaries.iter().filter(|summary| summary.tag.is_none());
        let pairs = summaries.flat_map(|summary| summary.against.iter().map(move |pair| (summary, pair)));
        let mut by_counts: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
        let mut accuracies: Vec<f64> = Vec::new();
        for (summary, pair) in pairs.filter(|(_, pair)| pair.counts.items() > 0) {
            let counts = &pair.counts;
            by_counts.entry((counts.discordant(), counts.items())).or_default().push(name(summary, pair));
            accuracies.push(counts.reference_accuracy());
        }
        let first = *accuracies.first().ok_or(BadQuestion::Unmeasured)?;
        let same = accuracies.iter().all(|accuracy| *accuracy == first) && first > 0.0 && first < 1.0;
        let mut assumptions = Vec::new();
        for ((discordant, items), arms) in &by_counts {
            let more = if arms.len() > 1 { format!(" and {} more", arms.len() - 1) } else { String::new() };
            let arm = format!("{}{more}", arms[0]);
            let most = clopper_pearson::interval(*discordant, *items, Level::P95).high;
            if *discordant > 0 {
                assumptions.push((Assumption::Measured(arm.clone()), *discordant as f64 / *items as f64));
            }
            assumptions.push((Assumption::AtMost(arm), most));
        }
        let items = by_counts.keys().map(|(_, items)| *items).max().unwrap_or_default();
        Ok(Self { items, accuracy: same.then_some(first), assumptions })
    }
}
