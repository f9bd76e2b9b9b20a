//! What a corpus can find, before a sweep is run: the differences of accuracies that it detects, and how many items a
//! difference takes. The statistics are those of [`super::stats::power`]; here are the assumptions and what is said.
//!
//! All depends on the discordance, the share of items that one arm alone answers rightly. Where nothing is known of it,
//! two cases hold what can be: *nothing else flips* (the discordance is the difference itself, as where an arm only
//! loses), and *independent* (arms of equal accuracy `a` whose mistakes have nothing to do with each other differ in
//! `2 a (1 - a)` of the items). An earlier sweep tells what it really was.

use super::answers::labels;
use super::corpus::Corpus;
use super::result::{PairSummary, Summary, Sweep};
use super::stats::power::{BadDesign, Design, Needed, detectable, items_needed, power};
use super::stats::{Interval, Level, clopper_pearson};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The schema of the JSON document.
pub const SCHEMA: &str = "ggml-parity.power/1";

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

/// A corpus and how much of it is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CorpusSize {
    /// Its name.
    pub name: String,
    /// SHA-256 of its file.
    pub sha256: String,
    /// All items.
    pub items: u64,
}

/// Where a discordance comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assumption {
    /// It is as large as the difference: nothing else flips answers.
    NothingElseFlips,
    /// It was given.
    Given,
    /// Arms whose mistakes have nothing to do with each other.
    Independent,
    /// An arm of an earlier sweep had it.
    Measured(String),
    /// The upper end of the 95 % interval of what an arm of an earlier sweep had.
    AtMost(String),
}

/// What can be found, under each assumption.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// The corpus, where one is named.
    pub corpus: Option<CorpusSize>,
    /// Items that are judged.
    pub items: u64,
    /// p values up to this are called a difference, before correction.
    pub alpha: f64,
    /// How many comparisons share it.
    pub comparisons: u64,
    /// The probability with which a difference is to be found.
    pub power: f64,
    /// The accuracy of the reference that was assumed, or measured.
    pub accuracy: Option<f64>,
    /// The interval that so many items give of it.
    pub accuracy_interval: Option<Interval>,
    /// One row for each assumption.
    pub rows: Vec<Row>,
    /// The same for the items of each tag.
    pub tags: Vec<TagRow>,
}

/// What can be found under one assumption.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Where the discordance comes from.
    pub assumption: Assumption,
    /// The share of items that one arm alone answers rightly; `None` where it is the difference.
    pub discordance: Option<f64>,
    /// The smallest difference that is found; `None` where even one as large as the discordance is missed.
    pub detectable: Option<f64>,
    /// The accuracy after a loss of that size; `None` where the reference's accuracy is not known, or none can be.
    pub after_loss: Option<f64>,
    /// The same after a gain.
    pub after_gain: Option<f64>,
    /// The items that differences take.
    pub needed: Vec<NeededFor>,
}

/// The items that one difference takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeededFor {
    /// The difference.
    pub difference: f64,
    /// The items; `None` where the difference is larger than the discordance, which cannot be.
    pub needed: Option<Needed>,
    /// With what probability the items there are find it.
    pub power: Option<f64>,
}

/// What the items of one tag find.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TagRow {
    /// The tag.
    pub tag: String,
    /// Its judged items.
    pub items: u64,
    /// The smallest difference that is found, for each row of the forecast.
    pub detectable: Vec<Option<f64>>,
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

impl Assumption {
    fn words(&self) -> String {
        match self {
            Self::NothingElseFlips => "nothing else flips".to_owned(),
            Self::Given => "assumed".to_owned(),
            Self::Independent => "independent mistakes".to_owned(),
            Self::Measured(arm) => format!("measured, {arm}"),
            Self::AtMost(arm) => format!("at most, {arm}"),
        }
    }
}

impl Forecast {
    /// The JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("forecasts are plain data") + "\n"
    }

    /// For the console.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = match &self.corpus {
            Some(corpus) => {
                format!("corpus {}: {} items, {} with an answer\n", corpus.name, corpus.items, self.items)
            }
            None => format!("{} items with an answer\n", self.items),
        };
        let correction = match self.comparisons {
            1 => "one comparison, not corrected for others".to_owned(),
            n => format!(
                "one of {n} comparisons: p up to {:.2e} each (Bonferroni; Holm is no stricter)",
                self.alpha / n as f64
            ),
        };
        let _ = writeln!(
            text,
            "paired comparison by McNemar's exact test, {} confidence, {} power, {correction}",
            percent(1.0 - self.alpha),
            percent(self.power)
        );
        if let (Some(accuracy), Some(interval)) = (self.accuracy, self.accuracy_interval) {
            let _ = writeln!(
                text,
                "an accuracy of {} by itself is known to {} to {} (Clopper-Pearson, 95 %)",
                percent(accuracy),
                percent(interval.low),
                percent(interval.high)
            );
        }
        text.push('\n');
        text.push_str(&self.found_table());
        text.push('\n');
        text.push_str(&self.needed_table());
        if !self.tags.is_empty() {
            text.push('\n');
            text.push_str(&self.tag_table());
        }
        text
    }

    fn found_table(&self) -> String {
        let mut lines = vec![
            vec!["discordance", "", "detectable", "a loss to", "a gain to"]
                .into_iter()
                .map(str::to_owned)
                .collect(),
        ];
        for row in &self.rows {
            let after = |accuracy: Option<f64>| match (accuracy, self.accuracy, row.detectable) {
                (Some(accuracy), ..) => percent(accuracy),
                (None, Some(_), Some(_)) => "cannot be".to_owned(),
                _ => "-".to_owned(),
            };
            let detectable = row.detectable.map_or_else(|| "none".to_owned(), percent);
            lines.push(vec![
                discordance(row),
                row.assumption.words(),
                detectable,
                after(row.after_loss),
                after(row.after_gain),
            ]);
        }
        format!("the smallest difference that is found:\n{}", table(&lines))
    }

    fn needed_table(&self) -> String {
        let mut lines = vec![vec!["discordance".to_owned(), String::new()]];
        let differences = self.rows.first().map_or(&[][..], |row| row.needed.as_slice());
        lines[0].extend(differences.iter().map(|needed| percent(needed.difference)));
        for row in &self.rows {
            let mut line = vec![discordance(row), row.assumption.words()];
            line.extend(row.needed.iter().map(|needed| match needed.needed {
                Some(Needed { items, exact: true }) => items.to_string(),
                Some(Needed { items, exact: false }) => format!("~{items}"),
                None => "cannot be".to_owned(),
            }));
            lines.push(line);
        }
        format!("the items that a difference takes (~: normal approximation):\n{}", table(&lines))
    }

    fn tag_table(&self) -> String {
        let mut lines = vec![vec!["tag".to_owned(), "items".to_owned()]];
        lines[0].extend(self.rows.iter().map(discordance));
        for tag in &self.tags {
            let mut line = vec![tag.tag.clone(), tag.items.to_string()];
            line.extend(tag.detectable.iter().map(|found| found.map_or_else(|| "none".to_owned(), percent)));
            lines.push(line);
        }
        format!(
            "the smallest difference that is found among the items of one tag, by discordance:\n{}",
            table(&lines)
        )
    }
}

fn discordance(row: &Row) -> String {
    row.discordance.map_or_else(|| "least".to_owned(), percent)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Lines of columns, all but the first two flush right; an empty column is left out.
fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for line in lines {
        let mut written = String::new();
        for column in 0..columns {
            let cell = line.get(column).map_or("", String::as_str);
            let fill = " ".repeat(width(column) - cell.chars().count());
            let left = column == 0 || (column == 1 && lines[0][1].is_empty());
            written += &if left { format!("  {cell}{fill}") } else { format!("  {fill}{cell}") };
        }
        text += written.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arithmetic() -> Question {
        Question::of(&Corpus::open("arithmetic").unwrap())
    }

    #[test]
    fn the_arithmetic_corpus_in_words() {
        let question = Question { accuracy: Some(0.986), ..arithmetic() };
        insta::assert_snapshot!("power_arithmetic", question.answer().unwrap().text());
    }

    #[test]
    fn many_comparisons_of_a_given_discordance_as_json() {
        let question = Question {
            comparisons: 26,
            assumptions: vec![
                (Assumption::Given, 0.1),
                (Assumption::Measured("q8_0 Vulkan0".to_owned()), 0.02),
            ],
            differences: vec![0.05],
            ..Question::items(224)
        };
        insta::assert_snapshot!("power_json", question.answer().unwrap().json());
    }

    /// Six losses are significant, and where nothing else flips the power is the probability of at least six of 501.
    #[test]
    fn where_nothing_else_flips_six_losses_are_enough() {
        let found = arithmetic().answer().unwrap().rows[0].detectable.unwrap();
        let fewer: f64 = (0..6)
            .map(|k| {
                let choose = (0..k).fold(1.0, |c, i| c * f64::from(501 - i) / f64::from(i + 1));
                choose * found.powi(k) * (1.0 - found).powi(501 - k)
            })
            .sum();
        assert!((1.0 - fewer - 0.8).abs() < 1e-4, "{found} {fewer}");
    }

    #[test]
    fn a_gain_beyond_all_items_cannot_be() {
        let row = |accuracy| {
            let assumptions = vec![(Assumption::Given, 0.1)];
            Question { accuracy: Some(accuracy), assumptions, ..Question::items(224) }
                .answer()
                .unwrap()
                .rows
                .remove(0)
        };
        // 6.1 % are found: 8 % flip one way and 2 % the other.
        let high = row(0.97);
        assert!((high.after_loss.unwrap() - (0.97 - high.detectable.unwrap())).abs() < 1e-12);
        assert_eq!(high.after_gain, None);
        let middle = row(0.5);
        assert!(middle.after_loss.is_some() && middle.after_gain.is_some());
        assert_eq!(row(0.01).after_loss, None);
    }

    #[test]
    fn a_stricter_level_finds_less() {
        let alone = arithmetic().answer().unwrap();
        let many = Question { comparisons: 26, ..arithmetic() }.answer().unwrap();
        for (alone, many) in alone.rows.iter().zip(&many.rows) {
            assert!(many.detectable.unwrap() > alone.detectable.unwrap());
            assert!(many.needed[3].needed.zip(alone.needed[3].needed).is_none_or(|(m, a)| m.items > a.items));
        }
    }

    /// Eight of eleven items were lost and none gained: 8 / 11, and the upper end of its interval.
    #[test]
    fn an_earlier_sweep_tells_discordance_and_accuracy() {
        let sweep = crate::sweep::html::sample::sample();
        let found = Measured::of(&sweep).unwrap();
        assert_eq!((found.items, found.accuracy), (11, None), "a reference that errs nowhere says nothing");
        let [(Assumption::Measured(arm), share), (Assumption::AtMost(_), most)] = &found.assumptions[..]
        else {
            panic!("{found:?}");
        };
        assert_eq!((arm.as_str(), *share), ("f32/generate @ Vulkan0 (parity)", 8.0 / 11.0));
        assert!(*most > 0.9 && *most < 1.0, "{most}");
        let mut nothing = sweep;
        nothing.summaries.clear();
        assert_eq!(Measured::of(&nothing), Err(BadQuestion::Unmeasured));
    }

    #[test]
    fn questions_without_an_answer_name_what_is_wrong() {
        let refused = |question: Question| question.answer().unwrap_err().to_string();
        let passages = Question::of(&Corpus::open("passages").unwrap());
        assert!(refused(passages).starts_with("corpus passages: no item expects an answer"));
        assert!(refused(Question { accuracy: Some(1.0), ..arithmetic() }).starts_with("accuracy is 1:"));
        assert!(
            refused(Question { accuracy: Some(f64::NAN), ..arithmetic() }).starts_with("accuracy is NaN")
        );
        assert!(refused(Question { alpha: 5.0, ..arithmetic() }).starts_with("alpha is 5"));
        assert!(refused(Question { differences: vec![0.0], ..arithmetic() }).contains("difference of 0"));
        assert!(refused(Question { comparisons: 0, ..arithmetic() }).starts_with("comparisons is 0"));
        let assumptions = vec![(Assumption::Given, 1.5)];
        assert!(refused(Question { assumptions, ..arithmetic() }).starts_with("discordance is 1.5"));
    }
}
