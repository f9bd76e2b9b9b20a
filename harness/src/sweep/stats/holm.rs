//! Holm's correction (1979) of a family of p values.
//!
//! A sweep asks many questions at once: every arm, and every tag of it. Of twenty true "no difference" one falls below
//! 0.05 by chance. Holm's adjusted values bound the probability that *any* of them is called a difference wrongly,
//! whatever the dependence between the comparisons, and are never larger than Bonferroni's.

/// The adjusted p values, in the order given: compare them with the level that a single test would use. NaN counts as
/// 1, a comparison that was planned and says nothing; leaving it out would make the family smaller.
#[must_use]
pub fn adjust(p_values: &[f64]) -> Vec<f64> {
    let family = p_values.len();
    let p = |i: usize| if p_values[i].is_nan() { 1.0 } else { p_values[i] };
    let mut order: Vec<usize> = (0..family).collect();
    order.sort_by(|&a, &b| p(a).total_cmp(&p(b)).then(a.cmp(&b)));
    let mut adjusted = vec![1.0; family];
    let mut largest = 0.0f64;
    for (rank, &i) in order.iter().enumerate() {
        largest = largest.max(p(i) * (family - rank) as f64).min(1.0);
        adjusted[i] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04 raised to the one before it.
    #[test]
    fn four_values_by_hand() {
        let adjusted = adjust(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-15, "{adjusted:?}");
        }
    }

    #[test]
    fn empty_single_and_nan() {
        assert!(adjust(&[]).is_empty());
        assert_eq!(adjust(&[0.04]), [0.04]);
        assert_eq!(adjust(&[f64::NAN, 0.04]), [1.0, 0.08]);
    }

    proptest! {
        #[test]
        fn between_the_value_and_bonferroni(p in proptest::collection::vec(0.0f64..=1.0, 1..30)) {
            let adjusted = adjust(&p);
            for (i, (&raw, &corrected)) in p.iter().zip(&adjusted).enumerate() {
                prop_assert!(corrected >= raw && corrected <= (raw * p.len() as f64).min(1.0), "{i}");
                for (&other, &corrected_other) in p.iter().zip(&adjusted) {
                    prop_assert!(raw > other || corrected <= corrected_other, "the order stays");
                }
            }
        }
    }
}
