//! The dense sampler of a diffusion canvas in f64: what each row of logits gives, and how far a draw may be off before
//! it is wrong.
//!
//! For one row with `z = logit * inv_temp`, `m = max z`, `e = exp(z - m)`, `Z = sum e` and `T = sum (z - m) e`: the
//! argmax is the first maximum, the entropy is `H = log Z - T / Z` in nats, and the draw is the first index, in the
//! order of the vocabulary, at which the running sum of `e` reaches `u * Z`, or the last index where none does. A logit
//! of minus infinity gives `e = 0` and takes no part in `T`. A row that has a NaN, or whose largest logit is not finite
//! (all minus infinity, or a plus infinity), yields nothing.

use rayon::prelude::*;

/// How far the running sum may be from `u * Z`, over `Z`, where another draw counts as a near tie: a running sum of
/// 262,144 entries in f32 in two levels errs by about 1.5e-6.
pub const NEAR_TIE: f64 = 1e-5;

/// What one row gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The first index of the largest logit.
    pub argmax: usize,
    /// The entropy of the soft-max in nats.
    pub entropy: f64,
    /// The drawn index.
    pub sampled: usize,
    /// The first index that a sum within [`NEAR_TIE`] may have drawn.
    pub lowest: usize,
    /// The last one.
    pub highest: usize,
}

/// One row of logits and its `u`, from 0 up to 1; `None` where it yields nothing.
#[must_use]
pub fn draw(logits: &[f32], u: f32, inv_temp: f32) -> Option<Drawn> {
    let scale = f64::from(inv_temp);
    // Exact: the product of two 24-bit numbers.
    let z = |i: usize| f64::from(logits[i]) * scale;
    if logits.is_empty() || logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    let argmax = (1..logits.len()).fold(0, |best, i| if z(i) > z(best) { i } else { best });
    let most = z(argmax);
    if !most.is_finite() {
        return None;
    }
    let weights: Vec<f64> = (0..logits.len()).map(|i| (z(i) - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let terms = weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
    let mean: f64 = terms.map(|(i, weight)| (z(i) - most) * weight).sum::<f64>() / total;
    let target = f64::from(u) * total;
    let (mut sum, mut lowest, mut sampled, mut highest) = (0.0, None, None, None);
    for (i, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= target - NEAR_TIE * total {
            lowest.get_or_insert(i);
        }
        if sum >= target {
            sampled.get_or_insert(i);
        }
        // Beyond this one nothing is near: whoever drew the next had to take this sum for one below the target.
        if sum > target + NEAR_TIE * total {
            highest = Some(i);
            break;
        }
    }
    let last = logits.len() - 1;
    Some(Drawn {
        argmax,
        entropy: total.ln() - mean,
        sampled: sampled.unwrap_or(last),
        lowest: lowest.unwrap_or(last),
        highest: highest.unwrap_or(last),
    })
}

/// All rows of `logits [rows, vocab]`, row-major, with one `u` each.
///
/// # Panics
/// When the numbers do not fit each other: that is a fault of the caller.
#[must_use]
pub fn draw_rows(logits: &[f32], vocab: usize, u: &[f32], inv_temp: f32) -> Vec<Option<Drawn>> {
    assert_eq!(logits.len(), vocab * u.len(), "rows of {vocab} logits with one u each");
    let rows = logits.par_chunks_exact(vocab.max(1)).zip(u);
    rows.map(|(row, &u)| draw(row, u, inv_temp)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: f32 = f32::NEG_INFINITY;
    /// The largest number below 1.
    const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

    fn sampled(logits: &[f32], u: f32) -> usize {
        draw(logits, u, 1.0).unwrap().sampled
    }

    #[test]
    fn by_hand() {
        // Shares 1/4, 1/2, 1/4.
        let row = [0.0, 2f32.ln(), 0.0];
        let drawn = draw(&row, 0.5, 1.0).unwrap();
        assert_eq!((drawn.argmax, drawn.sampled), (1, 1));
        assert!((drawn.entropy - 1.5 * 2f64.ln()).abs() < 1e-7, "{}", drawn.entropy);
        assert_eq!([0.0, 0.2, 0.3, 0.7, 0.8, BELOW_ONE].map(|u| sampled(&row, u)), [0, 0, 1, 1, 2, 2]);
        // At half the temperature the shares are 1/6, 4/6, 1/6.
        assert_eq!(draw(&row, 0.2, 2.0).unwrap().sampled, 1);
    }

    #[test]
    fn of_equal_maxima_the_first_counts() {
        assert_eq!(draw(&[1.0, 3.0, 3.0, 2.0, 3.0], 0.5, 1.0).unwrap().argmax, 1);
        assert_eq!(draw(&[0.0; 9], 0.5, 1.0).unwrap().argmax, 0);
        assert_eq!(draw(&[-0.0, 0.0], 0.5, 1.0).unwrap().argmax, 0);
    }

    #[test]
    fn what_is_impossible_has_no_weight_and_no_say() {
        let drawn = draw(&[NONE, 5.0, NONE, 5.0, NONE], 0.9, 1.0).unwrap();
        assert_eq!((drawn.argmax, drawn.sampled), (1, 3));
        assert!((drawn.entropy - 2f64.ln()).abs() < 1e-15);
        // The contract to the letter: a sum of 0 reaches a target of 0.
        assert_eq!(sampled(&[NONE, 5.0], 0.0), 0);
    }

    #[test]
    fn rows_that_yield_nothing() {
        for row in [&[NONE, NONE][..], &[1.0, f32::NAN], &[f32::NAN; 3], &[1.0, f32::INFINITY], &[]] {
            assert_eq!(draw(row, 0.5, 1.0), None, "{row:?}");
        }
    }

    #[test]
    fn temperatures_of_every_size() {
        let row = [1.0f32, 2.0, 3.0, NONE];
        let cold = draw(&row, 0.5, 1e6).unwrap();
        assert_eq!((cold.argmax, cold.sampled, cold.entropy), (2, 2, 0.0));
        let hot = draw(&row, 0.5, 1e-6).unwrap();
        assert!((hot.entropy - 3f64.ln()).abs() < 1e-11 && hot.sampled == 1);
    }

    #[test]
    fn near_ties_are_those_at_the_boundary_that_was_missed() {
        // Two equal shares: u just at the boundary may fall on either side.
        let two = draw(&[0.0, 0.0], 0.5, 1.0).unwrap();
        assert_eq!((two.sampled, two.lowest, two.highest), (0, 0, 1));
        let inside = draw(&[0.0, 0.0], 0.4, 1.0).unwrap();
        assert_eq!((inside.sampled, inside.lowest, inside.highest), (0, 0, 0));
        // Of a million equal shares ten are within 1e-5 on each side.
        let many = draw(&vec![0.0; 1_000_000], 0.5, 1.0).unwrap();
        assert_eq!(many.sampled, 499_999);
        assert!((9..=11).contains(&(many.sampled - many.lowest)), "{many:?}");
        assert!((9..=11).contains(&(many.highest - many.sampled)), "{many:?}");
    }

    #[test]
    fn rows_are_independent() {
        let logits = [0.0, 1.0, f32::NAN, 0.0, NONE, 2.0];
        let rows = draw_rows(&logits, 2, &[0.1, 0.1, 0.1], 1.0);
        assert_eq!(rows[0], draw(&logits[..2], 0.1, 1.0));
        assert_eq!(rows[1], None);
        assert_eq!(rows[2].unwrap().argmax, 1);
    }

    proptest! {
        #[test]
        fn what_always_holds(
            row in proptest::collection::vec(prop_oneof![9 => -30f32..30.0, 1 => Just(NONE)], 1..200),
            u in 0f32..1.0,
            inv_temp in 0.01f32..50.0,
        ) {
            let Some(drawn) = draw(&row, u, inv_temp) else {
                prop_assert!(row.iter().all(|logit| *logit == NONE));
                return Ok(());
            };
            prop_assert!(row.iter().all(|logit| *logit <= row[drawn.argmax]));
            prop_assert!(row[..drawn.argmax].iter().all(|logit| *logit < row[drawn.argmax]));
            let possible = row.iter().filter(|logit| **logit > NONE).count() as f64;
            prop_assert!(drawn.entropy >= -1e-12 && drawn.entropy <= possible.ln() + 1e-12);
            prop_assert!(drawn.lowest <= drawn.sampled && drawn.sampled <= drawn.highest);
            prop_assert!(drawn.highest < row.len());
        }
    }
}
