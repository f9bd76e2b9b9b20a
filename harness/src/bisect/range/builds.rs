//! Ready builds: folders, or names of builds in the cache.

use super::{Range, RangeError, Source};
use crate::builds::{self, catalogue::hex};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

pub(super) fn range(given: &str) -> Result<Range, RangeError> {
    let names = names(given)?;
    if names.len() < 2 {
        let found = names.first().map_or("no build", |_| "one build");
        return Err(RangeError::Usage(format!("--builds {given}: {found}, where two at least are wanted")));
    }
    let mut folders = Vec::new();
    for name in &names {
        folders.push(builds::resolve(Some(name))?);
    }
    let labels: Vec<String> = names.iter().map(|name| label(name)).collect();
    for (i, label) in labels.iter().enumerate() {
        if let Some(other) = labels[..i].iter().position(|other| other == label) {
            let (one, two) = (&names[other], &names[i]);
            let why = format!("--builds {given}: {one} and {two} are both called {label}");
            return Err(RangeError::Usage(why));
        }
    }
    Ok(Range {
        what: format!("the builds of {given}"),
        details: vec![String::new(); labels.len()],
        identities: folders.iter().map(|folder| fingerprint(folder)).collect(),
        labels,
        source: Source::Builds(folders),
    })
}

/// What `builds::resolve` is to be asked for.
fn names(given: &str) -> Result<Vec<String>, RangeError> {
    let path = Path::new(given);
    if given.contains(',') || !path.exists() {
        let names = given.split(',').map(|name| name.trim().to_owned());
        return Ok(names.filter(|name| !name.is_empty()).collect());
    }
    let io = |source| RangeError::Io { path: path.to_owned(), source };
    if path.is_file() {
        let text = std::fs::read_to_string(path).map_err(io)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        return Ok(lines.map(str::to_owned).collect());
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?.path();
        let hidden = entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if entry.is_dir() && !hidden {
            folders.push(entry);
        }
    }
    let mut names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    names.sort_by_key(|name| natural(&label(name)));
    Ok(names)
}

/// The last part of a path.
fn label(name: &str) -> String {
    let last = Path::new(name).file_name();
    last.map_or_else(|| name.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A key that sorts numbers in names by their value: `b9` before `b10`, `3.9.0` before `3.10.0`.
fn natural(name: &str) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (words, after) = rest.split_at(text);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        // Words first: what has a number of 20 digits is sorted last and no error.
        parts.push((0, words.to_owned()));
        parts.push((number.parse().unwrap_or(u64::MAX), String::new()));
        rest = after;
    }
    parts
}

/// What tells a folder's libraries from others without reading them all: their names, sizes and times.
fn fingerprint(folder: &Path) -> String {
    let mut files: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // Through links, as the libraries are opened.
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let nanos = modified.map_or(0, |at| at.as_nanos());
        files.push(format!("{} {} {nanos}", entry.file_name().to_string_lossy(), metadata.len()));
    }
    files.sort();
    hex(&Sha256::digest(files.join("\n")))[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        folder
    }

    fn labels(given: &str) -> Vec<String> {
        range(given).unwrap().labels
    }

    #[test]
    fn a_folder_of_builds_is_in_the_order_of_its_numbers() {
        let folder = folder(&["b10", "b9", ".staging-1", "b100"]);
        std::fs::write(folder.path().join("notes.txt"), "").unwrap();
        let given = folder.path().to_str().unwrap();
        assert_eq!(labels(given), ["b9", "b10", "b100"]);
        // A list, and a file with one, in the order given.
        let at = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(labels(&format!("{}, {}", at("b100"), at("b9"))), ["b100", "b9"]);
        let list = folder.path().join("list");
        std::fs::write(&list, format!("# newest first\n{}\n\n{}\n", at("b10"), at("b9"))).unwrap();
        assert_eq!(labels(list.to_str().unwrap()), ["b10", "b9"]);
    }

    #[test]
    fn what_is_no_range_is_said() {
        let one = folder(&["a"]);
        let error = |given: &str| range(given).err().unwrap().to_string();
        assert!(error(one.path().to_str().unwrap()).contains("one build, where two at least are wanted"));
        assert!(error("").contains("no build"));
        assert!(error("/nowhere/a,/nowhere/b").contains("`/nowhere/a` is neither a folder nor a known"));
        let two = folder(&["a"]);
        let both = format!("{},{}", one.path().join("a").display(), two.path().join("a").display());
        assert!(error(&both).contains("are both called a"));
    }

    #[test]
    fn ends_are_found_and_backwards_is_backwards() {
        let folder = folder(&["b1", "b2", "b3", "b4"]);
        let given = folder.path().to_str().unwrap();
        let between = |good: &str, bad: &str| range(given).unwrap().between(good, bad);
        let mut part = between("b2", &format!("{given}/b4/")).unwrap();
        assert_eq!(part.labels, ["b2", "b3", "b4"]);
        assert!(part.obtain(2).unwrap().unwrap().ends_with("b4"));
        let mut back = between("b3", "b1").unwrap();
        assert_eq!(back.labels, ["b3", "b2", "b1"]);
        assert!(back.obtain(0).unwrap().unwrap().ends_with("b3"));
        let error = between("b1", "b5").err().unwrap().to_string();
        assert!(error.starts_with("--bad `b5` is none of the builds of"), "{error}");
        assert!(error.contains("b1, b2, b3, b4"), "{error}");
        assert!(between("b1", "b1").err().unwrap().to_string().contains("are both b1"));
    }

    #[test]
    fn other_libraries_in_a_folder_are_another_build() {
        let folder = folder(&["a"]);
        let a = folder.path().join("a");
        let empty = fingerprint(&a);
        std::fs::write(a.join("libggml.so"), "one").unwrap();
        let one = fingerprint(&a);
        assert_eq!(one, fingerprint(&a));
        std::fs::write(a.join("libggml.so"), "three").unwrap();
        assert!(one != empty && one != fingerprint(&a));
    }

    proptest! {
        #[test]
        fn names_that_differ_in_one_number_sort_by_it(prefix in "[a-z.-]{0,5}", a: u32, b: u32, suffix in "[a-z]{0,3}") {
            let key = |n: u32| natural(&format!("{prefix}{n}{suffix}"));
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
        }

        #[test]
        fn no_name_panics(name in ".{0,40}") {
            let _ = natural(&name);
        }
    }
}
