//! The cache of builds: `CACHE/ggml/NAME/`, each with a manifest of what it is made of.
//!
//! A build is put together in a hidden folder beside the others and renamed when it is whole. So an interrupted
//! fetch leaves no half of a build, and of two processes that fetch the same build at once, one wins and the other
//! takes what is there.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use etcetera::BaseStrategy as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::catalogue::hex;
use super::{BuildError, IoContext as _, Result};

/// The environment variable that names the cache folder.
pub const CACHE_ENV: &str = "GGML_PARITY_CACHE";

/// The name of the manifest in a build's folder.
pub const MANIFEST: &str = "ggml-parity-build.json";

const SCHEMA: &str = "ggml-parity.build/1";

/// The prefix of folders in which builds are put together.
const STAGING: &str = ".staging-";

/// Folders that an interrupted process left are removed after this time.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// The cache folder: `GGML_PARITY_CACHE`, else `ggml-parity` in the system's folder for caches
/// (`$XDG_CACHE_HOME` or `~/.cache`, `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows).
///
/// The path is absolute; the folder need not exist.
pub fn root() -> Result<PathBuf> {
    let chosen = env::var_os(CACHE_ENV).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = match chosen {
        Some(folder) => folder,
        None => {
            let strategy = etcetera::base_strategy::choose_native_strategy()
                .map_err(|error| BuildError::NoCacheFolder { reason: error.to_string() })?;
            strategy.cache_dir().join("ggml-parity")
        }
    };
    std::path::absolute(&folder).at("find", &folder)
}

/// The folder of the builds in the cache.
pub fn builds_folder() -> Result<PathBuf> {
    Ok(root()?.join("ggml"))
}

/// What a build in the cache is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// `ggml-parity.build/1`.
    pub schema: String,
    /// The build's name in the catalogue.
    pub name: String,
    /// ggml's version, or the llama.cpp release where the build cannot tell it.
    pub version: String,
    /// The flags it was built with, where it was built here.
    pub flags: Vec<String>,
    /// Where it came from.
    pub source: Origin,
    /// Its files, by name.
    pub files: Vec<FileEntry>,
}

/// Where a build came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The package client: `npm`, `pip` or `cargo`.
    pub client: String,
    /// The package's name.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// The hash of the package.
    pub pin: String,
}

/// One file of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the build's folder.
    pub name: String,
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Manifest {
    /// A manifest that lists no file yet.
    pub(super) fn new(name: &str, version: String, flags: Vec<String>, source: Origin) -> Self {
        Self { schema: SCHEMA.to_owned(), name: name.to_owned(), version, flags, source, files: Vec::new() }
    }

    /// The manifest of the build in `folder`; `None` where there is none that can be read, as in any folder that
    /// this program did not make.
    pub fn read(folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join(MANIFEST)).ok()?;
        serde_json::from_str(&text).ok().filter(|manifest: &Self| manifest.schema == SCHEMA)
    }

    #[cfg(test)]
    pub(super) fn for_test(name: &str) -> Self {
        let origin = Origin {
            client: "npm".to_owned(),
            package: "test".to_owned(),
            version: "1".to_owned(),
            pin: String::new(),
        };
        Self::new(name, "0.0.0".to_owned(), Vec::new(), origin)
    }
}

/// Whether `folder` holds the build `name` with all its files in their right sizes.
///
/// Hashes were checked when the build came and are not computed again here: this is asked at every start.
pub fn is_whole(folder: &Path, name: &str) -> bool {
    let whole =
        |entry: &FileEntry| fs::metadata(folder.join(&entry.name)).is_ok_and(|m| m.len() == entry.bytes);
    Manifest::read(folder).is_some_and(|manifest| {
        manifest.name == name && !manifest.files.is_empty() && manifest.files.iter().all(whole)
    })
}

/// Whether `folder` holds the whole build `name`, made from `source` with `flags`.
pub(super) fn has_build(folder: &Path, name: &str, source: &Origin, flags: &[String]) -> bool {
    let same = |there: Manifest| there.source == *source && there.flags == flags;
    is_whole(folder, name) && Manifest::read(folder).is_some_and(same)
}

/// A build that is being put together. Dropped before [`Staging::install`], it leaves nothing.
#[derive(Debug)]
pub(super) struct Staging {
    builds: PathBuf,
    temporary: tempfile::TempDir,
}

impl Staging {
    /// An empty build in the folder of builds, which is made where it is missing.
    pub(super) fn in_folder(builds: &Path) -> Result<Self> {
        fs::create_dir_all(builds).at("create", builds)?;
        remove_stale(builds);
        let temporary = tempfile::Builder::new().prefix(STAGING).tempdir_in(builds).at("write to", builds)?;
        let staging = Self { builds: builds.to_owned(), temporary };
        for folder in [staging.folder(), staging.work_folder()] {
            fs::create_dir(&folder).at("create", &folder)?;
        }
        Ok(staging)
    }

    /// Where the build's files are put.
    pub(super) fn folder(&self) -> PathBuf {
        self.temporary.path().join("build")
    }

    /// A folder for what is needed on the way: downloads, object files. It goes when this value does.
    pub(super) fn work_folder(&self) -> PathBuf {
        self.temporary.path().join("work")
    }

    /// Lists the files in the manifest and moves the build to its place.
    pub(super) fn install(self, mut manifest: Manifest) -> Result<PathBuf> {
        let folder = self.folder();
        manifest.files = hash_files(&folder)?;
        let path = folder.join(MANIFEST);
        let mut text = serde_json::to_string_pretty(&manifest).expect("a manifest has no map and no float");
        text.push('\n');
        fs::write(&path, text).at("write", &path)?;

        let place = self.builds.join(&manifest.name);
        let Err(first) = fs::rename(&folder, &place) else { return Ok(place) };
        // Something is there: the same build by another process, or one that is damaged or out of date.
        if has_build(&place, &manifest.name, &manifest.source, &manifest.flags) {
            return Ok(place);
        }
        if !place.exists() {
            return Err(first).at("write", &place);
        }
        let old = self.temporary.path().join("old");
        fs::rename(&place, &old).at("replace", &place)?;
        fs::rename(&folder, &place).at("write", &place)?;
        Ok(place)
    }
}

fn hash_files(folder: &Path) -> Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).at("read", folder)? {
        let path = entry.at("read", folder)?.path();
        let mut hasher = Sha256::new();
        let mut file = fs::File::open(&path).at("read", &path)?;
        let bytes = io::copy(&mut file, &mut hasher).at("read", &path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push(FileEntry { name, sha256: hex(&hasher.finalize()), bytes });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Removes what interrupted processes left long ago. What cannot be removed stays: it harms nobody.
fn remove_stale(builds: &Path) {
    let Ok(entries) = fs::read_dir(builds) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(STAGING);
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let old = modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > STALE));
        if ours && old {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(builds: &Path, content: &str) -> Staging {
        let staging = Staging::in_folder(builds).unwrap();
        fs::write(staging.folder().join("libggml.so"), content).unwrap();
        staging
    }

    #[test]
    fn a_build_appears_whole_or_not_at_all() {
        let builds = tempfile::tempdir().unwrap();
        drop(staged(builds.path(), "half"));
        assert_eq!(fs::read_dir(builds.path()).unwrap().count(), 0);

        let folder = staged(builds.path(), "whole").install(Manifest::for_test("a")).unwrap();
        assert_eq!(fs::read_dir(builds.path()).unwrap().count(), 1);
        assert!(is_whole(&folder, "a"));
        assert!(!is_whole(&folder, "b"));
        let files = Manifest::read(&folder).unwrap().files;
        assert_eq!(files.len(), 1);
        assert_eq!((files[0].name.as_str(), files[0].bytes), ("libggml.so", 5));
        // The SHA-256 of `whole`.
        assert_eq!(files[0].sha256, hex(&Sha256::digest("whole")));
    }

    #[test]
    fn of_two_fetches_at_once_both_succeed() {
        let builds = tempfile::tempdir().unwrap();
        let first = staged(builds.path(), "first");
        let second = staged(builds.path(), "again");
        let folder = first.install(Manifest::for_test("a")).unwrap();
        assert_eq!(second.install(Manifest::for_test("a")).unwrap(), folder);
        assert_eq!(fs::read_to_string(folder.join("libggml.so")).unwrap(), "first");
        assert_eq!(fs::read_dir(builds.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_or_outdated_build_is_replaced() {
        let builds = tempfile::tempdir().unwrap();
        let folder = staged(builds.path(), "first").install(Manifest::for_test("a")).unwrap();
        fs::write(folder.join("libggml.so"), "torn").unwrap();
        staged(builds.path(), "second").install(Manifest::for_test("a")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("libggml.so")).unwrap(), "second");

        let mut newer = Manifest::for_test("a");
        newer.source.pin = "sha512-other".to_owned();
        staged(builds.path(), "third").install(newer).unwrap();
        assert_eq!(fs::read_to_string(folder.join("libggml.so")).unwrap(), "third");

        let mut other_flags = Manifest::read(&folder).unwrap();
        other_flags.flags.push("-DGGML_BLAS=ON".to_owned());
        staged(builds.path(), "fourth").install(other_flags).unwrap();
        assert_eq!(fs::read_to_string(folder.join("libggml.so")).unwrap(), "fourth");
    }
}
