//! `cases.toml`: the manifest of a folder of goldens.

use super::GoldenError;
use crate::plan::Case;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The schema of manifests that this version writes and reads.
pub const SCHEMA: &str = "ggml-parity.golden/1";

/// The manifest's file name.
pub const FILE: &str = "cases.toml";

/// What stands above the manifest.
const HEAD: &str = "# Goldens, one entry a file. Written by `ggml-parity golden bless`, never by hand.\n\n";

/// What a folder of goldens holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// One entry a golden, in the order of the declared cases.
    #[serde(default)]
    pub case: Vec<Entry>,
}

/// One golden.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The case.
    pub id: Case,
    /// SHA-256 of the model file.
    pub model_sha256: String,
    /// SHA-256 of the inputs as JSON: tokens, masks or tokens to follow, steps, schedule.
    pub inputs_sha256: String,
    /// The revision of what the oracle computes.
    pub oracle: u32,
    /// The schema of the capture.
    pub capture: String,
    /// The file, relative to the manifest.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: String,
    /// How it was made.
    pub made: Made,
    /// The CRC-32 of every row by tensor, eight hexadecimal digits each.
    pub rows: BTreeMap<String, String>,
}

/// Where a golden came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// When, RFC 3339 in UTC.
    pub on: String,
    /// By which command of which version.
    pub by: String,
    /// Whose trajectory the oracle followed: the cell of the reference.
    pub trajectory: String,
    /// The ggml of that reference: its version and commit.
    pub ggml: String,
}

impl Manifest {
    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// No such file, one that is malformed (with line and column), or one of another schema.
    pub fn read(folder: &Path) -> Result<Self, GoldenError> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(GoldenError::io(&path))?;
        let bad = |why: String| GoldenError::Malformed { path: path.clone(), why };
        let found: Self = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
        if found.schema != SCHEMA {
            return Err(bad(format!("schema is `{}`, expected `{SCHEMA}`", found.schema)));
        }
        Ok(found)
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, folder: &Path) -> Result<(), GoldenError> {
        let path = folder.join(FILE);
        let text = toml::to_string(self)
            .map_err(|error| GoldenError::Malformed { path: path.clone(), why: error.to_string() })?;
        let text = format!("{HEAD}{text}");
        crate::atomic::write_with(&path, |partial| std::fs::write(partial, text))
            .map_err(GoldenError::io(&path))
    }

    /// The entry of a case.
    #[must_use]
    pub fn entry(&self, case: &Case) -> Option<&Entry> {
        self.case.iter().find(|entry| entry.id == *case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_reads_back_and_unknown_fields_are_refused_with_their_line() {
        let made = Made {
            on: "2026-11-29T00:00:00Z".to_owned(),
            by: "ggml-parity golden bless".to_owned(),
            trajectory: "m/f32/full@b:CPU".to_owned(),
            ggml: "0.23.0".to_owned(),
        };
        let entry = Entry {
            id: "m/f32/full".parse().unwrap(),
            model_sha256: "aa".to_owned(),
            inputs_sha256: "bb".to_owned(),
            oracle: 1,
            capture: "c".to_owned(),
            file: "cases/m.safetensors".to_owned(),
            bytes: 7,
            sha256: "cc".to_owned(),
            made,
            rows: BTreeMap::from([("k.0".to_owned(), "0011223344556677".to_owned())]),
        };
        let manifest = Manifest { schema: SCHEMA.to_owned(), case: vec![entry] };
        let work = tempfile::tempdir().unwrap();
        manifest.write(work.path()).unwrap();
        assert_eq!(Manifest::read(work.path()).unwrap(), manifest);

        let path = work.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("bytes = 7", "octets = 7")).unwrap();
        let error = Manifest::read(work.path()).unwrap_err().to_string();
        assert!(error.contains("octets") && error.contains("line ") && error.contains(FILE), "{error}");
        std::fs::write(&path, text.replace("golden/1", "golden/0")).unwrap();
        assert!(Manifest::read(work.path()).unwrap_err().to_string().contains("golden/0"));
    }
}
