//! Tail and point probabilities of the binomial distribution, with the ends that statrs leaves to the caller.

use statrs::distribution::{Binomial, Discrete, DiscreteCDF};

/// P(X <= k) of `n` trials with probability `p`.
pub(super) fn at_most(k: u64, n: u64, p: f64) -> f64 {
    if k >= n || p <= 0.0 {
        return 1.0;
    }
    if p >= 1.0 {
        return 0.0;
    }
    Binomial::new(p, n).map_or(f64::NAN, |binomial| binomial.cdf(k))
}

/// P(X = k) of `n` trials with probability `p`.
pub(super) fn exactly(k: u64, n: u64, p: f64) -> f64 {
    Binomial::new(p, n).map_or(f64::NAN, |binomial| binomial.pmf(k))
}

/// P(X = k) for every `k` of `range`, as [`exactly`], from one evaluation at the mode: the ratio of neighbours is
/// exact up to rounding and costs no logarithm.
pub(super) fn masses(range: std::ops::RangeInclusive<u64>, n: u64, p: f64) -> Vec<f64> {
    let (first, last) = (*range.start(), *range.end());
    let mut masses = vec![0.0; (last - first + 1) as usize];
    let mode = (((n + 1) as f64 * p) as u64).clamp(first, last);
    let place = (mode - first) as usize;
    masses[place] = exactly(mode, n, p);
    let odds = p / (1.0 - p);
    for k in mode + 1..=last {
        let i = (k - first) as usize;
        masses[i] = masses[i - 1] * odds * ((n - k + 1) as f64 / k as f64);
    }
    for k in (first..mode).rev() {
        let i = (k - first) as usize;
        masses[i] = masses[i + 1] / odds * ((k + 1) as f64 / (n - k) as f64);
    }
    masses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_by_hand() {
        // (1 + 8) of 2^8 sequences have at most one head.
        assert!((at_most(1, 8, 0.5) - 9.0 / 256.0).abs() < 1e-14);
        assert_eq!((at_most(8, 8, 0.3), at_most(0, 8, 0.0), at_most(7, 8, 1.0)), (1.0, 1.0, 0.0));
    }

    #[test]
    fn masses_are_the_point_probabilities() {
        for (n, p) in [(12, 0.3), (500, 0.04), (4000, 0.5)] {
            let all = masses(0..=n, n, p);
            assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{n} {p}");
            for k in [0, n / 10, n / 2] {
                let expected = exactly(k, n, p);
                assert!((all[k as usize] - expected).abs() <= 1e-9 * expected, "{n} {p} {k}");
            }
        }
    }
}
