//! The journal of a run: a file in its folder with a line for every cell that has ended, written as it happens.
//!
//! The first line says what the run is: its arguments, its cells, and the hashes of models and builds. A run that goes
//! on (`run --resume DIR`) must be the same run, or nothing of it counts. A last line that was cut short, as a power
//! failure leaves it, is ignored: its cell is computed again.

use super::Source;
use crate::plan::CellId;
use crate::worker::Ended;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

const SCHEMA: &str = "ggml-parity.journal/1";
const FILE: &str = "journal.jsonl";

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is nothing to go on with.
    #[error("{}: no interrupted run: there is no {file}", folder.display())]
    NoRun {
        /// The folder.
        folder: PathBuf,
        /// The file that would be there.
        file: &'static str,
    },
    /// A line that no run wrote.
    #[error("{}:{line}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Another run than the one that was interrupted.
    #[error(
        "{}: the run cannot go on: {field} was {before} and is {now}; a new run needs another --out",
        path.display()
    )]
    Changed {
        /// The journal.
        path: PathBuf,
        /// What differs.
        field: String,
        /// What it was.
        before: String,
        /// What it is.
        now: String,
    },
}

/// What makes two runs the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The version of ggml-parity with the hash of its binary: another may compute otherwise.
    pub version: String,
    /// The declared cells.
    pub cells: Vec<CellId>,
    /// SHA-256 of each model file, by the model's name and weight type.
    pub models: BTreeMap<String, String>,
    /// SHA-256 of each library of each build, by build and name.
    pub libraries: BTreeMap<String, String>,
    /// What the command line says of inputs, threads and the oracle.
    pub settings: BTreeMap<String, String>,
}

impl Identity {
    /// The first thing in which `now` differs: its name, and both values.
    fn difference(&self, now: &Self) -> Option<(String, String, String)> {
        let list = |cells: &[CellId]| format!("{} cells", cells.len());
        if self.version != now.version {
            return Some(("the program".to_owned(), self.version.clone(), now.version.clone()));
        }
        if self.cells != now.cells {
            let (before, after): (BTreeSet<_>, BTreeSet<_>) =
                (self.cells.iter().collect(), now.cells.iter().collect());
            let field = match before.symmetric_difference(&after).next() {
                Some(id) => format!("the matrix (first in {id})"),
                None => "the order of the matrix".to_owned(),
            };
            return Some((field, list(&self.cells), list(&now.cells)));
        }
        [
            ("model", &self.models, &now.models),
            ("library", &self.libraries, &now.libraries),
            ("setting", &self.settings, &now.settings),
        ]
        .into_iter()
        .find_map(|(what, before, after)| {
            let key = before.keys().chain(after.keys()).find(|key| before.get(*key) != after.get(*key))?;
            let value =
                |map: &BTreeMap<String, String>| map.get(key).map_or("absent", String::as_str).to_owned();
            Some((format!("{what} {key}"), value(before), value(after)))
        })
    }
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    schema: String,
    /// When the run began, RFC 3339 in UTC.
    pub started: String,
    /// The arguments after the name of the program.
    pub arguments: Vec<String>,
    /// The folder in which relative paths among them begin.
    pub folder: PathBuf,
    /// What the run is.
    pub identity: Identity,
}

impl Head {
    /// The head of a run that begins now.
    #[must_use]
    pub fn new(started: String, arguments: Vec<String>, folder: PathBuf, identity: Identity) -> Self {
        Self { schema: SCHEMA.to_owned(), started, arguments, folder, identity }
    }
}

/// A line after the first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    cell: CellId,
    source: Source,
    ended: Ended,
}

/// A file that begins with a [`Head`] and grows line by line.
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    head: Head,
}

impl Log {
    /// Begins a file in `folder`. One that is there already belongs to another run and is overwritten.
    pub(crate) fn begin(folder: &Path, name: &'static str, head: Head) -> Result<Self, JournalError> {
        let path = folder.join(name);
        let file = File::create(&path).map_err(|source| JournalError::Io { path: path.clone(), source })?;
        let mut log = Self { path, file, head };
        let line = serde_json::to_string(&log.head).expect("a head is plain data");
        log.append(&line)?;
        Ok(log)
    }

    /// Opens the file of an interrupted run in `folder`, with its entries.
    pub(crate) fn resume<E: DeserializeOwned>(
        folder: &Path,
        name: &'static str,
    ) -> Result<(Self, Vec<E>), JournalError> {
        let path = folder.join(name);
        let none = || JournalError::NoRun { folder: folder.to_owned(), file: name };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(none()),
            Err(source) => return Err(JournalError::Io { path, source }),
        };
        let malformed =
            |line: usize, why: String| JournalError::Malformed { path: path.clone(), line: line + 1, why };
        // What follows the last line break was cut short.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut lines = text[..whole].lines().enumerate();
        let (_, first) = lines.next().ok_or_else(none)?;
        let head: Head = serde_json::from_str(first).map_err(|error| malformed(0, error.to_string()))?;
        if head.schema != SCHEMA {
            return Err(malformed(0, format!("`schema` is {}, expected {SCHEMA}", head.schema)));
        }
        let entry = |(number, line)| {
            serde_json::from_str(line)
                .map_err(|error: serde_json::Error| malformed(number, error.to_string()))
        };
        let entries = lines.map(entry).collect::<Result<Vec<E>, _>>()?;
        let io = |source| JournalError::Io { path: path.clone(), source };
        let file = OpenOptions::new().append(true).open(&path).map_err(io)?;
        file.set_len(whole as u64).map_err(io)?;
        Ok((Self { path, file, head }, entries))
    }

    /// What the first line says.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Checks that the interrupted run is this one.
    pub(crate) fn check(&self, now: &Identity) -> Result<(), JournalError> {
        match self.head.identity.difference(now) {
            None => Ok(()),
            Some((field, before, now)) => {
                Err(JournalError::Changed { path: self.path.clone(), field, before, now })
            }
        }
    }

    /// Adds a line of JSON.
    pub(crate) fn append(&mut self, line: &str) -> Result<(), JournalError> {
        let io = |source| JournalError::Io { path: self.path.clone(), source };
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(io)?;
        self.file.sync_data().map_err(io)
    }

    /// Removes the file: the run has its report.
    pub(crate) fn close(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|source| JournalError::Io { path: self.path, source })
    }
}

/// An open journal.
pub struct Journal {
    log: Log,
    ended: BTreeMap<CellId, (Ended, Source)>,
}

impl Journal {
    /// Begins the journal of a run in `folder`. One that is there already belongs to another run and is overwritten.
    ///
    /// # Errors
    /// The file system's.
    pub fn begin(folder: &Path, head: Head) -> Result<Self, JournalError> {
        Ok(Self { log: Log::begin(folder, FILE, head)?, ended: BTreeMap::new() })
    }

    /// Opens the journal of an interrupted run in `folder`.
    ///
    /// # Errors
    /// Where there is none, or it cannot be read.
    pub fn resume(folder: &Path) -> Result<Self, JournalError> {
        let (log, entries) = Log::resume::<Entry>(folder, FILE)?;
        let ended = entries.into_iter().map(|entry| (entry.cell, (entry.ended, entry.source))).collect();
        Ok(Self { log, ended })
    }

    /// What the first line says.
    #[must_use]
    pub fn head(&self) -> &Head {
        self.log.head()
    }

    /// Checks that the interrupted run is this one.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, now: &Identity) -> Result<(), JournalError> {
        self.log.check(now)
    }

    /// What has ended, and where each capture came from.
    #[must_use]
    pub fn ended(&self) -> &BTreeMap<CellId, (Ended, Source)> {
        &self.ended
    }

    /// Forgets a cell whose capture is gone.
    pub fn forget(&mut self, id: &CellId) {
        self.ended.remove(id);
    }

    /// Notes how a cell ended.
    ///
    /// # Errors
    /// The file system's.
    pub fn note(&mut self, id: &CellId, ended: &Ended, source: Source) -> Result<(), JournalError> {
        let entry = Entry { cell: id.clone(), source, ended: ended.clone() };
        let line = serde_json::to_string(&entry).expect("an entry is plain data");
        self.log.append(&line)?;
        self.ended.insert(id.clone(), (ended.clone(), source));
        Ok(())
    }

    /// Removes the file: the run has its report.
    ///
    /// # Errors
    /// The file system's.
    pub fn close(self) -> Result<(), JournalError> {
        self.log.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Cause, Death};

    fn id(text: &str) -> CellId {
        text.parse().unwrap()
    }

    fn identity() -> Identity {
        Identity {
            version: "0.1.0 aa".to_owned(),
            cells: vec![id("m/f32/full@b:CPU@x64")],
            models: BTreeMap::from([("m/f32".to_owned(), "00".to_owned())]),
            ..Identity::default()
        }
    }

    fn begun(folder: &Path) -> Journal {
        let head = Head::new(
            "2026-01-01T00:00:00Z".to_owned(),
            vec!["run".to_owned()],
            folder.to_owned(),
            identity(),
        );
        Journal::begin(folder, head).unwrap()
    }

    #[test]
    fn what_was_noted_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = begun(folder.path());
        let (a, b) = (id("m/f32/full@b:CPU"), id("m/f32/full@b:CPU@x64"));
        journal.note(&a, &Ended::Captured, Source::Stored).unwrap();
        let death = Death {
            cause: Cause::Abort,
            evidence: "a.cpp:1: no".to_owned(),
            signal: Some(6),
            exit_code: None,
            seconds: 1.1,
            memory_limit: Some(1 << 30),
            last_lines: vec!["a.cpp:1: no".to_owned()],
        };
        journal.note(&b, &Ended::Crashed(death), Source::Computed).unwrap();
        let again = Journal::resume(folder.path()).unwrap();
        assert_eq!(again.head(), journal.head());
        assert_eq!(again.ended(), journal.ended());
        assert_eq!(again.ended()[&a], (Ended::Captured, Source::Stored));
        again.check(&identity()).unwrap();
    }

    #[test]
    fn a_line_cut_short_is_as_if_it_were_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = begun(folder.path());
        let (a, b) = (id("m/f32/full@b:CPU"), id("m/f32/full@b:CPU@x64"));
        journal.note(&a, &Ended::Captured, Source::Computed).unwrap();
        journal.note(&b, &Ended::Captured, Source::Computed).unwrap();
        let path = folder.path().join(FILE);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let mut again = Journal::resume(folder.path()).unwrap();
        assert_eq!(again.ended().keys().collect::<Vec<_>>(), [&a]);
        // The next line begins a line.
        again.note(&b, &Ended::Captured, Source::Computed).unwrap();
        assert_eq!(Journal::resume(folder.path()).unwrap().ended().len(), 2);
    }

    #[test]
    fn another_run_does_not_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let journal = begun(folder.path());
        let changed = |change: &dyn Fn(&mut Identity)| {
            let mut now = identity();
            change(&mut now);
            journal.check(&now).unwrap_err().to_string()
        };
        let text = changed(&|now| _ = now.models.insert("m/f32".to_owned(), "11".to_owned()));
        assert!(text.contains("model m/f32 was 00 and is 11"), "{text}");
        let text = changed(&|now| now.cells.push(id("m/f32/full@b:Vulkan0")));
        assert!(text.contains("m/f32/full@b:Vulkan0") && text.contains("1 cells and is 2 cells"), "{text}");
        let text = changed(&|now| _ = now.settings.insert("threads".to_owned(), "2".to_owned()));
        assert!(text.contains("setting threads was absent and is 2"), "{text}");
        let text = changed(&|now| now.version = "0.2.0".to_owned());
        assert!(text.contains("the program was 0.1.0 aa"), "{text}");
    }

    #[test]
    fn files_that_are_no_journals_are_refused_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let refused = || Journal::resume(folder.path()).err().expect("refused").to_string();
        assert!(refused().contains("no interrupted run"));
        let path = folder.path().join(FILE);
        std::fs::write(&path, "{}\n").unwrap();
        assert!(refused().contains("journal.jsonl:1: missing field"), "{}", refused());
        drop(begun(folder.path()));
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"cell\":\"nonsense\",\"source\":\"computed\",\"ended\":\"captured\"}\n");
        std::fs::write(&path, text).unwrap();
        assert!(refused().contains("journal.jsonl:2:"), "{}", refused());
    }
}
