//! What trials gave, line by line in a file, so that a search that was ended goes on where it was.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

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
    /// A line is not what a journal holds.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// It was begun for something else.
    #[error(
        "{} was begun for {field} {theirs}, not {ours}: choose another folder, or remove the file",
        path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        field: String,
        /// Its value in the file.
        theirs: String,
        /// Its value now.
        ours: String,
    },
}

/// An open journal: a line that says of what, then one line for each record.
pub struct Journal<R> {
    path: PathBuf,
    file: File,
    records: PhantomData<R>,
}

impl<R: Serialize + DeserializeOwned> Journal<R> {
    /// Opens the journal at `path`, or begins it with `header`, whose fields must be those of the one that is there.
    /// A last line that was not written to its end is dropped.
    ///
    /// # Errors
    /// When the file cannot be read or written, holds something else, or was begun for another header.
    pub fn open(path: &Path, header: &impl Serialize) -> Result<(Self, Vec<R>), JournalError> {
        let io = |source| JournalError::Io { path: path.to_owned(), source };
        let fault = |line: usize, why: serde_json::Error| JournalError::Line {
            path: path.to_owned(),
            line: line + 1,
            why: why.to_string(),
        };
        let mut file =
            OpenOptions::new().create(true).read(true).write(true).truncate(false).open(path).map_err(io)?;
        let text = std::fs::read_to_string(path).map_err(io)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut journal = Self { path: path.to_owned(), file, records: PhantomData };
        let ours = serde_json::to_value(header).expect("headers are plain data");
        let mut lines = text[..whole].lines().enumerate();
        let Some((_, first)) = lines.next() else {
            journal.line(&ours)?;
            return Ok((journal, Vec::new()));
        };
        let theirs: serde_json::Value = serde_json::from_str(first).map_err(|why| fault(0, why))?;
        if let Some((field, theirs, ours)) = difference(&theirs, &ours) {
            return Err(JournalError::Other { path: path.to_owned(), field, theirs, ours });
        }
        let records = lines.map(|(i, line)| serde_json::from_str(line).map_err(|why| fault(i, why)));
        Ok((journal, records.collect::<Result<_, _>>()?))
    }

    /// Adds a record; it is in the file when this returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, record: &R) -> Result<(), JournalError> {
        self.line(record)
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), JournalError> {
        let line = serde_json::to_string(value).expect("records are plain data");
        let done = writeln!(self.file, "{line}").and_then(|()| self.file.sync_data());
        done.map_err(|source| JournalError::Io { path: self.path.clone(), source })
    }
}

/// The first field that differs, with both values.
fn difference(theirs: &serde_json::Value, ours: &serde_json::Value) -> Option<(String, String, String)> {
    let nothing = serde_json::Value::Null;
    let fields = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default()
    };
    let mut names = fields(ours);
    names.extend(
        fields(theirs).into_iter().filter(|name| !ours.as_object().is_some_and(|o| o.contains_key(name))),
    );
    let of = |value: &serde_json::Value, name: &str| value.get(name).unwrap_or(&nothing).to_string();
    names.into_iter().find_map(|name| {
        let (a, b) = (of(theirs, &name), of(ours, &name));
        (a != b).then_some((name, a, b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn open(path: &Path, build: &str) -> Result<(Journal<u32>, Vec<u32>), JournalError> {
        Journal::open(path, &BTreeMap::from([("cell", "a"), ("build", build)]))
    }

    #[test]
    fn records_are_there_when_it_is_opened_again() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("trials.jsonl");
        let (mut journal, before) = open(&path, "b").unwrap();
        assert!(before.is_empty());
        journal.add(&7).unwrap();
        journal.add(&9).unwrap();
        drop(journal);
        // As a process leaves it that is killed while it writes.
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "11").unwrap();
        let (mut journal, before) = open(&path, "b").unwrap();
        assert_eq!(before, [7, 9]);
        journal.add(&12).unwrap();
        assert_eq!(open(&path, "b").unwrap().1, [7, 9, 12]);
    }

    #[test]
    fn a_journal_of_something_else_is_refused() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("trials.jsonl");
        drop(open(&path, "b").unwrap());
        let error = open(&path, "c").err().unwrap().to_string();
        assert!(error.contains("begun for build \"b\", not \"c\""), "{error}");
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "x\n").unwrap();
        let error = open(&path, "b").err().unwrap().to_string();
        assert!(error.contains("trials.jsonl:2: "), "{error}");
        std::fs::write(&path, "{\n").unwrap();
        assert!(open(&path, "b").err().unwrap().to_string().contains("trials.jsonl:1: "));
    }
}
