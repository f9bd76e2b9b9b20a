//! Writing a GGUF file: declare metadata and tensors, then write it all at once.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, MAX_DIMS, MAX_KEY, MAX_STRING, MAX_TENSOR_NAME, Metadata, Value,
    alignment_fault, measure,
};
use crate::TensorType;
use crate::error::{Error, quoted};

/// Version written.
const VERSION: u32 = 3;

type Source<'a> = Box<dyn FnOnce(&mut dyn Write) -> Result<(), Error> + 'a>;

struct Pending<'a> {
    name: String,
    shape: Vec<u64>,
    ty: TensorType,
    source: Source<'a>,
}

/// Collects metadata and tensors and writes a version 3 file.
///
/// Tensor data comes from closures that are called one after the other while the file is written, so a
/// large model never lies in memory as a whole.
///
/// ```
/// # use model_file::{GgufWriter, TensorType};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.gguf");
/// GgufWriter::new()
///     .metadata("general.architecture", "llama")
///     .tensor_bytes("output_norm.weight", &[2], TensorType::F32, vec![0; 8])
///     .write(&path)?;
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct GgufWriter<'a> {
    metadata: Metadata,
    tensors: Vec<Pending<'a>>,
}

impl<'a> GgufWriter<'a> {
    /// A writer with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metadata key. The key `general.alignment` also sets the alignment.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.insert(key, value);
        self
    }

    /// Takes over all keys of a table, in its order.
    pub fn all_metadata(mut self, metadata: &Metadata) -> Self {
        for (key, value) in metadata.iter() {
            self.metadata.insert(key, value.clone());
        }
        self
    }

    /// Sets the alignment of the tensor data, a power of two.
    pub fn alignment(self, alignment: u32) -> Self {
        self.metadata(ALIGNMENT_KEY, alignment)
    }

    /// Adds a tensor whose bytes `source` writes; it must write exactly as many as shape and type say.
    /// The shape is in ggml's order, the fastest extent first.
    pub fn tensor<F>(mut self, name: impl Into<String>, shape: &[u64], ty: TensorType, source: F) -> Self
    where
        F: FnOnce(&mut dyn Write) -> Result<(), Error> + 'a,
    {
        self.tensors.push(Pending { name: name.into(), shape: shape.to_vec(), ty, source: Box::new(source) });
        self
    }

    /// Adds a tensor whose bytes are at hand.
    pub fn tensor_bytes(
        self,
        name: impl Into<String>,
        shape: &[u64],
        ty: TensorType,
        bytes: impl Into<Vec<u8>>,
    ) -> Self {
        let bytes = bytes.into();
        self.tensor(name, shape, ty, move |out| {
            out.write_all(&bytes).map_err(|e| Error::io("cannot write", &e))
        })
    }

    /// Writes the file under a temporary name beside `path` and renames it when it is complete: whoever
    /// opens `path` sees the old file or the whole new one.
    pub fn write(self, path: &Path) -> Result<(), Error> {
        let temporary = Temporary::create(path)?;
        let mut out = BufWriter::with_capacity(1 << 20, &temporary.file);
        self.write_to(&mut out).map_err(|e| e.file(path))?;
        out.flush().map_err(|e| Error::io("cannot write", &e).file(path))?;
        drop(out);
        temporary.rename_to(path)
    }

    /// Writes the same bytes to any stream.
    pub fn write_to(self, out: &mut dyn Write) -> Result<(), Error> {
        let (alignment, sizes) = self.check()?;
        let mut out = Counted { out, written: 0 };

        out.put(b"GGUF")?;
        out.put(&VERSION.to_le_bytes())?;
        out.put(&(self.tensors.len() as u64).to_le_bytes())?;
        out.put(&(self.metadata.len() as u64).to_le_bytes())?;
        for (key, value) in self.metadata.iter() {
            out.string(key)?;
            out.put(&value.type_id().to_le_bytes())?;
            write_value(&mut out, value)?;
        }
        let mut offset = 0u64;
        for (tensor, &bytes) in self.tensors.iter().zip(&sizes) {
            out.string(&tensor.name)?;
            out.put(&(tensor.shape.len() as u32).to_le_bytes())?;
            for n in &tensor.shape {
                out.put(&n.to_le_bytes())?;
            }
            out.put(&tensor.ty.id().to_le_bytes())?;
            out.put(&offset.to_le_bytes())?;
            offset = offset
                .checked_add(bytes)
                .and_then(|o| o.checked_next_multiple_of(alignment))
                .ok_or_else(|| Error::request("the file's size overflows").field(&tensor.name))?;
        }
        for (tensor, bytes) in self.tensors.into_iter().zip(sizes) {
            out.pad(alignment)?;
            let start = out.written;
            (tensor.source)(&mut out).map_err(|e| match e.field_name() {
                None => e.field(&tensor.name),
                Some(_) => e,
            })?;
            let written = out.written - start;
            if written != bytes {
                return Err(Error::request(format!("{written} bytes were written, {bytes} are needed"))
                    .field(tensor.name)
                    .value(format!("{:?} {}", tensor.shape, tensor.ty)));
            }
        }
        out.pad(alignment)
    }

    /// Checks everything the reader would refuse; gives the alignment and each tensor's size.
    fn check(&self) -> Result<(u64, Vec<u64>), Error> {
        let alignment = match self.metadata.opt_u32(ALIGNMENT_KEY)? {
            None => DEFAULT_ALIGNMENT,
            Some(a) => match alignment_fault(a) {
                Some(fault) => return Err(self.metadata.fault(ALIGNMENT_KEY, fault)),
                None => u64::from(a),
            },
        };
        for (key, value) in self.metadata.iter() {
            if key.is_empty() || key.len() as u64 > MAX_KEY {
                return Err(Error::request(format!("a key has 1 to {MAX_KEY} bytes"))
                    .field("key")
                    .value(quoted(key)));
            }
            let longest = match value {
                Value::Str(s) => s.len(),
                Value::Array(Array::Str(v)) => v.iter().map(String::len).max().unwrap_or(0),
                _ => 0,
            };
            if longest as u64 > MAX_STRING {
                return Err(Error::request(format!("a string has at most {MAX_STRING} bytes")).field(key));
            }
        }
        let mut names = HashSet::new();
        let mut sizes = Vec::with_capacity(self.tensors.len());
        for t in &self.tensors {
            let fault = |message: String| Error::request(message).field(quoted(&t.name));
            if t.name.is_empty() || t.name.len() as u64 > MAX_TENSOR_NAME {
                return Err(fault(format!("a tensor's name has 1 to {MAX_TENSOR_NAME} bytes")));
            }
            if !names.insert(&t.name) {
                return Err(fault("the tensor is there twice".to_string()));
            }
            if t.shape.is_empty() || t.shape.len() > MAX_DIMS as usize {
                return Err(
                    fault(format!("a tensor has 1 to {MAX_DIMS} dimensions")).value(format!("{:?}", t.shape))
                );
            }
            let (_, bytes) = measure(&t.shape, t.ty)
                .map_err(|message| fault(message).value(format!("{:?} {}", t.shape, t.ty)))?;
            sizes.push(bytes);
        }
        Ok((alignment, sizes))
    }
}

fn write_value(out: &mut Counted<'_>, value: &Value) -> Result<(), Error> {
    macro_rules! numbers {
        ($values:expr) => {
            for v in $values {
                out.put(&v.to_le_bytes())?;
            }
        };
    }
    match value {
        Value::U8(v) => out.put(&v.to_le_bytes())?,
        Value::I8(v) => out.put(&v.to_le_bytes())?,
        Value::U16(v) => out.put(&v.to_le_bytes())?,
        Value::I16(v) => out.put(&v.to_le_bytes())?,
        Value::U32(v) => out.put(&v.to_le_bytes())?,
        Value::I32(v) => out.put(&v.to_le_bytes())?,
        Value::F32(v) => out.put(&v.to_le_bytes())?,
        Value::Bool(v) => out.put(&[u8::from(*v)])?,
        Value::Str(v) => out.string(v)?,
        Value::U64(v) => out.put(&v.to_le_bytes())?,
        Value::I64(v) => out.put(&v.to_le_bytes())?,
        Value::F64(v) => out.put(&v.to_le_bytes())?,
        Value::Array(array) => {
            out.put(&array.type_id().to_le_bytes())?;
            out.put(&(array.len() as u64).to_le_bytes())?;
            match array {
                Array::U8(v) => out.put(v)?,
                Array::I8(v) => numbers!(v),
                Array::U16(v) => numbers!(v),
                Array::I16(v) => numbers!(v),
                Array::U32(v) => numbers!(v),
                Array::I32(v) => numbers!(v),
                Array::F32(v) => numbers!(v),
                Array::Bool(v) => {
                    for &b in v {
                        out.put(&[u8::from(b)])?;
                    }
                }
                Array::Str(v) => {
                    for s in v {
                        out.string(s)?;
                    }
                }
                Array::U64(v) => numbers!(v),
                Array::I64(v) => numbers!(v),
                Array::F64(v) => numbers!(v),
            }
        }
    }
    Ok(())
}

/// A stream that counts what went through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Counted<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_all(bytes).map_err(|e| Error::io("cannot write", &e))
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.put(&(text.len() as u64).to_le_bytes())?;
        self.put(text.as_bytes())
    }

    fn pad(&mut self, alignment: u64) -> Result<(), Error> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut missing = self.written.next_multiple_of(alignment) - self.written;
        while missing > 0 {
            let n = missing.min(ZEROS.len() as u64);
            self.put(&ZEROS[..n as usize])?;
            missing -= n;
        }
        Ok(())
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A file under a temporary name, removed unless it is renamed.
struct Temporary {
    file: File,
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    fn create(target: &Path) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(name) = target.file_name() else {
            return Err(Error::request("not a file name").file(target));
        };
        loop {
            let mut own = std::ffi::OsString::from(".");
            own.push(name);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            own.push(format!(".{}-{number}.partial", std::process::id()));
            let path = target.with_file_name(own);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path, renamed: false }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("cannot create", &e).file(target)),
            }
        }
    }

    fn rename_to(mut self, target: &Path) -> Result<(), Error> {
        fs::rename(&self.path, target).map_err(|e| Error::io("cannot rename into place", &e).file(target))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}
