//! Whether two answers are the same, and where they part.

use super::kept::Generated;
use serde::{Deserialize, Serialize};

/// The first token in which two answers differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parted {
    /// Which decision it is, in the order in which the reference made them.
    pub decision: u64,
    /// Its index among the new tokens.
    pub index: u64,
    /// The reference's margin there.
    #[serde(with = "crate::figure::MaybeFigure")]
    pub margin: Option<f64>,
    /// The reference's token; `None` where its answer had ended.
    pub reference: Option<u32>,
    /// The arm's token; `None` where its answer had ended.
    pub test: Option<u32>,
}

/// New tokens up to the first that ends the answer, that one included, and whether there is one.
#[must_use]
pub fn answer_of(tokens: &[u32], end: &[u32]) -> (Vec<u32>, bool) {
    match tokens.iter().position(|token| end.contains(token)) {
        Some(last) => (tokens[..=last].to_vec(), true),
        None => (tokens.to_vec(), false),
    }
}

/// Where the answer of `test` parts from that of `reference`, both after a prompt of `prompt` tokens. What a canvas
/// holds behind the end of both answers is no part of either.
pub(super) fn parted(reference: &Generated, test: &Generated, prompt: usize, end: &[u32]) -> Option<Parted> {
    let (mine, theirs) = (answer_of(&reference.tokens, end).0, answer_of(&test.tokens, end).0);
    let differs = |index: &usize| mine.get(*index) != theirs.get(*index);
    let decided = decided(reference, prompt);
    let first = (0..mine.len().max(theirs.len()))
        .filter(differs)
        .min_by_key(|&index| (decided.get(index).copied().flatten().unwrap_or(usize::MAX), index))?;
    let decision = match decided.get(first).copied().flatten() {
        Some(decision) => decision,
        // The end, or a mask that was left: after all decisions.
        None => decided.iter().flatten().count().max(first.min(mine.len())),
    };
    Some(Parted {
        decision: decision as u64,
        index: first as u64,
        margin: reference.margins.get(first).copied(),
        reference: mine.get(first).copied(),
        test: theirs.get(first).copied(),
    })
}

/// For each new token the decision that made it: its index, or its place in the order of unmasking.
fn decided(generated: &Generated, prompt: usize) -> Vec<Option<usize>> {
    if generated.order.is_empty() {
        return (0..generated.tokens.len()).map(Some).collect();
    }
    let mut decided = vec![None; generated.tokens.len()];
    for (at, unmasked) in generated.order.iter().enumerate() {
        if let Some(entry) = unmasked.position.checked_sub(prompt).and_then(|index| decided.get_mut(index)) {
            *entry = Some(at);
        }
    }
    decided
}

#[cfg(test)]
mod tests {
    use super::super::kept::Decision;
    use super::*;

    const END: [u32; 1] = [1];

    fn causal(tokens: &[u32], margins: &[f64]) -> Generated {
        Generated { tokens: tokens.to_vec(), order: Vec::new(), margins: margins.to_vec() }
    }

    #[test]
    fn from_left_to_right_the_first_other_token_counts() {
        let reference = causal(&[5, 6, 7, 1], &[3.0, 2.0, 0.5, 9.0]);
        assert_eq!(parted(&reference, &reference, 4, &END), None);
        let found = parted(&reference, &causal(&[5, 6, 8, 9], &[]), 4, &END).unwrap();
        assert_eq!((found.decision, found.index, found.margin), (2, 2, Some(0.5)));
        assert_eq!((found.reference, found.test), (Some(7), Some(8)));
        let longer = parted(&causal(&[5, 6], &[3.0, 2.0]), &reference, 4, &END).unwrap();
        assert_eq!((longer.decision, longer.reference, longer.test), (2, None, Some(7)));
        assert_eq!(longer.margin, None);
    }

    #[test]
    fn along_a_trajectory_the_first_decision_counts() {
        // Prompt of two; position 4 first, then 2, then 3.
        let order = [(0, 4, 7), (1, 2, 5), (2, 3, 6)];
        let order = order.map(|(step, position, token)| Decision { step, position, token }).to_vec();
        let reference = Generated { tokens: vec![5, 6, 7], order, margins: vec![1.0, 0.5, 2.0] };
        let test = Generated { tokens: vec![9, 6, 8], ..reference.clone() };
        let found = parted(&reference, &test, 2, &END).unwrap();
        assert_eq!((found.decision, found.index, found.margin), (0, 2, Some(2.0)));
    }

    #[test]
    fn what_stands_behind_the_end_is_no_part_of_an_answer() {
        let reference = causal(&[5, 1, 7], &[1.0; 3]);
        assert_eq!(parted(&reference, &causal(&[5, 1, 8], &[]), 0, &END), None);
        assert_eq!(answer_of(&reference.tokens, &END), (vec![5, 1], true));
        assert_eq!(answer_of(&[5], &END), (vec![5], false));
    }
}
