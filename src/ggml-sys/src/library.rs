//! Finding and opening the libraries of one ggml build.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use crate::abi;
use crate::api::Api;
use crate::device::DeviceKind;
use crate::error::Error;

/// Which of a build's backends to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The best CPU variant and every other backend.
    Everything,
    /// Only the best CPU variant.
    Cpu,
    /// Only the CPU variant of this name, as `x64`.
    CpuVariant(String),
}

/// One library file of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Its part: `base`, `core`, or a backend's name, as `cpu-zen4` or `vulkan`.
    pub part: String,
    /// Why it was not loaded, if it was to be and could not.
    pub skipped: Option<String>,
}

/// An opened ggml build.
pub struct Ggml {
    pub(crate) api: Api,
    folder: PathBuf,
    selection: Selection,
    version: Option<String>,
    commit: Option<String>,
    cpu_variant: Option<String>,
    files: Vec<LibraryFile>,
}

static OPEN: OnceLock<Ggml> = OnceLock::new();

impl Ggml {
    /// Opens the build in `folder` (its libraries may lie in folders below) and loads `selection`.
    ///
    /// # Errors
    /// When the folder is no build, a library does not load, a function is missing, the tensor layout is
    /// another, no device shows, or this process has opened another build.
    pub fn open(folder: &Path, selection: &Selection) -> Result<&'static Self, Error> {
        if let Some(open) = OPEN.get() {
            if open.folder == folder && open.selection == *selection {
                return Ok(open);
            }
            return Err(Error::AlreadyOpen { open: open.folder.clone() });
        }
        let ggml = Self::load(folder, selection)?;
        Ok(OPEN.get_or_init(|| ggml))
    }

    fn load(folder: &Path, selection: &Selection) -> Result<Self, Error> {
        let parts = find(folder)?;
        let core_path = core_of(folder, &parts)?;
        let base_path = base_of(folder, &core_path, &parts)?;
        same_version(folder, &parts)?;
        // The base comes first, so that the core's dependency resolves to it wherever it lies.
        let base = open_library(&base_path)?;
        let core = open_library(&core_path)?;
        let find_symbol = |name: &'static str| {
            let symbol = CString::new(name).expect("names have no zero byte");
            [&base, &core].into_iter().find_map(|library| {
                // SAFETY: only the address is taken; `Api::fill` gives it the type that belongs to the name.
                unsafe {
                    Some(
                        library
                            .get::<*const c_void>(symbol.as_bytes_with_nul())
                            .ok()?
                            .try_as_raw_ptr()?
                            .cast_const(),
                    )
                }
            })
        };
        let version = find_symbol("ggml_version").map(call_text);
        // SAFETY: the addresses are those of ggml's functions, and both libraries are leaked below.
        let api = unsafe { Api::fill(find_symbol) }.map_err(|symbol| Error::MissingSymbol {
            file: base_path.clone(),
            version: version.clone().unwrap_or_else(|| "of unknown version".to_owned()),
            symbol,
        })?;
        let commit = api.ggml_commit.map(|f| call_text(f as *const c_void));
        std::mem::forget((base, core));
        // SAFETY: a static function that may be called from any thread; no user data.
        unsafe { (api.ggml_log_set)(Some(log), std::ptr::null_mut()) };
        abi::check(&api).map_err(|what| Error::Abi { file: base_path.clone(), what })?;

        let mut ggml = Self {
            api,
            folder: folder.to_owned(),
            selection: selection.clone(),
            version,
            commit,
            cpu_variant: None,
            files: vec![
                LibraryFile { path: base_path, part: "base".to_owned(), skipped: None },
                LibraryFile { path: core_path, part: "core".to_owned(), skipped: None },
            ],
        };
        ggml.load_backends(&parts)?;
        ggml.check_devices()?;
        Ok(ggml)
    }

    fn load_backends(&mut self, parts: &BTreeMap<String, Vec<PathBuf>>) -> Result<(), Error> {
        let cpu: Vec<(&String, &PathBuf)> =
            parts.iter().filter(|(part, _)| is_cpu(part)).map(|(part, files)| (part, &files[0])).collect();
        let wanted = match &self.selection {
            Selection::CpuVariant(variant) => {
                let part = format!("cpu-{variant}");
                let file = cpu.iter().find(|(name, _)| **name == part).ok_or_else(|| Error::NotABuild {
                    folder: self.folder.clone(),
                    why: format!(
                        "no CPU variant '{variant}'; there are: {}",
                        cpu.iter()
                            .map(|(name, _)| name.trim_start_matches("cpu-"))
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                })?;
                Some((part.clone(), file.1.clone()))
            }
            _ => best_cpu(&cpu),
        };
        if let Some((part, path)) = wanted {
            self.load_backend(&part, &path);
            if let Some(why) = self.files.last().and_then(|f| f.skipped.clone()) {
                return Err(Error::Load { file: path, why });
            }
            self.cpu_variant = part.strip_prefix("cpu-").map(str::to_owned);
        }
        if self.selection == Selection::Everything {
            for (part, files) in
                parts.iter().filter(|(part, _)| *part != "base" && *part != "core" && !is_cpu(part))
            {
                self.load_backend(part, &files[0]);
            }
        }
        Ok(())
    }

    /// Loads one backend library; a failure is recorded with the file.
    fn load_backend(&mut self, part: &str, path: &Path) {
        let mut file = LibraryFile { path: path.to_owned(), part: part.to_owned(), skipped: None };
        match open_library(path) {
            Err(error) => file.skipped = Some(error.to_string()),
            // Linked into the core: present without being loaded.
            Ok(library) if !exports(&library, c"ggml_backend_init") => {}
            Ok(_library) => {
                let name =
                    CString::new(path.as_os_str().as_encoded_bytes()).expect("paths have no zero byte");
                // SAFETY: a terminated path; ggml keeps the library open for the life of the process.
                let reg = unsafe { (self.api.ggml_backend_load)(name.as_ptr()) };
                if reg.is_null() {
                    file.skipped =
                        Some("ggml refused it (not for this processor, or of another version)".to_owned());
                }
            }
        }
        self.files.push(file);
    }

    fn check_devices(&self) -> Result<(), Error> {
        let not_a_build = |why: String| Error::NotABuild { folder: self.folder.clone(), why };
        // SAFETY: indices below the count; devices are static.
        let cpus = unsafe {
            let n = (self.api.ggml_backend_dev_count)();
            if n == 0 {
                return Err(not_a_build("the libraries load, but offer no device".to_owned()));
            }
            (0..n)
                .filter(|&i| (self.api.ggml_backend_dev_type)((self.api.ggml_backend_dev_get)(i)) == 0)
                .count()
        };
        if cpus != 1 {
            return Err(not_a_build(format!("{cpus} {} devices, expected one", DeviceKind::Cpu.name())));
        }
        Ok(())
    }

    /// The folder as given.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// ggml's version, where the build states one.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The commit, where the build states one.
    #[must_use]
    pub fn commit(&self) -> Option<&str> {
        self.commit.as_deref()
    }

    /// The CPU variant that was loaded, as `zen4`; none where the build has a single one.
    #[must_use]
    pub fn cpu_variant(&self) -> Option<&str> {
        self.cpu_variant.as_deref()
    }

    /// The libraries that were looked at.
    #[must_use]
    pub fn files(&self) -> &[LibraryFile] {
        &self.files
    }

    /// Functions that only some builds have, and whether this one does.
    #[must_use]
    pub fn optional_functions(&self) -> Vec<(&'static str, bool)> {
        self.api.optional()
    }

    /// The error for an optional function this build lacks.
    #[must_use]
    pub fn lacks(&self, symbol: &'static str) -> Error {
        Error::Unsupported {
            version: self.version.clone().unwrap_or_else(|| "of unknown version".to_owned()),
            symbol,
        }
    }

    /// The CPU variants that lie in `folder`, best for this machine first, and only those that run here.
    ///
    /// # Errors
    /// When the folder is no build.
    pub fn cpu_variants(folder: &Path) -> Result<Vec<String>, Error> {
        let parts = find(folder)?;
        let _base = open_library(&base_of(folder, &core_of(folder, &parts)?, &parts)?)?;
        let mut scored: Vec<(c_int, String)> = parts
            .iter()
            .filter_map(|(part, files)| Some((score(&files[0])?, part.strip_prefix("cpu-")?.to_owned())))
            .filter(|(score, _)| *score > 0)
            .collect();
        scored.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        Ok(scored.into_iter().map(|(_, name)| name).collect())
    }
}

/// Passes ggml's warnings and errors on to standard error; `GGML_PARITY_GGML_LOG` set passes everything.
unsafe extern "C" fn log(level: c_int, text: *const c_char, _: *mut c_void) {
    if text.is_null() || (level < 3 && std::env::var_os("GGML_PARITY_GGML_LOG").is_none()) || level == 5 {
        return;
    }
    // SAFETY: ggml passes a terminated string that lives during the call.
    eprint!("{}", unsafe { CStr::from_ptr(text) }.to_string_lossy());
}

fn is_cpu(part: &str) -> bool {
    part == "cpu" || part.starts_with("cpu-")
}

/// The part of a ggml build that a file name stands for: `libggml-base.so.0` is `base`, `libggml.so` and
/// `libggml.b6673.so` are `core`, `ggml-vulkan.dll` is `vulkan`.
fn part_of(name: &str) -> Option<String> {
    let is_library =
        name.ends_with(".so") || name.ends_with(".dylib") || name.ends_with(".dll") || name.contains(".so.");
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("ggml")?;
    if !is_library {
        return None;
    }
    match rest.strip_prefix('-') {
        None => rest.starts_with('.').then(|| "core".to_owned()),
        Some(rest) => Some(rest.split('.').next().unwrap_or(rest).to_owned()),
    }
}

/// All library files of a build by part, those nearest to `folder` first.
fn find(folder: &Path) -> Result<BTreeMap<String, Vec<PathBuf>>, Error> {
    const DEPTH: usize = 4;
    const ENTRIES: usize = 20_000;
    let not_a_build = |why: String| Error::NotABuild { folder: folder.to_owned(), why };
    if !folder.is_dir() {
        let why = if folder.exists() { "is not a folder" } else { "no such folder" };
        return Err(not_a_build(why.to_owned()));
    }
    let mut parts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let (mut level, mut seen) = (vec![folder.to_owned()], 0);
    for _ in 0..DEPTH {
        let mut below = Vec::new();
        for dir in &level {
            let Ok(entries) = std::fs::read_dir(dir) else { continue };
            let mut entries: Vec<_> = entries.filter_map(Result::ok).map(|e| e.path()).collect();
            entries.sort();
            seen += entries.len();
            if seen > ENTRIES {
                return Err(not_a_build(format!(
                    "more than {ENTRIES} entries; name the folder of the libraries"
                )));
            }
            for path in entries {
                if path.is_dir() {
                    below.push(path);
                } else if let Some(part) = path.file_name().and_then(OsStr::to_str).and_then(part_of) {
                    let files = parts.entry(part).or_default();
                    let canonical = path.canonicalize().unwrap_or_else(|_| path.clone());
                    if !files.iter().any(|f| f.canonicalize().is_ok_and(|f| f == canonical)) {
                        files.push(path);
                    }
                }
            }
        }
        level = below;
    }
    for part in ["base", "core"] {
        if !parts.contains_key(part) {
            let name = if part == "base" { "libggml-base" } else { "libggml" };
            return Err(not_a_build(format!(
                "no {name} (.so, .dylib or .dll) in it or {} folders below",
                DEPTH - 1
            )));
        }
    }
    Ok(parts)
}

/// The library that exports the registry.
fn core_of(folder: &Path, parts: &BTreeMap<String, Vec<PathBuf>>) -> Result<PathBuf, Error> {
    let candidates = &parts["core"];
    let dirs: std::collections::BTreeSet<_> = candidates.iter().filter_map(|p| p.parent()).collect();
    if dirs.len() > 1 {
        let dirs: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
        let why = format!("holds {} ggml builds; name one of: {}", dirs.len(), dirs.join(", "));
        return Err(Error::NotABuild { folder: folder.to_owned(), why });
    }
    Ok(candidates[0].clone())
}

/// The base library that the core asks for: among several copies the one whose file name the core
/// records, since opening another would map ggml's base twice.
fn base_of(folder: &Path, core: &Path, parts: &BTreeMap<String, Vec<PathBuf>>) -> Result<PathBuf, Error> {
    let candidates = &parts["base"];
    let bytes = std::fs::read(core).map_err(|e| Error::Load { file: core.to_owned(), why: e.to_string() })?;
    let recorded = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| {
            let needle = [name.as_encoded_bytes(), &[0]].concat();
            bytes.windows(needle.len()).any(|w| w == needle)
        })
    };
    candidates
        .iter()
        .find(recorded)
        .or(candidates.first())
        .cloned()
        .ok_or_else(|| Error::NotABuild { folder: folder.to_owned(), why: "no libggml-base".to_owned() })
}

/// Libraries that carry their version in the file name must carry the same one.
fn same_version(folder: &Path, parts: &BTreeMap<String, Vec<PathBuf>>) -> Result<(), Error> {
    let name = |path: &PathBuf| {
        let path = path.canonicalize().unwrap_or_else(|_| path.clone());
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let versioned: Vec<(String, String)> = parts
        .values()
        .filter_map(|files| {
            let name = name(&files[0]);
            Some((version_in(&name)?, name))
        })
        .collect();
    let differs = versioned.iter().find(|(version, _)| *version != versioned[0].0);
    differs.map_or(Ok(()), |(_, other)| {
        let why = format!("mixes versions: {} and {other}", versioned[0].1);
        Err(Error::NotABuild { folder: folder.to_owned(), why })
    })
}

/// `0.26.0` of `libggml-base.so.0.26.0`; nothing where there are not at least two numbers.
fn version_in(name: &str) -> Option<String> {
    let (_, version) = name.split_once(".so.")?;
    let numbers = version.split('.').filter(|part| part.parse::<u32>().is_ok()).count();
    (numbers >= 2 && numbers == version.split('.').count()).then(|| version.to_owned())
}

fn open_library(path: &Path) -> Result<Library, Error> {
    // A relative name would be searched for in the system's folders.
    let path = path.canonicalize().map_err(|e| Error::Load { file: path.to_owned(), why: e.to_string() })?;
    // SAFETY: ggml's libraries have initialisers that only register themselves.
    unsafe { Library::new(&path) }.map_err(|e| {
        let why = match foreign_machine(&path) {
            Some(machine) => format!("it is built for {machine}, this machine is {}", std::env::consts::ARCH),
            None => std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string),
        };
        Error::Load { file: path, why }
    })
}

/// The machine an ELF library is for, where it is another than this one.
fn foreign_machine(path: &Path) -> Option<&'static str> {
    use std::io::Read;
    let mut head = [0u8; 20];
    std::fs::File::open(path).ok()?.read_exact(&mut head).ok()?;
    if &head[..4] != b"\x7fELF" {
        return cfg!(target_os = "linux").then_some("another system (it is no ELF file)");
    }
    let machine = match u16::from_le_bytes([head[18], head[19]]) {
        3 => "x86",
        62 => "x86_64",
        40 => "arm",
        183 => "aarch64",
        243 => "riscv64",
        _ => "an unknown processor",
    };
    (machine != std::env::consts::ARCH).then_some(machine)
}

fn exports(library: &Library, symbol: &CStr) -> bool {
    // SAFETY: only asks whether the name is there.
    unsafe { library.get::<*const c_void>(symbol.to_bytes_with_nul()) }.is_ok()
}

/// What a CPU library says of its fitness for this machine: 0 if it cannot run here.
fn score(path: &Path) -> Option<c_int> {
    let library = open_library(path).ok()?;
    // SAFETY: ggml's CPU libraries export this function with this signature.
    unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0") }.ok().map(|f| {
        // SAFETY: as above; it only asks the processor for its features.
        unsafe { f() }
    })
}

/// The CPU library with the highest score; a single one without a score is taken as it is.
fn best_cpu(cpu: &[(&String, &PathBuf)]) -> Option<(String, PathBuf)> {
    let best = cpu
        .iter()
        .filter_map(|(part, path)| Some((score(path)?, part, path)))
        .filter(|(score, ..)| *score > 0)
        .max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(a.1)));
    best.map(|(_, part, path)| ((*part).clone(), (*path).clone()))
        .or_else(|| cpu.first().map(|(part, path)| ((*part).clone(), (*path).clone())))
}

/// Calls a function of no arguments that returns a static string.
fn call_text(address: *const c_void) -> String {
    // SAFETY: used for `ggml_version` and `ggml_commit` only, whose C signature this is.
    unsafe {
        let f = std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> *const c_char>(address);
        let text = f();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_stand_for_parts() {
        for (name, part) in [
            ("libggml-base.so", Some("base")),
            ("libggml-base.so.0", Some("base")),
            ("libggml.so", Some("core")),
            ("libggml.b6673.so", Some("core")),
            ("libggml.vulkan.v0.4.0.so", Some("core")),
            ("libggml.dylib", Some("core")),
            ("ggml.dll", Some("core")),
            ("ggml-vulkan.dll", Some("vulkan")),
            ("libggml-cpu-zen4.so", Some("cpu-zen4")),
            ("libggml-cpu.so.0.15.1", Some("cpu")),
            ("libllama.so", None),
            ("libggml.a", None),
            ("ggml.h", None),
        ] {
            assert_eq!(part_of(name).as_deref(), part, "{name}");
        }
    }

    #[test]
    fn versions_are_read_from_file_names() {
        assert_eq!(version_in("libggml-base.so.0.26.0").as_deref(), Some("0.26.0"));
        assert_eq!(version_in("libggml-base.so.0"), None);
        assert_eq!(version_in("libggml.vulkan.v0.4.0.so"), None);
    }

    #[test]
    fn a_folder_of_two_versions_says_which() {
        let folder = std::env::temp_dir().join(format!("ggml-sys-mixed-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["libggml-base.so.0.26.0", "libggml.so.0.26.0", "libggml-cpu.so.0.25.1"] {
            std::fs::write(folder.join(name), b"").unwrap();
        }
        let error = same_version(&folder, &find(&folder).unwrap()).unwrap_err().to_string();
        assert!(error.contains("libggml-base.so.0.26.0 and libggml-cpu.so.0.25.1"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_is_no_build_says_what_is_missing() {
        let empty = std::env::temp_dir().join(format!("ggml-sys-empty-{}", std::process::id()));
        std::fs::create_dir_all(&empty).unwrap();
        let error = find(&empty).unwrap_err().to_string();
        assert!(error.contains("no libggml-base"), "{error}");
        std::fs::write(empty.join("libggml-base.so"), b"").unwrap();
        let error = find(&empty).unwrap_err().to_string();
        assert!(error.contains("no libggml (.so"), "{error}");
        let error = find(&empty.join("absent")).unwrap_err().to_string();
        assert!(error.contains("no such folder"), "{error}");
        std::fs::remove_dir_all(&empty).unwrap();
    }
}
