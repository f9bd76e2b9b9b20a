//! A folder of goldens: whether its files, its manifest and the models and inputs of today fit each other.

use super::GoldenError;
use super::cases::{self, GoldenCase};
use super::manifest::{self, Entry, Manifest};
use super::tensors::Tensors;
use crate::capture;
use crate::plan::inputs::{Wishes, inputs};
use crate::plan::models::{ModelError, ResolvedModel};
use sha2::{Digest, Sha256};
use std::path::{Component, Path, PathBuf};

/// What may lie in the folder beside the goldens: what it is about, and the outside anchors.
const OTHERS: [&str; 4] = [manifest::FILE, "README.md", "anchors", "anchors-transformers"];

/// A golden that fits.
pub struct Golden {
    /// Its case.
    pub golden: GoldenCase,
    /// Its file.
    pub file: PathBuf,
}

/// Goldens that fit, and their models.
pub struct Opened {
    /// The goldens, in the order of the declared cases.
    pub goldens: Vec<Golden>,
    /// Their models.
    pub models: Vec<ResolvedModel>,
}

/// Opens the goldens in `folder` that `selectors` name; models are made in `work`.
///
/// # Errors
/// [`GoldenError::Unfit`] with everything that is wrong in the folder: orphans, files that are missing or edited (with
/// tensor and row), cases without a golden; and with what is stale among the goldens that were asked for: another
/// model, other inputs, another oracle or form of captures.
pub fn open(folder: &Path, selectors: &[String], work: &Path) -> Result<Opened, GoldenError> {
    let manifest = Manifest::read(folder)?;
    let mut wrong = orphans(folder, &manifest)?;
    for entry in &manifest.case {
        if let Some(fault) = fault(folder, entry)? {
            wrong.push(format!("golden {}: {fault}", entry.id));
        }
    }
    let declared = cases::declared();
    let undeclared = |entry: &&Entry| !declared.iter().any(|golden| golden.case == entry.id);
    wrong.extend(manifest.case.iter().filter(undeclared).map(|entry| {
        format!("golden {}: orphan: no such case is declared; `golden bless` removes it", entry.id)
    }));
    let chosen = cases::select(declared, selectors)?;
    let models = cases::models(&chosen, work)?;
    let mut goldens = Vec::new();
    for golden in chosen {
        let Some(entry) = manifest.entry(&golden.case) else {
            wrong.push(format!("golden {}: missing: `golden bless` makes it", golden.case));
            continue;
        };
        wrong.extend(stale(entry, &golden, &models)?.map(|why| format!("golden {}: stale: {why}", entry.id)));
        goldens.push(Golden { file: folder.join(&entry.file), golden });
    }
    if wrong.is_empty() { Ok(Opened { goldens, models }) } else { Err(GoldenError::Unfit(wrong)) }
}

/// The hash of what a case computes on.
pub(super) fn inputs_hash(golden: &GoldenCase, model: &ResolvedModel) -> Result<String, ModelError> {
    let inputs = inputs(model, &golden.case, &Wishes::default())?;
    let text = serde_json::to_vec(&inputs).expect("inputs are plain data");
    Ok(hash(&text))
}

/// SHA-256 in lower-case hexadecimal digits.
pub(super) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files that no entry of the manifest names.
fn orphans(folder: &Path, manifest: &Manifest) -> Result<Vec<String>, GoldenError> {
    let mut orphans = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        let mut paths: Vec<PathBuf> = Vec::new();
        for found in std::fs::read_dir(&inner).map_err(GoldenError::io(&inner))? {
            paths.push(found.map_err(GoldenError::io(&inner))?.path());
        }
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(folder).unwrap_or(&path).to_owned();
            if OTHERS.iter().any(|other| Path::new(other) == name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if !manifest.case.iter().any(|entry| Path::new(&entry.file) == name) {
                orphans.push(format!("{}: orphan: {} does not name it", path.display(), manifest::FILE));
            }
        }
    }
    Ok(orphans)
}

/// What is wrong with the file of an entry.
fn fault(folder: &Path, entry: &Entry) -> Result<Option<String>, GoldenError> {
    let name = Path::new(&entry.file);
    if !name.components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(Some(format!("file `{}` lies outside the folder", entry.file)));
    }
    let path = folder.join(name);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Some(format!("missing: {} is not there", path.display())));
        }
        read => read.map_err(GoldenError::io(&path))?,
    };
    let is = hash(&bytes);
    if is == entry.sha256 {
        return Ok(None);
    }
    let place = match Tensors::parse(&bytes) {
        Err(error) => format!("it cannot be read: {error}"),
        Ok(tensors) => match tensors.first_change(&entry.rows) {
            Some(place) => format!("first in {place}"),
            None => "in its header alone".to_owned(),
        },
    };
    let listed = &entry.sha256;
    Ok(Some(format!("edited, {place}: sha256 of {} is {is}, not {listed}", path.display())))
}

/// Why a golden is of another time.
fn stale(
    entry: &Entry,
    golden: &GoldenCase,
    models: &[ResolvedModel],
) -> Result<Option<String>, GoldenError> {
    let model = cases::model_of(golden, models);
    let now = inputs_hash(golden, model)?;
    let fields = [
        ("the model's sha256", &model.sha256, &entry.model_sha256),
        ("the inputs' sha256", &now, &entry.inputs_sha256),
        ("the oracle's revision", &oracle::REVISION.to_string(), &entry.oracle.to_string()),
        ("the schema of captures", &capture::SCHEMA.to_owned(), &entry.capture),
    ];
    let other = fields.into_iter().find(|(_, now, then)| now != then);
    Ok(other.map(|(what, now, then)| format!("{what} is {now}, and was {then} when it was blessed")))
}
