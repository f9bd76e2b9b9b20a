//! The catalogue of builds known by name: `ci/ggml-builds.toml`, embedded in the binary.

use std::collections::BTreeSet;
use std::env::consts;
use std::fmt;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "ggml-parity.builds/1";

static EMBEDDED: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("../../../ci/ggml-builds.toml"))
        .expect("a test holds the embedded catalogue valid")
});

/// What a build can run on, and what `ggml build --backend` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The CPU, one library for AVX2 (or this machine's architecture).
    Cpu,
    /// The CPU, one library for each level of instruction sets.
    CpuVariants,
    /// The CPU and a BLAS library.
    Blas,
    /// The CPU and CUDA.
    Cuda,
    /// The CPU and Vulkan.
    Vulkan,
    /// The CPU and Metal.
    Metal,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Cpu => "cpu",
            Backend::CpuVariants => "cpu-variants",
            Backend::Blas => "blas",
            Backend::Cuda => "cuda",
            Backend::Vulkan => "vulkan",
            Backend::Metal => "metal",
        })
    }
}

/// The machines that a build is for. `None` stands for any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The operating system, as in [`consts::OS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// The processor architecture, as in [`consts::ARCH`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
}

impl Platform {
    /// This machine.
    pub fn here() -> Self {
        Self { os: Some(consts::OS.to_owned()), arch: Some(consts::ARCH.to_owned()) }
    }

    /// Whether this machine is one of them.
    pub fn fits(&self) -> bool {
        self.os.as_deref().is_none_or(|os| os == consts::OS)
            && self.arch.as_deref().is_none_or(|arch| arch == consts::ARCH)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.os, &self.arch) {
            (Some(os), Some(arch)) => write!(f, "{os} {arch}"),
            (Some(one), None) | (None, Some(one)) => f.write_str(one),
            (None, None) => f.write_str("any"),
        }
    }
}

/// The program that delivers a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// `npm pack`: a gzip-compressed tar archive, pinned by its SHA-512.
    Npm,
    /// `pip download`: a wheel (zip archive), pinned by its SHA-256.
    Pip,
}

impl Client {
    /// The word by which the client is known.
    pub fn name(self) -> &'static str {
        match self {
            Client::Npm => "npm",
            Client::Pip => "pip",
        }
    }
}

/// The hash that a package must have: `sha512-<base64>` or `sha256-<hexadecimal>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pin {
    /// As npm's `dist.integrity`.
    Sha512([u8; 64]),
    /// As in pip's hash-checking mode.
    Sha256([u8; 32]),
}

impl TryFrom<String> for Pin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |what: &str| format!("pin `{text}`: {what}");
        if let Some(base64) = text.strip_prefix("sha512-") {
            let bytes = STANDARD.decode(base64).map_err(|e| wrong(&e.to_string()))?;
            bytes.try_into().map(Pin::Sha512).map_err(|_| wrong("not 64 bytes"))
        } else if let Some(hex) = text.strip_prefix("sha256-") {
            unhex(hex)
                .and_then(|bytes| bytes.try_into().ok())
                .map(Pin::Sha256)
                .ok_or_else(|| wrong("not 32 bytes"))
        } else {
            Err(wrong("neither sha512- nor sha256-"))
        }
    }
}

impl From<Pin> for String {
    fn from(pin: Pin) -> Self {
        pin.to_string()
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::Sha512(bytes) => write!(f, "sha512-{}", STANDARD.encode(bytes)),
            Pin::Sha256(bytes) => write!(f, "sha256-{}", hex(bytes)),
        }
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// The tags by which pip chooses a wheel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelTags {
    /// Python's version, as `3.11`.
    pub python: String,
    /// The interpreter, as `cp`.
    pub implementation: String,
    /// The ABI, as `cp311`.
    pub abi: String,
    /// The platform, as `manylinux_2_28_x86_64`.
    pub platform: String,
}

/// A build that a package holds.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Package {
    /// The build's name, as `npm-3.21.1`.
    pub name: String,
    /// ggml's version, where the build can tell it.
    pub ggml: Option<String>,
    /// The llama.cpp release it was made from, where that is known.
    pub llama_cpp: Option<String>,
    /// The backends it holds.
    pub backends: Vec<Backend>,
    /// The machines it is for.
    #[serde(flatten)]
    pub platform: Platform,
    /// Who delivers it.
    pub client: Client,
    /// The package's name.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// The hash of the archive.
    pub pin: Pin,
    /// The folder inside the archive that holds the libraries.
    pub folder: String,
    /// The files of that folder to keep: all whose names begin with one of these.
    pub keep: Vec<String>,
    /// How pip chooses the wheel.
    pub wheel: Option<WheelTags>,
}

/// The sources that builds are made from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The version of ggml.
    pub ggml: String,
    /// The cargo package that holds them.
    pub package: String,
    /// The version of that package.
    pub version: String,
    /// The folder inside it.
    pub folder: String,
    /// CMake's flags for every build.
    pub flags: Vec<String>,
    /// The builds.
    pub build: Vec<SourceBuild>,
}

/// A build that is made here.
#[derive(Debug, Clone, Deserialize)]
pub struct SourceBuild {
    /// What it runs on.
    pub backend: Backend,
    /// CMake's flags beside the common ones.
    pub flags: Vec<String>,
    /// The machines it can be made for.
    #[serde(flatten)]
    pub platform: Platform,
    /// Its name, `source-<ggml>-<backend>`.
    #[serde(skip)]
    pub name: String,
}

#[derive(Debug, Clone, Deserialize)]
struct DefaultBuild {
    #[serde(flatten)]
    platform: Platform,
    build: String,
}

/// Everything that is known by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    schema: String,
    #[serde(rename = "default")]
    defaults: Vec<DefaultBuild>,
    #[serde(rename = "package")]
    packages: Vec<Package>,
    source: Source,
}

/// One build of the catalogue.
#[derive(Debug, Clone, Copy)]
pub enum Build<'a> {
    /// From a package.
    Package(&'a Package),
    /// From source.
    Source(&'a Source, &'a SourceBuild),
}

impl Build<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Build::Package(package) => &package.name,
            Build::Source(_, build) => &build.name,
        }
    }

    /// The version of ggml, else the llama.cpp release.
    pub fn version(&self) -> String {
        match self {
            Build::Package(package) => {
                let release = package.llama_cpp.as_ref().map(|release| format!("llama.cpp {release}"));
                package.ggml.clone().or(release).unwrap_or_else(|| package.version.clone())
            }
            Build::Source(source, _) => source.ggml.clone(),
        }
    }

    /// The backends it holds.
    pub fn backends(&self) -> Vec<Backend> {
        match self {
            Build::Package(package) => package.backends.clone(),
            Build::Source(_, build) => vec![build.backend],
        }
    }

    /// The machines it is for.
    pub fn platform(&self) -> &Platform {
        match self {
            Build::Package(package) => &package.platform,
            Build::Source(_, build) => &build.platform,
        }
    }

    /// The program it comes through.
    pub fn tool(&self) -> &'static str {
        match self {
            Build::Package(package) => package.client.name(),
            Build::Source(..) => "cmake",
        }
    }

    /// The command that gets it.
    pub fn how_to_get(&self) -> String {
        match self {
            Build::Package(package) => format!("ggml-parity ggml fetch {}", package.name),
            Build::Source(_, build) => format!("ggml-parity ggml build --backend {}", build.backend),
        }
    }
}

impl Catalogue {
    /// The catalogue that the binary carries.
    pub fn embedded() -> &'static Self {
        &EMBEDDED
    }

    /// Reads and checks a catalogue.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut catalogue: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let version = catalogue.source.ggml.clone();
        for build in &mut catalogue.source.build {
            build.name = format!("source-{version}-{}", build.backend);
        }
        catalogue.check()?;
        Ok(catalogue)
    }

    fn check(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!("schema is `{}`, not `{SCHEMA}`", self.schema));
        }
        let mut names = BTreeSet::new();
        for build in self.builds() {
            let name = build.name();
            // The name becomes a folder of the cache.
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
                return Err(format!("`{name}` cannot name a build"));
            }
            if !names.insert(name.to_owned()) {
                return Err(format!("two builds are named `{name}`"));
            }
        }
        for package in &self.packages {
            let fits = match package.client {
                Client::Npm => matches!(package.pin, Pin::Sha512(_)) && package.wheel.is_none(),
                Client::Pip => matches!(package.pin, Pin::Sha256(_)) && package.wheel.is_some(),
            };
            if !fits {
                return Err(format!("`{}`: pin or wheel tags do not fit its client", package.name));
            }
            if package.keep.is_empty() || package.backends.is_empty() {
                return Err(format!("`{}` keeps no file or has no backend", package.name));
            }
        }
        match self.defaults.iter().find(|default| !names.contains(&default.build)) {
            Some(default) => Err(format!("the default `{}` is no build", default.build)),
            None => Ok(()),
        }
    }

    /// All builds, packages first.
    pub fn builds(&self) -> impl Iterator<Item = Build<'_>> {
        let packages = self.packages.iter().map(Build::Package);
        packages.chain(self.source.build.iter().map(|build| Build::Source(&self.source, build)))
    }

    /// The build of this name.
    pub fn get(&self, name: &str) -> Option<Build<'_>> {
        self.builds().find(|build| build.name() == name)
    }

    /// The names of all builds.
    pub fn names(&self) -> Vec<String> {
        self.builds().map(|build| build.name().to_owned()).collect()
    }

    /// The names of the source builds, the preferred first.
    pub fn source_names(&self) -> impl Iterator<Item = &str> {
        self.source.build.iter().map(|build| build.name.as_str())
    }

    /// The sources, and the build of them for `backend`.
    pub fn source(&self, backend: Backend) -> Option<(&Source, &SourceBuild)> {
        let build = self.source.build.iter().find(|build| build.backend == backend)?;
        Some((&self.source, build))
    }

    /// The build that is taken on this machine where none is named.
    pub fn default_here(&self) -> Option<&str> {
        self.defaults.iter().find(|default| default.platform.fits()).map(|default| default.build.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_catalogue_is_valid() {
        let text = include_str!("../../../ci/ggml-builds.toml");
        let catalogue = Catalogue::parse(text).unwrap();
        for name in ["npm-3.21.1", "npm-3.18.0", "npm-3.14.0", "npm-3.10.0", "npm-3.6.0", "pypi-0.20.2"] {
            assert!(catalogue.get(name).is_some(), "{name}");
        }
        for backend in ["cpu", "cpu-variants", "blas", "cuda", "vulkan", "metal"] {
            assert!(catalogue.get(&format!("source-0.26.0-{backend}")).is_some(), "{backend}");
        }
        // Pins are read when the catalogue is; written out again they are what stands in the file.
        for package in &catalogue.packages {
            assert!(text.contains(&format!("pin = \"{}\"", package.pin)), "{}", package.name);
        }
    }

    #[test]
    fn a_malformed_pin_is_refused() {
        for pin in ["", "md5-00", "sha512-AAAA", "sha512-*", "sha256-00", "sha256-é0", "sha256-zz"] {
            assert!(Pin::try_from(pin.to_owned()).is_err(), "{pin}");
        }
        assert!(Pin::try_from(format!("sha256-{}", "0".repeat(64))).is_ok());
    }

    #[test]
    fn a_faulty_catalogue_is_refused() {
        let good = include_str!("../../../ci/ggml-builds.toml");
        for (from, to, says) in [
            ("ggml-parity.builds/1", "ggml-parity.builds/2", "schema"),
            ("name = \"npm-3.18.0\"", "name = \"npm-3.21.1\"", "two builds"),
            ("name = \"npm-3.18.0\"", "name = \"../npm\"", "cannot name"),
            ("build = \"npm-3.21.1\"", "build = \"npm-1\"", "default"),
            ("client = \"pip\"", "client = \"npm\"", "client"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Catalogue::parse(&good.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn backend_names_are_the_same_everywhere() {
        for backend in <Backend as clap::ValueEnum>::value_variants() {
            let name = backend.to_string();
            assert_eq!(serde_json::to_value(backend).unwrap(), name.as_str());
            assert_eq!(clap::ValueEnum::to_possible_value(backend).unwrap().get_name(), name);
        }
    }
}
