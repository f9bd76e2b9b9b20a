//! The report: what a run found, cell by cell, in the order in which the cells were declared.

use crate::capture::{BuildInfo, CaptureMeta, Check, DeviceInfo, Placement, Traffic};
use crate::compare::Metrics;
use crate::comparison::Captures;
use crate::gate::{Declared, Found, GateUse};
use crate::plan::{CellId, DeviceSelector, Mode, Options, Shard};
use crate::verdict::{Attribution, ExitCode, Finding, Limits, Outcome, Status, Verdict, exit_code};
use crate::worker::{Death, Ended};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The schema of reports that this version writes and reads.
pub const SCHEMA: &str = "ggml-parity.report/1";

/// A report that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is no report.
    #[error("not a report: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A report of another version.
    #[error("`schema` is {0}, expected {SCHEMA}")]
    Schema(String),
    /// A file that is no report.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<ReportError>,
    },
}

/// What a run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The run.
    pub run: Run,
    /// Where it ran.
    pub environment: Environment,
    /// The gate file that the cells were judged under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateUse>,
    /// The cells, in declared order.
    pub cells: Vec<Cell>,
    /// The runs that it is merged of; none where it is of one run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// One run of a merged report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// The run.
    pub run: Run,
    /// Which shard it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Where it ran.
    pub environment: Environment,
    /// The cells that the merged report has from it.
    pub cells: Vec<CellId>,
}

/// When and how a run was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Its name, that of its folder.
    pub name: String,
    /// When it began, RFC 3339 in UTC.
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// The command line.
    pub command: String,
    /// The version of ggml-parity.
    pub version: String,
    /// How many captures were computed, and how many taken from the store.
    #[serde(default)]
    pub work: Work,
    /// Which part of a matrix it ran, where it did not run all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardOf>,
}

/// How many captures were computed, and how many taken from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// By workers of this run.
    pub computed: ByArm,
    /// Taken from the store of captures.
    pub stored: ByArm,
}

/// Captures by arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ByArm {
    /// Of references that are not under test themselves.
    pub reference: u64,
    /// Of the oracle.
    pub oracle: u64,
    /// Of devices under test.
    pub device: u64,
}

/// Which part of a matrix a run was to do, so that whoever merges the parts can tell what is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShardOf {
    /// The part.
    pub part: Shard,
    /// The cells of the whole matrix, in declared order.
    pub declared: Vec<CellId>,
}

/// Where a run ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Operating system.
    pub os: String,
    /// Processor architecture.
    pub arch: String,
    /// Name of the processor, where it is known.
    pub cpu: Option<String>,
    /// The ggml builds in the run.
    pub builds: Vec<BuildInfo>,
    /// The devices in the run.
    pub devices: Vec<DeviceInfo>,
    /// The environment switches that were set.
    #[serde(default)]
    pub switches: BTreeMap<String, String>,
}

impl Environment {
    /// Adds builds and devices that it does not have.
    pub fn include(&mut self, builds: &[BuildInfo], devices: &[DeviceInfo]) {
        for build in builds {
            if !self.builds.contains(build) {
                self.builds.push(build.clone());
            }
        }
        for device in devices {
            if !self.devices.contains(device) {
                self.devices.push(device.clone());
            }
        }
    }

    /// Adds another machine: what both have is named once, what differs is listed.
    pub fn merge(&mut self, other: &Self) {
        let join = |mine: &mut String, theirs: &str| {
            if mine.is_empty() {
                *mine = theirs.to_owned();
            } else if mine.split(", ").all(|name| name != theirs) {
                mine.push_str(&format!(", {theirs}"));
            }
        };
        join(&mut self.os, &other.os);
        join(&mut self.arch, &other.arch);
        if let Some(theirs) = &other.cpu {
            join(self.cpu.get_or_insert_default(), theirs);
        }
        self.include(&other.builds, &other.devices);
        for (name, theirs) in &other.switches {
            join(self.switches.entry(name.clone()).or_default(), theirs);
        }
    }
}

/// What became of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// Its id.
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
    /// The id of the cell it was compared with.
    pub reference: Option<String>,
    /// What became of it.
    pub status: Status,
    /// Why; empty for a pass, unless the reference is off and the device is not.
    pub reason: String,
    /// What is wrong, one by one, as declarations of the gate are held against it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// The gate's declarations that the outcome was judged under, if any.
    #[serde(default)]
    pub declared: Option<Declared>,
    /// What was found, where the gate's declarations made something else of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
    /// How the worker died, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub death: Option<Death>,
    /// The figures, where captures were compared.
    pub metrics: Option<Metrics>,
    /// The limits they were held to.
    pub limits: Option<Limits>,
    /// Which arm is off, where the oracle ran.
    #[serde(default)]
    pub attribution: Option<Attribution>,
    /// Why there is no attribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_oracle: Option<String>,
    /// Where the work was placed, where the worker ended well.
    pub placement: Option<Placement>,
    /// Bytes moved between host and device, graph by graph: where a cache stays on the device, no step moves keys
    /// and values.
    #[serde(default)]
    pub traffic: Option<Traffic>,
    /// The worker's peak resident size.
    #[serde(default)]
    pub peak_rss_bytes: Option<u64>,
    /// The text that was generated, where the case generates.
    #[serde(default)]
    pub text: Option<String>,
    /// The text that the reference generated, where the case generates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_text: Option<String>,
    /// The text of each token that the figures name, by its id, where the model has a tokenizer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pieces: BTreeMap<u64, String>,
    /// What the worker found when it compared the device with itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// How the first worker died at this cell, where a second one computed it.
    #[serde(default)]
    pub retried: Option<String>,
    /// The captures that the figures are of, where they are kept: files relative to the report's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captures: Option<Captures>,
    /// Seconds by name.
    #[serde(default)]
    pub timings: BTreeMap<String, f64>,
    /// The command that runs this cell alone.
    pub rerun: String,
}

impl Cell {
    /// A cell that has not run: `missing`, and so it stays unless something becomes of it.
    pub fn new(id: CellId) -> Self {
        let case = &id.case;
        Self {
            model: case.model.clone(),
            weights: case.weights.clone(),
            mode: case.mode,
            options: case.options,
            build: id.build.clone(),
            device: id.device.clone(),
            reference: None,
            status: Status::Missing,
            reason: "declared but not run".to_owned(),
            findings: Vec::new(),
            declared: None,
            found: None,
            death: None,
            metrics: None,
            limits: None,
            attribution: None,
            without_oracle: None,
            placement: None,
            traffic: None,
            peak_rss_bytes: None,
            text: None,
            reference_text: None,
            pieces: BTreeMap::new(),
            retried: None,
            captures: None,
            checks: Vec::new(),
            timings: BTreeMap::new(),
            rerun: format!("ggml-parity run --cell '{id}'"),
            id,
        }
    }

    /// A cell on a device that the gate requires and the build or machine does not have: `missing`.
    #[must_use]
    pub fn on_absent_device(id: CellId) -> Self {
        let reason =
            format!("device `{}` is required by the gate, and build {} has none here", id.device, id.build);
        Self { reason, ..Self::new(id) }
    }

    /// Sets status, reason and findings; what the gate made of an earlier verdict is forgotten.
    pub fn set_verdict(&mut self, verdict: Verdict) {
        self.status = verdict.status;
        self.reason = verdict.reason;
        self.findings = verdict.findings;
        self.declared = None;
        self.found = None;
    }

    /// Says that the cell's own worker ended so, without a capture: that is no finding beside others, and a declaration
    /// may be about it.
    pub fn set_own_end(&mut self, ended: &Ended) {
        self.findings.clear();
        if let Ended::Crashed(death) = ended {
            self.death = Some(death.clone());
        }
    }

    /// Takes over what a capture tells of the cell.
    pub fn set_capture(&mut self, meta: &CaptureMeta) {
        self.placement = Some(meta.placement.clone());
        self.traffic = meta.traffic;
        self.peak_rss_bytes = meta.peak_rss_bytes;
        self.text.clone_from(&meta.text);
        self.retried.clone_from(&meta.retried);
        self.timings.clone_from(&meta.timings);
        self.checks.clone_from(&meta.checks);
    }

    /// What the exit code needs to know.
    pub fn outcome(&self) -> Outcome {
        Outcome { status: self.status, declared: self.is_as_declared(), compared: self.metrics.is_some() }
    }

    /// Whether it did what the gate declares of it.
    pub fn is_as_declared(&self) -> bool {
        self.declared.as_ref().is_some_and(|declared| declared.holds)
    }

    /// Whether it did not do what was asked of it.
    pub fn is_red(&self) -> bool {
        let declared = self.status == Status::Unsupported && self.is_as_declared();
        !(self.status.is_good() || declared)
    }

    /// Compute nodes where they were to be, and all of them.
    pub fn nodes(&self) -> Option<(u64, u64)> {
        let placement = self.placement.as_ref()?;
        let placed = if self.device.is_cpu() { placement.on_cpu() } else { placement.off_cpu() };
        Some((placed, placement.total()))
    }
}

impl Report {
    /// A report of the declared cells, in their order. A declared cell that is not among `cells` is reported as
    /// `missing`; cells that were not declared come last.
    pub fn new(run: Run, environment: Environment, declared: &[CellId], cells: Vec<Cell>) -> Self {
        let mut left = cells;
        let mut ordered: Vec<Cell> = declared
            .iter()
            .map(|id| match left.iter().position(|cell| cell.id == *id) {
                Some(index) => left.remove(index),
                None => Cell::new(id.clone()),
            })
            .collect();
        ordered.extend(left);
        Self { schema: SCHEMA.to_owned(), run, environment, gate: None, cells: ordered, parts: Vec::new() }
    }

    /// Names the captures relative to `folder`, where the report goes; those that lie elsewhere are not kept.
    pub fn keep_captures(&mut self, folder: &Path) {
        for cell in &mut self.cells {
            let within = |path: &Path| path.strip_prefix(folder).map(Path::to_owned);
            cell.captures = cell.captures.as_ref().and_then(|captures| captures.map(within).ok());
        }
    }

    /// The exit code of the run.
    pub fn exit_code(&self) -> ExitCode {
        exit_code(self.cells.iter().map(Cell::outcome))
    }

    /// Cells that did not do what was asked of them.
    pub fn failed(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.is_red())
    }

    /// Cells that a second worker computed after the first had died: they may pass, and are no less a finding.
    pub fn retried(&self) -> impl Iterator<Item = (&Cell, &str)> {
        self.cells.iter().filter_map(|cell| Some((cell, cell.retried.as_deref()?)))
    }

    /// Cells that passed with something to be said.
    pub fn noted(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.status == Status::Pass && !cell.reason.is_empty())
    }

    /// Cells that did what the gate declares of them.
    pub fn expected(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.status == Status::Expected)
    }

    /// Why cells have no attribution, and how many of them.
    pub fn without_oracle(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for reason in self.cells.iter().filter_map(|cell| cell.without_oracle.as_deref()) {
            *reasons.entry(reason).or_insert(0) += 1;
        }
        reasons
    }

    /// The run of a merged report that a cell came from.
    pub fn part_of(&self, id: &CellId) -> Option<&Part> {
        self.parts.iter().find(|part| part.cells.contains(id))
    }

    /// One line: how many cells, how many of each status, and the exit code.
    pub fn summary(&self) -> String {
        let count = |status| self.cells.iter().filter(|cell| cell.status == status).count();
        let counted = Status::ALL.iter().map(|&status| (status, count(status))).filter(|(_, n)| *n > 0);
        let parts: Vec<String> = counted.map(|(status, n)| format!("{n} {status}")).collect();
        let parts = if parts.is_empty() { "nothing compared".to_owned() } else { parts.join(", ") };
        let code = self.exit_code();
        format!("{} cells: {parts}; exit {} ({})", self.cells.len(), code.code(), code.meaning())
    }
}
