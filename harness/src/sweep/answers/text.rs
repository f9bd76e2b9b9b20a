//! Answers side by side on the console.

use super::{Answers, Mark, OnAllArms, labels, marks};
use crate::report::format::one_line;
use crate::sweep::result::{Judgement, PairingKind, RowStatus};
use std::collections::BTreeMap;
use std::fmt::Write;

/// How marked tokens are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// In brackets.
    Brackets,
    /// In bold red, as terminals show it.
    Colour,
}

/// One item: its prompt, what is expected, and each answer with the arms that gave it. Marked is what the reference of
/// that kind has not.
#[must_use]
pub fn item(answers: &Answers<'_>, item: &OnAllArms<'_>, kind: PairingKind, marking: Marking) -> String {
    let labels = labels(answers.sweep);
    let tags =
        if item.item.tags.is_empty() { String::new() } else { format!("  ({})", item.item.tags.join(", ")) };
    let mut text = format!("{}{tags}\n", item.item.id);
    let _ = writeln!(text, "  prompt: {}", indented(&item.item.prompt, "          "));
    if let Some(expected) = &item.item.expected {
        let _ = writeln!(text, "  expected: {}", indented(expected, "            "));
    }
    for ((own, reference), arms) in groups(answers, item, kind) {
        let (answer, model) = (&item.distinct[own].answer, item.distinct[own].model);
        let other = &item.distinct[reference];
        let marks = match own == reference || other.model != model {
            true => Vec::new(),
            false => marks(&other.answer.tokens, &answer.tokens),
        };
        let sign = match answer.judged {
            Judgement::Right => "right",
            Judgement::Wrong => "wrong",
            Judgement::Unjudged => "answer",
        };
        let written = marked(answers, model, &answer.tokens, &marks, marking);
        let end = if answer.ended { "" } else { " …" };
        let _ = writeln!(text, "  {sign}: {}{end}", indented(&written, "         "));
        for arm in arms {
            let _ = writeln!(text, "      {}", labels[arm]);
        }
    }
    for (place, row) in item.rows.iter().enumerate() {
        let Some(row) = row else { continue };
        if row.status != RowStatus::Done {
            let _ = writeln!(text, "  {}: {}\n      {}", row.status, one_line(&row.reason), labels[place]);
        }
        if let Some(loss) = row.loss {
            let perplexity = (loss.nats / loss.tokens as f64).exp();
            let _ = writeln!(
                text,
                "  perplexity {perplexity:.5} over {} tokens\n      {}",
                loss.tokens, labels[place]
            );
        }
    }
    text
}

/// The arms by their answer and that of their reference, which is their own where they have none.
fn groups(
    answers: &Answers<'_>,
    item: &OnAllArms<'_>,
    kind: PairingKind,
) -> BTreeMap<(usize, usize), Vec<usize>> {
    let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (place, (arm, own)) in answers.sweep.arms.iter().zip(&item.of_arm).enumerate() {
        let Some(own) = *own else { continue };
        let reference = answers.reference(arm, kind).and_then(|reference| item.of_arm[reference]);
        groups.entry((own, reference.unwrap_or(own))).or_default().push(place);
    }
    groups
}

/// The text of tokens, those in `marks` marked.
fn marked(answers: &Answers<'_>, model: &str, tokens: &[u32], marks: &[Mark], marking: Marking) -> String {
    let pieces = answers.sweep.pieces.get(model);
    let piece = |token: &u32| {
        let known = pieces.and_then(|pieces| pieces.get(token)).cloned();
        known.unwrap_or_else(|| format!("<{token}>"))
    };
    let spell = |tokens: &[u32]| plain(&tokens.iter().map(piece).collect::<String>());
    let [open, close] = match marking {
        Marking::Brackets => ["[", "]"],
        Marking::Colour => ["\x1b[1;31m", "\x1b[0m"],
    };
    let (mut text, mut at) = (String::new(), 0);
    for &(start, count) in marks {
        // Where the reference has more, a sign stands for it.
        let inside = if count == 0 { "^".to_owned() } else { spell(&tokens[start..start + count]) };
        let _ = write!(text, "{}{open}{inside}{close}", spell(&tokens[at..start]));
        at = start + count;
    }
    text + &spell(&tokens[at..])
}

/// Text without control characters but line breaks: a model's answer must not steer a terminal.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        if c.is_control() && c != '\n' { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}

/// Text whose further lines begin below the first.
fn indented(text: &str, by: &str) -> String {
    text.trim_end_matches('\n').replace('\n', &format!("\n{by}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::html::sample::sample;

    #[test]
    fn answers_side_by_side() {
        let sweep = sample();
        let answers = Answers::of(&sweep);
        let shown = |place: usize| {
            item(&answers, &answers.item(&sweep.items[place]), PairingKind::Parity, Marking::Brackets)
        };
        insta::assert_snapshot!("answers_console", [0, 9, 11].map(shown).join("\n"));
    }

    #[test]
    fn a_terminal_is_not_steered_by_an_answer() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\nc");
    }
}
