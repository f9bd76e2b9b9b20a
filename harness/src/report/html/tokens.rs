//! Tokens: where the top one differs, how the free runs part, what text came out, and what is not finite.

use super::super::Cell;
use super::figures::percent;
use crate::compare::{ExpertSets, Greedy, MismatchKind, NonFinite, TopToken};
use crate::report::format::scientific;
use maud::{Markup, html};

/// Everything about tokens that there is to say of a cell.
pub(super) fn render(index: usize, cell: &Cell) -> Markup {
    html! {
        @if let Some(metrics) = &cell.metrics {
            @if metrics.top_token.mismatches > 0 { (mismatches(index, cell, &metrics.top_token)) }
            @if let Some(found) = metrics.experts.as_ref().filter(|e| !e.list.is_empty()) { (experts(index, found)) }
            @if let Some(found) = &metrics.greedy { (greedy(index, cell, found)) }
            @if !metrics.nonfinite.tensors.is_empty() { (nonfinite(index, &metrics.nonfinite)) }
        }
        (text(cell))
    }
}

/// A token by its id and, where it is known, its text.
fn token(cell: &Cell, id: Option<u64>, none: &str) -> Markup {
    html! {
        @match id {
            None => (none),
            Some(id) => {
                (id)
                @if let Some(piece) = cell.pieces.get(&id) { " " code.piece { "“" (piece.escape_debug()) "”" } }
            }
        }
    }
}

fn mismatches(index: usize, cell: &Cell, found: &TopToken) -> Markup {
    let interval = match found.interval[..] {
        [low, high] => format!(" (95 % interval {} to {})", percent(low), percent(high)),
        _ => String::new(),
    };
    html! {
        h4 #(format!("c{index}-mismatches")) { "Top-token mismatches" }
        p {
            (found.mismatches) " of " (found.rows) " rows, " (percent(found.rate)) (interval) ": "
            (found.real) " real, " (found.ties) " explained by the allowed noise (ties)."
        }
        div.scroll tabindex="0" role="group" aria-label="Top-token mismatches" {
            table {
                caption {
                    "Real ones first"
                    @if (found.list.len() as u64) < found.mismatches { "; the first " (found.list.len()) " of " (found.mismatches) }
                }
                thead { tr {
                    th scope="col" { "row" } th scope="col" { "kind" } th.n scope="col" { "position" } th.n scope="col" { "step" }
                    th scope="col" { "reference's token" } th scope="col" { "test's token" }
                    th.n scope="col" { "margin" } th.n scope="col" { "tie up to" } th.n scope="col" { "gap to test's" }
                } }
                tbody {
                    @for found in &found.list {
                        tr class=[(found.kind == MismatchKind::Real).then_some("over")] {
                            th scope="row" { (found.place.row) }
                            td { (found.kind) }
                            td.n { (found.place.position) }
                            td.n { (found.place.step) }
                            td { (token(cell, found.reference, "NaN in the row")) }
                            td { (token(cell, found.test, "NaN in the row")) }
                            td.n { (scientific(found.margin)) }
                            td.n { (scientific(found.allowed)) }
                            td.n { (scientific(found.gap)) }
                        }
                    }
                }
            }
        }
    }
}

fn experts(index: usize, found: &ExpertSets) -> Markup {
    let list = |experts: &[i32]| experts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    html! {
        h4 #(format!("c{index}-experts")) { "Sets of experts that differ" }
        p {
            (found.real) " of " (found.sets) " really, " (found.ties) " explained by the allowed noise (ties). Those after "
            "the first may follow from it."
        }
        div.scroll tabindex="0" role="group" aria-label="Sets of experts that differ" {
            table {
                caption {
                    "Real ones first"
                    @if (found.list.len() as u64) < found.real + found.ties {
                        "; the first " (found.list.len()) " of " (found.real + found.ties)
                    }
                }
                thead { tr {
                    th.n scope="col" { "layer" } th.n scope="col" { "position" } th.n scope="col" { "pass" }
                    th scope="col" { "kind" } th scope="col" { "the reference's only" } th scope="col" { "the test's only" }
                    th.n scope="col" { "margin" } th.n scope="col" { "tie up to" } th.n scope="col" { "gap" }
                } }
                tbody {
                    @for found in &found.list {
                        tr class=[(found.kind == MismatchKind::Real).then_some("over")] {
                            td.n { (found.layer) }
                            td.n { (found.position) }
                            td.n { (found.step) }
                            td { (found.kind) }
                            td { (list(&found.reference)) }
                            td { (list(&found.test)) }
                            td.n { (scientific(found.margin)) }
                            td.n { (scientific(found.allowed)) }
                            td.n { (scientific(found.gap)) }
                        }
                    }
                }
            }
        }
    }
}

fn greedy(index: usize, cell: &Cell, found: &Greedy) -> Markup {
    let id = |token: Option<i32>| token.and_then(|token| u64::try_from(token).ok());
    html! {
        h4 #(format!("c{index}-greedy")) { "Greedy run" }
        @match &found.first_difference {
            None => p { "✓ All " (found.length) " tokens are equal." },
            Some(first) => {
                p {
                    @if found.passes() {
                        "✓ Equal as far as required: the first " (found.required) " of " (found.length) " decisions, before noise may turn one. "
                    } @else {
                        "✕ Not equal, though the first " (found.required) " of " (found.length) " decisions are required to be. "
                    }
                    "Decision " (first.decision) ", token " (first.index) ": the reference has "
                    (token(cell, id(first.reference), "ended")) ", the test " (token(cell, id(first.test), "ended"))
                    ", the reference's margin there "
                    (first.margin.map_or_else(|| "is unknown".to_owned(), |margin| format!("is {}", scientific(margin)))) "."
                }
            }
        }
    }
}

fn nonfinite(index: usize, found: &NonFinite) -> Markup {
    html! {
        h4 #(format!("c{index}-nonfinite")) { "Values that are not finite" }
        @if let Some(first) = &found.first {
            p {
                "First in " code { (first.tensor) } ", row " (first.row) ", column " (first.column) ": "
                (first.reference) " in the reference, " (first.test) " in the test."
            }
        }
        div.scroll tabindex="0" role="group" aria-label="Values that are not finite" {
            table {
                caption { "Counts by tensor; an infinity that both have is allowed" }
                thead { tr { th scope="col" { "tensor" } th.n scope="col" { "NaN, reference" } th.n scope="col" { "NaN, test" } th.n scope="col" { "∞ in one" } th.n scope="col" { "∞ in both" } } }
                tbody {
                    @for (tensor, counts) in &found.tensors {
                        tr {
                            th scope="row" { (tensor) }
                            td.n { (counts.reference_nan) }
                            td.n { (counts.test_nan) }
                            td.n { (counts.unmatched_infinite) }
                            td.n { (counts.matched_infinite) }
                        }
                    }
                }
            }
        }
    }
}

fn text(cell: &Cell) -> Markup {
    if cell.text.is_none() && cell.reference_text.is_none() {
        return html! {};
    }
    let same = cell.text.is_some() && cell.text == cell.reference_text;
    html! {
        h4 { "Generated text" }
        dl.texts {
            @if same {
                div { dt { "both arms" } dd { (cell.text.as_deref().unwrap_or_default()) } }
            } @else {
                @if let Some(text) = &cell.reference_text { div { dt { "reference" } dd { (text) } } }
                @if let Some(text) = &cell.text { div { dt { "device" } dd { (text) } } }
            }
        }
    }
}
