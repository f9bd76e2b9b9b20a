//! What can be found, under each assumption: the result that the console and JSON show.

use crate::sweep::stats::Interval;
use crate::sweep::stats::power::Needed;
use serde::Serialize;

/// The schema of the JSON document.
pub const SCHEMA: &str = "ggml-parity.power/1";

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

impl Forecast {
    /// The JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("forecasts are plain data") + "\n"
    }
}
