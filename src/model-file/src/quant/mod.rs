//! Block formats: values to and from ggml's storage types, bit for bit as ggml reads them.
//!
//! [`dequantize`] multiplies in the order in which ggml does, so its results equal those of ggml's own
//! routines where these were compiled without fused multiply-add. [`quantize`] uses IEEE operations in a
//! fixed order only: a quantised file is the same on every platform.

mod k;
mod nonlinear;
mod simple;

use half::f16;

use crate::TensorType;
use crate::error::Error;

/// One format: how a block is read and how it is made.
struct Codec {
    /// Fills `block_len` values from `block_bytes` bytes.
    decode: fn(&[u8], &mut [f32]),
    /// Fills `block_bytes` bytes from `block_len` finite values; `None` if the scale overflows F16.
    encode: fn(&[f32], &mut [u8]) -> Option<()>,
}

const fn codec(ty: TensorType) -> Option<Codec> {
    macro_rules! codec {
        ($module:ident, $decode:ident, $encode:ident) => {
            Codec { decode: $module::$decode, encode: $module::$encode }
        };
    }
    Some(match ty {
        TensorType::F32 => codec!(simple, decode_f32, encode_f32),
        TensorType::F16 => codec!(simple, decode_f16, encode_f16),
        TensorType::BF16 => codec!(simple, decode_bf16, encode_bf16),
        TensorType::Q4_0 => codec!(simple, decode_q4_0, encode_q4_0),
        TensorType::Q4_1 => codec!(simple, decode_q4_1, encode_q4_1),
        TensorType::Q5_0 => codec!(simple, decode_q5_0, encode_q5_0),
        TensorType::Q5_1 => codec!(simple, decode_q5_1, encode_q5_1),
        TensorType::Q8_0 => codec!(simple, decode_q8_0, encode_q8_0),
        TensorType::Q4_K => codec!(k, decode_q4_k, encode_q4_k),
        TensorType::Q5_K => codec!(k, decode_q5_k, encode_q5_k),
        TensorType::Q6_K => codec!(k, decode_q6_k, encode_q6_k),
        TensorType::IQ4_NL => codec!(nonlinear, decode_iq4_nl, encode_iq4_nl),
        TensorType::MXFP4 => codec!(nonlinear, decode_mxfp4, encode_mxfp4),
        _ => return None,
    })
}

/// The types that [`quantize`] and [`dequantize`] know.
pub fn supported() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|&ty| codec(ty).is_some())
}

fn codec_of(ty: TensorType) -> Result<Codec, Error> {
    codec(ty).ok_or_else(|| {
        let known: Vec<_> = supported().map(TensorType::name).collect();
        Error::unsupported(format!("values of this type are not implemented; {} are", known.join(", ")))
            .value(ty)
    })
}

/// Reads `out.len()` values of type `ty` from exactly their bytes. `out` must be whole blocks.
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    let codec = codec_of(ty)?;
    let needed = whole_blocks(ty, out.len())?;
    if bytes.len() != needed {
        return Err(Error::request(format!(
            "{} values of {ty} take {needed} bytes, {} were given",
            out.len(),
            bytes.len()
        )));
    }
    let blocks = bytes.chunks_exact(ty.block_bytes() as usize);
    for (block, values) in blocks.zip(out.chunks_exact_mut(ty.block_len() as usize)) {
        (codec.decode)(block, values);
    }
    Ok(())
}

/// Appends `values` to `out` as type `ty`. `values` must be whole blocks and finite, and no scale may
/// overflow F16.
pub fn quantize(ty: TensorType, values: &[f32], out: &mut Vec<u8>) -> Result<(), Error> {
    let codec = codec_of(ty)?;
    let start = out.len();
    out.resize(start + whole_blocks(ty, values.len())?, 0);
    let len = ty.block_len() as usize;
    let blocks = out[start..].chunks_exact_mut(ty.block_bytes() as usize);
    let fault = values.chunks_exact(len).zip(blocks).enumerate().find_map(|(i, (values, block))| {
        if let Some(j) = values.iter().position(|v| !v.is_finite()) {
            return Some((i * len + j, values[j], "is not finite"));
        }
        let largest = values.iter().fold(0.0, |a: f32, v| if v.abs() > a.abs() { *v } else { a });
        (codec.encode)(values, block).is_none().then_some((i * len, largest, "is too large for this type"))
    });
    if let Some((i, value, what)) = fault {
        out.truncate(start);
        return Err(Error::request(format!("value {value} at index {i} {what}, {ty}")));
    }
    Ok(())
}

/// Bytes of `n` values.
fn whole_blocks(ty: TensorType, n: usize) -> Result<usize, Error> {
    let bytes = ty.row_bytes(n as u64).and_then(|b| usize::try_from(b).ok());
    bytes.ok_or_else(|| {
        Error::request(format!("{n} values are not a multiple of {ty}'s block of {}", ty.block_len()))
    })
}

/// The F16 at a byte offset.
fn get_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores an F16; `None` if the value overflows it. Gives the value as it will be read.
fn put_f16(block: &mut [u8], at: usize, value: f32) -> Option<f32> {
    let rounded = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.is_finite().then(|| rounded.to_f32())
}

/// 1 / x, or 0 for 0.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value with the largest magnitude, the first of equals.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |e: f32, &v| if v.abs() > e.abs() { v } else { e })
}

/// The nearest integer in a range; ties go to the even one.
fn nearest(x: f32, low: i32, high: i32) -> i32 {
    nearest_wide(f64::from(x), f64::from(low), f64::from(high)) as i32
}

/// The same in double precision. The limits must be integers of few digits.
///
/// Adding 1.5 x 2^52 leaves no bits below 1, so that the addition itself rounds to an integer: without a
/// call, where the processor has no rounding instruction in its baseline.
fn nearest_wide(x: f64, low: f64, high: f64) -> f64 {
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    (x.clamp(low, high) + WHOLE) - WHOLE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A bell-shaped row, the same everywhere.
    fn bell(n: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..n).map(|_| (next() + next() + next() + next()) * 0.1).collect()
    }

    fn round_trip(ty: TensorType, values: &[f32]) -> Vec<f32> {
        let mut bytes = Vec::new();
        quantize(ty, values, &mut bytes).unwrap();
        let mut out = vec![f32::NAN; values.len()];
        dequantize(ty, &bytes, &mut out).unwrap();
        out
    }

    fn nmse(values: &[f32], reference: &[f32]) -> f64 {
        let square = |x: f64| x * x;
        let error: f64 =
            values.iter().zip(reference).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
        error / reference.iter().map(|&b| square(f64::from(b))).sum::<f64>()
    }

    #[test]
    fn errors_have_the_size_of_their_format() {
        let values = bell(256 * 64);
        // The bounds lie a tenth above what the formats reach on these values, or less.
        for (ty, bound) in [
            (TensorType::F32, 0.0),
            (TensorType::F16, 4.8e-8),
            (TensorType::BF16, 3.05e-6),
            (TensorType::Q8_0, 2.82e-5),
            (TensorType::Q6_K, 0.000315),
            (TensorType::Q5_K, 0.00128),
            (TensorType::Q5_1, 0.00144),
            (TensorType::Q5_0, 0.00178),
            (TensorType::Q4_K, 0.0051),
            (TensorType::Q4_1, 0.0062),
            (TensorType::IQ4_NL, 0.0059),
            (TensorType::Q4_0, 0.0072),
            (TensorType::MXFP4, 0.0149),
        ] {
            let e = nmse(&round_trip(ty, &values), &values);
            println!("{ty:7} {e:.3e}");
            assert!(e <= bound, "{ty}: {e:e} is above {bound:e}");
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for ty in supported() {
            let n = ty.block_len() as usize * 2;
            assert!(round_trip(ty, &vec![0.0; n]).iter().all(|&v| v == 0.0), "{ty}");
        }
    }

    #[test]
    fn what_cannot_be_stored_is_an_error_that_says_where() {
        let mut out = vec![7];
        for ty in supported() {
            let n = ty.block_len() as usize;
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 2 * n];
                values[n] = bad;
                let e = quantize(ty, &values, &mut out).unwrap_err();
                assert!(e.message().contains(&format!("at index {n} is not finite")), "{ty}: {e}");
            }
            if !matches!(ty, TensorType::F32 | TensorType::BF16 | TensorType::MXFP4) {
                let e = quantize(ty, &vec![3e38; n], &mut out).unwrap_err();
                assert!(e.message().contains("too large"), "{ty}: {e}");
            }
            if n > 1 {
                assert!(quantize(ty, &vec![0.0; n + 1], &mut out).is_err());
                assert!(dequantize(ty, &[0; 3], &mut vec![0.0; n]).is_err());
            }
        }
        assert_eq!(out, [7], "nothing is left behind");
        let e = dequantize(TensorType::IQ2_XS, &[], &mut []).unwrap_err();
        assert!(e.message().contains("Q4_K"), "{e}");
    }

    #[test]
    fn rounding_is_to_nearest_even_within_limits() {
        for (x, expected) in [
            (0.5, 0),
            (1.5, 2),
            (2.5, 2),
            (-0.5, 0),
            (-1.5, -2),
            (2.499_999_8, 2),
            (99.0, 31),
            (-99.0, -32),
            (f32::INFINITY, 31),
        ] {
            assert_eq!(nearest(x, -32, 31), expected, "{x}");
        }
    }

    /// Values that a format holds exactly come back exactly, with every code and both signs.
    #[test]
    fn exact_values_stay_exact() {
        let grid = |range: std::ops::Range<i32>, scale: f32| -> Vec<f32> {
            range.clone().cycle().take(32).map(|q| q as f32 * scale).collect()
        };
        for (ty, values) in [
            (TensorType::Q4_0, grid(-8..8, 0.25)),
            (TensorType::Q5_0, grid(-16..16, 0.5)),
            (TensorType::Q4_1, grid(-3..13, 2.0)),
            (TensorType::Q5_1, grid(-3..29, 0.125)),
            (
                TensorType::MXFP4,
                [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -6.0, -0.5].repeat(4)[..32].to_vec(),
            ),
        ] {
            assert_eq!(round_trip(ty, &values), values, "{ty}");
        }
        let mut values = grid(-16..16, 1.0);
        values[0] = -127.0;
        assert_eq!(round_trip(TensorType::Q8_0, &values), values);
    }

    proptest! {
        /// Any bytes decode: no code is out of range, no arithmetic overflows.
        #[test]
        fn any_bytes_decode(seed in prop::collection::vec(any::<u8>(), 300)) {
            for ty in supported() {
                let n = ty.block_bytes() as usize;
                let mut out = vec![0.0; ty.block_len() as usize];
                dequantize(ty, &seed[..n], &mut out).unwrap();
            }
        }

        /// Any finite values within F16's range encode, and no value comes back farther off than the
        /// block's whole range.
        #[test]
        fn any_values_encode(
            values in prop::collection::vec(-6e4f32..6e4, 256),
            scale in prop::sample::select(vec![1.0f32, 1e-3, 1e-6, 1e-20, 1e-38]),
        ) {
            let values: Vec<f32> = values.iter().map(|v| v * scale).collect();
            let reach = extreme(&values).abs();
            for ty in supported() {
                for (a, b) in round_trip(ty, &values).iter().zip(&values) {
                    // 2^-24 is F16's smallest step: scales below it vanish.
                    prop_assert!((a - b).abs() <= 1.01 * reach + 1e-6, "{ty}: {a} for {b}");
                }
            }
        }
    }
}
