//! The GGUF container: metadata and tensor table in, metadata and tensors out.
//!
//! Reading takes the header through a small buffer and checks every count, length and offset against
//! the bytes that are left before anything is allocated. Tensor data is mapped on demand
//! ([`GgufFile::map`], [`GgufFile::chunks`]), never read as a whole.

mod header;
mod map;
mod reader;
#[cfg(test)]
mod tests;
mod value;
mod writer;

pub use map::Mapped;
pub use reader::{Chunks, GgufFile, TensorInfo};
pub use value::{Array, Metadata, Value};
pub use writer::GgufWriter;

/// Data alignment where `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Metadata key of the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The largest alignment accepted, 1 MiB: larger ones have no use and make huge holes.
const MAX_ALIGNMENT: u32 = 1 << 20;

/// Longest tensor name in bytes: ggml keeps 64 with the terminating zero.
const MAX_TENSOR_NAME: u64 = 63;

/// Longest metadata key in bytes.
const MAX_KEY: u64 = 65_535;

/// Longest string value in bytes; ggml has the same limit.
const MAX_STRING: u64 = 1 << 30;

/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// Why an alignment cannot be, if it cannot.
fn alignment_fault(alignment: u32) -> Option<String> {
    (!alignment.is_power_of_two() || alignment > MAX_ALIGNMENT)
        .then(|| format!("must be a power of two from 1 to {MAX_ALIGNMENT}"))
}

/// Elements and bytes of a shape, or the reason why it cannot be.
fn measure(shape: &[u64], ty: crate::TensorType) -> Result<(u64, u64), String> {
    let mut elements = 1u64;
    for (i, &n) in shape.iter().enumerate() {
        if n == 0 {
            return Err(format!("dimension {i} is 0"));
        }
        elements = elements
            .checked_mul(n)
            .filter(|&e| i64::try_from(e).is_ok())
            .ok_or_else(|| "the number of elements overflows".to_string())?;
    }
    let row = ty.row_bytes(shape[0]).ok_or_else(|| {
        format!("a row of {} is not a multiple of {}'s block of {}", shape[0], ty, ty.block_len())
    })?;
    let bytes = row
        .checked_mul(elements / shape[0])
        .filter(|&b| i64::try_from(b).is_ok())
        .ok_or_else(|| "the size in bytes overflows".to_string())?;
    Ok((elements, bytes))
}
