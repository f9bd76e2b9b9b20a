//! Parsing the header: everything up to the tensor data, from any byte stream of known length.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::value::ARRAY_ID;
use super::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, MAX_DIMS, MAX_KEY, MAX_STRING, MAX_TENSOR_NAME, Metadata,
    TensorInfo, Value, alignment_fault, measure,
};
use crate::TensorType;
use crate::error::{Error, ErrorKind, quoted};

/// The fewest bytes a metadata entry takes: key length, one character, type, one byte.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;
/// The fewest bytes a tensor's entry takes: name length, one character, dimensions, one extent, type, offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Elements reserved at once when a count comes from the file; more are grown as they arrive.
const RESERVE: u64 = 4096;

/// What a header says, checked.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) alignment: u64,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) by_name: HashMap<String, usize>,
    /// Where the tensor data begins.
    pub(super) data_start: u64,
}

/// A tensor's entry before its place in the file is known.
struct RawTensor {
    name: String,
    shape: Vec<u64>,
    ty: TensorType,
    bytes: u64,
    /// From the start of the tensor data.
    offset: u64,
    /// Where the `offset` field stands.
    offset_at: u64,
}

impl Header {
    /// Reads a header from a stream of `len` bytes. `path` is for messages only.
    pub(super) fn read(stream: impl Read, len: u64, path: &Path) -> Result<Self, Error> {
        let file: Arc<Path> = Arc::from(path);
        let mut input = Input { stream, at: 0, len };
        parse(&mut input, Metadata::for_file(file)).map_err(|e| e.file(path))
    }
}

fn parse<R: Read>(input: &mut Input<R>, mut metadata: Metadata) -> Result<Header, Error> {
    check_magic(input)?;
    let version = check_version(input)?;
    let n_tensors = count(input, "tensor_count", MIN_TENSOR)?;
    let n_entries = count(input, "metadata_kv_count", MIN_ENTRY)?;

    for i in 0..n_entries {
        read_entry(input, i, &mut metadata)?;
    }
    let alignment = match metadata.opt_u32(ALIGNMENT_KEY)? {
        None => DEFAULT_ALIGNMENT,
        Some(a) => match alignment_fault(a) {
            Some(fault) => return Err(metadata.fault(ALIGNMENT_KEY, fault)),
            None => u64::from(a),
        },
    };

    let mut raw = Vec::with_capacity(n_tensors.min(RESERVE) as usize);
    let mut by_name = HashMap::new();
    for i in 0..n_tensors {
        let at = input.at;
        let tensor = read_tensor(input, i)?;
        if by_name.insert(tensor.name.clone(), raw.len()).is_some() {
            return Err(Error::malformed("the name occurs twice")
                .field(format!("tensor[{i}].name"))
                .value(quoted(&tensor.name))
                .offset(at));
        }
        raw.push(tensor);
    }

    let data_start = input.at.checked_next_multiple_of(alignment).ok_or_else(|| {
        Error::malformed("the start of the tensor data overflows").field(ALIGNMENT_KEY).value(alignment)
    })?;
    let tensors = place(raw, data_start, alignment, input.len)?;
    Ok(Header { version, alignment, metadata, tensors, by_name, data_start })
}

fn check_magic<R: Read>(input: &mut Input<R>) -> Result<(), Error> {
    let mut start = [0u8; 64];
    let n = input.len.min(4) as usize;
    input.fill(&mut start[..n], "magic")?;
    if &start[..n] == b"GGUF" {
        return Ok(());
    }
    let rest = (input.left() as usize).min(start.len() - n);
    input.fill(&mut start[n..n + rest], "magic")?;
    let start = &start[..n + rest];
    Err(Error::new(ErrorKind::NotGguf, what_it_is(start))
        .field("magic")
        .value(start[..n].escape_ascii())
        .offset(0u64))
}

/// What a file that does not begin with `GGUF` seems to be.
fn what_it_is(start: &[u8]) -> &'static str {
    let text = String::from_utf8_lossy(start).to_lowercase();
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    match start {
        [] => "the file is empty",
        _ if ["<!doctype", "<html", "<?xml", "<head", "<body", "<!--"]
            .iter()
            .any(|p| text.starts_with(p)) =>
        {
            "not a GGUF file: this looks like a web page; the download returned a page instead of the model"
        }
        _ if text.starts_with("version https://git-lfs") => {
            "not a GGUF file: this is a Git LFS pointer; the model itself was not downloaded"
        }
        [b'F', b'U', b'G', b'G', ..] => "not a GGUF file: the magic is byte-swapped",
        [b'l' | b't' | b'f', b'j' | b'm', b'g', b'g', ..] => {
            "not a GGUF file: this is an older ggml format; convert it again"
        }
        [b'P', b'K', 3, 4, ..] => "not a GGUF file: this is a ZIP archive",
        [_, _, _, _, _, _, _, _, b'{', ..] => "not a GGUF file: this looks like safetensors",
        [b'G', b'G', b'U'] | [b'G', b'G'] | [b'G'] => "the file is cut short inside the magic",
        _ => "not a GGUF file: it must begin with \"GGUF\"",
    }
}

fn check_version<R: Read>(input: &mut Input<R>) -> Result<u32, Error> {
    let at = input.at;
    let version = u32::from_le_bytes(input.array("version")?);
    let fault = match version {
        2 | 3 => return Ok(version),
        1 => "GGUF version 1 has 32-bit counts and is not read; 2 and 3 are",
        0 => "there is no GGUF version 0; 2 and 3 are read",
        v if (1..=0xFFFF).contains(&v.swap_bytes()) => "the file is big-endian; only little-endian is read",
        _ => "unknown GGUF version; 2 and 3 are read",
    };
    Err(Error::new(ErrorKind::Version, fault).field("version").value(version).offset(at))
}

/// A count that needs at least `min` bytes an item.
fn count<R: Read>(input: &mut Input<R>, field: &str, min: u64) -> Result<u64, Error> {
    let at = input.at;
    let n = u64::from_le_bytes(input.array(field)?);
    let left = input.left();
    if n > left / min {
        return Err(Error::malformed(format!(
            "at least {min} bytes each, but only {left} are left in the file"
        ))
        .field(field)
        .value(n)
        .offset(at));
    }
    Ok(n)
}

fn read_entry<R: Read>(input: &mut Input<R>, i: u64, metadata: &mut Metadata) -> Result<(), Error> {
    let at = input.at;
    let key = input.string(&|| format!("metadata[{i}].key"), MAX_KEY)?;
    if key.is_empty() {
        return Err(Error::malformed("the key is empty")
            .field(format!("metadata[{i}].key"))
            .value(quoted(&key))
            .offset(at));
    }
    if metadata.contains(&key) {
        return Err(Error::malformed("the key occurs twice")
            .field(format!("metadata[{i}].key"))
            .value(quoted(&key))
            .offset(at));
    }
    let type_at = input.at;
    let type_id = u32::from_le_bytes(input.array(&key)?);
    let value_at = input.at;
    let value = if type_id == ARRAY_ID {
        Value::Array(read_array(input, &key)?)
    } else {
        read_scalar(input, &key, type_id)?.ok_or_else(|| {
            Error::malformed("unknown value type")
                .field(format!("{key} (type)"))
                .value(type_id)
                .offset(type_at)
        })?
    };
    metadata.put(key, value, Some(value_at));
    Ok(())
}

/// One value that is not an array; `None` for an unknown type.
fn read_scalar<R: Read>(input: &mut Input<R>, key: &str, type_id: u32) -> Result<Option<Value>, Error> {
    Ok(Some(match type_id {
        0 => Value::U8(u8::from_le_bytes(input.array(key)?)),
        1 => Value::I8(i8::from_le_bytes(input.array(key)?)),
        2 => Value::U16(u16::from_le_bytes(input.array(key)?)),
        3 => Value::I16(i16::from_le_bytes(input.array(key)?)),
        4 => Value::U32(u32::from_le_bytes(input.array(key)?)),
        5 => Value::I32(i32::from_le_bytes(input.array(key)?)),
        6 => Value::F32(f32::from_le_bytes(input.array(key)?)),
        7 => Value::Bool(input.bool(key)?),
        8 => Value::Str(input.string(&|| key.to_string(), MAX_STRING)?),
        10 => Value::U64(u64::from_le_bytes(input.array(key)?)),
        11 => Value::I64(i64::from_le_bytes(input.array(key)?)),
        12 => Value::F64(f64::from_le_bytes(input.array(key)?)),
        _ => return Ok(None),
    }))
}

fn read_array<R: Read>(input: &mut Input<R>, key: &str) -> Result<Array, Error> {
    let type_at = input.at;
    let type_id = u32::from_le_bytes(input.array(key)?);
    let element_bytes = match type_id {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        _ => {
            let message = if type_id == ARRAY_ID {
                "arrays of arrays are not supported"
            } else {
                "unknown element type"
            };
            return Err(Error::malformed(message)
                .field(format!("{key} (element type)"))
                .value(type_id)
                .offset(type_at));
        }
    };
    let n = count(input, &format!("{key} (length)"), element_bytes)?;

    macro_rules! numbers {
        ($variant:ident, $rust:ty) => {{
            let mut values = Vec::with_capacity(n.min(RESERVE) as usize);
            for _ in 0..n {
                values.push(<$rust>::from_le_bytes(input.array(key)?));
            }
            Array::$variant(values)
        }};
    }
    Ok(match type_id {
        0 => numbers!(U8, u8),
        1 => numbers!(I8, i8),
        2 => numbers!(U16, u16),
        3 => numbers!(I16, i16),
        4 => numbers!(U32, u32),
        5 => numbers!(I32, i32),
        6 => numbers!(F32, f32),
        7 => Array::Bool((0..n).map(|_| input.bool(key)).collect::<Result<_, _>>()?),
        10 => numbers!(U64, u64),
        11 => numbers!(I64, i64),
        12 => numbers!(F64, f64),
        _ => {
            let mut values = Vec::with_capacity(n.min(RESERVE) as usize);
            for i in 0..n {
                values.push(input.string(&|| format!("{key}[{i}]"), MAX_STRING)?);
            }
            Array::Str(values)
        }
    })
}

fn read_tensor<R: Read>(input: &mut Input<R>, i: u64) -> Result<RawTensor, Error> {
    let name_at = input.at;
    let name = input.string(&|| format!("tensor[{i}].name"), MAX_TENSOR_NAME)?;
    if name.is_empty() {
        return Err(Error::malformed("the name is empty").field(format!("tensor[{i}].name")).offset(name_at));
    }
    let field = |what: &str| format!("{name} ({what})");

    let at = input.at;
    let n_dims = u32::from_le_bytes(input.array(&field("dimensions"))?);
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(Error::malformed(format!("a tensor has 1 to {MAX_DIMS} dimensions"))
            .field(field("dimensions"))
            .value(n_dims)
            .offset(at));
    }
    let shape_at = input.at;
    let mut shape = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        shape.push(u64::from_le_bytes(input.array(&field("shape"))?));
    }
    let at = input.at;
    let id = u32::from_le_bytes(input.array(&field("type"))?);
    let ty = TensorType::from_id(id).ok_or_else(|| {
        let message = if TensorType::was_removed(id) {
            "this tensor type was removed from ggml"
        } else {
            "unknown tensor type"
        };
        Error::malformed(message).field(field("type")).value(id).offset(at)
    })?;
    let (_, bytes) = measure(&shape, ty).map_err(|fault| {
        Error::malformed(fault).field(field("shape")).value(format!("{shape:?} {ty}")).offset(shape_at)
    })?;
    let offset_at = input.at;
    let offset = u64::from_le_bytes(input.array(&field("offset"))?);
    Ok(RawTensor { name, shape, ty, bytes, offset, offset_at })
}

/// Turns relative offsets into places in the file: aligned, inside it, not overlapping.
fn place(raw: Vec<RawTensor>, data_start: u64, alignment: u64, len: u64) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors = Vec::with_capacity(raw.len());
    for t in &raw {
        let fault = |message: String| {
            Error::malformed(message)
                .field(format!("{} (offset)", t.name))
                .value(t.offset)
                .offset(t.offset_at)
        };
        if !t.offset.is_multiple_of(alignment) {
            return Err(fault(format!("not a multiple of the alignment {alignment}")));
        }
        let start = data_start.checked_add(t.offset);
        let Some((start, end)) = start.and_then(|s| Some((s, s.checked_add(t.bytes)?))) else {
            return Err(fault("the tensor's place in the file overflows".to_string()));
        };
        if end > len {
            return Err(fault(format!(
                "the tensor's data is bytes {start} to {end}, but the file has only {len}: {}",
                if start >= len {
                    "the offset lies past its end, or the file is cut short"
                } else {
                    "the file is cut short"
                }
            )));
        }
        tensors.push(TensorInfo {
            name: t.name.clone(),
            shape: t.shape.clone(),
            ty: t.ty,
            offset: start,
            bytes: t.bytes,
        });
    }

    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| tensors[i].offset);
    for pair in order.windows(2) {
        let (a, b) = (&tensors[pair[0]], &tensors[pair[1]]);
        if a.offset + a.bytes > b.offset {
            let t = &raw[pair[1]];
            return Err(Error::malformed(format!(
                "overlaps the data of {}, bytes {} to {}",
                a.name,
                a.offset,
                a.offset + a.bytes
            ))
            .field(format!("{} (offset)", t.name))
            .value(t.offset)
            .offset(t.offset_at));
        }
    }
    Ok(tensors)
}

/// A byte stream that knows where it is and how much is left.
struct Input<R> {
    stream: R,
    at: u64,
    len: u64,
}

impl<R: Read> Input<R> {
    fn left(&self) -> u64 {
        self.len - self.at
    }

    fn need(&self, n: u64, field: &str) -> Result<(), Error> {
        if n > self.left() {
            return Err(Error::malformed(format!(
                "needs {n} more bytes, but only {} are left: the file is cut short",
                self.left()
            ))
            .field(field)
            .offset(self.at));
        }
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8], field: &str) -> Result<(), Error> {
        self.need(out.len() as u64, field)?;
        self.stream.read_exact(out).map_err(|e| Error::io("cannot read", &e).field(field).offset(self.at))?;
        self.at += out.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        self.fill(&mut out, field)?;
        Ok(out)
    }

    fn bool(&mut self, field: &str) -> Result<bool, Error> {
        let at = self.at;
        match self.array(field)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(Error::malformed("a bool is 0 or 1").field(field).value(other).offset(at)),
        }
    }

    /// A length and that many bytes of UTF-8. The name of the field is made only for an error.
    fn string(&mut self, field: &dyn Fn() -> String, max: u64) -> Result<String, Error> {
        let at = self.at;
        if self.left() < 8 {
            self.need(8, &field())?;
        }
        let n = u64::from_le_bytes(self.array("")?);
        if n > self.left() {
            return Err(Error::malformed(format!(
                "this length is beyond the end of the file: {} bytes are left",
                self.left()
            ))
            .field(format!("{} (length)", field()))
            .value(n)
            .offset(at));
        }
        if n > max {
            return Err(Error::malformed(format!("longer than {max} bytes"))
                .field(format!("{} (length)", field()))
                .value(n)
                .offset(at));
        }
        let mut bytes = Vec::new();
        let got = self
            .stream
            .by_ref()
            .take(n)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::io("cannot read", &e).field(field()).offset(self.at))?;
        if got as u64 != n {
            return Err(Error::malformed("the file became shorter while it was read")
                .field(field())
                .offset(at));
        }
        self.at += n;
        String::from_utf8(bytes).map_err(|e| {
            Error::malformed("not UTF-8")
                .field(field())
                .value(quoted(&String::from_utf8_lossy(e.as_bytes())))
                .offset(at + 8 + e.utf8_error().valid_up_to() as u64)
        })
    }
}
