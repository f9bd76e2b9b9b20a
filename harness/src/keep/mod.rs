//! What a run keeps: its journal, so that an interrupted run goes on where it was, and the captures of references and
//! oracles, so that the next run need not compute them again.
//!
//! A run without either is complete too; both only save work. What they hand back is checked before it counts.

mod journal;
mod ledger;
mod store;

pub(crate) use journal::Log;
pub use journal::{Head, Identity, Journal, JournalError};
pub(crate) use ledger::{Ledger, Parts};
pub use store::{CaptureStore, DEFAULT_LIMIT, Key, StoreError, Stored, executable_digest, trajectory};

use serde::{Deserialize, Serialize};

/// Where the capture of a cell came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A worker of this run computed it.
    Computed,
    /// It was taken from the store.
    Stored,
}

/// What a run keeps, each where it is wanted.
#[derive(Default)]
pub struct Keep {
    /// The journal.
    pub journal: Option<Journal>,
    /// The store of captures.
    pub store: Option<CaptureStore>,
}
