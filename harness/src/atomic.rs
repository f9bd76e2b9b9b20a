//! Files that appear whole or not at all: written under a temporary name beside the target, then renamed.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Runs `write` on a temporary path beside `target` and renames the result to `target`.
/// The temporary file is removed when `write` fails.
///
/// # Errors
/// What `write` returned, or the failure of the rename.
pub(crate) fn write_with<E: From<io::Error>>(
    target: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let partial = partial_name(target);
    let place = || {
        // The name must not stand for what a power failure takes away.
        std::fs::File::open(&partial)?.sync_all()?;
        std::fs::rename(&partial, target)
    };
    let result = write(&partial).and_then(|()| place().map_err(E::from));
    if result.is_err() {
        // Nothing more can be done about a temporary file that cannot be removed; the first error counts.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

/// Whether an error says that there is no space left, on the disk or in a quota.
pub(crate) fn is_storage_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// `report.json` becomes `report.json.partial-<process id>`, so two processes never share one.
fn partial_name(target: &Path) -> PathBuf {
    let mut name = target.file_name().map(OsString::from).unwrap_or_default();
    name.push(format!(".partial-{}", std::process::id()));
    target.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_partial() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("file");
        std::fs::write(&target, "old").unwrap();
        let result = write_with(&target, |partial| {
            std::fs::write(partial, "half")?;
            Err(io::Error::other("disk full"))
        });
        assert!(result.is_err());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
