//! Builds made here: ggml's sources, pinned through a cargo manifest of ours, built with CMake into the cache.
//!
//! Cargo downloads the package that holds the sources and checks it against `Cargo.lock`; it compiles nothing.
//! The manifest and the CMake wrapper (`ci/ggml-source/`) are embedded, so an installed binary builds too.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use super::cache::{self, Manifest, Origin, Staging};
use super::catalogue::{Backend, Catalogue, Platform, Source};
use super::{BuildError, IoContext as _, Result, command_line};

/// The environment variable with further flags for CMake, separated by spaces.
pub const FLAGS_ENV: &str = "GGML_PARITY_CMAKE_FLAGS";

/// What is written beside each other to fetch and to build the sources.
const PROJECT: [(&str, &str); 4] = [
    ("Cargo.toml", include_str!("../../../ci/ggml-source/Cargo.toml")),
    ("Cargo.lock", include_str!("../../../ci/ggml-source/Cargo.lock")),
    ("lib.rs", include_str!("../../../ci/ggml-source/lib.rs")),
    ("CMakeLists.txt", include_str!("../../../ci/ggml-source/CMakeLists.txt")),
];

/// Builds ggml for `backend` with `jobs` compilers at once (0: one for each processor) and returns its folder in the
/// cache. The output of cargo and CMake goes to this process's standard error.
///
/// A build that is there already, from the same sources with the same flags, is not made again. The flags are those of
/// the catalogue, then those of the environment variable `GGML_PARITY_CMAKE_FLAGS`, as
/// `-DCMAKE_CUDA_ARCHITECTURES=90` to build for one GPU only.
pub fn build_from_source(backend: Backend, jobs: usize) -> Result<PathBuf> {
    let catalogue = Catalogue::embedded();
    let unknown = || BuildError::UnknownBuild { name: backend.to_string(), known: catalogue.names() };
    let (source, build) = catalogue.source(backend).ok_or_else(unknown)?;
    if !build.platform.fits() {
        return Err(BuildError::WrongPlatform {
            name: build.name.clone(),
            wanted: build.platform.to_string(),
            here: Platform::here().to_string(),
        });
    }
    let extra = env::var(FLAGS_ENV).unwrap_or_default();
    let extra = extra.split_whitespace().map(str::to_owned);
    let flags: Vec<String> = source.flags.iter().chain(&build.flags).cloned().chain(extra).collect();
    let origin = Origin {
        client: "cargo".to_owned(),
        package: source.package.clone(),
        version: source.version.clone(),
        pin: checksum(source),
    };
    let builds = cache::builds_folder()?;
    let folder = builds.join(&build.name);
    if cache::has_build(&folder, &build.name, &origin, &flags) {
        return Ok(folder);
    }

    // Before the download: a missing tool is said at once.
    require("cmake", "to build ggml from source", CMAKE_HINT)?;
    let staging = Staging::in_folder(&builds)?;
    let project = staging.work_folder().join("project");
    fs::create_dir(&project).at("create", &project)?;
    for (name, text) in PROJECT {
        let path = project.join(name);
        fs::write(&path, text).at("write", &path)?;
    }
    let sources = fetch_sources(source, &project.join("Cargo.toml"))?;
    let tree = staging.work_folder().join("tree");
    compile(&project, &sources, &tree, &flags, jobs, shown)?;
    collect(&tree.join("bin"), &staging.folder())?;
    staging.install(Manifest::new(&build.name, source.ggml.clone(), flags, origin))
}

const CMAKE_HINT: &str = "Install CMake 3.14 or newer: `apt-get install cmake ninja-build` on Debian and Ubuntu, \
     `brew install cmake ninja` on macOS, `winget install Kitware.CMake` on Windows, or `python3 -m pip install \
     cmake ninja` anywhere.";

/// The sources' checksum in the lock file, which cargo holds the download to.
fn checksum(source: &Source) -> String {
    #[derive(serde::Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(serde::Deserialize)]
    struct Locked {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(PROJECT[1].1).expect("a test holds the embedded lock file valid");
    let found = lock.package.into_iter().find(|p| p.name == source.package && p.version == source.version);
    format!("sha256-{}", found.and_then(|package| package.checksum).expect("a test holds the sources locked"))
}

/// Has cargo download the sources, and returns their folder.
fn fetch_sources(source: &Source, manifest: &Path) -> Result<PathBuf> {
    require(
        "cargo",
        "to download ggml's pinned sources",
        "It comes with Rust: `rustup`, or `apt-get install cargo`.",
    )?;
    let mut fetch = Command::new("cargo");
    fetch.args(["fetch", "--locked", "--manifest-path"]).arg(manifest);
    shown(&mut fetch)?;
    let mut metadata = Command::new("cargo");
    metadata
        .args(["metadata", "--locked", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest);
    let output = captured(&mut metadata)?;

    #[derive(serde::Deserialize)]
    struct Metadata {
        packages: Vec<Unpacked>,
    }
    #[derive(serde::Deserialize)]
    struct Unpacked {
        name: String,
        version: String,
        manifest_path: PathBuf,
    }
    let lost = |reason: String| BuildError::BadArchive {
        archive: PathBuf::from(format!("{} {}", source.package, source.version)),
        reason,
    };
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).map_err(|error| lost(error.to_string()))?;
    let package = metadata
        .packages
        .into_iter()
        .find(|package| package.name == source.package && package.version == source.version)
        .ok_or_else(|| lost("cargo does not say where it was unpacked".to_owned()))?;
    let folder = package.manifest_path.parent().unwrap_or(Path::new("")).join(&source.folder);
    if !folder.join("CMakeLists.txt").is_file() {
        return Err(lost(format!("{} holds no CMakeLists.txt", folder.display())));
    }
    Ok(folder)
}

/// How sources that lie in a folder are built.
#[derive(Debug, Clone)]
pub(crate) struct TreeBuild<'a> {
    /// ggml's own folder, with its `CMakeLists.txt`.
    pub(crate) sources: &'a Path,
    /// CMake's folder, which may hold what an earlier build left.
    pub(crate) tree: &'a Path,
    /// The folder that is to hold the libraries; it is there whole or not at all.
    pub(crate) into: &'a Path,
    /// CMake's flags.
    pub(crate) flags: &'a [String],
    /// Compilers at once; 0 is one for each processor.
    pub(crate) jobs: usize,
    /// Where the output of CMake and the compilers goes.
    pub(crate) log: &'a Path,
}

/// CMake's flags for `backend`: those of the catalogue, `extra`, those of the environment, and ccache where it is
/// installed.
pub(crate) fn flags(backend: Backend, extra: &[String]) -> Result<Vec<String>> {
    let catalogue = Catalogue::embedded();
    let unknown = || BuildError::UnknownBuild { name: backend.to_string(), known: catalogue.names() };
    let (source, build) = catalogue.source(backend).ok_or_else(unknown)?;
    let from_env = env::var(FLAGS_ENV).unwrap_or_default();
    let from_env = from_env.split_whitespace().map(str::to_owned);
    let mut flags: Vec<String> =
        source.flags.iter().chain(&build.flags).chain(extra).cloned().chain(from_env).collect();
    if captured(Command::new("ccache").arg("--version")).is_ok() {
        let launchers = ["C", "CXX", "CUDA"].map(|l| format!("-DCMAKE_{l}_COMPILER_LAUNCHER=ccache"));
        flags.extend(launchers);
    }
    Ok(flags)
}

/// Builds ggml from a folder of sources. A failure says the last lines of the log.
pub(crate) fn build_tree(build: &TreeBuild<'_>) -> Result<()> {
    require("cmake", "to build ggml from source", CMAKE_HINT)?;
    let project = build.tree.join("project");
    fs::create_dir_all(&project).at("create", &project)?;
    let (name, text) = PROJECT[3];
    let path = project.join(name);
    fs::write(&path, text).at("write", &path)?;
    fs::write(build.log, "").at("write", build.log)?;
    let logged = |command: &mut Command| logged(command, build.log);
    compile(&project, build.sources, &build.tree.join("build"), build.flags, build.jobs, logged)?;
    let parent = build.into.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).at("create", parent)?;
    let staged = tempfile::tempdir_in(parent).at("write to", parent)?;
    let whole = staged.path().join("libraries");
    fs::create_dir(&whole).at("create", &whole)?;
    collect(&build.tree.join("build/bin"), &whole)?;
    fs::rename(&whole, build.into).at("write", build.into)
}

/// Configures and builds in `tree`. The libraries end in `tree/bin`.
fn compile(
    project: &Path,
    sources: &Path,
    tree: &Path,
    flags: &[String],
    jobs: usize,
    mut shown: impl FnMut(&mut Command) -> Result<()>,
) -> Result<()> {
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(project).arg("-B").arg(tree);
    if captured(Command::new("ninja").arg("--version")).is_ok() {
        configure.args(["-G", "Ninja"]);
    }
    // Forward slashes on Windows too: CMake reads a backslash as an escape.
    configure.arg(format!("-DGGML_SOURCE={}", sources.display().to_string().replace('\\', "/")));
    configure.args(flags);
    shown(&mut configure)?;
    let jobs = if jobs == 0 { std::thread::available_parallelism().map_or(1, NonZero::get) } else { jobs };
    let mut build = Command::new("cmake");
    build.arg("--build").arg(tree).args(["--config", "Release", "--parallel", &jobs.to_string()]);
    shown(&mut build)
}

/// Copies the libraries, and nothing else, from the build tree's folder for them (or the sub-folder `Release` of a
/// generator with several configurations).
fn collect(bin: &Path, into: &Path) -> Result<()> {
    let release = bin.join("Release");
    let from = if release.is_dir() { release } else { bin.to_owned() };
    let mut base = false;
    for entry in fs::read_dir(&from).at("read", &from)? {
        let path = entry.at("read", &from)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let library =
            ["so", "dylib", "dll"].iter().any(|wanted| path.extension() == Some(OsStr::new(wanted)));
        if library && path.is_file() {
            let to = into.join(&name);
            fs::copy(&path, &to).at("write", &to)?;
            base |= name.contains("ggml-base");
        }
    }
    if base {
        return Ok(());
    }
    Err(BuildError::BadArchive { archive: from, reason: "the build left no ggml base library".to_owned() })
}

fn require(tool: &str, purpose: &str, hint: &str) -> Result<()> {
    match captured(Command::new(tool).arg("--version")) {
        Ok(_) => Ok(()),
        Err(_) => Err(BuildError::ToolMissing {
            tool: tool.to_owned(),
            purpose: purpose.to_owned(),
            hint: hint.to_owned(),
        }),
    }
}

/// Runs a command whose output the user sees as it comes.
fn shown(command: &mut Command) -> Result<()> {
    let program = PathBuf::from(command.get_program());
    let status = command.stdin(Stdio::null()).stdout(io::stderr()).status().at("run", &program)?;
    succeeded(command, status, String::new())
}

/// Runs a command whose output is added to a file.
fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let program = PathBuf::from(command.get_program());
    let open = || fs::OpenOptions::new().append(true).create(true).open(log).at("write", log);
    let (out, errors) = (open()?, open()?);
    let status = command.stdin(Stdio::null()).stdout(out).stderr(errors).status().at("run", &program)?;
    let told = fs::read(log).unwrap_or_default();
    succeeded(command, status, super::fetch::last_lines(&told, 12))
}

/// Runs a command whose output is read here.
fn captured(command: &mut Command) -> Result<Output> {
    let program = PathBuf::from(command.get_program());
    let output = command.stdin(Stdio::null()).output().at("run", &program)?;
    succeeded(command, output.status, String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
    Ok(output)
}

fn succeeded(command: &Command, status: ExitStatus, detail: String) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    Err(BuildError::ToolFailed { command: command_line(command), status: status.to_string(), detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_pins_the_sources_of_the_catalogue() {
        let (source, _) = Catalogue::embedded().source(Backend::Cpu).unwrap();
        let pin = checksum(source);
        assert_eq!(pin.len(), "sha256-".len() + 64, "{pin}");
        assert!(PROJECT[0].1.contains(&format!("{} = \"={}\"", source.package, source.version)));
    }

    #[test]
    fn only_libraries_are_collected_and_a_base_library_is_required() {
        let bin = tempfile::tempdir().unwrap();
        let into = tempfile::tempdir().unwrap();
        fs::write(bin.path().join("vulkan-shaders-gen"), "").unwrap();
        fs::write(bin.path().join("libggml-cpu.so"), "").unwrap();
        let error = collect(bin.path(), into.path()).unwrap_err();
        assert!(error.to_string().contains("no ggml base library"), "{error}");
        fs::write(bin.path().join("libggml-base.so"), "").unwrap();
        collect(bin.path(), into.path()).unwrap();
        assert_eq!(fs::read_dir(into.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_missing_tool_is_named_with_how_to_get_it() {
        let error = require("cmake-that-is-not-there", "to build ggml", CMAKE_HINT).unwrap_err().to_string();
        assert!(error.contains("`cmake-that-is-not-there` is not installed"), "{error}");
        assert!(error.contains("apt-get install cmake"), "{error}");
    }
}
