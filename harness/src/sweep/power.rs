//! What a corpus can find, before a sweep is run: the differences of accuracies that it detects, and how many items a
//! difference takes. The statistics are those of [`super::stats::power`]; here are the assumptions and what is said.
//!
//! All depends on the discordance, the share of items that one arm alone answers rightly. Where nothing is known of it,
//! two cases hold what can be: *nothing else flips* (the discordance is the difference itself, as where an arm only
//! loses), and *independent* (arms of equal accuracy `a` whose mistakes have nothing to do with each other differ in
//! `2 a (1 - a)` of the items). An earlier sweep tells what it really was.

mod forecast;
mod measured;
mod text;

pub use forecast::{Assumption, CorpusSize, Forecast, NeededFor, Row, SCHEMA, TagRow};
pub use measured::Measured;

use super::corpus::Corpus;
use super::stats::power::{BadDesign, Design, detectable, items_needed, power};
use super::stats::{Level, clopper_pearson};

/// Discordances that are shown where none is given.
pub const DISCORDANCES: [f64; 3] = [0.05, 0.1, 0.2];
/// Differences whose items are counted where none is given.
pub const DIFFERENCES: [f64; 4] = [0.01, 0.02, 0.05, 0.1];

/// What is asked of a corpus.
#[derive(Clone, Debug)]
pub struct Question {
    /// The corpus, where one is named.
    pub corpus: Option<CorpusSize>,
    /// Items that are judged.
    pub items: u64,
    /// Judged items by tag.
    pub tags: Vec<(String, u64)>,
    /// The accuracy that is expected of the reference, above 0 and below 1.
    pub accuracy: Option<f64>,
    /// What is assumed of the discordance; none stands for both ends and [`DISCORDANCES`].
    pub assumptions: Vec<(Assumption, f64)>,
    /// Differences whose items are counted.
    pub differences: Vec<f64>,
    /// p values up to this are called a difference, before correction.
    pub alpha: f64,
    /// The probability with which a difference is to be found.
    pub power: f64,
    /// How many comparisons share `alpha`: arms times tags, where all are looked at.
    pub comparisons: u64,
}

/// A question that cannot be answered.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BadQuestion {
    /// The numbers make no sense.
    #[error(transparent)]
    Design(#[from] BadDesign),
    /// An accuracy at which nothing can be lost or gained, or none at all.
    #[error("accuracy is {0}: a number above 0 and below 1 is wanted")]
    Accuracy(f64),
    /// Nothing to compare.
    #[error("{0}: no item expects an answer, so there is no accuracy that could differ")]
    Nothing(String),
    /// A sweep that judged nothing on two arms.
    #[error(
        "the sweep has no item that is judged on an arm and on its reference, so no discordance was measured"
    )]
    Unmeasured,
    /// No comparison at all.
    #[error("comparisons is 0: at least one is wanted")]
    Comparisons,
}

impl Question {
    /// The common question of a corpus.
    #[must_use]
    pub fn of(corpus: &Corpus) -> Self {
        let judged = |tag: &str| {
            let judged = corpus.items.iter().filter(|item| item.expected.is_some());
            let count = judged.filter(|item| item.tags.iter().any(|own| own == tag)).count();
            (tag.to_owned(), count as u64)
        };
        let tags = corpus.tags().into_iter().map(judged).filter(|(_, items)| *items > 0).collect();
        let size = CorpusSize {
            name: corpus.name.clone(),
            sha256: corpus.sha256.clone(),
            items: corpus.items.len() as u64,
        };
        Self { corpus: Some(size), tags, ..Self::items(corpus.judged() as u64) }
    }

    /// The common question of so many items: 95 % confidence, 80 % power, one comparison.
    #[must_use]
    pub fn items(items: u64) -> Self {
        let Design { alpha, power, .. } = Design::common(1.0);
        Self {
            corpus: None,
            items,
            tags: Vec::new(),
            accuracy: None,
            assumptions: Vec::new(),
            differences: DIFFERENCES.to_vec(),
            alpha,
            power,
            comparisons: 1,
        }
    }

    /// The answer.
    ///
    /// # Errors
    /// Numbers that make no sense, or nothing that is judged.
    pub fn answer(&self) -> Result<Forecast, BadQuestion> {
        self.check()?;
        let rows = self.assumed().into_iter().map(|(assumption, discordance)| {
            self.row(assumption, discordance, self.items).map_err(BadQuestion::from)
        });
        let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
        let tag = |(tag, items): &(String, u64)| {
            let found = rows.iter().map(|row| self.detectable(row.discordance, *items));
            let detectable = found.collect::<Result<_, _>>()?;
            Ok(TagRow { tag: tag.clone(), items: *items, detectable })
        };
        let tags = self.tags.iter().map(tag).collect::<Result<_, BadQuestion>>()?;
        let interval = self.accuracy.map(|accuracy| {
            let hits = (accuracy * self.items as f64).round() as u64;
            clopper_pearson::interval(hits, self.items, Level::P95)
        });
        Ok(Forecast {
            schema: SCHEMA,
            corpus: self.corpus.clone(),
            items: self.items,
            alpha: self.alpha,
            comparisons: self.comparisons,
            power: self.power,
            accuracy: self.accuracy,
            accuracy_interval: interval,
            rows,
            tags,
        })
    }

    fn check(&self) -> Result<(), BadQuestion> {
        if self.items == 0 {
            let name = self.corpus.as_ref().map_or("items is 0".to_owned(), |c| format!("corpus {}", c.name));
            return Err(BadQuestion::Nothing(name));
        }
        if self.comparisons == 0 {
            return Err(BadQuestion::Comparisons);
        }
        if let Some(&value) = self.differences.iter().find(|value| !(value.abs() > 0.0)) {
            let why = "no corpus finds a difference of 0";
            return Err(BadDesign { field: "difference", value, why }.into());
        }
        match self.accuracy {
            Some(accuracy) if !(accuracy > 0.0 && accuracy < 1.0) => Err(BadQuestion::Accuracy(accuracy)),
            _ => Ok(()),
        }
    }

    /// The assumptions, each with its discordance; `None` is the difference itself.
    fn assumed(&self) -> Vec<(Assumption, Option<f64>)> {
        if !self.assumptions.is_empty() {
            return self.assumptions.iter().map(|(from, value)| (from.clone(), Some(*value))).collect();
        }
        let mut assumed = vec![(Assumption::NothingElseFlips, None)];
        assumed.extend(DISCORDANCES.map(|value| (Assumption::Given, Some(value))));
        let independent = self.accuracy.map(|a| (Assumption::Independent, Some(2.0 * a * (1.0 - a))));
        assumed.extend(independent);
        assumed
    }

    fn design(&self, discordance: f64) -> Design {
        Design { discordance, alpha: self.alpha / self.comparisons as f64, power: self.power }
    }

    fn row(&self, assumption: Assumption, discordance: Option<f64>, items: u64) -> Result<Row, BadDesign> {
        let detectable = self.detectable(discordance, items)?;
        let mut needed = Vec::new();
        for &difference in &self.differences {
            let design = self.design(discordance.unwrap_or_else(|| difference.abs()));
            let cannot = discordance.is_some_and(|discordance| difference.abs() > discordance);
            let (count, found) = match cannot {
                true => (None, None),
                false => {
                    let count = items_needed(difference, &design)?;
                    (Some(count), Some(power(items, difference, &design)?))
                }
            };
            needed.push(NeededFor { difference, needed: count, power: found });
        }
        // What a loss takes must be there to be lost, and what flips the other way there to be gained.
        let after = |sign: f64| {
            let (accuracy, difference) = (self.accuracy?, detectable?);
            let flips = discordance.unwrap_or(difference);
            let (away, back) = ((flips + difference) / 2.0, (flips - difference) / 2.0);
            let (lost, gained) = if sign < 0.0 { (away, back) } else { (back, away) };
            (lost <= accuracy && gained <= 1.0 - accuracy).then_some(accuracy + sign * difference)
        };
        Ok(Row {
            after_loss: after(-1.0),
            after_gain: after(1.0),
            assumption,
            discordance,
            detectable,
            needed,
        })
    }

    fn detectable(&self, discordance: Option<f64>, items: u64) -> Result<Option<f64>, BadDesign> {
        let Some(discordance) = discordance else { return self.detectable_alone(items) };
        detectable(items, &self.design(discordance))
    }

    /// The smallest difference that is found where nothing else flips answers, to 1e-6. Power grows with it, for each
    /// item that flips is one more for the test.
    fn detectable_alone(&self, items: u64) -> Result<Option<f64>, BadDesign> {
        let found = |difference: f64| {
            let design = self.design(difference);
            power(items, difference, &design).map(|power| power >= design.power)
        };
        let (mut low, mut high) = (0.0, 1.0);
        if !found(high)? {
            return Ok(None);
        }
        while high - low > 1e-6 {
            let middle = low + (high - low) / 2.0;
            if found(middle)? { high = middle } else { low = middle }
        }
        Ok(Some(high))
    }
}

#[cfg(test)]
mod tests;
