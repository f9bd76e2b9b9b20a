//! Captures that were made apart, paired by case and judged: `compare A B`.
//!
//! An arm is a file, or a folder of captures (also a run's folder, whose `captures/` is meant then). A is the
//! reference. Captures pair by the id of their case; where one side has no partner, its cell is `missing`. A capture of
//! another runtime knows no device and no build, and its case only if it says so, see [`Entry`].

mod judge;

pub use judge::{Held, judge};

use crate::capture::{CaptureError, CaptureReader, DeviceInfo};
use crate::plan::{Case, CellId, DeviceSelector, safe_name};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arms that cannot be paired.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// A file is no capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder without captures.
    #[error("{}: no capture (*.safetensors, or *.gguf of llama-results) in this folder", .0.display())]
    Empty(PathBuf),
    /// A capture of which nothing says what it is of.
    #[error(
        "{}: `case` is missing: say it by --case, by the key `case` of the file's __metadata__, or by the file's name, \
         the id of the case with `_` for `/` and `?`",
        .0.display()
    )]
    NoCase(PathBuf),
    /// Several captures where one is wanted.
    #[error("{case}: {wanted}, but there are {}", list(.files))]
    Ambiguous {
        /// The case or cell.
        case: String,
        /// What is wanted.
        wanted: &'static str,
        /// The captures.
        files: Vec<PathBuf>,
    },
    /// The oracle's captures fit none of the others.
    #[error("{}: no capture of any case that is compared", .0.display())]
    NoOracle(PathBuf),
}

/// What is wanted of references.
const REFERENCE: &str = "one reference is wanted, or one on the plain CPU";

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// One capture of an arm.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The file.
    pub path: PathBuf,
    /// Whether another runtime wrote it.
    pub foreign: bool,
    /// Whether it is the oracle's.
    pub oracle: bool,
    /// Its case, where it says so; for a capture of another runtime what [`name_cases`] found.
    pub case: Option<Case>,
    /// The name of its build.
    pub build: String,
    /// Its device.
    pub device: DeviceInfo,
}

impl Entry {
    /// Reads what a file says of itself.
    ///
    /// # Errors
    /// A file that is no capture.
    pub fn open(path: &Path) -> Result<Self, PairError> {
        let reader = CaptureReader::open_foreign(path)?;
        let meta = reader.meta();
        let case = match meta.case.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|error: crate::plan::IdError| CaptureError::Field {
                path: path.to_owned(),
                field: "case".to_owned(),
                value: text.to_owned(),
                expected: error.to_string(),
            })?),
        };
        Ok(Self {
            path: path.to_owned(),
            foreign: reader.is_foreign(),
            oracle: meta.is_oracle(),
            case,
            build: safe_name(&meta.build.name),
            device: meta.device.clone(),
        })
    }

    /// The cell that it is of, once its case is known.
    #[must_use]
    pub fn cell(&self) -> Option<CellId> {
        let device: DeviceSelector = self.device.selector.parse().ok().unwrap_or_else(|| DeviceSelector {
            base: safe_name(&self.device.selector),
            ..DeviceSelector::cpu()
        });
        Some(CellId::new(self.case.clone()?, &self.build, &device.without_build()))
    }
}

/// The captures of one arm.
#[derive(Clone, Debug)]
pub struct Captures {
    /// What was given.
    pub given: PathBuf,
    /// The captures, by file name.
    pub entries: Vec<Entry>,
}

impl Captures {
    /// Reads a file, or the captures of a folder.
    ///
    /// # Errors
    /// A file that is no capture, or a folder that holds none.
    pub fn open(given: &Path) -> Result<Self, PairError> {
        let given = given.to_owned();
        if !given.is_dir() {
            return Ok(Self { entries: vec![Entry::open(&given)?], given });
        }
        let below = given.join("captures");
        let folder = if below.is_dir() { &below } else { &given };
        let io = |source| PairError::Io { path: folder.clone(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let kind = path.extension().and_then(|kind| kind.to_str());
            if path.is_file() && kind.is_some_and(|kind| ["safetensors", "gguf"].contains(&kind)) {
                files.push(path);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(PairError::Empty(folder.clone()));
        }
        let entries = files.iter().map(|file| Entry::open(file)).collect::<Result<_, _>>()?;
        Ok(Self { given, entries })
    }

    /// The capture of each case that a comparison takes as the reference, as [`pair`] chooses it.
    ///
    /// # Errors
    /// Several captures of one case of which none is of the plain CPU.
    pub fn references(&self) -> Result<BTreeMap<Case, &Entry>, PairError> {
        let mut chosen = BTreeMap::new();
        for case in self.cases() {
            if let Some(entry) = one(&case, self.of(&case, false), REFERENCE)? {
                chosen.insert(case, entry);
            }
        }
        Ok(chosen)
    }

    fn cases(&self) -> Vec<Case> {
        self.entries.iter().filter_map(|entry| entry.case.clone()).collect()
    }

    /// The entries of a case. Of a folder that holds the oracle's captures beside others those count only where
    /// `oracle` asks for them.
    fn of(&self, case: &Case, oracle: bool) -> Vec<&Entry> {
        let all: Vec<&Entry> =
            self.entries.iter().filter(|entry| entry.case.as_ref() == Some(case)).collect();
        let (wanted, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| entry.oracle == oracle);
        if wanted.is_empty() { others } else { wanted }
    }
}

/// Gives every capture of another runtime its case: the one it states, or `given`, or the one of the other arm that
/// its file is named after, or the only one of the other arm where both are single.
///
/// # Errors
/// A capture of which nothing says what it is of.
pub fn name_cases(arms: &mut [&mut Captures], given: Option<&Case>) -> Result<(), PairError> {
    let known: Vec<Case> = arms.iter().flat_map(|arm| arm.cases()).collect();
    let single = arms.iter().all(|arm| arm.entries.len() == 1);
    let only = known.first().filter(|case| single && known.iter().all(|other| other == *case));
    for entry in arms.iter_mut().flat_map(|arm| &mut arm.entries).filter(|entry| entry.case.is_none()) {
        let stem = entry.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let named = known.iter().find(|case| Some(file_name(case)) == stem);
        let case = given.or(named).or(only).ok_or_else(|| PairError::NoCase(entry.path.clone()))?;
        entry.case = Some(case.clone());
    }
    Ok(())
}

/// A case id as the name of a file: `gen-qwen2_f32_decode_kv-q8_0`.
fn file_name(case: &Case) -> String {
    safe_name(&case.to_string().replace(['/', '?'], "_"))
}

/// Two captures to be compared, or one that has no partner.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The cell: that of the test, or of the reference where there is no test.
    pub id: CellId,
    /// The reference.
    pub reference: Option<Entry>,
    /// The test.
    pub test: Option<Entry>,
    /// The oracle.
    pub oracle: Option<Entry>,
}

/// Pairs the captures of both arms by case; every capture of `tests` makes a pair, and so does every reference that has
/// no test.
///
/// # Errors
/// Several references of one case of which none is the plain CPU, several oracles of one case, an oracle that fits
/// nothing, and two tests of one cell.
///
/// # Panics
/// Where an entry has no case: [`name_cases`] comes first.
pub fn pair(
    references: &Captures,
    tests: &Captures,
    oracles: Option<&Captures>,
) -> Result<Vec<Pair>, PairError> {
    let id = |entry: &Entry| entry.cell().expect("cases were named");
    let same_file = |a: &Entry, b: &Entry| a.path == b.path || canonical(&a.path) == canonical(&b.path);
    let mut cases: Vec<Case> = references.cases().into_iter().chain(tests.cases()).collect();
    cases.sort();
    cases.dedup();
    let mut pairs: BTreeMap<CellId, Pair> = BTreeMap::new();
    let mut oracle_used = false;
    for case in &cases {
        let reference = one(case, references.of(case, false), REFERENCE)?;
        let oracle = match oracles {
            Some(oracles) => one(case, oracles.of(case, true), "one capture by the oracle is wanted")?,
            None => None,
        };
        oracle_used |= oracle.is_some();
        let others = tests.of(case, false);
        let others = others.into_iter().filter(|test| !reference.is_some_and(|r| same_file(r, test)));
        let others: Vec<&Entry> = others.collect();
        if let (true, Some(reference)) = (others.is_empty(), reference) {
            let pair =
                Pair { id: id(reference), reference: Some(reference.clone()), test: None, oracle: None };
            pairs.insert(pair.id.clone(), pair);
        }
        for test in others {
            let pair = Pair {
                id: id(test),
                reference: reference.cloned(),
                test: Some(test.clone()),
                oracle: oracle.cloned(),
            };
            if let Some(before) = pairs.insert(pair.id.clone(), pair) {
                let files =
                    before.test.into_iter().map(|entry| entry.path).chain([test.path.clone()]).collect();
                let wanted = "one capture of a cell is wanted";
                return Err(PairError::Ambiguous { case: before.id.to_string(), wanted, files });
            }
        }
    }
    match oracles {
        Some(oracles) if !oracle_used => Err(PairError::NoOracle(oracles.given.clone())),
        _ => Ok(pairs.into_values().collect()),
    }
}

/// The only one of several captures of a case, or the only one of the plain CPU.
fn one<'a>(case: &Case, all: Vec<&'a Entry>, wanted: &'static str) -> Result<Option<&'a Entry>, PairError> {
    if all.len() <= 1 {
        return Ok(all.first().copied());
    }
    let plain = DeviceSelector::cpu().to_string();
    let cpu: Vec<&Entry> = all.iter().copied().filter(|entry| entry.device.selector == plain).collect();
    match cpu[..] {
        [entry] => Ok(Some(entry)),
        _ => {
            let files = all.iter().map(|entry| entry.path.clone()).collect();
            Err(PairError::Ambiguous { case: case.to_string(), wanted, files })
        }
    }
}

fn canonical(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

#[cfg(test)]
mod tests;
