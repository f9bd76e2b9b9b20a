//! From rows to summaries: a function of arms, items, rows and settings, so that a merged sweep says what one machine
//! would have said.
//!
//! Only rows that are done count. An arm is held against a reference over the items that are done on both, its accuracy
//! over those of them that are judged. All comparisons over all items are one family for Holm's correction, those by tag
//! another: whoever looks at many tags does not lose what the whole corpus shows.

use super::result::{
    Against, Arm, Correction, DropLimit, Item, ItemNmse, Judgement, PairSummary, Pairing, PartedBy, Rate,
    Row, RowStatus, Settings, Summary, Sweep,
};
use super::stats::bootstrap::{Resampling, Share, ratio_of_sums};
use super::stats::first_divergence::{Curve, Run};
use super::stats::kl::Kl;
use super::stats::perplexity::{self, Perplexity};
use super::stats::quantile::nearest_rank;
use super::stats::{Level, Paired, clopper_pearson, holm, mcnemar, newcombe};
use std::collections::{BTreeSet, HashMap};

/// Corrected p values up to this are called significant.
pub const ALPHA: f64 = 0.05;

/// Rows by item and arm.
type Index<'a> = HashMap<(&'a str, usize), &'a Row>;

/// Makes the summaries of a sweep anew, the correction, and what exceeds its limit.
pub fn summarise(sweep: &mut Sweep) {
    let places: HashMap<_, usize> = sweep.arms.iter().enumerate().map(|(i, arm)| (&arm.id, i)).collect();
    let index: Index<'_> = sweep
        .rows
        .iter()
        .filter_map(|row| Some(((row.item.as_str(), *places.get(&row.arm)?), row)))
        .collect();
    let tags: BTreeSet<&str> =
        sweep.items.iter().flat_map(|item| item.tags.iter().map(String::as_str)).collect();
    let groups: Vec<Option<&str>> = [None].into_iter().chain(tags.into_iter().map(Some)).collect();
    let mut summaries = Vec::with_capacity(sweep.arms.len() * groups.len());
    for (place, arm) in sweep.arms.iter().enumerate() {
        for tag in &groups {
            let within = |item: &&Item| tag.is_none_or(|tag| item.tags.iter().any(|own| own == tag));
            let items: Vec<&Item> = sweep.items.iter().filter(within).collect();
            let rows = |place: usize| {
                items.iter().map(|item| index.get(&(item.id.as_str(), place)).copied()).collect::<Vec<_>>()
            };
            let mine = rows(place);
            let mut summary = own(arm, *tag, &mine, &sweep.settings);
            for pairing in &arm.pairings {
                let Some(&reference) = places.get(&pairing.reference) else { continue };
                summary.against.push(pair(pairing, &mine, &rows(reference), &sweep.settings));
            }
            summaries.push(summary);
        }
    }
    sweep.correction = correct(&mut summaries);
    sweep.summaries = summaries;
    if let Some(points) = sweep.limit.as_ref().map(|limit| limit.points) {
        set_limit(sweep, points);
    }
}

/// Holds the sweep to a limit: a significant drop of more than so many percentage points, over all items, exceeds it.
pub fn set_limit(sweep: &mut Sweep, points: f64) {
    let exceeds = |against: &PairSummary| {
        let significant = against.corrected_p.is_some_and(|p| p <= ALPHA);
        significant && -against.difference * 100.0 > points
    };
    let all = sweep.summaries.iter().filter(|summary| summary.tag.is_none());
    let pairs = all.flat_map(|summary| summary.against.iter().map(move |against| (summary, against)));
    let exceeded = pairs.filter(|(_, against)| exceeds(against)).map(|(summary, against)| {
        format!(
            "{} answers {:.1} points worse than {} (corrected p {:.2e})",
            summary.arm,
            -against.difference * 100.0,
            against.reference,
            against.corrected_p.unwrap_or(f64::NAN)
        )
    });
    sweep.limit = Some(DropLimit { points, alpha: ALPHA, exceeded: exceeded.collect() });
}

fn level(settings: &Settings) -> Level {
    Level::new(settings.level).unwrap_or(Level::P95)
}

fn resampling(settings: &Settings) -> Resampling {
    Resampling { resamples: settings.resamples as usize, level: level(settings), seed: settings.seed }
}

fn rate(hits: u64, trials: u64, settings: &Settings) -> Rate {
    let interval = clopper_pearson::interval(hits, trials, level(settings));
    Rate { hits, trials, value: hits as f64 / trials as f64, interval }
}

fn is_done(row: &Row) -> bool {
    row.status == RowStatus::Done
}

/// Whether a row's answer is right, where it is judged.
fn right(row: &Row) -> Option<bool> {
    match row.answer.as_ref()?.judged {
        Judgement::Right => Some(true),
        Judgement::Wrong => Some(false),
        Judgement::Unjudged => None,
    }
}

/// What is said of an arm alone.
fn own(arm: &Arm, tag: Option<&str>, rows: &[Option<&Row>], settings: &Settings) -> Summary {
    let done: Vec<&Row> = rows.iter().flatten().copied().filter(|row| is_done(row)).collect();
    let share = |of: &dyn Fn(&Row) -> Option<bool>| {
        let known: Vec<bool> = done.iter().filter_map(|row| of(row)).collect();
        rate(known.iter().filter(|&&yes| yes).count() as u64, known.len() as u64, settings)
    };
    let losses = || done.iter().filter_map(|row| row.loss);
    let scored_tokens: u64 = losses().map(|loss| loss.tokens).sum();
    let nats: f64 = losses().map(|loss| loss.nats).sum();
    Summary {
        arm: arm.id.clone(),
        tag: tag.map(str::to_owned),
        items: rows.len() as u64,
        done: done.len() as u64,
        accuracy: share(&right),
        exactly: share(&|row| row.answer.as_ref()?.exactly),
        perplexity: (scored_tokens > 0).then(|| (nats / scored_tokens as f64).exp()),
        scored_tokens,
        new_tokens: done.iter().filter_map(|row| row.answer.as_ref()).map(|a| a.tokens.len() as u64).sum(),
        nonfinite: done.iter().map(|row| row.nonfinite).sum(),
        seconds: done.iter().map(|row| row.seconds).sum(),
        against: Vec::new(),
    }
}

/// What is said of an arm against a reference, `rows` and `references` being of the same items.
fn pair(
    pairing: &Pairing,
    rows: &[Option<&Row>],
    references: &[Option<&Row>],
    settings: &Settings,
) -> PairSummary {
    let both: Vec<(&Row, &Row)> = rows
        .iter()
        .zip(references)
        .filter_map(|(row, reference)| (*row).zip(*reference))
        .filter(|(row, reference)| is_done(row) && is_done(reference))
        .collect();
    let counts = Paired::tally(both.iter().filter_map(|(row, reference)| right(reference).zip(right(row))));
    let judged = counts.items() > 0;
    let against: Vec<(&Against, &Row)> = both
        .iter()
        .filter_map(|(row, reference)| {
            let same = |a: &&Against| a.kind == pairing.kind && a.reference == pairing.reference;
            Some((row.against.iter().find(same)?, *reference))
        })
        .collect();
    let exact: Vec<bool> = against.iter().filter_map(|(against, _)| against.exact).collect();
    let runs: Vec<Run> = against.iter().filter_map(|(against, reference)| run(against, reference)).collect();
    let divergence = Curve::of(&runs);
    let logits = || against.iter().filter_map(|(against, _)| against.logits.as_ref());
    let [rows, same_top] = [|l: &Logits| l.rows, |l: &Logits| l.same_top].map(|of| logits().map(of).sum());
    PairSummary {
        kind: pairing.kind,
        reference: pairing.reference.clone(),
        items: both.len() as u64,
        mcnemar: judged.then(|| mcnemar::test(&counts)),
        corrected_p: None,
        difference: counts.difference(),
        difference_interval: newcombe::interval(&counts, level(settings)),
        counts,
        exact: rate(exact.iter().filter(|&&same| same).count() as u64, exact.len() as u64, settings),
        perplexity: perplexity(&both, settings),
        nmse: item_nmse(&logits().map(|l| l.nmse).collect::<Vec<_>>()),
        kl: kl(logits(), settings),
        same_top: rate(same_top, rows, settings),
        parted_by: PartedBy {
            tenth: divergence.quantile(0.1),
            half: divergence.quantile(0.5),
            nine_tenths: divergence.quantile(0.9),
        },
        divergence,
    }
}

type Logits = super::result::LogitFigures;

/// What a free run did, where the item generates.
fn run(against: &Against, reference: &Row) -> Option<Run> {
    against.exact?;
    Some(match &against.divergence {
        Some(divergence) => Run::Parted { at: divergence.decision },
        None => Run::Agreed { tokens: reference.answer.as_ref()?.decisions },
    })
}

fn perplexity(both: &[(&Row, &Row)], settings: &Settings) -> Option<Perplexity> {
    let losses: Vec<perplexity::Loss> = both
        .iter()
        .filter_map(|(row, reference)| {
            let (test, reference) = (row.loss?, reference.loss?);
            // Of other tokens the two would say nothing of each other.
            (test.tokens == reference.tokens).then_some(perplexity::Loss {
                reference: reference.nats,
                test: test.nats,
                tokens: test.tokens,
            })
        })
        .collect();
    (!losses.is_empty()).then(|| perplexity::compare(&losses, &resampling(settings)))
}

fn item_nmse(figures: &[f64]) -> Option<ItemNmse> {
    Some(ItemNmse { median: nearest_rank(figures, 0.5)?, max: nearest_rank(figures, 1.0)? })
}

/// KL over all rows: the mean and the worst as they were computed, p99 of what rows keep, which is three digits.
fn kl<'a>(logits: impl Iterator<Item = &'a Logits>, settings: &Settings) -> Option<Kl> {
    let items: Vec<&Logits> = logits.collect();
    let share = |l: &&Logits| Share { sum: l.kl_mean * l.rows as f64, weight: l.rows as f64 };
    let shares: Vec<Share> = items.iter().map(share).collect();
    let worst: Vec<f64> = items.iter().map(|l| l.kl_max).collect();
    let rows: Vec<f64> = items.iter().flat_map(|l| l.kl_rows.iter().copied()).collect();
    Some(Kl {
        rows: rows.len() as u64,
        max: nearest_rank(&worst, 1.0)?,
        p99: nearest_rank(&rows, 0.99)?,
        mean: ratio_of_sums(&shares, &resampling(settings)),
    })
}

/// Corrects the p values of both families.
fn correct(summaries: &mut [Summary]) -> Correction {
    let mut family = |by_tag: bool| {
        let mine = summaries.iter_mut().filter(|summary| summary.tag.is_some() == by_tag);
        let mut pairs: Vec<&mut PairSummary> =
            mine.flat_map(|summary| &mut summary.against).filter(|pair| pair.mcnemar.is_some()).collect();
        let p: Vec<f64> =
            pairs.iter().map(|pair| pair.mcnemar.map_or(f64::NAN, |mcnemar| mcnemar.p)).collect();
        for (pair, corrected) in pairs.iter_mut().zip(holm::adjust(&p)) {
            pair.corrected_p = Some(corrected);
        }
        p.len() as u64
    };
    let (all_items, by_tag) = (family(false), family(true));
    let sentence = if all_items == 0 {
        "No item was judged on two arms, so there are no p values.".to_owned()
    } else {
        format!(
            "p is McNemar's exact test of paired answers. p values were corrected by Holm's method: over the \
             {all_items} comparisons of all items, and apart from these over the {by_tag} comparisons by tag. A \
             corrected p of at most {ALPHA} is called significant."
        )
    };
    Correction { method: "holm".to_owned(), all_items, by_tag, sentence }
}

#[cfg(test)]
mod tests;
