//! Greedy equality: whether the free run of the test gives the reference's tokens.
//!
//! Equality is required up to the first decision that the allowed noise may turn: the first whose margin in the
//! reference is under `6 sqrt(limit x mean(ref^2))`. A decision whose margin is unknown is required.

use super::top_token::{Top, allowed_noise};
use crate::capture::{CaptureReader, Unmask};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A margin under so many times the allowed noise ends what is required.
const REQUIRED_FACTOR: f64 = 6.0;

/// Greedy equality.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Greedy {
    /// Whether all tokens are equal.
    pub equal: bool,
    /// Tokens of the reference.
    pub length: u64,
    /// How many decisions are required to be equal, in the order in which they were made.
    pub required: u64,
    /// The first decision that differs.
    pub first_difference: Option<FirstDifference>,
}

/// The first decision that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FirstDifference {
    /// Which decision it is, from 0, in the order in which they were made.
    pub decision: u64,
    /// The index of its token in the sequence.
    pub index: u64,
    /// The reference's token; `None` where its run had ended.
    pub reference: Option<i32>,
    /// The test's token; `None` where its run had ended.
    pub test: Option<i32>,
    /// The reference's margin, where it is known.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub margin: Option<f64>,
}

impl Greedy {
    /// Whether nothing that is required differs.
    pub fn passes(&self) -> bool {
        self.first_difference.as_ref().is_none_or(|difference| difference.decision >= self.required)
    }
}

/// A margin of the reference and the mean square of the logits it is measured against.
type Margin = (f64, f64);

/// Margins of the reference's free run, gathered row by row where the capture does not state them.
pub(super) struct Margins {
    /// For each row, the token of the free run that it decides.
    decides: Vec<Option<usize>>,
    margins: Vec<Option<Margin>>,
}

impl Margins {
    pub(super) fn of(reference: &CaptureReader) -> Self {
        let greedy = reference.greedy().unwrap_or_default();
        // In a masked generation the order of unmasking is a decision too, which no row alone tells.
        let first = match reference.unmask() {
            Some(_) => None,
            None => first_position(reference.tokens(), greedy),
        };
        let decides = reference.positions().iter().map(|&position| {
            let index = usize::try_from(position).ok()?.checked_add(1)?.checked_sub(first?)?;
            (index < greedy.len()).then_some(index)
        });
        Self { decides: decides.collect(), margins: vec![None; greedy.len()] }
    }

    /// Looks at one row of the reference's logits.
    pub(super) fn push(&mut self, row: usize, token: &[i32], reference: &[f64], mean_square: f64) {
        let Some(index) = self.decides[row] else { return };
        if let Some(top) = Top::of(reference)
            && usize::try_from(token[index]) == Ok(top.token)
        {
            self.margins[index] = Some((top.margin, mean_square));
        }
    }
}

/// The position of the first token of the free run, when `tokens` ends in it, whole or without its last token.
fn first_position(tokens: &[i32], greedy: &[i32]) -> Option<usize> {
    let ends_in =
        |part: &[i32]| (!part.is_empty() && tokens.ends_with(part)).then(|| tokens.len() - part.len());
    let (_, but_last) = greedy.split_last()?;
    ends_in(greedy).or_else(|| ends_in(but_last))
}

/// Compares the free runs; `None` when the captures hold none.
pub(super) fn compare(
    reference: &CaptureReader,
    test: &CaptureReader,
    margins: Margins,
    mean_square: f64,
    limit: f64,
) -> Option<Greedy> {
    let (tokens, other) = (reference.greedy()?, test.greedy()?);
    let margins: Vec<Option<Margin>> = match reference.greedy_margin() {
        Some(stated) => stated.iter().map(|&margin| Some((margin, mean_square))).collect(),
        None => margins.margins,
    };
    Some(judge_runs(tokens, other, &margins, &decision_order(tokens.len(), reference.unmask()), limit))
}

fn judge_runs(
    tokens: &[i32],
    other: &[i32],
    margins: &[Option<Margin>],
    order: &[usize],
    limit: f64,
) -> Greedy {
    let undecided = |&index: &usize| {
        margins[index]
            .is_some_and(|(margin, mean_square)| margin < REQUIRED_FACTOR * allowed_noise(limit, mean_square))
    };
    // The end of the run counts as one more decision: a test that goes on after it differs there.
    let end = tokens.len();
    let differs = |&index: &usize| tokens.get(index) != other.get(index);
    let decisions = || order.iter().copied().chain([end]);
    let first_difference =
        decisions().enumerate().find(|(_, index)| differs(index)).map(|(decision, index)| FirstDifference {
            decision: decision as u64,
            index: index as u64,
            reference: tokens.get(index).copied(),
            test: other.get(index).copied(),
            margin: margins.get(index).copied().flatten().map(|(margin, _)| margin),
        });
    Greedy {
        equal: first_difference.is_none(),
        length: end as u64,
        required: order.iter().position(undecided).unwrap_or(end + 1) as u64,
        first_difference,
    }
}

/// The order in which the tokens were decided: from left to right, or along the trajectory of a masked
/// generation, whose `greedy` is the whole sequence. Tokens that were given come first.
fn decision_order(length: usize, unmask: Option<&Unmask>) -> Vec<usize> {
    let mut decided_at = vec![None; length];
    let trajectory = unmask.map(|u| u.position.as_slice()).unwrap_or_default();
    for (at, &position) in trajectory.iter().enumerate() {
        if let Some(entry) = usize::try_from(position).ok().and_then(|p| decided_at.get_mut(p)) {
            *entry = Some(at);
        }
    }
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by_key(|&index| decided_at[index]);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Margins in units of the allowed noise.
    fn run(tokens: &[i32], other: &[i32], margins: &[f64]) -> Greedy {
        let margins: Vec<_> = margins.iter().map(|&m| (!m.is_nan()).then_some((m, 1.0))).collect();
        judge_runs(tokens, other, &margins, &decision_order(tokens.len(), None), 1.0)
    }

    #[test]
    fn equal_runs() {
        let greedy = run(&[1, 2, 3], &[1, 2, 3], &[9.0, 9.0, 9.0]);
        assert!(greedy.equal && greedy.passes());
        assert_eq!((greedy.length, greedy.required), (3, 4));
    }

    #[test]
    fn a_difference_before_the_first_near_tie_fails() {
        let greedy = run(&[1, 2, 3, 4], &[1, 9, 3, 4], &[9.0, 9.0, 5.9, 9.0]);
        assert!(!greedy.passes());
        assert_eq!(greedy.required, 2);
        let first = greedy.first_difference.unwrap();
        assert_eq!((first.index, first.reference, first.test), (1, Some(2), Some(9)));
        assert_eq!(first.margin, Some(9.0));
    }

    #[test]
    fn a_difference_at_or_after_it_is_allowed() {
        assert!(run(&[1, 2, 3, 4], &[1, 2, 9, 4], &[9.0, 9.0, 5.9, 9.0]).passes());
        assert!(run(&[1, 2, 3, 4], &[1, 2, 3, 9], &[9.0, 9.0, 5.9, 9.0]).passes());
    }

    #[test]
    fn an_unknown_margin_is_required() {
        assert!(!run(&[1, 2], &[1, 9], &[9.0, f64::NAN]).passes());
    }

    #[test]
    fn runs_of_other_lengths_differ_at_the_end() {
        assert!(!run(&[1, 2], &[1, 2, 3], &[9.0, 9.0]).passes());
        let short = run(&[1, 2], &[1], &[9.0, 9.0]);
        assert!(!short.passes());
        assert_eq!(short.first_difference.unwrap().test, None);
        assert!(run(&[1, 2], &[1, 2, 3], &[9.0, 5.0]).passes());
    }

    #[test]
    fn a_masked_generation_decides_along_its_trajectory() {
        let unmask = Unmask { step: vec![0, 1], position: vec![3, 2], token: vec![8, 7] };
        assert_eq!(decision_order(4, Some(&unmask)), [0, 1, 3, 2]);
        let margins = [f64::INFINITY, f64::INFINITY, 9.0, 5.0].map(|m| Some((m, 1.0)));
        let order = decision_order(4, Some(&unmask));
        let flipped = |other: [i32; 4]| judge_runs(&[5, 6, 7, 8], &other, &margins, &order, 1.0).passes();
        assert!(flipped([5, 6, 9, 8]), "decided after a near tie");
        assert!(!flipped([4, 6, 7, 8]), "the prompt is always required");
    }

    #[test]
    fn the_free_run_is_found_at_the_end_of_the_tokens() {
        assert_eq!(first_position(&[1, 2, 3, 4], &[3, 4]), Some(2));
        assert_eq!(first_position(&[1, 2, 3, 4], &[3, 4, 5]), Some(2));
        assert_eq!(first_position(&[1, 2, 3, 4], &[7]), None);
        assert_eq!(first_position(&[1], &[]), None);
    }
}
