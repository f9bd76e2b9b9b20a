//! What is known of ranges of lengths, and what is not.

use super::Standing;
use serde::{Deserialize, Serialize};

/// Lists of untried lengths in a sentence have at most so many entries.
const SHOWN: usize = 8;

/// A run of tried lengths that stand alike: the next tried one on either side stands otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// How they stand.
    pub standing: Standing,
    /// The lengths that were tried, in order; at least one.
    pub tried: Vec<u32>,
    /// The next tried length below.
    pub below: Option<Neighbour>,
    /// The next tried length above.
    pub above: Option<Neighbour>,
}

/// A tried length beside a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// The length.
    pub length: u32,
    /// How it stands.
    pub standing: Standing,
}

/// The ranges of `points`, which are in order of length.
#[must_use]
pub fn ranges(points: &[(u32, Standing)]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for &(length, standing) in points {
        match ranges.last_mut() {
            Some(last) if last.standing == standing => last.tried.push(length),
            last => {
                let below = last.map(|last| {
                    last.above = Some(Neighbour { length, standing });
                    Neighbour { length: last.last(), standing: last.standing }
                });
                ranges.push(Range { standing, tried: vec![length], below, above: None });
            }
        }
    }
    ranges
}

impl Range {
    /// The shortest tried length.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.tried.first().copied().unwrap_or_default()
    }

    /// The longest tried length.
    #[must_use]
    pub fn last(&self) -> u32 {
        self.tried.last().copied().unwrap_or_default()
    }

    /// The lengths that nothing is known of, from the neighbour below to the neighbour above.
    #[must_use]
    pub fn untried(&self) -> Vec<(u32, u32)> {
        let ends = (self.below.map(|n| n.length), self.above.map(|n| n.length));
        let all: Vec<u32> = ends.0.into_iter().chain(self.tried.iter().copied()).chain(ends.1).collect();
        let pairs = all.iter().zip(all.iter().skip(1));
        pairs.filter(|(a, b)| *b - *a > 1).map(|(a, b)| (a + 1, b - 1)).collect()
    }

    /// What is known in one sentence: `bad at 33, 40 and 44..45; good at 32 and 46; not tried: 34..39, 41..43`.
    #[must_use]
    pub fn sentence(&self) -> String {
        let mut text = format!("{} at {}", self.standing, joined(&runs(&self.tried)));
        let sides: Vec<Neighbour> = self.below.into_iter().chain(self.above).collect();
        match sides[..] {
            [a, b] if a.standing == b.standing => {
                text += &format!("; {} at {} and {}", a.standing, a.length, b.length);
            }
            _ => sides.iter().for_each(|side| text += &format!("; {} at {}", side.standing, side.length)),
        }
        let untried = self.untried();
        if untried.is_empty() {
            return text;
        }
        let mut shown: Vec<String> = untried.iter().take(SHOWN).map(|&gap| written(gap)).collect();
        if untried.len() > SHOWN {
            shown.push(format!("{} more gaps", untried.len() - SHOWN));
        }
        text + "; not tried: " + &shown.join(", ")
    }
}

/// Lengths as runs of neighbours.
fn runs(lengths: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &length in lengths {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == length => *last = length,
            _ => runs.push((length, length)),
        }
    }
    runs
}

fn written((first, last): (u32, u32)) -> String {
    if first == last { first.to_string() } else { format!("{first}..{last}") }
}

fn joined(runs: &[(u32, u32)]) -> String {
    let written: Vec<String> = runs.iter().map(|&run| written(run)).collect();
    match &written[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        all => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::Standing::{Bad, Good, Lost};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_known_is_said_and_nothing_else() {
        let points =
            [(1, Good), (32, Good), (33, Bad), (40, Bad), (44, Bad), (45, Bad), (46, Good), (64, Lost)];
        let ranges = ranges(&points);
        let said: Vec<String> = ranges.iter().map(Range::sentence).collect();
        assert_eq!(
            said,
            [
                "good at 1 and 32; bad at 33; not tried: 2..31",
                "bad at 33, 40 and 44..45; good at 32 and 46; not tried: 34..39, 41..43",
                "good at 46; bad at 45; lost at 64; not tried: 47..63",
                "lost at 64; good at 46; not tried: 47..63",
            ]
        );
    }

    #[test]
    fn one_bad_length_between_tried_ones_and_one_that_stands_alone() {
        let one = ranges(&[(32, Good), (33, Bad), (64, Good)]);
        assert_eq!(one[1].sentence(), "bad at 33; good at 32 and 64; not tried: 34..63");
        assert_eq!(ranges(&[(7, Bad)])[0].sentence(), "bad at 7");
        assert!(ranges(&[]).is_empty());
    }

    #[test]
    fn long_lists_are_cut_and_say_so() {
        let points: Vec<(u32, Standing)> = (0..12).map(|i| (1 + 3 * i, Bad)).collect();
        let said = ranges(&points)[0].sentence();
        assert!(said.ends_with("20..21, 23..24, 3 more gaps"), "{said}");
    }

    proptest! {
        #[test]
        fn tried_and_untried_lengths_are_all_there_are(
            lengths in proptest::collection::btree_map(1u32..200, prop_oneof![Just(Good), Just(Bad), Just(Lost)], 1..40),
        ) {
            let points: Vec<(u32, Standing)> = lengths.iter().map(|(n, s)| (*n, *s)).collect();
            let ranges = ranges(&points);
            prop_assert_eq!(ranges.iter().map(|range| range.tried.len()).sum::<usize>(), points.len());
            for range in &ranges {
                let (low, high) = (
                    range.below.map_or(range.first(), |n| n.length + 1),
                    range.above.map_or(range.last(), |n| n.length - 1),
                );
                let untried: u32 = range.untried().iter().map(|(a, b)| b - a + 1).sum();
                prop_assert_eq!(untried + range.tried.len() as u32, high - low + 1);
                prop_assert!(range.tried.iter().all(|n| lengths[n] == range.standing));
            }
        }
    }
}
