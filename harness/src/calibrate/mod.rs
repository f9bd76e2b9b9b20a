//! Calibration: how far apart the arms are when nothing is wrong, and which limits follow.
//!
//! | module | what it is for |
//! |---|---|
//! | [`samples`] | the figures of a run's cells, each with what moves it |
//! | [`floor`] | the noise floor of a group of samples |
//! | [`propose`] | from a floor to a limit, by one rule |
//! | [`render`] | `calibrated.toml`, `calibrate.md`, `calibrate.json` |
//!
//! A limit bounds every pair of arms in a cell: the device against the reference, and each against the oracle, as
//! attribution does. So all of them are samples of the row whose limit they are held to.

pub mod floor;
pub mod propose;
pub mod render;
pub mod samples;

use crate::report::{Environment, Run};
use floor::Floor;
use propose::Proposal;
use serde::Serialize;

/// The schema of `calibrate.json`.
pub const SCHEMA: &str = "ggml-parity.calibration/1";

/// Everything that a calibration found.
#[derive(Debug, Serialize)]
pub struct Calibration {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// When and how it was started.
    pub run: Run,
    /// Where it ran.
    pub environment: Environment,
    /// Draws of tokens.
    pub seeds: u32,
    /// How often the first draw was run.
    pub repeats: u32,
    /// What a limit is of the largest figure.
    pub factor: f64,
    /// Cells that were judged, all runs together.
    pub judged: usize,
    /// Cells that did not pass under the limits in use.
    pub alarms: Vec<Alarm>,
    /// Cells that a build or device does not support: not measured.
    pub unsupported: Vec<String>,
    /// Whether repeats gave the same figures.
    pub steadiness: Steadiness,
    /// The noise floors, finely divided.
    pub floors: Vec<Floor>,
    /// The proposed limits.
    pub proposals: Vec<Proposal>,
}

/// A cell that did not pass under the limits in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alarm {
    /// The cell.
    pub cell: String,
    /// The draw of tokens.
    pub seed: u32,
    /// Which repeat of it, from 0.
    pub repeat: u32,
    /// What became of it.
    pub status: String,
    /// Why.
    pub reason: String,
    /// The command that runs it again.
    pub rerun: String,
}

/// What repeats of the same cells with the same tokens gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Steadiness {
    /// Figures that were measured more than once.
    pub repeated: usize,
    /// Those that were not the same bit for bit each time.
    pub changing: usize,
    /// The largest of a figure over its smallest, among those.
    #[serde(with = "crate::figure::Figure")]
    pub spread: f64,
}
