//! The same item on all arms: who gave which answer, and which of its tokens the reference has not.

pub mod text;

use super::result::{Answer, Arm, Item, Judgement, PairingKind, Row, RowStatus, Sweep};
use crate::plan::CellId;
use std::collections::BTreeMap;

/// Two answers whose differing parts multiply to more than this are not aligned: all of these parts is marked.
const MOST_ALIGNED: usize = 1 << 20;

/// A sweep whose rows are found by item and arm.
pub struct Answers<'a> {
    /// The sweep.
    pub sweep: &'a Sweep,
    rows: BTreeMap<(&'a str, &'a CellId), &'a Row>,
    places: BTreeMap<&'a CellId, usize>,
}

/// One item on all arms.
pub struct OnAllArms<'a> {
    /// The item.
    pub item: &'a Item,
    /// Its answers, each once, in the order of the first arm that gave it.
    pub distinct: Vec<Distinct<'a>>,
    /// For each arm: its answer among [`Self::distinct`].
    pub of_arm: Vec<Option<usize>>,
    /// The rows of each arm; `None` where the sweep has none.
    pub rows: Vec<Option<&'a Row>>,
}

/// An answer and the arms that gave it.
pub struct Distinct<'a> {
    /// The answer.
    pub answer: &'a Answer,
    /// The model whose tokens they are.
    pub model: &'a str,
    /// The arms, by their places in the sweep.
    pub arms: Vec<usize>,
}

/// A run of tokens that the reference has not in that place: where it begins, and how many; none where the reference
/// has tokens there that the answer lacks.
pub type Mark = (usize, usize);

impl<'a> Answers<'a> {
    /// The rows of a sweep by item and arm.
    #[must_use]
    pub fn of(sweep: &'a Sweep) -> Self {
        let rows = sweep.rows.iter().map(|row| ((row.item.as_str(), &row.arm), row)).collect();
        let places = sweep.arms.iter().enumerate().map(|(place, arm)| (&arm.id, place)).collect();
        Self { sweep, rows, places }
    }

    /// An item on all arms.
    #[must_use]
    pub fn item(&self, item: &'a Item) -> OnAllArms<'a> {
        let arms = &self.sweep.arms;
        let rows: Vec<Option<&Row>> =
            arms.iter().map(|arm| self.rows.get(&(item.id.as_str(), &arm.id)).copied()).collect();
        let mut distinct: Vec<Distinct<'a>> = Vec::new();
        let mut of_arm = Vec::new();
        for (place, (arm, row)) in arms.iter().zip(&rows).enumerate() {
            let Some(answer) = row.and_then(|row| row.answer.as_ref()) else {
                of_arm.push(None);
                continue;
            };
            let same = |d: &Distinct<'_>| d.model == arm.model && d.answer == answer;
            let known = distinct.iter().position(same);
            let at = known.unwrap_or_else(|| {
                distinct.push(Distinct { answer, model: &arm.model, arms: Vec::new() });
                distinct.len() - 1
            });
            distinct[at].arms.push(place);
            of_arm.push(Some(at));
        }
        OnAllArms { item, distinct, of_arm, rows }
    }

    /// The arm that an arm is held against, by its place.
    #[must_use]
    pub fn reference(&self, arm: &Arm, kind: PairingKind) -> Option<usize> {
        let pairing = arm.pairings.iter().find(|pairing| pairing.kind == kind)?;
        self.places.get(&pairing.reference).copied()
    }

    /// Whether an arm answered an item otherwise than its reference of that kind, or did not come to an answer that the
    /// other had.
    #[must_use]
    pub fn differs(&self, item: &OnAllArms<'_>, kind: PairingKind) -> bool {
        let tokens = |of: &Option<usize>| of.map(|of| &item.distinct[of].answer.tokens);
        self.sweep.arms.iter().zip(&item.of_arm).any(|(arm, own)| {
            let reference = self.reference(arm, kind);
            reference.is_some_and(|reference| tokens(own) != tokens(&item.of_arm[reference]))
        })
    }
}

impl OnAllArms<'_> {
    /// Whether an arm answered wrongly.
    #[must_use]
    pub fn has_wrong(&self) -> bool {
        self.distinct.iter().any(|distinct| distinct.answer.judged == Judgement::Wrong)
    }

    /// Whether an arm has no result.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.rows.iter().flatten().any(|row| row.status != RowStatus::Done)
    }
}

/// The tokens of an answer that a reference has not, by the longest common subsequence of the two.
#[must_use]
pub fn marks(reference: &[u32], tokens: &[u32]) -> Vec<Mark> {
    let same = |(a, b): &(&u32, &u32)| a == b;
    let begin = reference.iter().zip(tokens).take_while(same).count();
    let left = reference[begin..].iter().rev().zip(tokens[begin..].iter().rev());
    let end = left.take_while(same).count();
    let (theirs, ours) = (&reference[begin..reference.len() - end], &tokens[begin..tokens.len() - end]);
    if theirs.is_empty() && ours.is_empty() {
        return Vec::new();
    }
    if theirs.is_empty() || ours.is_empty() || theirs.len() * ours.len() > MOST_ALIGNED {
        return vec![(begin, ours.len())];
    }
    let kept = common(theirs, ours);
    let mut marks: Vec<Mark> = Vec::new();
    let (mut i, mut j) = (0, 0);
    for &(their, our) in kept.iter().chain([&(theirs.len(), ours.len())]) {
        if their > i || our > j {
            marks.push((begin + j, our - j));
        }
        (i, j) = (their + 1, our + 1);
    }
    marks
}

/// The places of a longest common subsequence in both.
fn common(a: &[u32], b: &[u32]) -> Vec<(usize, usize)> {
    let width = b.len() + 1;
    // Lengths for what follows from (i, j) on; of 1 << 20 fields at most, so that none exceeds 32 bits.
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            lengths[i * width + j] = if a[i] == b[j] {
                lengths[(i + 1) * width + j + 1] + 1
            } else {
                lengths[(i + 1) * width + j].max(lengths[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut kept) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            kept.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if lengths[(i + 1) * width + j] >= lengths[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    kept
}

/// Names of arms for people: what all arms share is left out of them.
#[must_use]
pub fn labels(sweep: &Sweep) -> Vec<String> {
    let one = |of: fn(&Arm) -> &str| sweep.arms.iter().all(|arm| of(arm) == of(&sweep.arms[0]));
    let (model, build) = (one(|arm| &arm.model), one(|arm| &arm.build));
    let label = |arm: &Arm| {
        let case = arm.id.case.to_string();
        let case = if model { case.strip_prefix(&format!("{}/", arm.model)).unwrap_or(&case) } else { &case };
        let build = if build { String::new() } else { format!("{}:", arm.build) };
        format!("{case} @ {build}{}", arm.device)
    };
    sweep.arms.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_by_hand() {
        assert_eq!(marks(&[1, 2, 3], &[1, 2, 3]), []);
        assert_eq!(marks(&[1, 2, 3], &[1, 9, 3]), [(1, 1)]);
        assert_eq!(marks(&[1, 2, 3], &[1, 3]), [(1, 0)], "the reference has one there");
        assert_eq!(marks(&[1, 3], &[1, 2, 3, 4]), [(1, 1), (3, 1)]);
        assert_eq!(marks(&[], &[1, 2]), [(0, 2)]);
        assert_eq!(marks(&[1, 2], &[]), [(0, 0)]);
        assert_eq!(marks(&[1, 2, 3, 4, 5], &[9, 2, 8, 4, 7]), [(0, 1), (2, 1), (4, 1)]);
    }

    #[test]
    fn what_is_too_long_to_align_is_marked_whole() {
        let (a, b): (Vec<u32>, Vec<u32>) = ((0..1100).collect(), (0..1100).map(|i| i * 2 + 1).collect());
        assert_eq!(marks(&a, &b), [(0, 1100)]);
    }

    proptest! {
        #[test]
        fn what_is_not_marked_is_the_reference_s_in_order(
            reference in proptest::collection::vec(0u32..5, 0..20),
            tokens in proptest::collection::vec(0u32..5, 0..20),
        ) {
            let marks = marks(&reference, &tokens);
            prop_assert_eq!(marks.is_empty(), reference == tokens);
            prop_assert!(marks.iter().zip(marks.iter().skip(1)).all(|(a, b)| a.0 + a.1 < b.0 || (a.0 + a.1 == b.0 && b.0 > a.0)));
            let marked = |i: usize| marks.iter().any(|(start, count)| (*start..start + count).contains(&i));
            let mut left = reference.iter();
            for (_, token) in tokens.iter().enumerate().filter(|(i, _)| !marked(*i)) {
                prop_assert!(left.any(|theirs| theirs == token));
            }
        }
    }
}
