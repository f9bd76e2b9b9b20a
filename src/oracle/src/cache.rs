//! The K/V cache: one K and one V row per position and layer, before heads are repeated for grouped queries.

use model_file::{HyperParams, TensorType, dequantize, quantize};

use crate::Error;

/// How K and V are rounded when they are written to a cache. Everything else stays f64, so that the part of
/// an error that comes from the cache's type can be told from the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Not at all.
    #[default]
    F64,
    /// To IEEE single.
    F32,
    /// To IEEE half, by way of single as ggml does; beyond 65,504 to infinity.
    F16,
    /// To ggml's 8-bit blocks.
    Q8_0,
    /// To ggml's 4-bit blocks.
    Q4_0,
}

impl Precision {
    /// Rounds whole rows in place.
    fn round(self, rows: &mut [f64]) -> Result<(), Error> {
        match self {
            Self::F64 => {}
            Self::F32 => rows.iter_mut().for_each(|x| *x = f64::from(*x as f32)),
            Self::F16 => rows.iter_mut().for_each(|x| *x = to_f16(f64::from(*x as f32))),
            Self::Q8_0 => blocks(TensorType::Q8_0, rows)?,
            Self::Q4_0 => blocks(TensorType::Q4_0, rows)?,
        }
        Ok(())
    }
}

/// Through a block format and back.
fn blocks(ty: TensorType, rows: &mut [f64]) -> Result<(), Error> {
    let mut values: Vec<f32> = rows.iter().map(|&x| x as f32).collect();
    let mut bytes = Vec::new();
    quantize(ty, &values, &mut bytes)?;
    dequantize(ty, &bytes, &mut values)?;
    for (x, v) in rows.iter_mut().zip(values) {
        *x = f64::from(v);
    }
    Ok(())
}

/// The nearest IEEE half, ties to even.
fn to_f16(x: f64) -> f64 {
    // Halfway between the largest half and the next power of two.
    if x.abs() >= 65_520.0 {
        return f64::INFINITY.copysign(x);
    }
    // Exponent of the value, at least that of the smallest normal half; a half has ten bits behind it.
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let step = 2f64.powi(exponent.max(-14) - 10);
    (x / step).round_ties_even() * step
}

/// K and V of some rows of one layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerKv {
    /// K after RoPE, `[rows, n_head_kv, head_dim]`, row-major.
    pub k: Vec<f64>,
    /// V, `[rows, n_head_kv, head_dim]`, row-major.
    pub v: Vec<f64>,
}

/// A K/V cache of one network.
///
/// Row p is position p. A cloned cache is a saved one: it can be kept and gone on from.
#[derive(Debug, Clone, PartialEq)]
pub struct Cache {
    layers: Vec<LayerKv>,
    /// `[n_head_kv, head_dim]` of each layer.
    shapes: Vec<[usize; 2]>,
    capacity: usize,
    len: usize,
    precision: Precision,
}

impl Cache {
    pub(crate) fn new(h: &HyperParams, capacity: usize, precision: Precision) -> Self {
        Self { layers: vec![LayerKv::default(); h.n_layer], shapes: shapes(h), capacity, len: 0, precision }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How K and V are rounded when written.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Shape of one row of K or V in a layer: `[n_head_kv, head_dim]`.
    ///
    /// # Panics
    /// Without such a layer.
    pub fn row_shape(&self, layer: usize) -> [usize; 2] {
        self.shapes[layer]
    }

    /// K and V as stored, `[len, n_head_kv, head_dim]` for each layer. Layers that were skipped have fewer
    /// rows, those of the positions before.
    pub fn layers(&self) -> &[LayerKv] {
        &self.layers
    }

    /// Forgets the positions from `len` on. Longer than the cache: nothing happens.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for (layer, shape) in self.layers.iter_mut().zip(&self.shapes) {
            let values = self.len * width(shape);
            layer.k.truncate(values);
            layer.v.truncate(values);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Whether it can belong to a network.
    pub(crate) fn check(&self, h: &HyperParams) -> Result<(), Error> {
        let (ours, wanted) = (&self.shapes, shapes(h));
        if *ours != wanted {
            return Err(Error::ForeignCache(format!(
                "K/V heads and head size of its layers are {ours:?}, not {wanted:?}"
            )));
        }
        Ok(())
    }

    /// Whether layer `layer` has every row the cache has.
    pub(crate) fn check_layer(&self, layer: usize) -> Result<(), Error> {
        let has = self.layers[layer].k.len() / width(&self.shapes[layer]);
        if has != self.len {
            return Err(Error::SkippedRows { layer, has, needs: self.len });
        }
        Ok(())
    }

    /// Writes K and V `[n, n_head_kv, head_dim]` of a layer at ascending positions: over rows that are there, or
    /// after the last. The caller has checked positions and capacity.
    pub(crate) fn store(&mut self, layer: usize, positions: &[usize], kv: &LayerKv) -> Result<(), Error> {
        let (width, precision) = (width(&self.shapes[layer]), self.precision);
        let layer = &mut self.layers[layer];
        for (held, new) in [(&mut layer.k, &kv.k), (&mut layer.v, &kv.v)] {
            let mut rounded = new.clone();
            precision.round(&mut rounded)?;
            for (row, position) in rounded.chunks_exact(width).zip(positions) {
                let at = position * width;
                if at == held.len() {
                    held.extend_from_slice(row);
                } else {
                    held[at..at + width].copy_from_slice(row);
                }
            }
        }
        Ok(())
    }

    /// Sets the number of positions after a pass has written them.
    pub(crate) fn grow_to(&mut self, len: usize) {
        self.len = self.len.max(len);
    }

    /// Removes `count` rows from `first` on, rotating the K rows after them with `rotate`, which gets the layer, rows
    /// `[n, n_head_kv, head_dim]` and their number.
    pub(crate) fn remove(
        &mut self,
        first: usize,
        count: usize,
        mut rotate: impl FnMut(usize, &mut [f64], usize),
    ) -> Result<(), Error> {
        for layer in 0..self.layers.len() {
            self.check_layer(layer)?;
        }
        let precision = self.precision;
        for (i, (layer, shape)) in self.layers.iter_mut().zip(&self.shapes).enumerate() {
            let width = width(shape);
            layer.k.drain(first * width..(first + count) * width);
            layer.v.drain(first * width..(first + count) * width);
            let moved = &mut layer.k[first * width..];
            rotate(i, moved, moved.len() / width);
            precision.round(moved)?;
        }
        self.len -= count;
        Ok(())
    }
}

fn shapes(h: &HyperParams) -> Vec<[usize; 2]> {
    (0..h.n_layer).map(|layer| h.layer(layer)).map(|shape| [shape.n_head_kv, shape.head_dim]).collect()
}

/// Values of a row.
fn width(shape: &[usize; 2]) -> usize {
    shape[0] * shape[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_to_nearest_even() {
        for (x, expected) in [
            (1.0, 1.0),
            (1.0 + 2f64.powi(-11), 1.0),
            (1.0 + 3.0 * 2f64.powi(-11), 1.0 + 2f64.powi(-9)),
            (65_504.0, 65_504.0),
            (65_519.9, 65_504.0),
            (65_520.0, f64::INFINITY),
            (-1e9, f64::NEG_INFINITY),
            (2f64.powi(-25), 0.0),
            (1.1 * 2f64.powi(-25), 2f64.powi(-24)),
            (2047.9, 2048.0),
            (0.0, 0.0),
        ] {
            assert_eq!(to_f16(x), expected, "{x}");
            assert_eq!(to_f16(-x), -expected);
        }
        assert!(to_f16(f64::NAN).is_nan());
        assert!(to_f16(-0.0).is_sign_negative());
    }

    /// The same as the F16 that `model-file` writes.
    #[test]
    fn halves_agree_with_the_file_formats() {
        for i in 0..20_000u32 {
            let x = f32::from_bits(i.wrapping_mul(0x9e37_79b9));
            if !(x.abs() < 65_504.0) {
                continue;
            }
            let mut bytes = Vec::new();
            quantize(TensorType::F16, &[x], &mut bytes).unwrap();
            let mut out = [0.0];
            dequantize(TensorType::F16, &bytes, &mut out).unwrap();
            assert_eq!(to_f16(f64::from(x)), f64::from(out[0]), "{x}");
        }
    }

    fn kv(first: f64) -> LayerKv {
        LayerKv { k: vec![first, first + 1.0], v: vec![-first, -first - 1.0] }
    }

    fn small() -> Cache {
        let h = model_file::GenerateSpec::preset("gen-llama").unwrap().hparams();
        Cache::new(&HyperParams { n_layer: 1, n_head_kv: 1, head_dim: 1, ..h }, 4, Precision::F64)
    }

    #[test]
    fn rows_are_appended_and_overwritten() {
        let mut cache = small();
        cache.store(0, &[0, 1], &kv(1.0)).unwrap();
        cache.grow_to(2);
        cache.store(0, &[1, 2], &kv(7.0)).unwrap();
        cache.grow_to(3);
        assert_eq!(cache.layers()[0], LayerKv { k: vec![1.0, 7.0, 8.0], v: vec![-1.0, -7.0, -8.0] });
        assert_eq!((cache.len(), cache.capacity(), cache.row_shape(0)), (3, 4, [1, 1]));
        cache.truncate(9);
        cache.truncate(1);
        assert_eq!(cache.layers()[0], LayerKv { k: vec![1.0], v: vec![-1.0] });
        cache.clear();
        assert!(cache.is_empty());
    }

    #[test]
    fn rows_that_are_missing_are_an_error() {
        let mut cache = small();
        cache.grow_to(2);
        assert!(matches!(cache.check_layer(0), Err(Error::SkippedRows { layer: 0, has: 0, needs: 2 })));
        assert!(cache.remove(0, 1, |_, _, _| {}).is_err());
    }

    #[test]
    fn block_storage_rounds_and_refuses_what_it_cannot_hold() {
        let mut rows: Vec<f64> = (0..32).map(|i| f64::from(i) * 0.37 - 5.0).collect();
        let before = rows.clone();
        Precision::Q8_0.round(&mut rows).unwrap();
        assert_ne!(rows, before);
        assert!(rows.iter().zip(&before).all(|(a, b)| (a - b).abs() < 0.05));
        rows[3] = f64::NAN;
        assert!(Precision::Q4_0.round(&mut rows).is_err());
        Precision::F32.round(&mut rows[4..]).unwrap();
        assert!(rows[4..].iter().all(|&x| x == f64::from(x as f32)));
    }
}
