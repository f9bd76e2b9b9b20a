//! Delta debugging: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2002),
//! the minimising algorithm.

/// A subset of `all` that is enough, and of which no single element can be left out: 1-minimal, which is not to say
/// that there is no other one, or none that is smaller. Order is kept.
///
/// `enough` must hold for `all` and not for nothing; neither is asked. No set is asked more often than the algorithm
/// comes by it, at most `n * n + 3 * n` times for `n` elements altogether.
///
/// # Errors
/// Those of `enough`.
pub fn ddmin<T: Clone, E>(all: &[T], mut enough: impl FnMut(&[T]) -> Result<bool, E>) -> Result<Vec<T>, E> {
    let mut set = all.to_vec();
    let mut parts = 2;
    'reduced: while set.len() > 1 {
        let ranges = split(set.len(), parts);
        for range in &ranges {
            if enough(&set[range.clone()])? {
                set = set[range.clone()].to_vec();
                parts = 2;
                continue 'reduced;
            }
        }
        // Of two parts each is what the other leaves.
        for range in ranges.iter().filter(|_| parts > 2) {
            let rest = [&set[..range.start], &set[range.end..]].concat();
            if enough(&rest)? {
                set = rest;
                parts -= 1;
                continue 'reduced;
            }
        }
        if parts >= set.len() {
            break;
        }
        parts = (2 * parts).min(set.len());
    }
    Ok(set)
}

/// `0..n` in so many ranges of nearly equal length.
fn split(n: usize, parts: usize) -> Vec<std::ops::Range<usize>> {
    (0..parts).map(|i| i * n / parts..(i + 1) * n / parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;
    use std::hash::{DefaultHasher, Hash, Hasher};

    /// Minimises `0..n`; the result and how many sets were asked for.
    fn minimise(n: usize, enough: impl Fn(&[usize]) -> bool) -> (Vec<usize>, usize) {
        let all: Vec<usize> = (0..n).collect();
        let mut asked = 0;
        let found = ddmin(&all, |set| {
            asked += 1;
            assert!(!set.is_empty() && set.len() < n, "{set:?}");
            Ok::<_, Infallible>(enough(set))
        });
        (found.unwrap(), asked)
    }

    /// Whether leaving any one element out is too much.
    fn is_one_minimal(set: &[usize], enough: impl Fn(&[usize]) -> bool) -> bool {
        let without = |i: usize| [&set[..i], &set[i + 1..]].concat();
        set.len() == 1 || (0..set.len()).all(|i| !enough(&without(i)))
    }

    #[test]
    fn the_papers_example() {
        // Elements 1, 7 and 8 of eight, counted from 1.
        let (found, _) = minimise(8, |set| [0, 6, 7].iter().all(|i| set.contains(i)));
        assert_eq!(found, [0, 6, 7]);
    }

    #[test]
    fn one_element_needs_about_as_many_trials_as_a_binary_search() {
        let (found, asked) = minimise(64, |set| set.contains(&41));
        assert_eq!(found, [41]);
        assert!(asked <= 12, "{asked}");
    }

    #[test]
    fn everything_may_be_needed_and_errors_end_the_search() {
        let (found, asked) = minimise(5, |set| set.len() == 5);
        assert_eq!(found, [0, 1, 2, 3, 4]);
        assert!(asked <= 5 * 5 + 3 * 5);
        assert_eq!(ddmin(&[1, 2], |_| Err("no")), Err("no"));
        assert_eq!(ddmin(&[7], |_| Err("never asked")), Ok(vec![7]));
    }

    proptest! {
        /// One of several sets is needed, whatever else is there.
        #[test]
        fn monotone_predicates(
            n in 1usize..24,
            needed in proptest::collection::vec(proptest::collection::btree_set(0usize..24, 1..5), 1..4),
        ) {
            let needed: Vec<Vec<usize>> =
                needed.into_iter().map(|set| set.into_iter().map(|i| i % n).collect()).collect();
            let enough = |set: &[usize]| needed.iter().any(|all| all.iter().all(|i| set.contains(i)));
            let (found, asked) = minimise(n, enough);
            prop_assert!(enough(&found));
            prop_assert!(is_one_minimal(&found, enough));
            prop_assert!(asked <= n * n + 3 * n, "{asked} for {n}");
        }

        /// Any sets at all, as where pinning one more node breaks what another has repaired, or where trials crash.
        #[test]
        fn other_predicates(n in 1usize..24, seed: u64, one_in in 1u64..9) {
            let enough = |set: &[usize]| {
                let mut hasher = DefaultHasher::new();
                (seed, set).hash(&mut hasher);
                set.len() == n || hasher.finish().is_multiple_of(one_in)
            };
            let (found, asked) = minimise(n, enough);
            prop_assert!(enough(&found));
            prop_assert!(is_one_minimal(&found, enough), "{found:?}");
            prop_assert!(asked <= n * n + 3 * n, "{asked} for {n}");
        }
    }
}
