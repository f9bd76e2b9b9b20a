//! One item on one arm.

use super::PairingKind;
use crate::named::named_enum;
use crate::plan::CellId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An item, as far as a reader of answers needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    /// `corpus/item`.
    pub id: String,
    /// Its place among all that were selected, of all shards, from 0.
    pub index: u64,
    /// The corpus.
    pub corpus: String,
    /// Its tags, in the order given.
    pub tags: Vec<String>,
    /// What a model is shown: the prompt, the turns as `role: content`, or the beginning of a text that is scored.
    pub prompt: String,
    /// What is expected; `None` where arms are only compared with each other.
    pub expected: Option<String>,
    /// Whether its tokens are scored.
    pub scored: bool,
    /// Whether something is generated.
    pub generates: bool,
}

named_enum! {
    /// What became of an item on an arm.
    pub enum RowStatus as "row status" {
        /// It was answered, or scored.
        Done = "done",
        /// It cannot be put to this model: a prompt without tokens, with characters that the vocabulary lacks, or longer
        /// than the context. No arm of the model has a result.
        Inapplicable = "inapplicable",
        /// The build or the device lacks what it takes.
        Unsupported = "unsupported",
        /// It was answered, and not by the device that was selected.
        Fallback = "fallback",
        /// The worker said why it could not.
        Failed = "failed",
        /// The worker died.
        Crashed = "crashed",
        /// It took too long.
        Timeout = "timeout",
        /// The worker or the device ran out of memory.
        OutOfMemory = "out-of-memory",
        /// It was not run: the shard that has it is missing.
        Missing = "missing",
    }
}

/// One item on one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The item's id.
    pub item: String,
    /// The arm's id.
    pub arm: CellId,
    /// What became of it.
    pub status: RowStatus,
    /// Why; empty where it is done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How the first worker died at this row, where a second one computed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<String>,
    /// Tokens of the prompt, or of the text that is scored.
    pub prompt_tokens: u64,
    /// What the free run answered; `None` where nothing is generated or it did not come to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// The likelihood of the text, where it is scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Figures against each reference, in the order of the arm's pairings; one that has no result itself is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub against: Vec<Against>,
    /// Values that are not finite among the arm's own logits.
    pub nonfinite: u64,
    /// Compute nodes that were placed on the device, and all of them.
    pub nodes: [u64; 2],
    /// Seconds of the free run, or of scoring.
    pub seconds: f64,
    /// Seconds of the runs along references, comparison included.
    pub forced_seconds: f64,
}

/// What a free run answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// The new tokens, up to the one that ends the answer, which is the last of them.
    pub tokens: Vec<u32>,
    /// Their text, without the end and without masks that were left.
    pub text: String,
    /// Whether the model ended it, rather than the number of tokens.
    pub ended: bool,
    /// How many decisions were made: the tokens, or all masks of a canvas, those behind the end included.
    pub decisions: u64,
    /// Whether it is right.
    pub judged: Judgement,
    /// What was looked at: the number, the match, the choice; `None` where the text has none or nothing is expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
    /// Whether all of it is the expected answer letter for letter, steps included; `None` where nothing or a regular
    /// expression is expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exactly: Option<bool>,
}

named_enum! {
    /// Whether an answer is right.
    pub enum Judgement as "judgement" {
        /// It is.
        Right = "right",
        /// It is not.
        Wrong = "wrong",
        /// Nothing is expected.
        Unjudged = "unjudged",
    }
}

/// The likelihood of a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loss {
    /// Sum of `-ln p` over the scored tokens, in nats.
    #[serde(with = "crate::figure::Figure")]
    pub nats: f64,
    /// How many tokens were scored.
    pub tokens: u64,
}

/// Figures of one item against a reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Against {
    /// The question.
    pub kind: PairingKind,
    /// The reference's id.
    pub reference: CellId,
    /// Whether the free runs gave the same tokens; `None` where nothing is generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<bool>,
    /// Where they part, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<Divergence>,
    /// Logits along the reference's trajectory; `None` where the two have no row in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logits: Option<LogitFigures>,
}

/// The first token in which two free runs differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divergence {
    /// Which decision it is, from 0, in the order in which the reference made them: from left to right, or as it unmasked.
    pub decision: u64,
    /// Its index among the new tokens.
    pub index: u64,
    /// How little it took, in logits: the lead of the reference's token over the next best. In a masked generation the
    /// smallest of all decisions up to this one, since an earlier flip changes what later steps see.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub margin: Option<f64>,
    /// The reference's token; `None` where its answer had ended.
    pub reference: Option<Piece>,
    /// The arm's token; `None` where its answer had ended.
    pub test: Option<Piece>,
}

/// A token and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Piece {
    /// The token.
    pub token: u32,
    /// Its text, special tokens by their names.
    pub text: String,
}

/// Logits along the reference's trajectory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogitFigures {
    /// Rows compared.
    pub rows: u64,
    /// NMSE over all of them.
    #[serde(with = "crate::figure::Figure")]
    pub nmse: f64,
    /// Mean of KL(reference || arm) over the rows, in nats.
    #[serde(with = "crate::figure::Figure")]
    pub kl_mean: f64,
    /// The worst row.
    #[serde(with = "crate::figure::Figure")]
    pub kl_max: f64,
    /// Each row, to three digits, in the order of steps.
    #[serde(with = "crate::figure::Figures")]
    pub kl_rows: Vec<f64>,
    /// Mean of the arm's entropy less the reference's, in nats.
    #[serde(with = "crate::figure::Figure")]
    pub entropy_mean: f64,
    /// The largest difference of entropy, in nats, without its sign.
    #[serde(with = "crate::figure::Figure")]
    pub entropy_max: f64,
    /// Rows whose top token is the same.
    pub same_top: u64,
}
