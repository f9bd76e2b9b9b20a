//! What a report tells of the gate: the declarations that cells were judged under, and those that did nothing.

use crate::verdict::Status;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// A declaration as it stands in reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// What is expected and up to which bound, in words.
    pub expected: String,
    /// Why.
    pub reason: String,
    /// Where more is said.
    pub link: Option<String>,
    /// The last day on which it counts, `YYYY-MM-DD`.
    pub expires: Option<String>,
    /// Where it stands, as `ci/gate.toml:40`.
    pub place: String,
}

impl fmt::Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.expected, self.reason)?;
        self.link.as_ref().map_or(Ok(()), |link| write!(f, " ({link})"))
    }
}

/// What was declared of one cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Whether the cell did as declared.
    pub holds: bool,
    /// The declarations, one at least, in an order that does not depend on the file's.
    pub declarations: Vec<Declaration>,
}

impl fmt::Display for Declared {
    /// What each expects and why, joined by semicolons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.declarations))
    }
}

/// Declarations in words.
pub(super) fn joined(declarations: &[Declaration]) -> String {
    declarations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What was found in a cell before declarations were held against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// The status.
    pub status: Status,
    /// Why.
    pub reason: String,
}

/// The gate file of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateUse {
    /// The file.
    pub file: String,
    /// Whether a whole preset was run, so that a declaration without a cell is worth a word; a run of chosen cells
    /// leaves most without.
    #[serde(default)]
    pub whole: bool,
    /// Declarations that matched no cell of this run.
    pub unused: Vec<Declaration>,
    /// Declarations that no longer count.
    pub expired: Vec<Declaration>,
}

impl GateUse {
    /// What the gates of several runs did, for the report that they are merged in; `None` where no run had a gate. A
    /// declaration is unused where no run used it.
    #[must_use]
    pub fn merged<'a>(uses: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let uses: Vec<&Self> = uses.into_iter().collect();
        let files: BTreeSet<&str> = uses.iter().map(|gate| gate.file.as_str()).collect();
        let unused = |gate: &Self, declaration: &Declaration| {
            uses.iter()
                .filter(|other| other.file == gate.file)
                .all(|other| other.unused.contains(declaration))
        };
        let unused: BTreeSet<&Declaration> = uses
            .iter()
            .flat_map(|gate| gate.unused.iter().filter(|declaration| unused(gate, declaration)))
            .collect();
        let expired: BTreeSet<&Declaration> = uses.iter().flat_map(|gate| &gate.expired).collect();
        (!uses.is_empty()).then(|| Self {
            file: files.into_iter().collect::<Vec<_>>().join(", "),
            whole: uses.iter().all(|gate| gate.whole),
            unused: unused.into_iter().cloned().collect(),
            expired: expired.into_iter().cloned().collect(),
        })
    }

    /// A line for every declaration that no longer counts, and one for all that matched no cell of a whole preset.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let expired = self.expired.iter().map(|declaration| {
            let date = declaration.expires.as_deref().unwrap_or("?");
            format!("{}: expired after {date}, so it does not count: {declaration}", declaration.place)
        });
        let places: Vec<&str> = self.unused.iter().map(|declaration| declaration.place.as_str()).collect();
        let unused = (self.whole && !places.is_empty()).then(|| {
            let (count, all) = (places.len(), places.join(", "));
            format!("{count} declarations are of other devices or stale, since they matched no cell of this run: {all}")
        });
        expired.chain(unused).collect()
    }
}
