//! The header of a safetensors file, read without its data, and tensors of other containers in the same form.

use super::{CaptureError, element};
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// An open file of tensors: its header and where its data begin.
pub(super) struct TensorFile {
    pub(super) path: PathBuf,
    file: File,
    tensors: HashMap<String, TensorInfo>,
    metadata: HashMap<String, String>,
    data_start: u64,
    scratch: Vec<u8>,
}

impl TensorFile {
    /// Opens a file and checks that its data end where its header says.
    ///
    /// The header is parsed by the safetensors crate; its `read_metadata` wants the whole file in memory, so the
    /// comparison with the file's length is made here.
    pub(super) fn open(path: &Path) -> Result<Self, CaptureError> {
        let io = |source| CaptureError::io(path, source);
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix)
            .map_err(|_| CaptureError::header(path, format!("{length} bytes are too few for a header")))?;
        let header_length = u64::from_le_bytes(prefix);
        if header_length > length - 8 {
            let reason = format!("header of {header_length} bytes in a file of {length}");
            return Err(CaptureError::header(path, reason));
        }
        let mut header = Vec::new();
        (&mut file).take(header_length).read_to_end(&mut header).map_err(io)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| CaptureError::header(path, error))?;
        let data_start = 8 + header_length;
        let data_length = metadata.data_len() as u64;
        if data_start.checked_add(data_length) != Some(length) {
            let reason =
                format!("{data_length} bytes of tensors from byte {data_start}, but {length} in all");
            return Err(CaptureError::header(path, reason));
        }
        let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        let metadata = metadata.metadata().clone().unwrap_or_default();
        Ok(Self { path: path.to_owned(), file, tensors, metadata, data_start, scratch: Vec::new() })
    }

    /// A file of another container, whose tensors lie at these offsets from the start of the file. That they lie
    /// inside it is for the caller to have checked.
    pub(super) fn of_tensors(
        path: &Path,
        tensors: HashMap<String, TensorInfo>,
    ) -> Result<Self, CaptureError> {
        let file = File::open(path).map_err(|source| CaptureError::io(path, source))?;
        let metadata = HashMap::new();
        Ok(Self { path: path.to_owned(), file, tensors, metadata, data_start: 0, scratch: Vec::new() })
    }

    /// The value of a key of `__metadata__`.
    pub(super) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// The names of all tensors.
    pub(super) fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    /// Type, shape and place of a tensor.
    pub(super) fn info(&self, name: &str) -> Result<&TensorInfo, CaptureError> {
        self.tensors.get(name).ok_or_else(|| CaptureError::missing(&self.path, name))
    }

    /// The shape of a float tensor of rank `R`.
    pub(super) fn float_shape<const R: usize>(&self, name: &str) -> Result<[usize; R], CaptureError> {
        let info = self.info(name)?;
        if !element::is_float(info.dtype) {
            return Err(self.wrong(name, format!("{:?}", info.dtype), "F32, F64, F16 or BF16"));
        }
        info.shape
            .as_slice()
            .try_into()
            .map_err(|_| self.wrong(name, format!("{:?}", info.shape), format!("{R} dimensions")))
    }

    /// A whole list of integers.
    pub(super) fn integers(&mut self, name: &str) -> Result<Vec<i32>, CaptureError> {
        let info = self.info(name)?.clone();
        if info.shape.len() != 1 {
            return Err(self.wrong(name, format!("{:?}", info.shape), "one dimension"));
        }
        let bytes = self.read(info.data_offsets.0, info.data_offsets.1 - info.data_offsets.0)?;
        element::integers(info.dtype, bytes)
            .ok_or_else(|| self.wrong(name, format!("{:?}", info.dtype), "integers of 32 bits"))
    }

    /// A whole matrix of integers and its shape.
    pub(super) fn integer_rows(&mut self, name: &str) -> Result<([usize; 2], Vec<i32>), CaptureError> {
        let info = self.info(name)?.clone();
        let shape = info.shape.as_slice().try_into();
        let shape = shape.map_err(|_| self.wrong(name, format!("{:?}", info.shape), "two dimensions"))?;
        let bytes = self.read(info.data_offsets.0, info.data_offsets.1 - info.data_offsets.0)?;
        let list = element::integers(info.dtype, bytes)
            .ok_or_else(|| self.wrong(name, format!("{:?}", info.dtype), "integers of 32 bits"))?;
        Ok((shape, list))
    }

    /// Reads `count` rows from `first` on into `out`, which is cleared; a row is all but the first dimension.
    ///
    /// # Panics
    /// When the rows are not in the tensor, or it is not a float tensor: both are checked when a capture opens.
    pub(super) fn rows(
        &mut self,
        name: &str,
        first: usize,
        count: usize,
        out: &mut Vec<f64>,
    ) -> Result<(), CaptureError> {
        let info = self.info(name)?.clone();
        let total = info.shape[0];
        assert!(first <= total && count <= total - first, "rows {first}+{count} of {total} in {name}");
        let row: usize = info.shape[1..].iter().product();
        let row_bytes = row * element::width(info.dtype);
        out.clear();
        let bytes = self.read(info.data_offsets.0 + first * row_bytes, count * row_bytes)?;
        element::floats(info.dtype, bytes, out);
        Ok(())
    }

    /// `length` bytes of the data from `offset` on.
    fn read(&mut self, offset: usize, length: usize) -> Result<&[u8], CaptureError> {
        self.scratch.resize(length, 0);
        self.file
            .seek(SeekFrom::Start(self.data_start + offset as u64))
            .and_then(|_| self.file.read_exact(&mut self.scratch))
            .map_err(|source| CaptureError::io(&self.path, source))?;
        Ok(&self.scratch)
    }

    /// An error about one field of this file.
    pub(super) fn wrong(&self, field: &str, value: impl ToString, expected: impl ToString) -> CaptureError {
        CaptureError::field(&self.path, field, value, expected)
    }
}
