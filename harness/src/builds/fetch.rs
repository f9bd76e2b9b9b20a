//! Builds that a package registry delivers: asked for by name through the registry's own client, checked against
//! the pin of the catalogue, unpacked into the cache.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256, Sha512};

use super::cache::{self, Manifest, Origin, Staging};
use super::catalogue::{Build, Catalogue, Client, Package, Pin, Platform};
use super::{BuildError, IoContext as _, Result, command_line};

/// Gets the package build `name` into the cache and returns its folder.
///
/// A build that is there already, whole and from the pinned package, is not asked for again.
pub fn fetch(name: &str) -> Result<PathBuf> {
    let catalogue = Catalogue::embedded();
    let unknown = || BuildError::UnknownBuild { name: name.to_owned(), known: catalogue.names() };
    let build = catalogue.get(name).ok_or_else(unknown)?;
    if !build.platform().fits() {
        return Err(BuildError::WrongPlatform {
            name: name.to_owned(),
            wanted: build.platform().to_string(),
            here: Platform::here().to_string(),
        });
    }
    let Build::Package(package) = build else {
        return Err(BuildError::NotAPackage { name: name.to_owned(), how: build.how_to_get() });
    };
    fetch_package(package, build.version())
}

/// Gets `package` into the cache, as a build of ggml `ggml`, and returns its folder.
pub(super) fn fetch_package(package: &Package, ggml: String) -> Result<PathBuf> {
    let name = &package.name;
    let builds = cache::builds_folder()?;
    let origin = Origin {
        client: package.client.name().to_owned(),
        package: package.package.clone(),
        version: package.version.clone(),
        pin: package.pin.to_string(),
    };
    let folder = builds.join(name);
    if cache::has_build(&folder, name, &origin, &[]) {
        return Ok(folder);
    }
    let staging = Staging::in_folder(&builds)?;
    let archive = download(package, &staging.work_folder())?;
    verify(&archive, &package.pin, &format!("{} {}", package.package, package.version))?;
    unpack(&archive, package, &staging.folder())?;
    staging.install(Manifest::new(name, ggml, Vec::new(), origin))
}

/// Has the package client put the package's archive into `into`, an empty folder, and returns its path.
fn download(package: &Package, into: &Path) -> Result<PathBuf> {
    let Package { package: name, version, .. } = package;
    let (mut command, extension) = match (package.client, &package.wheel) {
        (Client::Npm, _) => {
            let mut command = npm();
            command.args(["pack", "--silent", &format!("{name}@{version}")]);
            (command, "tgz")
        }
        (Client::Pip, tags) => {
            let mut command = python();
            // `python3` alone does not mean that pip is there.
            let pip = run(python().args(["-m", "pip", "--version"]), Client::Pip)?;
            if !pip.status.success() {
                return Err(missing(Client::Pip));
            }
            command.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]);
            command.args(["--no-deps", "--only-binary=:all:", "--dest", "."]);
            if let Some(tags) = tags {
                command.args(["--python-version", &tags.python, "--implementation", &tags.implementation]);
                command.args(["--abi", &tags.abi, "--platform", &tags.platform]);
            }
            command.arg(format!("{name}=={version}"));
            (command, "whl")
        }
    };
    let output = run(command.current_dir(into), package.client)?;
    if !output.status.success() {
        return Err(BuildError::ToolFailed {
            command: command_line(&command),
            status: output.status.to_string(),
            detail: last_lines(&output.stderr, 12),
        });
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(into).at("read", into)? {
        let path = entry.at("read", into)?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            found.push(path);
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(archive), true) => Ok(archive),
        _ => Err(BuildError::BadArchive {
            archive: into.to_owned(),
            reason: format!("{} did not leave exactly one .{extension} file", package.client.name()),
        }),
    }
}

pub(super) fn npm() -> Command {
    Command::new(if cfg!(windows) { "npm.cmd" } else { "npm" })
}

fn python() -> Command {
    Command::new(if cfg!(windows) { "python" } else { "python3" })
}

pub(super) fn run(command: &mut Command, client: Client) -> Result<Output> {
    let program = PathBuf::from(command.get_program());
    match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(client)),
        other => other.at("run", &program),
    }
}

fn missing(client: Client) -> BuildError {
    let (tool, hint) = match client {
        Client::Npm => (
            "npm",
            "It comes with Node.js: `apt-get install npm` on Debian and Ubuntu, `brew install node` on macOS. \
             Or build ggml from source: `ggml-parity ggml build --backend cpu-variants`.",
        ),
        Client::Pip => (
            "python3 -m pip",
            "`apt-get install python3-pip` on Debian and Ubuntu, `brew install python` on macOS.",
        ),
    };
    BuildError::ToolMissing {
        tool: tool.to_owned(),
        purpose: "to fetch this build's package".to_owned(),
        hint: hint.to_owned(),
    }
}

pub(super) fn last_lines(text: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Compares the hash of the file with the pin.
fn verify(archive: &Path, pin: &Pin, what: &str) -> Result<()> {
    let found = match pin {
        Pin::Sha512(_) => Pin::Sha512(digest::<Sha512>(archive)?.into()),
        Pin::Sha256(_) => Pin::Sha256(digest::<Sha256>(archive)?.into()),
    };
    if found == *pin {
        return Ok(());
    }
    Err(BuildError::PinMismatch {
        what: what.to_owned(),
        expected: pin.to_string(),
        found: found.to_string(),
    })
}

fn digest<D: Digest + io::Write>(path: &Path) -> Result<sha2::digest::Output<D>> {
    let mut file = fs::File::open(path).at("read", path)?;
    let mut hasher = D::new();
    io::copy(&mut file, &mut hasher).at("read", path)?;
    Ok(hasher.finalize())
}

/// Writes the files of the package that are to be kept into `into`, side by side.
fn unpack(archive: &Path, package: &Package, into: &Path) -> Result<()> {
    let bad = |reason: String| BuildError::BadArchive { archive: archive.to_owned(), reason };
    let file = fs::File::open(archive).at("read", archive)?;
    let mut kept = 0;
    let mut keep = |path: &str, is_file: bool, content: &mut dyn Read| -> Result<()> {
        let Some(name) = kept_name(path, package).map_err(bad)? else { return Ok(()) };
        if !is_file {
            return Err(bad(format!("`{path}` is not a plain file")));
        }
        let path = into.join(name);
        let mut out = fs::File::create_new(&path).at("write", &path)?;
        io::copy(content, &mut out).map_err(|error| bad(format!("`{name}`: {error}")))?;
        kept += 1;
        Ok(())
    };
    match package.client {
        Client::Npm => {
            let mut tar = tar::Archive::new(GzDecoder::new(file));
            for entry in tar.entries().map_err(|error| bad(error.to_string()))? {
                let mut entry = entry.map_err(|error| bad(error.to_string()))?;
                let kind = entry.header().entry_type();
                if kind.is_dir() {
                    continue;
                }
                let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
                keep(&path, kind.is_file(), &mut entry)?;
            }
        }
        Client::Pip => {
            let mut zip = zip::ZipArchive::new(file).map_err(|error| bad(error.to_string()))?;
            for index in 0..zip.len() {
                let mut entry = zip.by_index(index).map_err(|error| bad(error.to_string()))?;
                if entry.is_dir() {
                    continue;
                }
                let path = entry.name().map_err(|error| bad(error.to_string()))?.into_owned();
                let is_file = entry.is_file();
                keep(&path, is_file, &mut entry)?;
            }
        }
    }
    if kept == 0 {
        return Err(bad(format!("holds no {} in `{}`", package.keep.join(" or "), package.folder)));
    }
    Ok(())
}

/// The name under which a file of the archive is kept, if it is. A path that leads out of the archive is an error,
/// whether or not it would be kept: an archive with such a path is not what it should be.
fn kept_name<'p>(path: &'p str, package: &Package) -> std::result::Result<Option<&'p str>, String> {
    let stays_inside = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    if path.contains(['\\', '\0', ':']) || !Path::new(path).components().all(stays_inside) {
        return Err(format!("`{}` leads out of the archive", path.escape_debug()));
    }
    let Some((folder, name)) = path.trim_start_matches("./").rsplit_once('/') else { return Ok(None) };
    let keep =
        folder == package.folder && package.keep.iter().any(|prefix| name.starts_with(prefix.as_str()));
    Ok(keep.then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn package(name: &str) -> &'static Package {
        match Catalogue::embedded().get(name) {
            Some(Build::Package(package)) => package,
            _ => panic!("{name} is no package build"),
        }
    }

    /// A gzip-compressed tar archive with these paths, which the `tar` crate's own checks would refuse to write.
    fn tgz(paths: &[&str], kind: tar::EntryType) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut builder =
            tar::Builder::new(flate2::write::GzEncoder::new(file.reopen().unwrap(), Default::default()));
        for path in paths {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_size(if kind.is_file() { 4 } else { 0 });
            header.set_cksum();
            builder.append(&header, if kind.is_file() { &b"test"[..] } else { &b""[..] }).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap();
        file
    }

    fn unpacked(paths: &[&str], kind: tar::EntryType) -> (Result<()>, Vec<String>) {
        let into = tempfile::tempdir().unwrap();
        let result = unpack(tgz(paths, kind).path(), package("npm-3.21.1"), into.path());
        let mut names: Vec<String> = fs::read_dir(into.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        (result, names)
    }

    #[test]
    fn only_the_libraries_are_kept() {
        let (result, names) = unpacked(
            &[
                "package/LICENSE",
                "package/bins/linux-x64-vulkan/libggml-base.so",
                "./package/bins/linux-x64-vulkan/libggml.so",
                "package/bins/linux-x64-vulkan/libllama.so",
                "package/bins/linux-x64-vulkan/deeper/libggml-cpu.so",
                "package/bins/linux-x64-vulkan/_nlcBuildMetadata.json",
            ],
            tar::EntryType::Regular,
        );
        result.unwrap();
        assert_eq!(names, ["_nlcBuildMetadata.json", "libggml-base.so", "libggml.so"]);
    }

    #[test]
    fn a_path_that_leads_out_of_the_archive_is_refused() {
        for path in [
            "../libggml.so",
            "/etc/libggml.so",
            "package/bins/linux-x64-vulkan/../../../../libggml.so",
            "package/bins/linux-x64-vulkan/..",
            "C:\\libggml.so",
        ] {
            let (result, names) = unpacked(&[path], tar::EntryType::Regular);
            let error = result.unwrap_err().to_string();
            assert!(error.contains("leads out of the archive"), "{path}: {error}");
            assert!(names.is_empty(), "{path}: {names:?}");
        }
    }

    #[test]
    fn a_link_in_place_of_a_library_is_refused() {
        for kind in [tar::EntryType::Symlink, tar::EntryType::Link] {
            let (result, names) = unpacked(&["package/bins/linux-x64-vulkan/libggml.so"], kind);
            assert!(result.unwrap_err().to_string().contains("not a plain file"));
            assert!(names.is_empty());
        }
    }

    #[test]
    fn a_package_without_libraries_is_refused() {
        let (result, _) = unpacked(&["package/LICENSE"], tar::EntryType::Regular);
        assert!(result.unwrap_err().to_string().contains("holds no libggml"));
        let into = tempfile::tempdir().unwrap();
        let mut page = tempfile::NamedTempFile::new().unwrap();
        page.write_all(b"<html>not found</html>").unwrap();
        for name in ["npm-3.21.1", "pypi-0.20.2"] {
            let error = unpack(page.path(), package(name), into.path()).unwrap_err();
            assert!(matches!(error, BuildError::BadArchive { .. }), "{error}");
        }
    }

    #[test]
    fn a_wheel_is_unpacked_under_the_same_rules() {
        let wheel = |paths: &[&str]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut zip = zip::ZipWriter::new(file.reopen().unwrap());
            for path in paths {
                zip.start_file(*path, zip::write::SimpleFileOptions::default()).unwrap();
                zip.write_all(b"test").unwrap();
            }
            zip.finish().unwrap();
            file
        };
        let into = tempfile::tempdir().unwrap();
        let good = wheel(&["libggml/lib64/libggml.so", "libggml/include/ggml.h", "libggml/lib64/cmake/x"]);
        unpack(good.path(), package("pypi-0.20.2"), into.path()).unwrap();
        assert_eq!(fs::read_dir(into.path()).unwrap().count(), 1);
        let bad = wheel(&["../libggml.so"]);
        let error = unpack(bad.path(), package("pypi-0.20.2"), into.path()).unwrap_err();
        assert!(error.to_string().contains("leads out"), "{error}");
    }

    #[test]
    fn a_wrong_hash_is_refused_and_both_are_shown() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"not the package").unwrap();
        for name in ["npm-3.21.1", "pypi-0.20.2"] {
            let pin = &package(name).pin;
            let error = verify(file.path(), pin, name).unwrap_err();
            assert!(matches!(error, BuildError::PinMismatch { .. }));
            assert!(error.to_string().contains(&pin.to_string()), "{error}");
            assert_eq!(error.to_string().matches(&pin.to_string()[..7]).count(), 2, "{error}");
        }
        let pin = Pin::Sha256(Sha256::digest(b"not the package").into());
        verify(file.path(), &pin, "x").unwrap();
    }

    #[test]
    fn an_unknown_build_lists_the_known_ones_and_a_source_build_says_how() {
        let error = fetch("npm-9").unwrap_err().to_string();
        assert!(error.contains("npm-3.21.1") && error.contains("pypi-0.20.2"), "{error}");
        let error = fetch("source-0.26.0-cpu").unwrap_err().to_string();
        assert!(error.contains("ggml-parity ggml build --backend cpu"), "{error}");
    }
}
