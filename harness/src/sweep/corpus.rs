//! Corpora: items in JSON Lines, one a line, as `corpus/README.md` describes them.
//!
//! A corpus that can be read is fit to be run: unknown fields, values that cannot be, ids that come twice, expressions
//! that do not compile, and answers that no text could miss are refused here, with file, line, field and value. The
//! corpora of the repository travel inside the binary and are opened by name.

mod fields;
mod item;
mod repeat;
#[cfg(test)]
mod tests;

pub use item::{Input, Item, Message, Role};
pub use repeat::{NotRepeated, Repeated};

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The corpora inside the binary: name, file, content as it was when this binary was built.
const EMBEDDED: [(&str, &str, &str); 5] = [
    ("arithmetic", "arithmetic-heldout.jsonl", include_str!("../../../corpus/arithmetic-heldout.jsonl")),
    ("instruct", "instruct.jsonl", include_str!("../../../corpus/instruct.jsonl")),
    ("passages", "passages.jsonl", include_str!("../../../corpus/passages.jsonl")),
    ("long-context", "long-context.jsonl", include_str!("../../../corpus/long-context.jsonl")),
    ("edge", "edge.jsonl", include_str!("../../../corpus/edge.jsonl")),
];
/// The corpus whose texts any other may repeat.
const PASSAGES: &str = "passages";

/// A corpus that was read and checked.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Its name: that of an embedded corpus, or the file's without extension.
    pub name: String,
    /// SHA-256 of the file's bytes, in hexadecimal.
    pub sha256: String,
    /// The items, in the order of the file; at least one.
    pub items: Vec<Item>,
}

/// A corpus that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// Neither an embedded corpus nor a file.
    #[error("corpus `{given}`: no such file, and none of the known corpora: {known}")]
    Unknown {
        /// What was asked for.
        given: String,
        /// The names there are, joined by commas.
        known: String,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line that is no item.
    #[error("{file}:{line}: {field} is `{value}`: {why}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1 on.
        line: usize,
        /// The field, as `messages[2].role`; `line` where the line as a whole is meant.
        field: String,
        /// Its value, shortened.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file without items.
    #[error("{file}: no items")]
    Empty {
        /// The file.
        file: String,
    },
}

impl Corpus {
    /// Opens the embedded corpus of that name, or the file at that path.
    ///
    /// # Errors
    /// When there is neither, or it is not a corpus.
    pub fn open(given: &str) -> Result<Self, CorpusError> {
        if let Some(&(name, file, content)) = EMBEDDED.iter().find(|(name, ..)| *name == given) {
            return Self::parse(name, &format!("corpus/{file}"), content.as_bytes());
        }
        let path = Path::new(given);
        if !path.is_file() {
            return Err(CorpusError::Unknown { given: given.to_owned(), known: known().join(", ") });
        }
        let content =
            std::fs::read(path).map_err(|source| CorpusError::Io { path: path.to_owned(), source })?;
        let name =
            path.file_stem().map_or_else(|| given.to_owned(), |stem| stem.to_string_lossy().into_owned());
        Self::parse(&name, given, &content)
    }

    /// Reads a corpus from bytes; `file` is what errors call it. Lines of white space are passed over.
    ///
    /// # Errors
    /// A line that is no item, an id that comes twice, no items at all.
    pub fn parse(name: &str, file: &str, content: &[u8]) -> Result<Self, CorpusError> {
        let mut drafts: Vec<(usize, item::Draft)> = Vec::new();
        let mut ids: BTreeMap<String, usize> = BTreeMap::new();
        for (index, bytes) in content.split(|&byte| byte == b'\n').enumerate() {
            let line = index + 1;
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            let draft = item::Draft::parse(bytes).map_err(|problem| problem.at(file, line))?;
            if let Some(first) = ids.insert(draft.id.clone(), line) {
                let why = format!("line {first} has the same id");
                return Err(fields::Problem::new("id", &draft.id, why).at(file, line));
            }
            drafts.push((line, draft));
        }
        if drafts.is_empty() {
            return Err(CorpusError::Empty { file: file.to_owned() });
        }
        let own: BTreeMap<String, String> = drafts
            .iter()
            .filter_map(|(_, draft)| Some((draft.id.clone(), draft.text()?.to_owned())))
            .collect();
        // The texts of others are read only where a line repeats one.
        let others = std::cell::OnceCell::new();
        let look_up = |id: &str| -> Option<String> {
            let other = || others.get_or_init(passages).get(id).cloned();
            own.get(id).cloned().or_else(other)
        };
        let items = drafts
            .into_iter()
            .map(|(line, draft)| draft.finish(&look_up).map_err(|problem| problem.at(file, line)))
            .collect::<Result<Vec<Item>, _>>()?;
        let sha256 = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name: name.to_owned(), sha256, items })
    }

    /// The tags that items have, in alphabetical order.
    #[must_use]
    pub fn tags(&self) -> BTreeSet<&str> {
        self.items.iter().flat_map(|item| item.tags.iter().map(String::as_str)).collect()
    }

    /// How many items expect an answer: the number that power is a question of.
    #[must_use]
    pub fn judged(&self) -> usize {
        self.items.iter().filter(|item| item.expected.is_some()).count()
    }
}

/// The names of the embedded corpora.
#[must_use]
pub fn known() -> Vec<&'static str> {
    EMBEDDED.iter().map(|(name, ..)| *name).collect()
}

/// The embedded passages by id.
fn passages() -> BTreeMap<String, String> {
    let lines =
        EMBEDDED.iter().filter(|(name, ..)| *name == PASSAGES).flat_map(|(.., content)| content.lines());
    let drafts = lines.filter_map(|line| item::Draft::parse(line.as_bytes()).ok());
    drafts.filter_map(|draft| Some((draft.id.clone(), draft.text()?.to_owned()))).collect()
}
