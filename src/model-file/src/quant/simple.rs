//! Plain floats and the blocks of 32 with one scale.
//!
//! In the 4- and 5-bit formats the low nibbles hold the first 16 values of a block, the high ones the rest.

use half::bf16;

use super::{extreme, get_f16, inverse, put_f16};

/// Half a block: values in the low and in the high nibbles.
const HALF: usize = 16;

pub(super) fn decode_f32(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
}

pub(super) fn encode_f32(values: &[f32], block: &mut [u8]) -> Option<()> {
    block.copy_from_slice(&values[0].to_le_bytes());
    Some(())
}

pub(super) fn decode_f16(block: &[u8], out: &mut [f32]) {
    out[0] = get_f16(block, 0);
}

pub(super) fn encode_f16(values: &[f32], block: &mut [u8]) -> Option<()> {
    put_f16(block, 0, values[0]).map(drop)
}

pub(super) fn decode_bf16(block: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32();
}

pub(super) fn encode_bf16(values: &[f32], block: &mut [u8]) -> Option<()> {
    let rounded = bf16::from_f32(values[0]);
    block.copy_from_slice(&rounded.to_le_bytes());
    rounded.is_finite().then_some(())
}

/// `[scale, 32 signed bytes]`
pub(super) fn decode_q8_0(block: &[u8], out: &mut [f32]) {
    let d = get_f16(block, 0);
    for (y, &q) in out.iter_mut().zip(&block[2..]) {
        *y = f32::from(q as i8) * d;
    }
}

pub(super) fn encode_q8_0(values: &[f32], block: &mut [u8]) -> Option<()> {
    let d = extreme(values).abs() / 127.0;
    put_f16(block, 0, d)?;
    let id = inverse(d);
    for (q, &x) in block[2..].iter_mut().zip(values) {
        *q = (x * id).round() as i8 as u8;
    }
    Some(())
}

/// `[scale, 16 bytes of nibbles]`, 8 means 0
pub(super) fn decode_q4_0(block: &[u8], out: &mut [f32]) {
    let d = get_f16(block, 0);
    for (j, &q) in block[2..].iter().enumerate() {
        out[j] = (i32::from(q & 15) - 8) as f32 * d;
        out[j + HALF] = (i32::from(q >> 4) - 8) as f32 * d;
    }
}

pub(super) fn encode_q4_0(values: &[f32], block: &mut [u8]) -> Option<()> {
    // The extreme value gets the code with no positive twin, so that all 16 codes are used.
    let d = extreme(values) / -8.0;
    put_f16(block, 0, d)?;
    let id = inverse(d);
    let code = |x: f32| ((x * id + 8.5) as u8).min(15);
    for j in 0..HALF {
        block[2 + j] = code(values[j]) | code(values[j + HALF]) << 4;
    }
    Some(())
}

/// `[scale, minimum, 16 bytes of nibbles]`
pub(super) fn decode_q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (get_f16(block, 0), get_f16(block, 2));
    for (j, &q) in block[4..].iter().enumerate() {
        out[j] = f32::from(q & 15) * d + m;
        out[j + HALF] = f32::from(q >> 4) * d + m;
    }
}

pub(super) fn encode_q4_1(values: &[f32], block: &mut [u8]) -> Option<()> {
    let (low, id) = put_range(values, 15.0, block)?;
    let code = |x: f32| (((x - low) * id + 0.5) as u8).min(15);
    for j in 0..HALF {
        block[4 + j] = code(values[j]) | code(values[j + HALF]) << 4;
    }
    Some(())
}

/// `[scale, 32 fifth bits, 16 bytes of nibbles]`, 16 means 0
pub(super) fn decode_q5_0(block: &[u8], out: &mut [f32]) {
    let d = get_f16(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (j, &q) in block[6..].iter().enumerate() {
        let (low, high) = five_bits(q, fifth, j);
        out[j] = (i32::from(low) - 16) as f32 * d;
        out[j + HALF] = (i32::from(high) - 16) as f32 * d;
    }
}

pub(super) fn encode_q5_0(values: &[f32], block: &mut [u8]) -> Option<()> {
    let d = extreme(values) / -16.0;
    put_f16(block, 0, d)?;
    let id = inverse(d);
    put_five_bits(&mut block[2..], |j| ((values[j] * id + 16.5) as u8).min(31));
    Some(())
}

/// `[scale, minimum, 32 fifth bits, 16 bytes of nibbles]`
pub(super) fn decode_q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (get_f16(block, 0), get_f16(block, 2));
    let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (j, &q) in block[8..].iter().enumerate() {
        let (low, high) = five_bits(q, fifth, j);
        out[j] = f32::from(low) * d + m;
        out[j + HALF] = f32::from(high) * d + m;
    }
}

pub(super) fn encode_q5_1(values: &[f32], block: &mut [u8]) -> Option<()> {
    let (low, id) = put_range(values, 31.0, block)?;
    put_five_bits(&mut block[4..], |j| (((values[j] - low) * id + 0.5) as u8).min(31));
    Some(())
}

/// Stores scale and minimum of the values' range in `top` steps; gives the minimum and the inverse scale.
fn put_range(values: &[f32], top: f32, block: &mut [u8]) -> Option<(f32, f32)> {
    let low = values.iter().copied().fold(f32::MAX, f32::min);
    let high = values.iter().copied().fold(f32::MIN, f32::max);
    let d = (high - low) / top;
    put_f16(block, 0, d)?;
    put_f16(block, 2, low)?;
    Some((low, inverse(d)))
}

/// The codes of values `j` and `j + 16`.
fn five_bits(nibbles: u8, fifth: u32, j: usize) -> (u8, u8) {
    let bit = |i: usize| ((fifth >> i) & 1) as u8;
    ((nibbles & 15) | bit(j) << 4, (nibbles >> 4) | bit(j + HALF) << 4)
}

/// Stores 32 codes of five bits: the fifth bits in four bytes, then the nibbles.
fn put_five_bits(block: &mut [u8], code: impl Fn(usize) -> u8) {
    let mut fifth = 0u32;
    for j in 0..HALF {
        let (low, high) = (code(j), code(j + HALF));
        fifth |= u32::from(low >> 4) << j | u32::from(high >> 4) << (j + HALF);
        block[4 + j] = (low & 15) | (high & 15) << 4;
    }
    block[..4].copy_from_slice(&fifth.to_le_bytes());
}
