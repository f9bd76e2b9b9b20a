//! The ledger of a run: what has ended and where it came from. It begins with the journal, takes from the store what need
//! not be computed, and puts there what was.

use super::{CaptureStore, JournalError, Keep, Key, Source};
use crate::capture::{CaptureReader, ORACLE};
use crate::pipeline::{Folders, Plan, RunError, capture_path};
use crate::plan::CellId;
use crate::report::Work;
use crate::worker::{Ended, Progress};
use serde::Serialize;
use std::collections::BTreeMap;

/// What has ended, and where it came from.
pub(crate) struct Ledger<'a> {
    plan: &'a Plan,
    folders: &'a Folders,
    keep: &'a mut Keep,
    /// How each cell ended.
    pub(crate) ended: BTreeMap<CellId, Ended>,
    sources: BTreeMap<CellId, Source>,
    /// The first line of the journal that could not be written.
    broken: Option<JournalError>,
}

impl<'a> Ledger<'a> {
    /// Begins with what the journal holds, as far as its captures are still there.
    pub(crate) fn open(plan: &'a Plan, folders: &'a Folders, keep: &'a mut Keep) -> Self {
        let mut ledger =
            Self { plan, folders, keep, ended: BTreeMap::new(), sources: BTreeMap::new(), broken: None };
        let Some(journal) = &mut ledger.keep.journal else { return ledger };
        let there = |id: &CellId| CaptureReader::open(&capture_path(folders, id)).is_ok();
        for (id, (how, source)) in journal.ended().clone() {
            if how == Ended::Captured && !there(&id) {
                journal.forget(&id);
                continue;
            }
            ledger.sources.insert(id.clone(), source);
            ledger.ended.insert(id, how);
        }
        ledger
    }

    pub(crate) fn captured(&self, id: &CellId) -> bool {
        self.ended.get(id) == Some(&Ended::Captured)
    }

    fn note(&mut self, id: &CellId, how: &Ended, source: Source) {
        self.ended.insert(id.clone(), how.clone());
        self.sources.insert(id.clone(), source);
        if let Some(journal) = &mut self.keep.journal
            && let Err(error) = journal.note(id, how, source)
        {
            self.broken.get_or_insert(error);
        }
    }

    /// Notes what ends, and hands on everything.
    pub(crate) fn tell(&mut self, told: Progress<'_>, progress: &mut impl FnMut(Progress<'_>)) {
        if let Progress::Ended(id, how) = &told {
            self.note(id, how, Source::Computed);
        }
        progress(told);
    }

    /// Takes captures of `ids` from the store; those that it does not have are left.
    pub(crate) fn stored(
        &mut self,
        ids: Vec<CellId>,
        key: impl Fn(&CellId) -> Option<Parts>,
        progress: &mut impl FnMut(Progress<'_>),
    ) -> Result<Vec<CellId>, RunError> {
        let mut left = Vec::new();
        for id in ids {
            match (&self.keep.store, key(&id)) {
                (Some(store), Some(parts))
                    if store.take(&parts.key(store), &capture_path(self.folders, &id))? =>
                {
                    self.note(&id, &Ended::Captured, Source::Stored);
                    progress(Progress::Ended(&id, &Ended::Captured));
                }
                _ => left.push(id),
            }
        }
        self.checked()?;
        Ok(left)
    }

    /// Puts the captures of `ids` into the store. One that cannot be written is done without from here on.
    pub(crate) fn put(
        &mut self,
        ids: &[CellId],
        key: impl Fn(&CellId) -> Option<Parts>,
        progress: &mut impl FnMut(Progress<'_>),
    ) -> Result<(), RunError> {
        self.checked()?;
        let Some(store) = &self.keep.store else { return Ok(()) };
        let captured = ids.iter().filter(|id| self.captured(id));
        let mut keyed = captured.filter_map(|id| Some((id, key(id)?)));
        let put =
            keyed.try_for_each(|(id, parts)| store.put(&parts.key(store), &capture_path(self.folders, id)));
        if let Err(error) = put {
            progress(Progress::Warning(&format!("captures are not stored: {error}")));
            self.keep.store = None;
        }
        Ok(())
    }

    /// A run whose journal cannot be written could not go on.
    fn checked(&mut self) -> Result<(), RunError> {
        self.broken.take().map_or(Ok(()), |error| Err(error.into()))
    }

    pub(crate) fn finish(mut self) -> Result<(BTreeMap<CellId, Ended>, Work), RunError> {
        self.checked()?;
        let mut work = Work::default();
        for (id, source) in &self.sources {
            let counts = match source {
                Source::Computed => &mut work.computed,
                Source::Stored => &mut work.stored,
            };
            *match (id.device.base.as_str(), self.plan.cells.contains(id)) {
                (ORACLE, _) => &mut counts.oracle,
                (_, true) => &mut counts.device,
                (_, false) => &mut counts.reference,
            } += 1;
        }
        Ok((self.ended, work))
    }
}

/// What a capture depends on, as a document.
pub(crate) struct Parts(serde_json::Value);

impl Parts {
    pub(crate) fn new(parts: &impl Serialize) -> Self {
        Self(serde_json::to_value(parts).expect("keys are plain data"))
    }

    fn key(&self, store: &CaptureStore) -> Key {
        store.key(&self.0)
    }
}
