//! What a sweep found: the one typed result that `sweep.json` holds and all renderers read.
//!
//! | part | holds |
//! |---|---|
//! | [`Sweep`] | everything |
//! | [`header`] | what was run, on what, with which settings |
//! | [`Arm`], [`Pairing`] | what answered, and what each arm is held against |
//! | [`row`] | one item on one arm: answer, judgement, figures against each reference |
//! | [`summary`] | one arm over all items, or over those of a tag: accuracy, tests, intervals |
//!
//! Summaries are a function of items and rows (`super::summary`), so that a merged sweep is the sweep that one machine
//! would have made.

pub mod header;
pub mod row;
pub mod summary;

pub use header::{CorpusUse, ModelUse, Settings, SweepPart, SweepRun, Templates};
pub use row::{Against, Answer, Divergence, Item, Judgement, LogitFigures, Loss, Piece, Row, RowStatus};
pub use summary::{Correction, DropLimit, ItemNmse, PairSummary, PartedBy, Rate, Summary};

use crate::capture::DeviceInfo;
use crate::named::named_enum;
use crate::plan::{CellId, DeviceSelector, Mode, Options};
use crate::report::Environment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The schema of sweeps that this version writes and reads.
pub const SCHEMA: &str = "ggml-parity.sweep/1";

/// The file of a sweep in its folder.
pub const FILE: &str = "sweep.json";

/// What a sweep found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// When and how it was started.
    pub run: SweepRun,
    /// The corpora, in the order given.
    pub corpora: Vec<CorpusUse>,
    /// The models, in the order given, those of references last.
    pub models: Vec<ModelUse>,
    /// What decides prompts, lengths and statistics.
    pub settings: Settings,
    /// Where it ran.
    pub environment: Environment,
    /// The arms: each after those it is held against.
    pub arms: Vec<Arm>,
    /// Combinations of model and device that were asked for and cannot be, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The items, in the order of the corpora.
    pub items: Vec<Item>,
    /// One row for every item on every arm: item by item, and in the order of the arms.
    pub rows: Vec<Row>,
    /// The text of each token that answers hold, by the name of the model and the token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pieces: BTreeMap<String, BTreeMap<u32, String>>,
    /// Arm by arm: all items first, then those of each tag in alphabetical order.
    pub summaries: Vec<Summary>,
    /// How p values were corrected.
    pub correction: Correction,
    /// The limit of `--fail-if-drop`, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<DropLimit>,
    /// The sweeps that it is merged of; none where it is of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<SweepPart>,
}

/// A model in a mode on a device of a build: what answers items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Arm {
    /// Its id, as that of a cell: `model/weights/mode?options@BUILD:DEVICE`.
    pub id: CellId,
    /// The model, as in the id.
    pub model: String,
    /// The weight type, as in the id.
    pub weights: String,
    /// The mode, as in the id.
    pub mode: Mode,
    /// The options, as in the id.
    pub options: Options,
    /// The build, as in the id.
    pub build: String,
    /// The device, as in the id.
    pub device: DeviceSelector,
    /// What the build says of the device.
    pub device_info: Option<DeviceInfo>,
    /// Whether it was asked for; the others are there because something is held against them.
    pub declared: bool,
    /// What it is held against; none for an arm that is only a reference.
    pub pairings: Vec<Pairing>,
}

/// What an arm is held against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pairing {
    /// The question that it answers.
    pub kind: PairingKind,
    /// The arm that is the reference.
    pub reference: CellId,
}

named_enum! {
    /// The question that a pairing answers.
    pub enum PairingKind as "pairing" {
        /// Does the device do what the plain CPU of the same build does? Model, weights and mode are the same.
        Parity = "parity",
        /// What does the approximation cost? The reference is the arm that `--reference` names.
        Baseline = "baseline",
    }
}

impl Sweep {
    /// The arm of that id.
    #[must_use]
    pub fn arm(&self, id: &CellId) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.id == *id)
    }

    /// The summary of an arm over all items, or over those of a tag.
    #[must_use]
    pub fn summary(&self, arm: &CellId, tag: Option<&str>) -> Option<&Summary> {
        self.summaries.iter().find(|summary| summary.arm == *arm && summary.tag.as_deref() == tag)
    }

    /// The row of an item on an arm.
    #[must_use]
    pub fn row(&self, item: &str, arm: &CellId) -> Option<&Row> {
        self.rows.iter().find(|row| row.item == item && row.arm == *arm)
    }
}
