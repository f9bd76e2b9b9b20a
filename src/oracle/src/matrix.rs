//! Weight matrices as they lie in the file, and their product with rows of f64.
//!
//! A matrix stays mapped in its own format: a 7B model in Q4_K needs the size of its file, not 60 GB. Each
//! task decodes a few rows of weights to f64, uses them for every row of activations, and forgets them.

use std::ops::Range;

use model_file::gguf::Mapped;
use model_file::{Model, TensorType, dequantize, quant};
use rayon::prelude::*;

use crate::Error;

/// Weight rows that one task decodes: 16 rows of 1536 are 192 KiB, a good half of a small second-level cache.
const BLOCK: usize = 16;
/// Rows of activations and of weights in one tile.
const TILE: (usize, usize) = (2, 4);

/// The dot products of `R` rows with `C` rows, all of one length.
///
/// Each is summed in two lanes, elements with even and with odd index, added at the end. The order depends on
/// nothing but the length, so a product is the same in a tile of any size.
#[inline(always)]
pub(crate) fn products<const R: usize, const C: usize>(x: [&[f64]; R], w: [&[f64]; C]) -> [[f64; C]; R] {
    let len = w[0].len();
    let pairs = len / 2;
    let xs = x.map(|r| &r[..len].as_chunks::<2>().0[..pairs]);
    let ws = w.map(|r| &r[..len].as_chunks::<2>().0[..pairs]);
    let mut lanes = [[[0.0f64; 2]; C]; R];
    for p in 0..pairs {
        for i in 0..R {
            for j in 0..C {
                lanes[i][j][0] += xs[i][p][0] * ws[j][p][0];
                lanes[i][j][1] += xs[i][p][1] * ws[j][p][1];
            }
        }
    }
    let mut out = [[0.0; C]; R];
    for i in 0..R {
        for j in 0..C {
            let [mut even, odd] = lanes[i][j];
            if len % 2 == 1 {
                even += x[i][len - 1] * w[j][len - 1];
            }
            out[i][j] = even + odd;
        }
    }
    out
}

/// A weight matrix `[rows, cols]`: `rows` outputs of `cols` inputs each, row-major.
#[derive(Debug)]
pub(crate) struct Matrix {
    data: Mapped,
    ty: TensorType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl Matrix {
    /// The tensor `name`, which [`Model::open`] has checked; `None` if the file has none.
    ///
    /// # Errors
    /// A type whose values are not known here, or a file that cannot be mapped.
    pub(crate) fn open(model: &Model, name: &str) -> Result<Option<Self>, Error> {
        let Some(info) = model.file.tensor(name) else { return Ok(None) };
        if !quant::supported().any(|ty| ty == info.ty) {
            return Err(Error::Unsupported(format!(
                "{name}: values of type {} are not implemented",
                info.ty
            )));
        }
        let size = |n: u64| usize::try_from(n).expect("a mapped tensor fits the address space");
        let data = model.file.map(info)?;
        let (rows, cols) = (size(info.rows()), size(info.shape[0]));
        Ok(Some(Self { row_bytes: data.len() / rows, data, ty: info.ty, rows, cols }))
    }

    /// All values, `[rows * cols]`.
    pub(crate) fn values(&self) -> Result<Vec<f64>, Error> {
        let mut out = vec![0.0; self.rows * self.cols];
        self.decode(0, &mut out, &mut Vec::new())?;
        Ok(out)
    }

    /// The values of the whole rows from `first` on that `out` has room for.
    pub(crate) fn decode(&self, first: usize, out: &mut [f64], scratch: &mut Vec<f32>) -> Result<(), Error> {
        let rows = out.len() / self.cols;
        let bytes = &self.data[first * self.row_bytes..(first + rows) * self.row_bytes];
        match self.ty {
            // The plain types go without the detour.
            TensorType::F32 => {
                for (out, &b) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f64::from(f32::from_le_bytes(b));
                }
            }
            TensorType::F16 => {
                for (out, &b) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = from_f16(u16::from_le_bytes(b));
                }
            }
            TensorType::BF16 => {
                for (out, &b) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16));
                }
            }
            ty => {
                scratch.resize(out.len(), 0.0);
                dequantize(ty, bytes, scratch)?;
                for (out, &x) in out.iter_mut().zip(scratch.iter()) {
                    *out = f64::from(x);
                }
            }
        }
        Ok(())
    }

    /// Rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// `p` `[n, rows]` times this: `[n, cols]`, summed from the first row to the last.
    pub(crate) fn mix(&self, p: &[f64]) -> Result<Vec<f64>, Error> {
        let mut out = vec![0.0; p.len() / self.rows * self.cols];
        let (mut weights, mut scratch) = (Vec::new(), Vec::new());
        for first in (0..self.rows).step_by(BLOCK) {
            let rows = BLOCK.min(self.rows - first);
            weights.resize(rows * self.cols, 0.0);
            self.decode(first, &mut weights, &mut scratch)?;
            out.par_chunks_mut(self.cols).zip(p.par_chunks(self.rows)).for_each(|(out, p)| {
                for (row, p) in weights.chunks_exact(self.cols).zip(&p[first..]) {
                    for (out, w) in out.iter_mut().zip(row) {
                        *out += p * w;
                    }
                }
            });
        }
        Ok(out)
    }

    /// `x` `[n, cols]` times the transpose, plus `bias` `[rows]`: `[n, rows]`.
    pub(crate) fn apply(&self, x: &[f64], bias: Option<&[f64]>) -> Result<Vec<f64>, Error> {
        self.apply_rows(0..self.rows, x, bias)
    }

    /// The same with matrix `i` of the `count` equal ones that lie in the rows one after the other.
    pub(crate) fn apply_one(&self, i: usize, count: usize, x: &[f64]) -> Result<Vec<f64>, Error> {
        let rows = self.rows / count;
        self.apply_rows(i * rows..(i + 1) * rows, x, None)
    }

    fn apply_rows(&self, part: Range<usize>, x: &[f64], bias: Option<&[f64]>) -> Result<Vec<f64>, Error> {
        let n = x.len() / self.cols;
        if n == 0 {
            return Ok(Vec::new());
        }
        let blocks = (0..part.len().div_ceil(BLOCK))
            .into_par_iter()
            .map_init(
                || (Vec::new(), Vec::new()),
                |(weights, scratch), block| {
                    let first = block * BLOCK;
                    let rows = BLOCK.min(part.len() - first);
                    weights.resize(rows * self.cols, 0.0);
                    self.decode(part.start + first, weights, scratch)?;
                    Ok(product(x, weights, self.cols))
                },
            )
            .collect::<Result<Vec<_>, Error>>()?;
        let mut out = vec![0.0; n * part.len()];
        out.par_chunks_mut(part.len()).enumerate().for_each(|(i, out)| {
            for (out, block) in out.chunks_mut(BLOCK).zip(&blocks) {
                out.copy_from_slice(&block[i * out.len()..(i + 1) * out.len()]);
            }
            for (out, b) in out.iter_mut().zip(bias.unwrap_or_default()) {
                *out += b;
            }
        });
        Ok(out)
    }
}

/// `x` `[n, len]` times the transpose of `w` `[m, len]`, in tiles: `[n, m]`.
fn product(x: &[f64], w: &[f64], len: usize) -> Vec<f64> {
    let xs: Vec<&[f64]> = x.chunks_exact(len).collect();
    let ws: Vec<&[f64]> = w.chunks_exact(len).collect();
    let m = ws.len();
    let mut out = vec![0.0; xs.len() * m];
    for (out, xs) in out.chunks_mut(TILE.0 * m).zip(xs.chunks(TILE.0)) {
        for (j, ws) in ws.chunks(TILE.1).enumerate() {
            let mut put = |i: usize, sums: &[f64]| {
                out[i * m + j * TILE.1..][..sums.len()].copy_from_slice(sums);
            };
            match (xs, ws) {
                (&[a, b], &[c, d, e, f]) => {
                    let [first, second] = products([a, b], [c, d, e, f]);
                    put(0, &first);
                    put(1, &second);
                }
                (&[a], &[c, d, e, f]) => put(0, &products([a], [c, d, e, f])[0]),
                _ => {
                    for (i, x) in xs.iter().enumerate() {
                        let sums: Vec<f64> = ws.iter().map(|w| products([x], [w])[0][0]).collect();
                        put(i, &sums);
                    }
                }
            }
        }
    }
    out
}

/// An IEEE half as f64, exactly.
fn from_f16(bits: u16) -> f64 {
    let exponent = bits & 0x7c00;
    // A half's exponent and fraction in a single's places are 2^112 too small, subnormals included.
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits(0x7f80_0000 | u32::from(bits & 0x3ff) << 13);
    let value = f64::from(if exponent == 0x7c00 { special } else { magnitude });
    if bits & 0x8000 == 0 { value } else { -value }
}

#[cfg(test)]
mod tests {
    use model_file::{GenerateSpec, WeightMix, generate, requantize_model};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn halves_are_read_as_the_format_defines_them() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        let mut expected = vec![0.0; bits.len()];
        dequantize(TensorType::F16, &bytes, &mut expected).unwrap();
        for (&b, &e) in bits.iter().zip(&expected) {
            let value = from_f16(b);
            assert!(value.to_bits() == f64::from(e).to_bits() || value.is_nan() && e.is_nan(), "{b:#06x}");
        }
        assert_eq!(from_f16(0x0001), 2f64.powi(-24));
        assert_eq!(from_f16(0xfbff), -65504.0);
    }

    #[test]
    fn a_matrix_in_any_type_gives_the_values_of_its_format() {
        let dir = tempfile::tempdir().unwrap();
        let f32_path = dir.path().join("f32.gguf");
        // The feed-forward width of 512 and the width of 256 are whole super-blocks.
        generate(&GenerateSpec { n_layer: 1, ..GenerateSpec::preset("gen-llama").unwrap() }, &f32_path)
            .unwrap();
        let original = Model::open(&f32_path).unwrap();
        for ty in quant::supported() {
            let path = dir.path().join("typed.gguf");
            requantize_model(&original, WeightMix::Uniform(ty), &path).unwrap();
            let model = Model::open(&path).unwrap();
            let name = "blk.0.ffn_down.weight";
            let info = model.file.tensor(name).unwrap();
            assert_eq!(info.ty, ty);
            let mut expected = vec![0.0; info.elements() as usize];
            dequantize(ty, &model.file.map(info).unwrap(), &mut expected).unwrap();
            let matrix = Matrix::open(&model, name).unwrap().unwrap();
            assert_eq!((matrix.rows, matrix.cols), (256, 512));
            assert!(matrix.values().unwrap().iter().zip(&expected).all(|(a, b)| *a == f64::from(*b)), "{ty}");
            // A row in the middle, by way of a product with a unit vector.
            let mut unit = vec![0.0; 512];
            unit[37] = 1.0;
            let column = matrix.apply(&unit, None).unwrap();
            assert_eq!(column[201], f64::from(expected[201 * 512 + 37]), "{ty}");
        }
        assert!(Matrix::open(&original, "no.such.tensor").unwrap().is_none());
    }

    /// Sums in the plainest way.
    fn naive(x: &[f64], w: &[f64], len: usize) -> Vec<f64> {
        x.chunks(len)
            .flat_map(|x| w.chunks(len).map(move |w| x.iter().zip(w).map(|(a, b)| a * b).sum()))
            .collect()
    }

    proptest! {
        #[test]
        fn products_equal_a_naive_loop(
            n in 1usize..7, m in 1usize..11, len in 1usize..40, seed in prop::collection::vec(-4f64..4.0, 16 * 40)
        ) {
            let (x, w) = (&seed[..n * len], &seed[6 * 40..6 * 40 + m * len]);
            let (ours, expected) = (product(x, w, len), naive(x, w, len));
            prop_assert_eq!(ours.len(), n * m);
            for (a, b) in ours.iter().zip(&expected) {
                prop_assert!((a - b).abs() <= 1e-13 * 16.0 * len as f64, "{} for {}", a, b);
            }
            // An element is the same bits alone and in any tile.
            for i in 0..n {
                for j in 0..m {
                    let alone = product(&x[i * len..(i + 1) * len], &w[j * len..(j + 1) * len], len);
                    prop_assert_eq!(alone[0].to_bits(), ours[i * m + j].to_bits());
                }
            }
        }

        #[test]
        fn small_integers_are_exact(
            n in 1usize..5, m in 1usize..9, len in 1usize..30, seed in prop::collection::vec(-50i32..50, 12 * 30)
        ) {
            let values: Vec<f64> = seed.iter().map(|&v| f64::from(v)).collect();
            let (x, w) = (&values[..n * len], &values[4 * 30..4 * 30 + m * len]);
            prop_assert_eq!(product(x, w, len), naive(x, w, len));
        }
    }
}
