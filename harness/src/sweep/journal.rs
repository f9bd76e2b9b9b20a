//! The journal of a sweep: a line for every row, written as it is computed, so that a sweep that was interrupted goes on
//! and repeats none of them.

use super::result::Row;
use crate::keep::{Head, Identity, JournalError, Log};
use crate::plan::CellId;
use std::collections::BTreeMap;
use std::path::Path;

const FILE: &str = "sweep-journal.jsonl";

/// An open journal.
pub struct SweepJournal {
    log: Log,
    /// By item and arm.
    rows: BTreeMap<(String, CellId), Row>,
    resumed: usize,
}

impl SweepJournal {
    /// Begins the journal of a sweep in `folder`; one that is there already is overwritten.
    ///
    /// # Errors
    /// The file system's.
    pub fn begin(folder: &Path, head: Head) -> Result<Self, JournalError> {
        Ok(Self { log: Log::begin(folder, FILE, head)?, rows: BTreeMap::new(), resumed: 0 })
    }

    /// Opens the journal of an interrupted sweep in `folder`.
    ///
    /// # Errors
    /// Where there is none, or it cannot be read.
    pub fn resume(folder: &Path) -> Result<Self, JournalError> {
        let (log, entries) = Log::resume::<Row>(folder, FILE)?;
        let rows: BTreeMap<_, _> =
            entries.into_iter().map(|row| ((row.item.clone(), row.arm.clone()), row)).collect();
        Ok(Self { log, resumed: rows.len(), rows })
    }

    /// What the first line says.
    #[must_use]
    pub fn head(&self) -> &Head {
        self.log.head()
    }

    /// Checks that the interrupted sweep is this one.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, now: &Identity) -> Result<(), JournalError> {
        self.log.check(now)
    }

    /// How many rows were there when it was opened.
    #[must_use]
    pub fn resumed(&self) -> usize {
        self.resumed
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row of an item on an arm.
    #[must_use]
    pub fn row(&self, item: &str, arm: &CellId) -> Option<&Row> {
        self.rows.get(&(item.to_owned(), arm.clone()))
    }

    /// Notes a row.
    ///
    /// # Errors
    /// The file system's.
    pub fn note(&mut self, row: Row) -> Result<(), JournalError> {
        let line = serde_json::to_string(&row).expect("a row is plain data");
        self.log.append(&line)?;
        self.rows.insert((row.item.clone(), row.arm.clone()), row);
        Ok(())
    }

    /// Removes the file: the sweep has its result.
    ///
    /// # Errors
    /// The file system's.
    pub fn close(self) -> Result<(), JournalError> {
        self.log.close()
    }
}
