//! Which lengths are tried next, given what is known.
//!
//! Rounds, each of all the lengths that are wanted at once, since a worker that has loaded a model goes on with further
//! cells. Between neighbours whose standing differs the middle is tried, until they are one apart. When nothing is left
//! to halve, each gap of the grid beside one with a change gets one look at its middle; a look that finds a change is
//! halved in its turn, and its own neighbours are looked at.

use super::{Origin, Standing};
use std::collections::BTreeMap;

/// What is known: by length, how it stands and why it was tried.
pub type Known = BTreeMap<u32, (Standing, Origin)>;

/// The lengths to try next, in order; none where the search is at its end. `grid` is in order.
#[must_use]
pub fn next(grid: &[u32], known: &Known) -> Vec<(u32, Origin)> {
    let missing: Vec<_> =
        grid.iter().filter(|n| !known.contains_key(n)).map(|&n| (n, Origin::Grid)).collect();
    if !missing.is_empty() {
        return missing;
    }
    let halves = halves(known);
    if halves.is_empty() { looks(grid, known) } else { halves }
}

/// The middles between neighbours that differ.
fn halves(known: &Known) -> Vec<(u32, Origin)> {
    let neighbours = known.iter().zip(known.iter().skip(1));
    let differ = neighbours.filter(|((a, (of_a, _)), (b, (of_b, _)))| of_a != of_b && *b - *a > 1);
    differ.map(|((a, _), (b, _))| (a + (b - a) / 2, Origin::Bisection)).collect()
}

/// The middles of untouched gaps of the grid beside one with a change.
fn looks(grid: &[u32], known: &Known) -> Vec<(u32, Origin)> {
    let gaps: Vec<(u32, u32)> = grid.iter().copied().zip(grid.iter().copied().skip(1)).collect();
    let changes = |&(a, b): &(u32, u32)| {
        let mut inside = known.range(a..=b).map(|(_, (standing, _))| standing);
        let first = inside.next();
        inside.any(|standing| Some(standing) != first)
    };
    let changed: Vec<bool> = gaps.iter().map(changes).collect();
    let untouched = |&(a, b): &(u32, u32)| b - a > 1 && known.range(a + 1..b).next().is_none();
    let beside = |i: usize| (i > 0 && changed[i - 1]) || changed.get(i + 1).copied().unwrap_or(false);
    let wanted = gaps.iter().enumerate().filter(|(i, gap)| !changed[*i] && beside(*i) && untouched(gap));
    wanted.map(|(_, (a, b))| (a + (b - a) / 2, Origin::Look)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::grid::standard;
    use super::*;
    use proptest::prelude::*;

    /// The whole search where `bad` says what is wrong; the rounds, and what is known at the end.
    fn search(grid: &[u32], bad: impl Fn(u32) -> bool) -> (Vec<Vec<(u32, Origin)>>, Known) {
        let (mut known, mut rounds) = (Known::new(), Vec::new());
        loop {
            let wanted = next(grid, &known);
            if wanted.is_empty() {
                return (rounds, known);
            }
            for &(n, origin) in &wanted {
                let standing = if bad(n) { Standing::Bad } else { Standing::Good };
                assert!(known.insert(n, (standing, origin)).is_none(), "{n} is tried twice");
            }
            rounds.push(wanted);
        }
    }

    fn bad_lengths(known: &Known) -> Vec<u32> {
        known.iter().filter(|(_, (standing, _))| *standing == Standing::Bad).map(|(n, _)| *n).collect()
    }

    #[test]
    fn where_nothing_changes_the_grid_is_all() {
        let grid = standard(1, 64);
        for bad in [false, true] {
            let (rounds, known) = search(&grid, |_| bad);
            assert_eq!((rounds.len(), known.len()), (1, grid.len()));
        }
    }

    #[test]
    fn a_fault_between_two_powers_is_found_and_its_end_is_exact() {
        let (rounds, known) = search(&standard(1, 64), |n| (33..=45).contains(&n));
        assert_eq!(bad_lengths(&known), [33, 40, 44, 45]);
        assert_eq!(known[&46].0, Standing::Good);
        // Beside the gaps that change, 24..32 and 48..64 get a look.
        let looked: Vec<u32> =
            rounds.concat().iter().filter(|(_, o)| *o == Origin::Look).map(|r| r.0).collect();
        assert_eq!(looked, [28, 56]);
    }

    #[test]
    fn a_second_fault_beside_the_first_is_seen_by_the_look() {
        let grid = [1, 32, 33, 48, 64, 96];
        let bad = |n| n == 33 || (52..60).contains(&n);
        let (_, known) = search(&grid, bad);
        let found = bad_lengths(&known);
        assert!(found.contains(&33) && found.contains(&52) && found.contains(&59), "{found:?}");
        // Its own neighbour, 64..96, was looked at then.
        assert_eq!(known[&80], (Standing::Good, Origin::Look));
    }

    proptest! {
        #[test]
        fn every_change_between_tried_lengths_ends_up_between_neighbours(
            bits in proptest::collection::vec(any::<bool>(), 130),
            max in 1u32..128,
        ) {
            let grid = standard(1, max);
            let (_, known) = search(&grid, |n| bits[n as usize]);
            let pairs = known.iter().zip(known.iter().skip(1));
            for ((a, (of_a, _)), (b, (of_b, _))) in pairs {
                prop_assert!(of_a == of_b || b - a == 1, "{} {}", a, b);
            }
            prop_assert!(grid.iter().all(|n| known.contains_key(n)));
        }
    }
}
