//! The search itself, as `git bisect` does it: halves, skips, and an answer that may be a range. It knows nothing of
//! builds: places are numbers, and a trial is the only way to learn anything.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// What a trial says of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// What is looked for is not there.
    Good,
    /// It is.
    Bad,
    /// The trial cannot tell.
    Skip,
}

impl Outcome {
    /// Its one spelling.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Skip => "skip",
        }
    }
}

/// Where the change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The last place that is good.
    pub last_good: usize,
    /// The first place that is known to be bad. Those between the two could not be tried.
    pub first_bad: usize,
}

impl Answer {
    /// The places of which one is the first bad one.
    #[must_use]
    pub fn suspects(self) -> RangeInclusive<usize> {
        self.last_good + 1..=self.first_bad
    }

    /// Whether one place alone is left.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.last_good + 1 == self.first_bad
    }
}

/// Finds the change among `0..n`, of which the first is good and the last is bad; neither is asked.
///
/// Where all places after the first bad one are bad, the change is among the suspects of the answer, all of which but
/// the last were skipped. No place is asked twice. With `s` skips there are at most `most_trials(n) + 2 s` trials.
///
/// # Errors
/// Those of `trial`.
pub fn search<E>(n: usize, mut trial: impl FnMut(usize) -> Result<Outcome, E>) -> Result<Answer, E> {
    let mut answer = Answer { last_good: 0, first_bad: n.saturating_sub(1) };
    let mut open: Vec<usize> = (1..answer.first_bad).collect();
    let mut skips = 0;
    while let Some(place) = pick(&open, skips) {
        match trial(place)? {
            Outcome::Good => answer.last_good = place,
            Outcome::Bad => answer.first_bad = place,
            Outcome::Skip => {
                skips += 1;
                open.retain(|&other| other != place);
                continue;
            }
        }
        skips = 0;
        open.retain(|other| (answer.last_good + 1..answer.first_bad).contains(other));
    }
    Ok(answer)
}

/// The most trials that `n` places need after both ends, where none is skipped: the logarithm of the number of gaps.
#[must_use]
pub fn most_trials(n: usize) -> u32 {
    n.saturating_sub(1).max(1).next_power_of_two().trailing_zeros()
}

/// The middle of what is open. After skips it is another place, far from those before: what keeps one commit from
/// building mostly keeps its neighbours from it too.
fn pick(open: &[usize], skips: usize) -> Option<usize> {
    // The numbers of van der Corput: 1/2, 1/4, 3/4, 1/8, 5/8, ….
    let (mut share, mut step, mut digits) = (0.0, 0.5, skips + 1);
    while digits > 0 {
        if digits % 2 == 1 {
            share += step;
        }
        step /= 2.0;
        digits /= 2;
    }
    open.get((open.len() as f64 * share) as usize).copied()
}

/// A stretch of usable places with one outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Good or bad.
    pub outcome: Outcome,
    /// Its first place.
    pub first: usize,
    /// Its last place.
    pub last: usize,
}

/// The stretches of a scan, in order; places that were skipped belong to none. More than two are not monotonic.
#[must_use]
pub fn stretches(outcomes: impl IntoIterator<Item = (usize, Outcome)>) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    for (place, outcome) in outcomes.into_iter().filter(|(_, outcome)| *outcome != Outcome::Skip) {
        match all.last_mut() {
            Some(stretch) if stretch.outcome == outcome => stretch.last = place,
            _ => all.push(Stretch { outcome, first: place, last: place }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// Searches `n` places of which those from `change` on are bad; the answer, the places asked, the skips.
    fn run(n: usize, change: usize, skipped: impl Fn(usize) -> bool) -> (Answer, Vec<usize>, usize) {
        let (mut asked, mut skips) = (Vec::new(), 0);
        let answer = search(n, |place| {
            assert!(place > 0 && place < n - 1 && !asked.contains(&place), "{place} of {n}: {asked:?}");
            asked.push(place);
            Ok::<_, Infallible>(match skipped(place) {
                true => {
                    skips += 1;
                    Outcome::Skip
                }
                false if place >= change => Outcome::Bad,
                false => Outcome::Good,
            })
        });
        (answer.unwrap(), asked, skips)
    }

    #[test]
    fn sixteen_places_take_at_most_four_trials() {
        assert_eq!([2, 3, 16, 17, 18].map(most_trials), [0, 1, 4, 4, 5]);
        for change in 1..16 {
            let (answer, asked, _) = run(16, change, |_| false);
            assert_eq!((answer.last_good, answer.first_bad), (change - 1, change));
            assert!(asked.len() <= 4, "{change}: {asked:?}");
        }
    }

    #[test]
    fn what_cannot_be_tried_widens_the_answer() {
        let (answer, _, _) = run(16, 8, |place| (7..=9).contains(&place));
        assert_eq!((answer.last_good, answer.first_bad), (6, 10));
        assert_eq!(answer.suspects().collect::<Vec<_>>(), [7, 8, 9, 10]);
        assert!(!answer.is_exact());
        // Skips elsewhere do not.
        let (answer, _, _) = run(16, 12, |place| (7..=9).contains(&place));
        assert_eq!((answer.last_good, answer.first_bad), (11, 12));
    }

    #[test]
    fn a_long_stretch_that_does_not_build_is_left_in_steps_and_not_crawled_out_of() {
        // 400 of 1,000 places around the middle; the change is far from them.
        let (answer, asked, skips) = run(1000, 900, |place| (300..700).contains(&place));
        assert_eq!(answer.first_bad, 900);
        assert!(skips <= 3 && asked.len() <= 14, "{asked:?}");
    }

    #[test]
    fn neighbours_need_no_trial_and_errors_end_the_search() {
        assert_eq!(search(2, |_| Err("never asked")), Ok(Answer { last_good: 0, first_bad: 1 }));
        assert_eq!(search(3, |_| Err("no")), Err("no"));
    }

    #[test]
    fn a_change_and_its_return_are_three_stretches() {
        use Outcome::{Bad, Good, Skip};
        let all = stretches([Good, Skip, Good, Bad, Skip, Bad, Good].into_iter().enumerate());
        let found: Vec<_> = all.iter().map(|s| (s.outcome, s.first, s.last)).collect();
        assert_eq!(found, [(Good, 0, 2), (Bad, 3, 5), (Good, 6, 6)]);
    }

    proptest! {
        /// Whatever cannot be tried: the true change is among the suspects, all suspects but the last were skipped, and
        /// the number of trials has its bound.
        #[test]
        fn any_pattern_of_skips(n in 2usize..200, at: prop::sample::Index, unusable: Vec<bool>) {
            let change = 1 + at.index(n - 1);
            let skipped = |place: usize| unusable.get(place).copied().unwrap_or(false);
            let (answer, asked, skips) = run(n, change, skipped);
            prop_assert!(answer.suspects().contains(&change), "{answer:?} for {change}");
            prop_assert!((answer.last_good + 1..answer.first_bad).all(skipped));
            prop_assert!(asked.len() <= most_trials(n) as usize + 2 * skips, "{} of {n}, {skips} skips", asked.len());
        }

        /// Outcomes in no order at all: the answer still lies between a good place and a bad one.
        #[test]
        fn any_outcomes(outcomes in prop::collection::vec(0u8..3, 2..60)) {
            let n = outcomes.len();
            let of = |place: usize| match outcomes[place] {
                _ if place == 0 => Outcome::Good,
                _ if place == n - 1 => Outcome::Bad,
                0 => Outcome::Good,
                1 => Outcome::Bad,
                _ => Outcome::Skip,
            };
            let answer = search(n, |place| Ok::<_, Infallible>(of(place))).unwrap();
            prop_assert_eq!((of(answer.last_good), of(answer.first_bad)), (Outcome::Good, Outcome::Bad));
            prop_assert!((answer.last_good + 1..answer.first_bad).all(|place| of(place) == Outcome::Skip));
        }
    }
}
