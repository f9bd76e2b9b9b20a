//! Blocks of 32 whose codes stand for unevenly spaced values: IQ4_NL and MXFP4.

use super::{extreme, get_f16, inverse, put_f16};

/// What IQ4_NL's codes stand for.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice what MXFP4's codes stand for: E2M1, the upper bit is the sign. The scale is halved in return.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const HALF: usize = 16;

/// `[scale, 16 bytes of nibbles]`
pub(super) fn decode_iq4_nl(block: &[u8], out: &mut [f32]) {
    decode(&block[2..], get_f16(block, 0), &IQ4_NL, out);
}

pub(super) fn encode_iq4_nl(values: &[f32], block: &mut [u8]) -> Option<()> {
    let d = put_f16(block, 0, fit_iq4_nl(values))?;
    let id = inverse(d);
    put_codes(&mut block[2..], |j| nearest_iq4_nl(values[j] * id));
    Some(())
}

/// The scale of either sign that comes nearest to the values, which count by their squares. Tries those that
/// map the extreme value near to either end of the table.
fn fit_iq4_nl(x: &[f32]) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    let ends = [f32::from(IQ4_NL[0]), f32::from(IQ4_NL[15])];
    let (mut best, mut most) = (extreme / ends[0], 0.0f64);
    for end in ends {
        for step in -7..=7i8 {
            let to_table = (end + f32::from(step)) / extreme;
            let (mut xq, mut qq) = (0.0f64, 0.0f64);
            for &v in x {
                let q = f64::from(IQ4_NL[usize::from(nearest_iq4_nl(v * to_table))]);
                let v = f64::from(v);
                let w = v * v;
                xq += w * v * q;
                qq += w * q * q;
            }
            if qq > 0.0 && xq * xq / qq > most {
                most = xq * xq / qq;
                best = (xq / qq) as f32;
            }
        }
    }
    best
}

/// `[exponent, 16 bytes of nibbles]`
pub(super) fn decode_mxfp4(block: &[u8], out: &mut [f32]) {
    decode(&block[1..], half_of_e8m0(block[0]), &E2M1, out);
}

pub(super) fn encode_mxfp4(values: &[f32], block: &mut [u8]) -> Option<()> {
    // The extreme value lands between 4 and 8 times the scale; above 6 it is cut to 6. Taking the exponent
    // from the bits floors its logarithm exactly; subnormal values get the smallest scale.
    let exponent = (extreme(values).abs().to_bits() >> 23) as u8;
    block[0] = exponent.saturating_sub(2);
    let id = inverse(half_of_e8m0(block[0]));
    put_codes(&mut block[1..], |j| nearest_code(&E2M1, values[j] * id));
    Some(())
}

/// Half of the power of two that an E8M0 exponent stands for: 2^(e - 128).
fn half_of_e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        // Subnormal.
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    })
}

fn decode(nibbles: &[u8], d: f32, table: &[i8; 16], out: &mut [f32]) {
    for (j, &q) in nibbles.iter().enumerate() {
        out[j] = d * f32::from(table[usize::from(q & 15)]);
        out[j + HALF] = d * f32::from(table[usize::from(q >> 4)]);
    }
}

fn put_codes(nibbles: &mut [u8], code: impl Fn(usize) -> u8) {
    for (j, byte) in nibbles.iter_mut().enumerate() {
        *byte = code(j) | code(j + HALF) << 4;
    }
}

/// The code whose value lies nearest, the first of equals.
fn nearest_code(table: &[i8; 16], x: f32) -> u8 {
    let mut best = (0, f32::INFINITY);
    for (code, &value) in (0u8..).zip(table) {
        let distance = (f32::from(value) - x).abs();
        if distance < best.1 {
            best = (code, distance);
        }
    }
    best.0
}

/// The same for IQ4_NL's ascending table: the number of midpoints below.
fn nearest_iq4_nl(x: f32) -> u8 {
    IQ4_NL.windows(2).map(|pair| u8::from(2.0 * x > f32::from(pair[0]) + f32::from(pair[1]))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_powers_of_two() {
        assert_eq!(half_of_e8m0(127), 0.5);
        assert_eq!(half_of_e8m0(128), 1.0);
        assert_eq!(half_of_e8m0(2), f32::MIN_POSITIVE);
        assert_eq!(half_of_e8m0(1), f32::MIN_POSITIVE / 2.0);
        assert_eq!(half_of_e8m0(0), f32::MIN_POSITIVE / 4.0);
        assert_eq!(half_of_e8m0(254), 2f32.powi(126));
    }

    #[test]
    fn codes_are_the_nearest() {
        for (code, &value) in (0u8..).zip(&IQ4_NL) {
            assert_eq!(nearest_iq4_nl(f32::from(value) + 0.4), code);
        }
        for x in (-300..300).map(|x| x as f32 / 2.0) {
            assert_eq!(nearest_iq4_nl(x), nearest_code(&IQ4_NL, x), "{x}");
        }
        assert_eq!(nearest_code(&E2M1, 9.9), 6);
        assert_eq!(nearest_code(&E2M1, -100.0), 15);
    }
}
