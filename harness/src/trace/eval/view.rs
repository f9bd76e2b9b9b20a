//! A tensor's values out of bytes, wherever its strides say that they lie.

use super::super::graph::TensorInfo;
use super::EvalError;
use model_file::TensorType;

/// A tensor's shape over the bytes of its root.
pub struct View<'a> {
    /// Its type.
    pub ty: TensorType,
    /// Elements per dimension, fastest first.
    pub ne: [usize; 4],
    nb: [usize; 4],
    offset: usize,
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// `info` over `bytes`, those of its root from the first one on.
    ///
    /// # Errors
    /// A type that this program cannot read, or strides that lead beyond the bytes.
    pub fn new(info: &TensorInfo, bytes: &'a [u8]) -> Result<Self, EvalError> {
        let ty = info
            .tensor_type()
            .ok_or_else(|| EvalError::lacks(info, format!("values of {}", info.type_name())))?;
        let blocks = ty.block_len() > 1;
        let row = if blocks {
            let in_order = info.nb[0] as u64 == ty.block_bytes();
            ty.row_bytes(info.ne[0] as u64).filter(|_| in_order).and_then(|n| usize::try_from(n).ok())
        } else {
            let size = usize::try_from(ty.block_bytes()).unwrap_or(usize::MAX);
            info.ne[0].checked_sub(1).and_then(|last| last.checked_mul(info.nb[0])?.checked_add(size))
        };
        let last = (1..4).try_fold(info.offset, |at, d| {
            at.checked_add(info.ne[d].checked_sub(1)?.checked_mul(info.nb[d])?)
        });
        let end = row.and_then(|row| last?.checked_add(row));
        if end.is_none_or(|end| end > bytes.len()) {
            return Err(EvalError::Malformed(format!(
                "`{}`: {} {:?} with strides {:?} from {} on is not within {} bytes",
                info.name,
                info.type_name(),
                info.ne,
                info.nb,
                info.offset,
                bytes.len()
            )));
        }
        Ok(Self { ty, ne: info.ne, nb: info.nb, offset: info.offset, bytes })
    }

    /// Rows: all but the first dimension.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// The values of a row, the rows counted in the order of the elements.
    ///
    /// # Errors
    /// A block format that this program cannot read.
    pub fn row(&self, row: usize) -> Result<Vec<f64>, EvalError> {
        let (i1, i2, i3) = (row % self.ne[1], row / self.ne[1] % self.ne[2], row / (self.ne[1] * self.ne[2]));
        let start = self.offset + i1 * self.nb[1] + i2 * self.nb[2] + i3 * self.nb[3];
        let n = self.ne[0];
        let each = |size: usize| (0..n).map(move |i| &self.bytes[start + i * self.nb[0]..][..size]);
        Ok(match self.ty {
            TensorType::F32 => each(4).map(|b| f64::from(f32::from_le_bytes(four(b)))).collect(),
            TensorType::F16 => each(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
            TensorType::BF16 => each(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
            TensorType::I32 => each(4).map(|b| f64::from(i32::from_le_bytes(four(b)))).collect(),
            TensorType::I64 => {
                each(8).map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")) as f64).collect()
            }
            ty => {
                let len = usize::try_from(ty.row_bytes(n as u64).unwrap_or(0)).unwrap_or(0);
                let mut values = vec![0f32; n];
                model_file::dequantize(ty, &self.bytes[start..][..len], &mut values)?;
                values.into_iter().map(f64::from).collect()
            }
        })
    }

    /// All values in the order of the elements.
    ///
    /// # Errors
    /// As [`row`](Self::row).
    pub fn values(&self) -> Result<Vec<f64>, EvalError> {
        let mut all = Vec::with_capacity(self.ne[0] * self.rows());
        for row in 0..self.rows() {
            all.extend(self.row(row)?);
        }
        Ok(all)
    }
}

fn four(bytes: &[u8]) -> [u8; 4] {
    bytes.try_into().expect("four bytes")
}
