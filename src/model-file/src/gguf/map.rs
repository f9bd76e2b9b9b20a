//! Mapping a range of a file: the crate's one `unsafe` block.

use std::fs::File;
use std::io;
use std::ops::Deref;

/// A read-only window on a file's bytes, unmapped when dropped.
#[derive(Debug)]
pub struct Mapped(memmap2::Mmap);

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Maps `len` bytes from `offset` on. The range must lie inside the file, which is checked again here
/// because the file may have been cut since its header was read.
#[allow(unsafe_code)]
pub(super) fn map_range(file: &File, offset: u64, len: u64) -> io::Result<Mapped> {
    let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
    let size = file.metadata()?.len();
    if end > size {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("bytes {offset} to {end} asked for, the file now has {size}"),
        ));
    }
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: the mapping is read-only and its owner `Mapped` hands out slices no longer than it lives.
    // What remains is that another process changes or truncates the file meanwhile: model files are
    // not written in place (our own writer renames a finished file), and the range was checked against
    // the file's size just now. Bytes carry no invariants, so a changed file gives other numbers at worst.
    let map = unsafe { memmap2::MmapOptions::new().offset(offset).len(len).map(file)? };
    Ok(Mapped(map))
}
