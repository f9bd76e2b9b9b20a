//! The answers of all arms side by side: a section that the script fills, and the data that it draws.
//!
//! An item's answers are in the data once, however many arms gave them, as tokens; their texts are in one list for each
//! model. So the page grows with what differs, and not with items times arms.

use super::View;
use crate::sweep::answers::{Answers, Mark, OnAllArms, marks};
use crate::sweep::result::{Judgement, PairingKind, RowStatus};
use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use std::collections::BTreeMap;

/// What the script draws.
#[derive(Serialize)]
struct Data<'a> {
    arms: Vec<ArmData<'a>>,
    /// By model.
    pieces: &'a BTreeMap<String, BTreeMap<u32, String>>,
    items: Vec<ItemData<'a>>,
}

#[derive(Serialize)]
struct ArmData<'a> {
    label: &'a str,
    id: String,
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parity: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<usize>,
}

#[derive(Serialize)]
struct ItemData<'a> {
    id: &'a str,
    tags: &'a [String],
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<&'a str>,
    /// Whether an answer differs from the plain CPU's, differs from the baseline's, is wrong, or is not there.
    is: [bool; 4],
    answers: Vec<AnswerData<'a>>,
    /// For each arm its answer, or -1.
    of: Vec<i64>,
    /// For each pair of an answer and a reference's answer that differ: the runs of tokens to be marked.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    marks: BTreeMap<String, Vec<Mark>>,
    /// What became of arms without a result.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    lost: BTreeMap<usize, String>,
    /// Nats for each token of a scored text, for each arm.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    loss: Vec<Option<f64>>,
}

#[derive(Serialize)]
struct AnswerData<'a> {
    model: &'a str,
    tokens: &'a [u32],
    text: &'a str,
    judged: &'static str,
    ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<&'a str>,
}

/// The data, as an element that no browser runs.
pub(super) fn data(view: &View<'_>) -> Markup {
    let json = serde_json::to_string(&collected(view)).expect("answers are plain data");
    // In an element of text nothing but its end, or the beginning of a comment, could be mistaken.
    let json = json.replace('<', "\\u003c");
    html! { script type="application/json" #data { (PreEscaped(json)) } }
}

fn collected<'a>(view: &'a View<'_>) -> Data<'a> {
    let sweep = view.sweep;
    let answers = Answers::of(sweep);
    let arms = sweep.arms.iter().zip(&view.labels).map(|(arm, label)| ArmData {
        label,
        id: arm.id.to_string(),
        model: &arm.model,
        parity: answers.reference(arm, PairingKind::Parity),
        baseline: answers.reference(arm, PairingKind::Baseline),
    });
    Data {
        arms: arms.collect(),
        pieces: &sweep.pieces,
        items: sweep.items.iter().map(|item| of_item(view, &answers, &answers.item(item))).collect(),
    }
}

fn of_item<'a>(view: &View<'_>, all: &Answers<'_>, item: &OnAllArms<'a>) -> ItemData<'a> {
    let mut found = BTreeMap::new();
    for (arm, own) in view.sweep.arms.iter().zip(&item.of_arm) {
        for reference in PairingKind::ALL.iter().filter_map(|&kind| all.reference(arm, kind)) {
            let Some((own, theirs)) = own.zip(item.of_arm[reference]) else { continue };
            let (mine, other) = (&item.distinct[own], &item.distinct[theirs]);
            // Tokens of another model are other tokens.
            if own != theirs && mine.model == other.model {
                found
                    .entry(format!("{own}-{theirs}"))
                    .or_insert_with(|| marks(&other.answer.tokens, &mine.answer.tokens));
            }
        }
    }
    let answers = item.distinct.iter().map(|distinct| AnswerData {
        model: distinct.model,
        tokens: &distinct.answer.tokens,
        text: &distinct.answer.text,
        judged: match distinct.answer.judged {
            Judgement::Unjudged => "",
            judged => judged.name(),
        },
        ended: distinct.answer.ended,
        read: distinct.answer.read.as_deref(),
    });
    let lost = item.rows.iter().enumerate().filter_map(|(place, row)| {
        let row = row.as_ref()?;
        let reason = crate::report::format::shortened(&row.reason, 160);
        (row.status != RowStatus::Done).then(|| (place, format!("{} {reason}", row.status).trim().to_owned()))
    });
    let loss: Vec<Option<f64>> = item
        .rows
        .iter()
        .map(|row| row.as_ref().and_then(|row| row.loss).map(|loss| loss.nats / loss.tokens as f64))
        .collect();
    ItemData {
        id: &item.item.id,
        tags: &item.item.tags,
        prompt: &item.item.prompt,
        expected: item.item.expected.as_deref(),
        is: [
            all.differs(item, PairingKind::Parity),
            all.differs(item, PairingKind::Baseline),
            item.has_wrong(),
            item.has_failed(),
        ],
        answers: answers.collect(),
        of: item.of_arm.iter().map(|of| of.map_or(-1, |of| of as i64)).collect(),
        marks: found,
        lost: lost.collect(),
        loss: if loss.iter().any(Option::is_some) { loss } else { Vec::new() },
    }
}

/// The section that the script fills.
pub(super) fn section(view: &View<'_>) -> Markup {
    let sweep = view.sweep;
    let has = |kind| sweep.arms.iter().any(|arm| arm.pairings.iter().any(|pairing| pairing.kind == kind));
    html! {
        section #answers aria-labelledby="answers-title" {
            h2 #answers-title { "Answers side by side" }
            p.more #without-scripts {
                "Scripts draw the answers, and there are none here. " code { "ggml-parity answers" }
                " shows them on the console, and sweep.json holds them."
            }
            form #find hidden {
                label { "Show"
                    select #by-kind {
                        option value="" { "all items" }
                        option value="differing" { "items with differing answers" }
                        option value="wrong" { "items with wrong answers" }
                        option value="lost" { "items without a result" }
                    }
                }
                label { "Tag"
                    select #by-tag { option value="" { "all tags" } @for tag in view.tags() { option value=(tag) { (tag) } } }
                }
                label { "Differing from"
                    select #by-reference {
                        @if has(PairingKind::Parity) { option value="parity" { "the plain CPU" } }
                        @if has(PairingKind::Baseline) { option value="baseline" { "the baseline" } }
                    }
                }
                label { "Arms"
                    select #by-arms { option value="together" { "together where they answer alike" } option value="apart" { "each by itself" } }
                }
                label.search { "Search in prompts, answers and ids" input #by-text type="search" autocomplete="off" spellcheck="false"; }
                button #reset-answers type="reset" { "Reset" }
                p #items-shown role="status" {}
            }
            div #items {}
            p { button #more-items type="button" hidden { "Show more items" } }
        }
    }
}
