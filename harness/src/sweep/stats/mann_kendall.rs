//! The trend test of Mann (Econometrica 13, 1945) and Kendall (Rank Correlation Methods, 1948): whether values grow with
//! their order. It looks at signs of differences only, so one outlier is one value among others.

use statrs::distribution::{ContinuousCDF, Normal};

/// More values than this have the normal approximation in place of the exact distribution.
const EXACT: usize = 40;

/// A trend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// How many pairs grow less how many fall.
    pub s: i64,
    /// The probability of so large an `s`, or a larger one, where the order means nothing.
    pub p: f64,
}

/// The trend of `values` in their order; nothing for fewer than three values, and where one is NaN.
///
/// The probability is exact without ties (from the numbers of permutations by inversions), and otherwise that of the
/// normal distribution with the variance corrected for ties and a continuity correction.
#[must_use]
pub fn trend(values: &[f64]) -> Option<Trend> {
    let n = values.len();
    if n < 3 || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut s = 0i64;
    let mut tied = false;
    for (i, a) in values.iter().enumerate() {
        for b in &values[i + 1..] {
            match a.partial_cmp(b)? {
                std::cmp::Ordering::Less => s += 1,
                std::cmp::Ordering::Greater => s -= 1,
                std::cmp::Ordering::Equal => tied = true,
            }
        }
    }
    let p = if tied || n > EXACT { approximate(values, s) } else { exact(n, s) };
    Some(Trend { s, p })
}

/// P(S >= s) over all orders of `n` different values.
fn exact(n: usize, s: i64) -> f64 {
    // Shares of permutations by inversions, one value after the other; S is all pairs less twice the inversions.
    let pairs = n * (n - 1) / 2;
    let mut shares = vec![1.0];
    for k in 2..=n {
        let mut next = vec![0.0; shares.len() + k - 1];
        for (inversions, share) in shares.iter().enumerate() {
            for more in &mut next[inversions..inversions + k] {
                *more += share / k as f64;
            }
        }
        shares = next;
    }
    let most = (pairs as i64 - s) / 2;
    shares.iter().take(usize::try_from(most + 1).unwrap_or(0)).sum::<f64>().min(1.0)
}

fn approximate(values: &[f64], s: i64) -> f64 {
    let weight = |n: usize| (n * (n - 1) * (2 * n + 5)) as f64;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let ties: f64 = sorted.chunk_by(|a, b| a == b).map(|equal| weight(equal.len())).sum();
    let variance = (weight(values.len()) - ties) / 18.0;
    if !(variance > 0.0) {
        // All values are equal.
        return 1.0;
    }
    let z = (s as f64 - s.signum() as f64) / variance.sqrt();
    Normal::standard().sf(z)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn p(n: usize, s: i64) -> f64 {
        exact(n, s)
    }

    #[test]
    fn the_published_table() {
        // Gilbert, Statistical Methods for Environmental Pollution Monitoring (1987), table A18.
        for (n, s, expected) in [
            (4, 2, 0.375),
            (4, 4, 0.167),
            (4, 6, 0.042),
            (5, 4, 0.242),
            (5, 6, 0.117),
            (5, 8, 0.042),
            (5, 10, 0.0083),
            (8, 16, 0.031),
            (10, 21, 0.036),
        ] {
            assert!((p(n, s) - expected).abs() < 6e-4, "{n} {s}: {}", p(n, s));
        }
    }

    #[test]
    fn by_hand() {
        // One of 120 orders of five values grows throughout.
        let growing = trend(&[1.0, 2.0, 4.0, 8.0, 9.0]).unwrap();
        assert!(growing.s == 10 && (growing.p - 1.0 / 120.0).abs() < 1e-15, "{growing:?}");
        let falling = trend(&[3.0, 2.0, 1.0]).unwrap();
        assert_eq!(falling.s, -3);
        assert!((falling.p - 1.0).abs() < 1e-12);
        assert_eq!(trend(&[1.0, 2.0]), None);
        assert_eq!(trend(&[1.0, f64::NAN, 2.0]), None);
        assert_eq!(trend(&[5.0; 6]), Some(Trend { s: 0, p: 1.0 }));
        assert_eq!(trend(&[1.0, 2.0, f64::INFINITY]).map(|t| t.s), Some(3));
    }

    #[test]
    fn ties_and_the_exact_distribution_meet() {
        // The first twenty of thirty in the opposite order: 435 pairs, 190 of them falling.
        let mut values: Vec<f64> = (0..30).map(f64::from).collect();
        values[..20].reverse();
        let found = trend(&values).unwrap();
        assert_eq!(found.s, 435 - 2 * 190);
        assert!((found.p / approximate(&values, found.s) - 1.0).abs() < 0.02, "{found:?}");
    }

    proptest! {
        #[test]
        fn p_is_a_probability_and_the_order_of_growth_is_all_that_counts(
            values in prop::collection::vec(-1e3f64..1e3, 3..30)
        ) {
            let found = trend(&values).unwrap();
            prop_assert!((0.0..=1.0).contains(&found.p), "{found:?}");
            // Doubling is exact, so that rounding makes no ties.
            let doubled: Vec<f64> = values.iter().map(|value| value * 2.0).collect();
            prop_assert_eq!(trend(&doubled), Some(found));
            let mut backwards = values.clone();
            backwards.reverse();
            prop_assert_eq!(trend(&backwards).unwrap().s, -found.s);
        }

        #[test]
        fn more_growth_is_never_likelier(n in 3usize..30, s in -400i64..400) {
            prop_assert!(p(n, s + 2) <= p(n, s) + 1e-12);
        }
    }
}
