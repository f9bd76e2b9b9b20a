//! Making goldens: the plain CPU of a build leads, the oracle follows, and what it puts out is kept.

use super::GoldenError;
use super::cases::{self, GoldenCase};
use super::folder::{hash, inputs_hash};
use super::manifest::{Entry, FILE, Made, Manifest, SCHEMA};
use super::tensors::Tensors;
use crate::capture::{self, BuildInfo, CaptureMeta};
use crate::pipeline::{self, Folders, Plan, RunError, capture_path};
use crate::plan::models::ResolvedModel;
use crate::plan::{CellId, DeviceSelector};
use crate::report::Run;
use crate::verdict::Status;
use crate::worker::{Progress, Workplace};
use std::path::Path;

/// Where golden files lie in the folder.
const FILES: &str = "cases";

/// What became of one golden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blessed {
    /// The case.
    pub case: String,
    /// Whether the file is another one now.
    pub changed: bool,
    /// Its size.
    pub bytes: u64,
}

/// Computes `cases` and writes their goldens and the manifest into `folder`. A golden whose rows, model and inputs
/// are as before keeps its file and its provenance. Where `all` cases are blessed, entries that are no longer declared
/// go, with their files.
///
/// `plan` holds the models of `cases`, and the CPU of one build as the device of its cells.
///
/// # Errors
/// A case on which the CPU does not agree with the oracle, with everything before it untouched; the file system's.
#[allow(clippy::too_many_arguments, reason = "each is of another kind, and there is one caller")]
pub fn bless(
    folder: &Path,
    cases: &[GoldenCase],
    all: bool,
    plan: &Plan,
    workplace: &Workplace,
    captures: &Folders,
    header: Run,
    progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Blessed>, GoldenError> {
    let made_on = header.started.clone();
    let report = pipeline::run(plan, workplace, captures, header, progress)?;
    if let Some(cell) = report.cells.iter().find(|cell| cell.status != Status::Pass) {
        let why = format!("on the plain CPU it is {}: {}", cell.status, cell.reason);
        return Err(GoldenError::NotBlessed { case: cell.id.case.to_string(), why });
    }
    let before = if folder.join(FILE).is_file() { Manifest::read(folder)?.case } else { Vec::new() };
    let files = folder.join(FILES);
    std::fs::create_dir_all(&files).map_err(GoldenError::io(&files))?;
    let mut entries = Vec::new();
    let mut blessed = Vec::new();
    for golden in cases {
        let id = CellId::new(golden.case.clone(), &plan.builds[0].info.name, &DeviceSelector::cpu());
        let model = cases::model_of(golden, &plan.models);
        let tensors = tensors(plan, captures, &id)?;
        let entry = entry(golden, model, &tensors, made(&id, plan, &made_on))?;
        let old = before.iter().find(|old| old.id == entry.id);
        let path = folder.join(&entry.file);
        // The same figures keep the provenance they have.
        let kept = old.filter(|old| Entry { made: entry.made.clone(), ..(*old).clone() } == entry);
        let whole = std::fs::read(&path).is_ok_and(|bytes| hash(&bytes) == entry.sha256);
        if !whole {
            crate::atomic::write_with(&path, |partial| std::fs::write(partial, tensors.bytes()))
                .map_err(GoldenError::io(&path))?;
        }
        let changed = kept.is_none();
        blessed.push(Blessed { case: entry.id.to_string(), changed, bytes: entry.bytes });
        entries.push(kept.cloned().unwrap_or(entry));
    }
    let gone = |old: &&Entry| !entries.iter().any(|entry| entry.id == old.id);
    if all {
        for old in before.iter().filter(gone) {
            let path = folder.join(&old.file);
            std::fs::remove_file(&path).map_err(GoldenError::io(&path))?;
        }
    } else {
        let kept: Vec<Entry> = before.iter().filter(gone).cloned().collect();
        entries.extend(kept);
        let declared = cases::declared();
        let place = |entry: &Entry| declared.iter().position(|golden| golden.case == entry.id);
        entries.sort_by_key(|entry| place(entry).unwrap_or(usize::MAX));
    }
    Manifest { schema: SCHEMA.to_owned(), case: entries }.write(folder)?;
    Ok(blessed)
}

/// The oracle's capture as a golden keeps it: F32, with the reference's free run, and nothing that changes from run to
/// run.
fn tensors(plan: &Plan, captures: &Folders, id: &CellId) -> Result<Tensors, GoldenError> {
    let oracle = plan.oracle_of(id).map_err(RunError::Usage)?;
    let path = capture_path(captures, &oracle);
    let mut tensors = Tensors::read(&path)?;
    tensors.round();
    tensors.adopt(&Tensors::read(&capture_path(captures, id))?, &["greedy", "greedy.margin"]);
    let bad = |why: String| GoldenError::Malformed { path: path.clone(), why };
    let document = tensors.metadata.get_mut("ggml-parity").ok_or_else(|| bad("no metadata".to_owned()))?;
    let meta: CaptureMeta = serde_json::from_str(document).map_err(|error| bad(error.to_string()))?;
    let steady = CaptureMeta {
        peak_rss_bytes: None,
        threads: 0,
        timings: Default::default(),
        build: BuildInfo { version: None, ..meta.build },
        notes: vec![format!("revision {} of the oracle, rounded from F64 to F32", oracle::REVISION)],
        ..meta
    };
    *document = serde_json::to_string(&steady).map_err(|error| bad(error.to_string()))?;
    Ok(tensors)
}

fn entry(
    golden: &GoldenCase,
    model: &ResolvedModel,
    tensors: &Tensors,
    made: Made,
) -> Result<Entry, GoldenError> {
    let bytes = tensors.bytes();
    let name = crate::plan::safe_name(&golden.case.to_string().replace(['/', '?', '&', '='], "_"));
    Ok(Entry {
        id: golden.case.clone(),
        model_sha256: model.sha256.clone(),
        inputs_sha256: inputs_hash(golden, model)?,
        oracle: oracle::REVISION,
        capture: capture::SCHEMA.to_owned(),
        file: format!("{FILES}/{name}.safetensors"),
        bytes: bytes.len() as u64,
        sha256: hash(&bytes),
        made,
        rows: tensors.checksums(),
    })
}

fn made(id: &CellId, plan: &Plan, on: &str) -> Made {
    let build = &plan.builds[0].info;
    let commit = build.commit.as_ref().map(|commit| format!(" ({commit})")).unwrap_or_default();
    Made {
        on: on.to_owned(),
        by: format!("ggml-parity {} golden bless", env!("CARGO_PKG_VERSION")),
        trajectory: id.to_string(),
        ggml: format!("{}{commit}", build.version.as_deref().unwrap_or("unversioned")),
    }
}
