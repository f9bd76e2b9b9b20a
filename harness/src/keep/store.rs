//! The store of captures: what references and oracles computed, by everything that their figures depend on.
//!
//! A capture lies in `CACHE/captures` under the digest of its [`Key`], with the SHA-256 of its content beside it; one
//! whose content has changed does not count and is removed. Both files appear whole or not at all. When the store is
//! over its limit, what was not used for longest goes first. The device under test is never taken from here.

use crate::atomic;
use crate::builds::catalogue::hex;
use crate::capture::CaptureReader;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes that the store may hold where nothing else is said: 4 GiB.
pub const DEFAULT_LIMIT: u64 = 4 << 30;

/// The store cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct StoreError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// The digest of everything that a capture depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

/// One capture in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
}

/// The store.
#[derive(Debug, Clone)]
pub struct CaptureStore {
    folder: PathBuf,
    limit: u64,
    program: String,
}

impl CaptureStore {
    /// The store in `folder`, which holds at most `limit` bytes, as the program of this digest sees it: what another
    /// one put there may have been computed otherwise. The folder is made when something is put there.
    #[must_use]
    pub fn new(folder: PathBuf, limit: u64, program: String) -> Self {
        Self { folder, limit, program }
    }

    /// The key of what `parts` say, a document that differs wherever the figures may.
    #[must_use]
    pub fn key(&self, parts: &impl Serialize) -> Key {
        let text = serde_json::to_string(&(&self.program, parts)).expect("keys are plain data");
        Key(hex(&Sha256::digest(text)))
    }

    /// Copies the capture of `key` to `target`; false where the store has none, or one that was changed.
    ///
    /// # Errors
    /// When `target` cannot be written.
    pub fn take(&self, key: &Key, target: &Path) -> Result<bool, StoreError> {
        let (path, seal) = self.files(key);
        let Ok(sealed) = std::fs::read_to_string(&seal) else { return Ok(false) };
        if digest(&path).ok().as_deref() != Some(sealed.trim()) {
            remove(&path);
            return Ok(false);
        }
        let copy = |partial: &Path| std::fs::copy(&path, partial).map(|_| ());
        atomic::write_with(target, copy).map_err(|source| StoreError { path: target.to_owned(), source })?;
        // It counts as used now. Where that cannot be noted, it only goes earlier.
        if let Ok(file) = File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(true)
    }

    /// Puts a copy of `capture` into the store, and throws out what is over the limit.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn put(&self, key: &Key, capture: &Path) -> Result<(), StoreError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError { path, source }
        };
        std::fs::create_dir_all(&self.folder).map_err(at(&self.folder))?;
        let (path, seal) = self.files(key);
        let content = digest(capture).map_err(at(capture))?;
        atomic::write_with(&path, |partial| std::fs::copy(capture, partial).map(|_| ()))
            .map_err(at(&path))?;
        atomic::write_with(&seal, |partial| std::fs::write(partial, &content)).map_err(at(&seal))?;
        self.prune(self.limit).map(|_| ())
    }

    /// What there is, what was used last first.
    ///
    /// # Errors
    /// When the folder cannot be read; one that is not there holds nothing.
    pub fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let at = |source| StoreError { path: self.folder.clone(), source };
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(at(source)),
        };
        let mut stored = Vec::new();
        for entry in entries {
            let path = entry.map_err(at)?.path();
            if path.extension().is_none_or(|e| e != "safetensors") {
                continue;
            }
            // Another process may have pruned it in the meantime.
            let Ok(meta) = path.metadata() else { continue };
            stored.push(Stored {
                path,
                bytes: meta.len(),
                used: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
        stored.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.path.cmp(&b.path)));
        Ok(stored)
    }

    /// Removes what was not used for longest until at most `limit` bytes are left. Returns what went.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn prune(&self, limit: u64) -> Result<Vec<Stored>, StoreError> {
        let mut held = 0_u64;
        let over = |stored: &Stored| {
            held = held.saturating_add(stored.bytes);
            held > limit
        };
        let gone: Vec<Stored> = self.list()?.into_iter().filter(over).collect();
        gone.iter().for_each(|stored| remove(&stored.path));
        Ok(gone)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a capture, and that of its hash.
    fn files(&self, key: &Key) -> (PathBuf, PathBuf) {
        let path = self.folder.join(format!("{}.safetensors", key.0));
        let seal = path.with_extension("sha256");
        (path, seal)
    }
}

/// The hash of what the oracle reads of a reference: its tokens, the order of unmasking, the experts that worked, which
/// rows and caches it holds and, where `values` says so, its logits. Two references with the same have the same oracle.
///
/// # Errors
/// When the capture cannot be read.
pub fn trajectory(reference: &Path, values: bool) -> Result<String, crate::capture::CaptureError> {
    let mut reference = CaptureReader::open(reference)?;
    let mut hasher = Sha256::new();
    let mut list = |name: &str, values: &[i32]| {
        hasher.update(format!("{name} {}\n", values.len()));
        values.iter().for_each(|value| hasher.update(value.to_le_bytes()));
    };
    list("tokens", reference.tokens());
    list("positions", reference.positions());
    list("step", reference.step());
    if let Some(unmask) = reference.unmask() {
        list("unmask.step", &unmask.step);
        list("unmask.position", &unmask.position);
        list("unmask.token", &unmask.token);
    }
    if let Some(rows) = reference.step_rows() {
        list("kv_step", &rows.step);
        list("kv_position", &rows.position);
    }
    if let Some(routing) = reference.routing() {
        list("route_step", &routing.rows.step);
        list("route_position", &routing.rows.position);
        routing.chosen.iter().for_each(|layer| list("experts", layer));
    }
    hasher.update(reference.outline());
    if values {
        let mut floats =
            |row: &[f64]| row.iter().for_each(|value| hasher.update(value.to_bits().to_le_bytes()));
        let mut row = Vec::new();
        for i in 0..reference.rows() {
            reference.logits(i, 1, &mut row)?;
            floats(&row);
        }
        if reference.holds_sampled_logits() {
            floats(&reference.sampled_logits()?.1);
        }
    }
    Ok(hex(&hasher.finalize()))
}

/// SHA-256 of this program: what another one computed may differ.
///
/// # Errors
/// When it cannot be read.
pub fn executable_digest() -> io::Result<String> {
    digest(&std::env::current_exe()?)
}

fn digest(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

/// Removes a capture, its hash first, so that none is left without. What cannot be removed is found again.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path.with_extension("sha256"));
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::sample::Sample;
    use crate::capture::{CaptureWriter, LayerRouting, StepRows};
    use std::time::Duration;

    fn put(store: &CaptureStore, name: &str, bytes: usize, age: u64) -> Key {
        let folder = tempfile::tempdir().unwrap();
        let capture = folder.path().join("capture");
        std::fs::write(&capture, vec![7_u8; bytes]).unwrap();
        let key = store.key(&name);
        store.put(&key, &capture).unwrap();
        let file = File::options().append(true).open(store.files(&key).0).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        key
    }

    fn holds(store: &CaptureStore, key: &Key) -> bool {
        let target = tempfile::tempdir().unwrap();
        store.take(key, &target.path().join("copy")).unwrap()
    }

    #[test]
    fn what_was_put_is_taken_until_it_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let store = CaptureStore::new(folder.path().join("captures"), 1000, "one".to_owned());
        assert!(!holds(&store, &store.key(&"a")));
        let key = put(&store, "a", 10, 0);
        assert!(holds(&store, &key) && !holds(&store, &store.key(&"b")));
        let other = CaptureStore { program: "another".to_owned(), ..store.clone() };
        assert!(!holds(&other, &other.key(&"a")));
        std::fs::write(store.files(&key).0, [7_u8; 9]).unwrap();
        assert!(!holds(&store, &key));
        assert_eq!(store.list().unwrap(), [], "what was changed is removed");
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let store = CaptureStore::new(folder.path().to_owned(), 100, "one".to_owned());
        let old = put(&store, "old", 40, 30);
        let older = put(&store, "older", 40, 60);
        assert!(holds(&store, &older), "it is used now");
        let new = put(&store, "new", 40, 0);
        assert!(!holds(&store, &old) && holds(&store, &older) && holds(&store, &new));
        assert_eq!(store.prune(0).unwrap().len(), 2);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no hash is left behind");
    }

    /// A reference of two rows, with what an oracle may read of it.
    fn reference(experts: [i32; 2], logits: [f32; 4], sampled: Option<[f32; 2]>, step: i32) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reference.safetensors");
        let mut writer = CaptureWriter::new(2);
        for (row, logits) in (0..).zip(logits.chunks_exact(2)) {
            writer.row(row, 0, logits);
        }
        writer.tokens(&[3, 4]);
        let layer = LayerRouting { logits: vec![0.5_f32; 4], chosen: experts.to_vec() };
        writer.routing(&StepRows { step: vec![0, step], position: vec![0, 1] }, 2, 1, &[layer]);
        if let Some(sampled) = sampled {
            writer.sampled_logits(&sampled, 1);
        }
        writer.write(&path, &Sample::new(2, 2).meta).unwrap();
        format!("{} {}", trajectory(&path, false).unwrap(), trajectory(&path, true).unwrap())
    }

    /// The oracle's capture of one reference must not be taken for another's whose experts or sampled logits differ.
    #[test]
    fn a_trajectory_is_all_that_the_oracle_reads() {
        let halves = |of: String| {
            of.split_once(' ').map(|(plain, values)| (plain.to_owned(), values.to_owned())).unwrap()
        };
        let (plain, values) = halves(reference([0, 1], [1.0; 4], Some([1.0; 2]), 1));
        assert_eq!((plain.clone(), values.clone()), halves(reference([0, 1], [1.0; 4], Some([1.0; 2]), 1)));
        for other in
            [reference([1, 1], [1.0; 4], Some([1.0; 2]), 1), reference([0, 1], [1.0; 4], Some([1.0; 2]), 0)]
        {
            let other = halves(other);
            assert!(other.0 != plain && other.1 != values);
        }
        for other in [
            reference([0, 1], [1.0, 1.0, 1.0, 1.0 + f32::EPSILON], Some([1.0; 2]), 1),
            reference([0, 1], [1.0; 4], Some([1.0, 1.0 + f32::EPSILON]), 1),
        ] {
            let other = halves(other);
            assert_eq!(other.0, plain, "tokens and experts are the same");
            assert_ne!(other.1, values, "what is sampled is not");
        }
    }
}
