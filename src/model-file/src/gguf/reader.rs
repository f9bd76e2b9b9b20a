//! An open GGUF file: its header in memory, its tensors mapped on demand.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::header::Header;
use super::map::map_range;
use super::{Mapped, Metadata};
use crate::TensorType;
use crate::error::{Error, ErrorKind};

/// Bytes hashed at a time.
const HASH_WINDOW: u64 = 8 << 20;

/// A tensor's entry: what it is and where its data lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, as `blk.0.attn_q.weight`.
    pub name: String,
    /// Extents in ggml's order, the fastest first: `[n_embd, n_vocab]` is `n_vocab` rows of `n_embd`.
    pub shape: Vec<u64>,
    /// Type of the elements.
    pub ty: TensorType,
    /// Where the data begins, in bytes from the start of the file.
    pub offset: u64,
    /// Size of the data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements; the reader has checked that it fits.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of rows: the product of all extents but the first.
    pub fn rows(&self) -> u64 {
        self.shape[1..].iter().product()
    }
}

/// An open model file whose header is sound.
///
/// All counts, lengths, shapes and offsets have been checked: every tensor in
/// [`tensors`](Self::tensors) lies inside the file, aligned, and overlaps no other.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: File,
    len: u64,
    version: u32,
    alignment: u64,
    data_start: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl GgufFile {
    /// Opens a file and reads its header through a small buffer. Tensor data is not touched.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |e: std::io::Error| Error::io("cannot open", &e).file(path);
        let file = File::open(path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        if !about.is_file() {
            return Err(Error::new(ErrorKind::Io, "not a regular file").file(path));
        }
        let len = about.len();
        let header = Header::read(BufReader::with_capacity(64 << 10, &file), len, path)?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            len,
            version: header.version,
            alignment: header.alignment,
            data_start: header.data_start,
            metadata: header.metadata,
            tensors: header.tensors,
            by_name: header.by_name,
        })
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// GGUF version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of the tensor data in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Where the tensor data begins, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Size of the file in bytes when it was opened.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// Maps a tensor's bytes as a whole.
    pub fn map(&self, tensor: &TensorInfo) -> Result<Mapped, Error> {
        self.window(tensor, 0, tensor.bytes)
    }

    /// A tensor's bytes in pieces of about `chunk_bytes`: each item is the piece's offset in the tensor
    /// and the piece. Pieces are whole blocks, at least one. A piece is unmapped when it is dropped, so
    /// only one need be resident at a time.
    pub fn chunks<'a>(&'a self, tensor: &'a TensorInfo, chunk_bytes: u64) -> Chunks<'a> {
        let block = tensor.ty.block_bytes();
        Chunks { file: self, tensor, step: (chunk_bytes / block).max(1) * block, at: 0 }
    }

    fn window(&self, tensor: &TensorInfo, at: u64, len: u64) -> Result<Mapped, Error> {
        map_range(&self.file, tensor.offset + at, len).map_err(|e| {
            Error::io("cannot map", &e).file(&self.path).field(&tensor.name).offset(tensor.offset + at)
        })
    }

    /// SHA-256 of the whole file in hexadecimal, read in windows.
    pub fn sha256(&self) -> Result<String, Error> {
        let mut hash = Sha256::new();
        let mut at = 0;
        while at < self.len {
            let n = HASH_WINDOW.min(self.len - at);
            let window = map_range(&self.file, at, n)
                .map_err(|e| Error::io("cannot map", &e).file(&self.path).offset(at))?;
            hash.update(&window[..]);
            at += n;
        }
        Ok(hash.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        }))
    }
}

/// A tensor's bytes piece by piece, from [`GgufFile::chunks`]. Ends after the first error.
#[derive(Debug)]
pub struct Chunks<'a> {
    file: &'a GgufFile,
    tensor: &'a TensorInfo,
    step: u64,
    at: u64,
}

impl Iterator for Chunks<'_> {
    type Item = Result<(u64, Mapped), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        let n = self.step.min(self.tensor.bytes.checked_sub(at).filter(|&n| n > 0)?);
        let piece = self.file.window(self.tensor, at, n);
        self.at = if piece.is_ok() { at + n } else { self.tensor.bytes };
        Some(piece.map(|p| (at, p)))
    }
}
