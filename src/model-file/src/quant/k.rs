//! The K types: super-blocks of 256 values whose sub-blocks have quantised scales of their own.
//!
//! Q4_K and Q5_K have eight sub-blocks of 32 with a 6-bit scale and a 6-bit minimum each, Q6_K has sixteen
//! of 16 with an 8-bit scale. Encoding fits each sub-block by weighted least squares over a range of scales,
//! then quantises the scales, then chooses the codes anew for the scales as they will be read.

use super::{extreme, get_f16, inverse, nearest, nearest_wide, put_f16};

const SUPER: usize = 256;
const SUB: usize = 32;
const N_SUB: usize = SUPER / SUB;
/// The 6-bit scales and minima, 96 bits.
const SCALES: std::ops::Range<usize> = 4..16;
/// Largest 6-bit code.
const TOP_SCALE: i32 = 63;

/// `[scale of scales, scale of minima, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles]`
pub(super) fn decode_q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (get_f16(block, 0), get_f16(block, 2));
    // Two sub-blocks share 32 bytes: the first has the low nibbles.
    for (pair, (nibbles, y)) in block[16..].chunks_exact(SUB).zip(out.chunks_exact_mut(2 * SUB)).enumerate() {
        for half in 0..2 {
            let (scale, min) = scale_and_min(&block[SCALES], 2 * pair + half);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            for (y, q) in y[half * SUB..].iter_mut().zip(nibbles) {
                *y = d * f32::from(q >> (4 * half) & 15) - m;
            }
        }
    }
}

pub(super) fn encode_q4_k(values: &[f32], block: &mut [u8]) -> Option<()> {
    let codes = encode_with_minima(values, 15, -1.0, 20, block)?;
    put_nibbles(&codes, &mut block[16..]);
    Some(())
}

/// `[scale of scales, scale of minima, 12 bytes of 6-bit scales and minima, 32 bytes of fifth bits,
/// 128 bytes of nibbles]`; bit i of a fifth-bit byte belongs to sub-block i
pub(super) fn decode_q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (get_f16(block, 0), get_f16(block, 2));
    let fifth = &block[16..48];
    for (pair, (nibbles, y)) in block[48..].chunks_exact(SUB).zip(out.chunks_exact_mut(2 * SUB)).enumerate() {
        for half in 0..2 {
            let sub = 2 * pair + half;
            let (scale, min) = scale_and_min(&block[SCALES], sub);
            let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
            for ((y, q), h) in y[half * SUB..].iter_mut().zip(nibbles).zip(fifth) {
                let code = q >> (4 * half) & 15 | (h >> sub & 1) << 4;
                *y = d * f32::from(code) - m;
            }
        }
    }
}

pub(super) fn encode_q5_k(values: &[f32], block: &mut [u8]) -> Option<()> {
    let codes = encode_with_minima(values, 31, -0.5, 15, block)?;
    for l in 0..SUB {
        block[16 + l] = (0..N_SUB).fold(0, |bits, sub| bits | (codes[sub * SUB + l] >> 4) << sub);
    }
    put_nibbles(&codes, &mut block[48..]);
    Some(())
}

/// Stores the low four bits of 256 codes, two sub-blocks to 32 bytes.
fn put_nibbles(codes: &[u8; SUPER], out: &mut [u8]) {
    for (bytes, pair) in out.chunks_exact_mut(SUB).zip(codes.chunks_exact(2 * SUB)) {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = (pair[l] & 15) | (pair[l + SUB] & 15) << 4;
        }
    }
}

/// The 6-bit scale and minimum of a sub-block. The first four lie in the low six bits of bytes 0-3 and 4-7;
/// of the last four, the low nibbles are in bytes 8-11 and the upper two bits on top of the first four.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let both = packed[sub + 4];
        ((both & 15) | packed[sub - 4] >> 6 << 4, (both >> 4) | packed[sub] >> 6 << 4)
    }
}

/// The inverse of [`scale_and_min`] on zeroed bytes.
fn put_scale_and_min(packed: &mut [u8], sub: usize, scale: u8, min: u8) {
    if sub < 4 {
        packed[sub] |= scale;
        packed[sub + 4] |= min;
    } else {
        packed[sub + 4] |= (scale & 15) | (min & 15) << 4;
        packed[sub - 4] |= scale >> 4 << 6;
        packed[sub] |= min >> 4 << 6;
    }
}

/// Stores the scales of a block whose sub-blocks have minima and gives the codes, 0 to `top`.
fn encode_with_minima(
    values: &[f32],
    top: i32,
    first: f32,
    steps: u32,
    block: &mut [u8],
) -> Option<[u8; SUPER]> {
    let mut fits = [(0.0, 0.0); N_SUB];
    for (fit, x) in fits.iter_mut().zip(values.chunks_exact(SUB)) {
        *fit = fit_with_minimum(x, top, first, steps);
    }
    let largest = |f: fn(&(f32, f32)) -> f32| fits.iter().map(f).fold(0.0, f32::max);
    let (max_scale, max_min) = (largest(|f| f.0), largest(|f| f.1));

    let top_scale = TOP_SCALE as f32;
    let d = put_f16(block, 0, max_scale / top_scale)?;
    let dmin = put_f16(block, 2, max_min / top_scale)?;
    let (to_scale, to_min) = (top_scale * inverse(max_scale), top_scale * inverse(max_min));
    let packed = &mut block[SCALES];
    packed.fill(0);
    for (sub, (scale, min)) in fits.iter().enumerate() {
        let code = |v: f32| nearest(v, 0, TOP_SCALE) as u8;
        put_scale_and_min(packed, sub, code(to_scale * scale), code(to_min * min));
    }

    let mut codes = [0; SUPER];
    for (sub, (codes, x)) in codes.chunks_exact_mut(SUB).zip(values.chunks_exact(SUB)).enumerate() {
        let (scale, min) = scale_and_min(packed, sub);
        let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
        if d != 0.0 {
            for (code, &x) in codes.iter_mut().zip(x) {
                *code = nearest((x + m) / d, 0, top) as u8;
            }
        }
    }
    Some(codes)
}

/// Scale and minimum, both at least 0, so that `scale * code - minimum` with codes 0 to `top` comes nearest
/// to the values. Large values count more.
///
/// Tries the scales that map the range to `top`, `top + first`, `top + first + 0.1`, … and solves for the
/// scale and minimum that fit each choice of codes. From the best of them, choosing codes and solving take
/// turns while the error falls.
fn fit_with_minimum(x: &[f32], top: i32, first: f32, steps: u32) -> (f32, f32) {
    let low = x.iter().copied().fold(0.0, f32::min);
    let high = x.iter().copied().fold(low, f32::max);
    if high == low {
        return (0.0, -low);
    }
    let mean_square = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    let rms = mean_square.sqrt();
    let mut points = [Point { value: 0.0, weight: 0.0 }; SUB];
    for (point, &v) in points.iter_mut().zip(x) {
        *point = Point { value: f64::from(v), weight: rms + f64::from(v).abs() };
    }

    let range = f64::from(high) - f64::from(low);
    let mut best = Line { scale: range / f64::from(top), offset: f64::from(low) };
    let mut most = f64::NEG_INFINITY;
    let starts = std::iter::once(0.0).chain((0..=steps).map(|s| first + 0.1 * s as f32));
    for stretch in starts {
        let steps = f64::from(top) + f64::from(stretch);
        let start = Line { scale: range / steps, offset: f64::from(low) };
        if let Some((line, gain)) = start.improved(&points, top).filter(|(_, gain)| *gain > most) {
            (best, most) = (line, gain);
        }
    }
    while let Some((line, gain)) = best.improved(&points, top).filter(|(_, gain)| *gain > most) {
        (best, most) = (line, gain);
    }
    (best.scale as f32, -best.offset as f32)
}

/// A value to be met and how much it counts.
#[derive(Clone, Copy)]
struct Point {
    value: f64,
    weight: f64,
}

/// `scale * code + offset`.
#[derive(Clone, Copy)]
struct Line {
    scale: f64,
    offset: f64,
}

impl Line {
    /// The best line for the codes that are nearest under this one, with its gain: the weighted sum of the
    /// squared values less that of the squared errors. `None` if the codes do not determine a rising line.
    fn improved(self, points: &[Point; SUB], top: i32) -> Option<(Self, f64)> {
        let to_code = 1.0 / self.scale;
        let top = f64::from(top);
        let (mut w, mut wl, mut wll, mut wv, mut wvl) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for p in points {
            let l = nearest_wide((p.value - self.offset) * to_code, 0.0, top);
            w += p.weight;
            wl += p.weight * l;
            wll += p.weight * l * l;
            wv += p.weight * p.value;
            wvl += p.weight * p.value * l;
        }
        let det = w * wll - wl * wl;
        if det.is_nan() || det <= 0.0 {
            return None;
        }
        let mut line = Self { scale: (w * wvl - wv * wl) / det, offset: (wll * wv - wl * wvl) / det };
        if line.offset > 0.0 {
            line = Self { scale: wvl / wll, offset: 0.0 };
        }
        let Self { scale, offset } = line;
        let gain = 2.0 * (scale * wvl + offset * wv)
            - (scale * scale * wll + 2.0 * scale * offset * wl + offset * offset * w);
        (scale > 0.0 && scale.is_finite()).then_some((line, gain))
    }
}

const SUB6: usize = 16;
const N_SUB6: usize = SUPER / SUB6;
/// Q6_K's parts: low nibbles, upper two bits, signed scales, scale of scales.
const QL: usize = 0;
const QH: usize = 128;
const SC: usize = 192;
const D: usize = 208;

/// `[128 bytes of nibbles, 64 bytes of upper bits, 16 signed scales, scale of scales]`, 32 means 0.
///
/// Each half of 128 values takes 64 bytes of nibbles and 32 of upper bits: value `32 k + l` of a half has its
/// nibble in byte `32 (k mod 2) + l`, the low one for k < 2, and its upper bits at bit `2 k` of byte `l`.
pub(super) fn decode_q6_k(block: &[u8], out: &mut [f32]) {
    let d = get_f16(block, D);
    for (i, y) in out.iter_mut().enumerate() {
        let (half, k, l) = (i / 128, i % 128 / 32, i % 32);
        let nibble = block[QL + 64 * half + 32 * (k % 2) + l] >> (4 * (k / 2)) & 15;
        let upper = block[QH + 32 * half + l] >> (2 * k) & 3;
        let scale = block[SC + i / SUB6] as i8;
        *y = d * f32::from(scale) * (i32::from(nibble | upper << 4) - 32) as f32;
    }
}

pub(super) fn encode_q6_k(values: &[f32], block: &mut [u8]) -> Option<()> {
    let mut scales = [0.0; N_SUB6];
    for (scale, x) in scales.iter_mut().zip(values.chunks_exact(SUB6)) {
        *scale = fit_symmetric(x, 32);
    }
    block.fill(0);
    // The extreme scale gets -128.
    let to_code = -128.0 * inverse(extreme(&scales));
    let d = put_f16(block, D, inverse(to_code))?;
    for (i, &scale) in scales.iter().enumerate() {
        block[SC + i] = nearest(to_code * scale, -128, 127) as i8 as u8;
    }
    for (i, &x) in values.iter().enumerate() {
        let (half, k, l) = (i / 128, i % 128 / 32, i % 32);
        let scale = d * f32::from(block[SC + i / SUB6] as i8);
        let code = if scale == 0.0 { 32 } else { (nearest(x / scale, -32, 31) + 32) as u8 };
        block[QL + 64 * half + 32 * (k % 2) + l] |= (code & 15) << (4 * (k / 2));
        block[QH + 32 * half + l] |= code >> 4 << (2 * k);
    }
    Some(())
}

/// The scale, of either sign, so that `scale * code` with codes `-top` to `top - 1` comes nearest to the
/// values. Values count by their squares. Tries the scales that map the extreme value to `-top` ± 0.9.
fn fit_symmetric(x: &[f32], top: i32) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    let (mut best, mut most) = (extreme / -top as f32, 0.0f64);
    for step in -9..=9i32 {
        let to_code = -(top as f32 + 0.1 * step as f32) / extreme;
        let (mut xl, mut ll) = (0.0f64, 0.0f64);
        for &v in x {
            let l = f64::from(nearest(v * to_code, -top, top - 1));
            let v = f64::from(v);
            let w = v * v;
            xl += w * v * l;
            ll += w * l * l;
        }
        // The error left is the values' own sum less xl^2 / ll.
        if ll > 0.0 && xl * xl / ll > most {
            most = xl * xl / ll;
            best = (xl / ll) as f32;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_come_back() {
        let scales: [u8; 8] = [1, 63, 32, 17, 48, 15, 63, 0];
        let mins: [u8; 8] = [63, 0, 33, 16, 47, 62, 1, 31];
        let mut packed = [0; 12];
        for sub in 0..8 {
            put_scale_and_min(&mut packed, sub, scales[sub], mins[sub]);
        }
        for sub in 0..8 {
            assert_eq!(scale_and_min(&packed, sub), (scales[sub], mins[sub]));
        }
    }

    /// Every code in every place of a Q6_K block.
    #[test]
    fn q6_k_places_are_a_bijection() {
        let mut block = [0u8; 210];
        let mut values = [0.0; SUPER];
        for (i, v) in values.iter_mut().enumerate() {
            *v = ((i * 37) % 64) as f32 - 32.0;
        }
        for sub in values.chunks_exact_mut(SUB6) {
            sub[0] = -32.0;
        }
        encode_q6_k(&values, &mut block).unwrap();
        let mut out = [0.0; SUPER];
        decode_q6_k(&block, &mut out);
        assert_eq!(out, values);
    }

    #[test]
    fn a_fit_on_a_grid_is_exact() {
        let x: Vec<f32> = (0..SUB).map(|i| 0.5 * (i % 16) as f32 - 2.0).collect();
        let (scale, min) = fit_with_minimum(&x, 15, -1.0, 20);
        assert!((scale - 0.5).abs() < 1e-6 && (min - 2.0).abs() < 1e-6, "{scale} {min}");
        assert_eq!(fit_with_minimum(&[3.0; SUB], 15, -1.0, 20).1, 0.0);
        assert_eq!(fit_with_minimum(&[-3.0; SUB], 15, -1.0, 20), (0.0, 3.0));
    }
}
