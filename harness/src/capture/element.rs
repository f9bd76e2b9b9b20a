//! Elements as they lie in a file, little endian.

use safetensors::Dtype;

/// Floats that captures are written in: F32 by ggml's arms, F64 by the oracle.
pub trait Float: Copy {
    /// The type in the file.
    #[doc(hidden)]
    const DTYPE: Dtype;

    /// Appends the value, little endian.
    #[doc(hidden)]
    fn write(self, out: &mut Vec<u8>);
}

impl Float for f32 {
    const DTYPE: Dtype = Dtype::F32;

    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Float for f64 {
    const DTYPE: Dtype = Dtype::F64;

    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

/// Whether values of this type are read as floats.
pub(super) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Bytes of one element of a type that [`floats`] or [`integers`] take.
pub(super) fn width(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

/// Appends the floats in `bytes` to `out`; `dtype` must satisfy [`is_float`].
pub(super) fn floats(dtype: Dtype, bytes: &[u8], out: &mut Vec<f64>) {
    match dtype {
        Dtype::F64 => out.extend(arrays(bytes).map(f64::from_le_bytes)),
        Dtype::F32 => out.extend(arrays(bytes).map(|b| f64::from(f32::from_le_bytes(b)))),
        Dtype::F16 => out.extend(arrays(bytes).map(|b| half::f16::from_le_bytes(b).to_f64())),
        Dtype::BF16 => out.extend(arrays(bytes).map(|b| half::bf16::from_le_bytes(b).to_f64())),
        other => unreachable!("{other:?} is not a float type"),
    }
}

/// The integers in `bytes`, or `None` for a type other than I32 and I64 or a value beyond 32 bits.
pub(super) fn integers(dtype: Dtype, bytes: &[u8]) -> Option<Vec<i32>> {
    match dtype {
        Dtype::I32 => Some(arrays(bytes).map(i32::from_le_bytes).collect()),
        Dtype::I64 => arrays(bytes).map(|b| i32::try_from(i64::from_le_bytes(b)).ok()).collect(),
        _ => None,
    }
}

/// `bytes` cut into arrays of `N`.
fn arrays<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}
