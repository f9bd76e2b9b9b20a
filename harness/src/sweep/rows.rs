//! From what a worker gave to a row of the result: text, judgement, tokens by name.

use super::answer::Expected;
use super::result::{Against, Answer, Arm, Divergence, Judgement, Piece, Row, RowStatus};
use crate::report::pieces;
use crate::worker::sweep::{Found, TaskResult};
use crate::worker::{Ended, FailureKind};
use model_file::Tokenizer;

/// A row of an item that did not come to a result.
#[must_use]
pub fn without_result(item: &str, arm: &Arm, status: RowStatus, reason: String) -> Row {
    Row {
        item: item.to_owned(),
        arm: arm.id.clone(),
        status,
        reason,
        retried: None,
        prompt_tokens: 0,
        answer: None,
        loss: None,
        against: Vec::new(),
        nonfinite: 0,
        nodes: [0, 0],
        seconds: 0.0,
        forced_seconds: 0.0,
    }
}

/// The row of a task that ended without a result.
#[must_use]
pub fn ended(item: &str, arm: &Arm, ended: &Ended) -> Row {
    let (status, reason) = match ended {
        Ended::Captured => (RowStatus::Failed, "its result is gone".to_owned()),
        Ended::Crashed(death) => {
            let out_of_memory = death.status() == crate::verdict::Status::OutOfMemory;
            let status = if out_of_memory { RowStatus::OutOfMemory } else { RowStatus::Crashed };
            (status, death.to_string())
        }
        Ended::TimedOut(limit) => (RowStatus::Timeout, format!("no result within {} s", limit.as_secs())),
        Ended::Failed(failure) => {
            let status = match failure.kind {
                FailureKind::Unsupported => RowStatus::Unsupported,
                FailureKind::OutOfMemory => RowStatus::OutOfMemory,
                _ => RowStatus::Failed,
            };
            (status, failure.message.clone())
        }
    };
    without_result(item, arm, status, reason)
}

/// What a row is made of beside the result.
pub struct Making<'a> {
    /// The item.
    pub item: &'a str,
    /// What it expects.
    pub expected: Option<&'a Expected>,
    /// The arm.
    pub arm: &'a Arm,
    /// The tokenizer of its model.
    pub tokenizer: &'a Tokenizer,
    /// The mask token, where the model has one: what is left of it is no text.
    pub mask: Option<u32>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Whether the row of each reference, in the order of the pairings, has a result.
    pub references: &'a [bool],
}

/// The row of a task that gave a result.
#[must_use]
pub fn row(making: &Making<'_>, result: TaskResult) -> Row {
    let mut row = without_result(making.item, making.arm, RowStatus::Done, String::new());
    let lost = making
        .references
        .iter()
        .enumerate()
        .find(|(index, there)| **there && !result.against.iter().any(|(found, _)| found == index));
    if let Some((index, _)) = lost {
        let reference = &making.arm.pairings[index].reference;
        (row.status, row.reason) = (RowStatus::Failed, format!("the logits of {reference} were gone"));
    }
    if let Some(fault) = result.fallback {
        (row.status, row.reason) = (RowStatus::Fallback, fault);
    }
    row.retried = result.retried;
    row.prompt_tokens = making.prompt_tokens as u64;
    row.answer = result.tokens.map(|tokens| answer(making, tokens, result.ended, result.decisions));
    row.loss = result.loss;
    row.against = result.against.into_iter().map(|(index, found)| against(making, index, found)).collect();
    row.nonfinite = result.nonfinite;
    row.nodes = result.nodes;
    row.seconds = result.seconds;
    row.forced_seconds = result.forced_seconds;
    row
}

fn answer(making: &Making<'_>, tokens: Vec<u32>, ended: bool, decisions: u64) -> Answer {
    let said = &tokens[..tokens.len() - usize::from(ended)];
    let said: Vec<u32> = said.iter().copied().filter(|token| Some(*token) != making.mask).collect();
    let text = making.tokenizer.decode(&said);
    let judged = making.expected.map(|expected| expected.judge(&text));
    Answer {
        ended,
        judged: match &judged {
            None => Judgement::Unjudged,
            Some(judged) if judged.right => Judgement::Right,
            Some(_) => Judgement::Wrong,
        },
        read: judged.and_then(|judged| judged.read),
        exactly: making.expected.and_then(|expected| expected.exactly(&text)),
        tokens,
        decisions,
        text,
    }
}

/// A token's text; an id that the vocabulary lacks is written as a number.
pub(super) fn piece(tokenizer: &Tokenizer, token: u32) -> String {
    pieces::piece(tokenizer, token.into()).unwrap_or_else(|| format!("[{token}]"))
}

fn against(making: &Making<'_>, index: usize, found: Found) -> Against {
    let pairing = &making.arm.pairings[index];
    let piece = |token: u32| Piece { token, text: piece(making.tokenizer, token) };
    Against {
        kind: pairing.kind,
        reference: pairing.reference.clone(),
        exact: found.exact,
        divergence: found.parted.map(|parted| Divergence {
            decision: parted.decision,
            index: parted.index,
            margin: parted.margin,
            reference: parted.reference.map(piece),
            test: parted.test.map(piece),
        }),
        logits: found.logits,
    }
}
