//! The interval of the difference of two paired accuracies.
//!
//! Newcombe 1998, Statistics in Medicine 17:2635, method 10: the Wilson intervals of both accuracies, put together by
//! squares and with the correlation of the answers, whose estimate is corrected for continuity. It stays inside -1 to
//! 1, and has a width where no item is discordant, which the plain (Wald) interval has not. It is not the inverse of
//! McNemar's test: near 0.05 one may exclude no difference and the other not. Reports decide by the test.

use super::{Interval, Level, Paired};

/// The interval of [`Paired::difference`]; without items it is -1 to 1.
#[must_use]
pub fn interval(counts: &Paired, level: Level) -> Interval {
    let n = counts.items();
    if n == 0 {
        return Interval { low: -1.0, high: 1.0 };
    }
    let z = level.z();
    let (test, reference) = (counts.both + counts.gained, counts.both + counts.lost);
    let (p1, p2) = (test as f64 / n as f64, reference as f64 / n as f64);
    let (w1, w2) = (wilson(test, n, z), wilson(reference, n, z));
    let phi = correlation(counts);
    let reach = |a: f64, b: f64| (a * a - 2.0 * phi * a * b + b * b).max(0.0).sqrt();
    let difference = counts.difference();
    Interval {
        low: (difference - reach(p1 - w1.low, w2.high - p2)).max(-1.0),
        high: (difference + reach(p2 - w2.low, w1.high - p1)).min(1.0),
    }
}

/// The Wilson score interval of `hits` in `n`.
fn wilson(hits: u64, n: u64, z: f64) -> Interval {
    let (k, n) = (hits as f64, n as f64);
    let (p, z2) = (k / n, z * z);
    let centre = (k + z2 / 2.0) / (n + z2);
    let half = z / (n + z2) * (n * p * (1.0 - p) + z2 / 4.0).sqrt();
    // At the ends rounding would leave 1e-17.
    let low = if hits == 0 { 0.0 } else { centre - half };
    let high = if k == n { 1.0 } else { centre + half };
    Interval { low, high }
}

/// The correlation of the two answers, its numerator corrected for continuity where it is positive.
fn correlation(counts: &Paired) -> f64 {
    let [a, b, c, d] = [counts.both, counts.lost, counts.gained, counts.neither].map(|count| count as f64);
    let product = (a + b) * (c + d) * (a + c) * (b + d);
    if product == 0.0 {
        return 0.0;
    }
    let covariance = a * d - b * c;
    let half = (a + b + c + d) / 2.0;
    let corrected = if covariance > 0.0 { (covariance - half).max(0.0) } else { covariance };
    corrected / product.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(both: u64, lost: u64, gained: u64, neither: u64) -> Paired {
        Paired { both, lost, gained, neither }
    }

    /// The first: Newcombe 1998, table III, example of Armitage and Berry. The second: Fagerland, Lydersen and Laake
    /// 2014, Statistics in Medicine 33:2850, the airway example, which the uncorrected correlation misses.
    #[test]
    fn published_intervals() {
        for (table, low, high) in
            [(counts(36, 2, 12, 0), 0.0569, 0.3404), (counts(1, 7, 1, 12), -0.507, -0.026)]
        {
            let found = interval(&table, Level::P95);
            assert!((found.low - low).abs() < 5e-4 && (found.high - high).abs() < 5e-4, "{found:?}");
        }
    }

    #[test]
    fn equal_answers_still_have_a_width() {
        let found = interval(&counts(150, 0, 0, 0), Level::P95);
        // Wilson's lower end of 150 of 150 is 1 / (1 + z^2 / 150).
        let gap = 1.0 - 1.0 / (1.0 + Level::P95.z().powi(2) / 150.0);
        assert!((found.high - gap).abs() < 1e-12 && (found.low + gap).abs() < 1e-12, "{found:?}");
        assert_eq!(interval(&Paired::default(), Level::P95), Interval { low: -1.0, high: 1.0 });
    }

    proptest! {
        #[test]
        fn it_contains_the_difference_and_mirrors(a in 0u64..300, b in 0u64..40, c in 0u64..40, d in 0u64..300) {
            prop_assume!(a + b + c + d > 0);
            let table = counts(a, b, c, d);
            let found = interval(&table, Level::P95);
            prop_assert!(found.contains(table.difference()), "{found:?}");
            prop_assert!(found.low >= -1.0 && found.high <= 1.0);
            let swapped = interval(&counts(a, c, b, d), Level::P95);
            prop_assert!((found.low + swapped.high).abs() < 1e-12 && (found.high + swapped.low).abs() < 1e-12);
            let more = interval(&counts(9 * a, 9 * b, 9 * c, 9 * d), Level::P95);
            prop_assert!(more.width() < found.width());
            prop_assert!(interval(&table, Level::new(0.99).unwrap()).width() > found.width());
        }
    }
}
