//! What was run, on what, and with which settings.

use crate::named::named_enum;
use crate::plan::Shard;
use crate::report::Environment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When and how a sweep was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRun {
    /// Its name, that of its folder.
    pub name: String,
    /// When it began, RFC 3339 in UTC.
    pub started: String,
    /// How long it took, since it was last resumed.
    pub seconds: f64,
    /// The command line.
    pub command: String,
    /// The version of ggml-parity.
    pub version: String,
    /// Rows that were computed, since it was last resumed.
    pub computed: u64,
    /// Rows that the journal held when it was resumed.
    pub resumed: u64,
    /// Which part of the items it ran, where it did not run all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
}

/// A corpus that items come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CorpusUse {
    /// Its name.
    pub name: String,
    /// SHA-256 of its file, in hexadecimal.
    pub sha256: String,
    /// The items in the file.
    pub items: u64,
    /// Those that tags and limit left, of all shards.
    pub selected: u64,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelUse {
    /// Its name, as in ids.
    pub name: String,
    /// Its weight type, as in ids.
    pub weights: String,
    /// What `--model` was given.
    pub given: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// `general.architecture`.
    pub architecture: String,
}

named_enum! {
    /// Which items go through the model's chat template.
    pub enum Templates as "chat" {
        /// Items with messages; prompts stand as they are.
        Messages = "messages",
        /// All: a prompt is one turn of the user's.
        All = "all",
        /// None: the contents of the messages, joined by blank lines.
        None = "none",
    }
}

/// What decides prompts, lengths and statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// Only items with one of these tags; all where there are none.
    pub tags: Vec<String>,
    /// Items of each corpus at most.
    pub limit: Option<u64>,
    /// Which items go through the chat template.
    pub chat: Templates,
    /// New tokens at most, whatever items say. Items that do not say get as many as the model's settings, else 128.
    pub max_tokens: Option<u64>,
    /// Steps of a masked generation; without it, the model's settings, else half the masks.
    pub steps: Option<u64>,
    /// Tokens of one window when a text is scored, or the model's context where that is shorter.
    pub context: u64,
    /// Tokens by which windows follow each other; a token is scored in the first window that has it. The windows of
    /// masked models follow each other by their length.
    pub stride: u64,
    /// The share of a text's tokens that are masked when a masked model scores it.
    pub mask_share: f64,
    /// CPU threads of arms that do not say.
    pub threads: u64,
    /// The level of all intervals.
    pub level: f64,
    /// Resamples of bootstrap intervals.
    pub resamples: u64,
    /// The seed of masks and resamples.
    pub seed: u64,
}

/// One sweep of a merged one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepPart {
    /// When and how it was started.
    pub run: SweepRun,
    /// Where it ran.
    pub environment: Environment,
    /// How many rows the merged sweep has from it.
    pub rows: u64,
}
