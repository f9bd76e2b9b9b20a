//! The ggml builds under test: which ones are known by name, where they come from, and how one is chosen.
//!
//! A build is a folder of libraries; the harness opens it at run time and links none of it. This module gets such
//! folders and finds them again:
//!
//! - [`catalogue`]: the builds known by name, with their pins (`ci/ggml-builds.toml`);
//! - [`cache`]: the folder that keeps them, one sub-folder a build, each with a manifest;
//! - [`fetch()`]: a build that a package registry delivers, through its own client, checked against the pin;
//! - [`npm`]: every version of a package that ships builds, pinned or not;
//! - [`build_from_source`]: a build made here with CMake from pinned sources;
//! - [`resolve`]: from what the user said (`--ggml`) to a folder.
//!
//! Whatever fails here is a matter of the environment (exit code 4): no such build, no such tool, no network.

pub mod cache;
pub mod catalogue;
pub mod fetch;
pub mod npm;
pub mod source;

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use cache::Manifest;
pub use catalogue::{Backend, Catalogue};
pub use fetch::fetch;
pub use source::build_from_source;

/// The environment variable that names the build to test where `--ggml` is absent.
pub const GGML_ENV: &str = "GGML_PARITY_GGML";

/// Why a build cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No build of this name is in the catalogue.
    #[error("no ggml build is known as `{name}`; known builds: {}", known.join(", "))]
    UnknownBuild {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The build is for another machine.
    #[error("the ggml build `{name}` is for {wanted}, this machine is {here}")]
    WrongPlatform {
        /// The build.
        name: String,
        /// The platform it is for.
        wanted: String,
        /// The platform of this machine.
        here: String,
    },
    /// The build is known but comes another way.
    #[error("`{name}` is built from source, not fetched: run `{how}`")]
    NotAPackage {
        /// The build.
        name: String,
        /// The command that makes it.
        how: String,
    },
    /// The build is known but not in the cache.
    #[error("the ggml build `{name}` is not in the cache ({}): run `{how}`", folder.display())]
    NotInCache {
        /// The build.
        name: String,
        /// Where it would be.
        folder: PathBuf,
        /// The command that gets it.
        how: String,
    },
    /// Neither a folder nor the name of a build.
    #[error("`{given}` is neither a folder nor a known ggml build; known builds: {}", known.join(", "))]
    NoSuchFolder {
        /// What was given.
        given: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// Nothing was asked for and nothing is in the cache.
    #[error(
        "no ggml build in the cache ({}): run `{how}` (or `ci/quickstart` in a clone), or name a folder of ggml \
         libraries with `--ggml` or {GGML_ENV}",
        folder.display()
    )]
    NoBuild {
        /// The cache's folder of builds.
        folder: PathBuf,
        /// The command that gets the default build of this machine.
        how: String,
    },
    /// A program that is needed is not installed.
    #[error("`{tool}` is not installed; it is needed {purpose}. {hint}")]
    ToolMissing {
        /// The program.
        tool: String,
        /// What for.
        purpose: String,
        /// How to get it.
        hint: String,
    },
    /// A program failed.
    #[error("`{command}` failed ({status}){}", if detail.is_empty() { String::new() } else { format!(": {detail}") })]
    ToolFailed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it wrote, or nothing where that was shown as it ran.
        detail: String,
    },
    /// What came is not what the catalogue pins.
    #[error("{what} does not match its pin: expected {expected}, got {found}; nothing was kept")]
    PinMismatch {
        /// The package.
        what: String,
        /// The pin.
        expected: String,
        /// What came instead.
        found: String,
    },
    /// An archive that is damaged, or holds what it should not.
    #[error("{}: {reason}", archive.display())]
    BadArchive {
        /// The archive.
        archive: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no place to keep builds.
    #[error("no cache folder: {reason}; set {} to a folder", cache::CACHE_ENV)]
    NoCacheFolder {
        /// Why not.
        reason: String,
    },
    /// Reading or writing failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The result of everything in this module.
pub type Result<T, E = BuildError> = std::result::Result<T, E>;

/// Names the path and the action in an I/O error.
trait IoContext<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| BuildError::Io { action, path: path.to_owned(), source })
    }
}

/// A command as one line, for error messages.
fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// A known build, as `ggml list` shows it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct BuildStatus {
    /// Its name.
    pub name: String,
    /// The version of ggml, or the llama.cpp release of builds that cannot tell their version.
    pub version: String,
    /// The backends it holds.
    pub backends: Vec<Backend>,
    /// The package client or tool that it comes through: `npm`, `pip` or `cmake`.
    pub from: String,
    /// The platform it is for, as `linux x86_64`; `any` for a source build.
    pub platform: String,
    /// Whether this machine can load it.
    pub fits: bool,
    /// Its folder, where it is in the cache and whole.
    pub path: Option<PathBuf>,
    /// The command that gets it.
    pub how: String,
}

/// All known builds in the order of the catalogue.
pub fn list() -> Result<Vec<BuildStatus>> {
    Ok(list_in(Catalogue::embedded(), &cache::builds_folder()?))
}

fn list_in(catalogue: &Catalogue, builds: &Path) -> Vec<BuildStatus> {
    catalogue
        .builds()
        .map(|build| {
            let folder = builds.join(build.name());
            BuildStatus {
                version: build.version(),
                backends: build.backends(),
                from: build.tool().to_owned(),
                platform: build.platform().to_string(),
                fits: build.platform().fits(),
                path: cache::is_whole(&folder, build.name()).then_some(folder),
                how: build.how_to_get(),
                name: build.name().to_owned(),
            }
        })
        .collect()
}

/// The folder of the build to test.
///
/// `given` is the value of `--ggml`: a folder, or the name of a build in the cache. Without it the environment
/// variable `GGML_PARITY_GGML` is read in the same way; without that too, it is this machine's default build, else
/// any source build in the cache.
pub fn resolve(given: Option<&str>) -> Result<PathBuf> {
    let from_env = env::var(GGML_ENV).ok().filter(|value| !value.is_empty());
    resolve_in(Catalogue::embedded(), &cache::builds_folder()?, given.or(from_env.as_deref()))
}

fn resolve_in(catalogue: &Catalogue, builds: &Path, given: Option<&str>) -> Result<PathBuf> {
    let in_cache = |name: &str| {
        let folder = builds.join(name);
        cache::is_whole(&folder, name).then_some(folder)
    };
    let Some(given) = given else {
        let default = catalogue.default_here();
        let candidates = default.iter().copied().chain(catalogue.source_names());
        if let Some(folder) = candidates.filter_map(in_cache).next() {
            return Ok(folder);
        }
        let how = match default {
            Some(name) => format!("ggml-parity ggml fetch {name}"),
            None => "ggml-parity ggml build --backend cpu-variants".to_owned(),
        };
        return Err(BuildError::NoBuild { folder: builds.to_owned(), how });
    };
    // A name of the catalogue is never read as a folder: `./npm-3.21.1` names that folder.
    if let Some(build) = catalogue.get(given) {
        return in_cache(given).ok_or_else(|| BuildError::NotInCache {
            name: given.to_owned(),
            folder: builds.join(given),
            how: build.how_to_get(),
        });
    }
    let path = Path::new(given);
    if !path.is_dir() {
        return Err(BuildError::NoSuchFolder { given: given.to_owned(), known: catalogue.names() });
    }
    let path = path.canonicalize().at("read", path)?;
    Ok(library_folder(&path))
}

/// Where the libraries of a llama.cpp build tree or release archive lie below its top folder.
const LIBRARY_FOLDERS: [&str; 6] = ["bin", "lib", "lib64", "build/bin", "build/lib", "src"];

/// The folder that holds the libraries: `folder` itself, or the one of the usual places below it that does.
///
/// Where there are none, it is `folder`: whoever opens it says what is missing.
fn library_folder(folder: &Path) -> PathBuf {
    let holds_base = |place: &Path| {
        std::fs::read_dir(place).is_ok_and(|entries| {
            entries.flatten().any(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.starts_with("libggml-base") || name.starts_with("ggml-base")
            })
        })
    };
    if holds_base(folder) {
        return folder.to_owned();
    }
    LIBRARY_FOLDERS
        .iter()
        .map(|below| folder.join(below))
        .find(|place| holds_base(place))
        .unwrap_or_else(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(builds: &Path, name: &str) -> PathBuf {
        let staged = cache::Staging::in_folder(builds).unwrap();
        fs::write(staged.folder().join("libggml-base.so"), name).unwrap();
        staged.install(Manifest::for_test(name)).unwrap()
    }

    #[test]
    fn names_folders_and_defaults_resolve() {
        let builds = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::embedded();

        let error = resolve_in(catalogue, builds.path(), None).unwrap_err();
        assert!(matches!(error, BuildError::NoBuild { .. }));
        assert!(error.to_string().contains("ggml-parity ggml "), "{error}");
        assert!(error.to_string().contains("ci/quickstart"), "{error}");

        let source = put(builds.path(), "source-0.26.0-cpu");
        assert_eq!(resolve_in(catalogue, builds.path(), None).unwrap(), source);

        let npm = put(builds.path(), "npm-3.21.1");
        assert_eq!(resolve_in(catalogue, builds.path(), Some("npm-3.21.1")).unwrap(), npm);
        let default = resolve_in(catalogue, builds.path(), None).unwrap();
        let expected = if cfg!(all(target_os = "linux", target_arch = "x86_64")) { npm } else { source };
        assert_eq!(default, expected);
    }

    #[test]
    fn a_known_build_that_is_not_there_says_how_to_get_it() {
        let builds = tempfile::tempdir().unwrap();
        let error =
            |name| resolve_in(Catalogue::embedded(), builds.path(), Some(name)).unwrap_err().to_string();
        assert!(error("npm-3.6.0").contains("`ggml-parity ggml fetch npm-3.6.0`"));
        assert!(error("source-0.26.0-blas").contains("`ggml-parity ggml build --backend blas`"));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let builds = tempfile::tempdir().unwrap();
        let error = resolve_in(Catalogue::embedded(), builds.path(), Some("npm-0.0.1")).unwrap_err();
        assert!(matches!(error, BuildError::NoSuchFolder { .. }));
        assert!(error.to_string().contains("npm-3.21.1"), "{error}");
        assert!(error.to_string().contains("source-0.26.0-cpu"), "{error}");
    }

    #[test]
    fn a_build_tree_resolves_to_its_libraries() {
        let tree = tempfile::tempdir().unwrap();
        let top = tree.path().canonicalize().unwrap();
        let given = top.to_str().unwrap();
        let resolved = || resolve_in(Catalogue::embedded(), &top, Some(given)).unwrap();
        assert_eq!(resolved(), top, "an empty folder is left to the loader's own error");
        fs::create_dir_all(top.join("build/bin")).unwrap();
        fs::write(top.join("build/bin/libggml-base.so.0"), "").unwrap();
        assert_eq!(resolved(), top.join("build/bin"));
        fs::write(top.join("libggml-base.so"), "").unwrap();
        assert_eq!(resolved(), top);
    }

    #[test]
    fn a_damaged_build_is_not_there() {
        let builds = tempfile::tempdir().unwrap();
        let folder = put(builds.path(), "npm-3.21.1");
        let listed = |name: &str| {
            let all = list_in(Catalogue::embedded(), builds.path());
            all.into_iter().find(|build| build.name == name).unwrap()
        };
        assert_eq!(listed("npm-3.21.1").path.as_deref(), Some(folder.as_path()));
        assert_eq!(listed("npm-3.18.0").path, None);
        fs::write(folder.join("libggml-base.so"), "").unwrap();
        assert_eq!(listed("npm-3.21.1").path, None);
    }
}
