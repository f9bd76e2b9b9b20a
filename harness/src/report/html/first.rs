//! What to look at first: the red cells, the gravest before the others.

use super::super::{Cell, Report, held};
use super::{badge, command};
use crate::report::format::shortened;
use crate::verdict::Status;
use maud::{Markup, html};

/// The most cells in the list.
const MOST: usize = 20;
/// The most characters of a reason in the list; the cell has all of it.
const REASON: usize = 360;

/// The indices of all cells: red before green, by the gravity of the status, then by how far beyond the limits.
pub(super) fn worst_first(report: &Report) -> Vec<usize> {
    let mut order: Vec<(usize, (bool, usize, f64))> = report
        .cells
        .iter()
        .enumerate()
        .map(|(index, cell)| {
            (index, (cell.is_red(), gravity(cell.status), held::worst_ratio(cell).unwrap_or(0.0)))
        })
        .collect();
    order.sort_by(|(_, a), (_, b)| b.0.cmp(&a.0).then(a.1.cmp(&b.1)).then(b.2.total_cmp(&a.2)));
    order.into_iter().map(|(index, _)| index).collect()
}

/// A rank: small is grave.
fn gravity(status: Status) -> usize {
    match status {
        Status::Crashed => 0,
        Status::OutOfMemory => 1,
        Status::Timeout => 2,
        Status::Diverged => 3,
        Status::Fallback => 4,
        Status::UnexpectedPass => 5,
        Status::Missing => 6,
        Status::Unsupported => 7,
        Status::Expected => 8,
        Status::Pass => 9,
    }
}

/// The list, with a way to the place where each divergence begins.
pub(super) fn render(report: &Report, order: &[usize]) -> Markup {
    let red: Vec<usize> = order.iter().copied().filter(|&index| report.cells[index].is_red()).collect();
    html! {
        section #first aria-labelledby="first-title" {
            h2 #first-title { "What to look at first" }
            @if red.is_empty() {
                @if report.cells.is_empty() {
                    p { "Nothing was compared." }
                } @else {
                    p { "No cell is red. The matrix below shows how far each is from its limit." }
                }
            } @else {
                ol.first {
                    @for &index in red.iter().take(MOST) {
                        (entry(index, &report.cells[index]))
                    }
                }
                @if red.len() > MOST {
                    p { (red.len() - MOST) " more red cells are in the matrix and in the list of cells below." }
                }
            }
        }
    }
}

fn entry(index: usize, cell: &Cell) -> Markup {
    html! {
        li {
            p.head { (badge(cell.status)) " " a.cell-link href=(format!("#c{index}")) { (cell.id) } }
            p.reason { (shortened(&cell.reason, REASON)) }
            @let places = places(index, cell);
            @if !places.is_empty() {
                p.places {
                    "Begins at: "
                    @for (i, (href, text)) in places.iter().enumerate() {
                        @if i > 0 { " · " }
                        a href=(href) { (text) }
                    }
                }
            }
            (command("Run again", &cell.rerun))
        }
    }
}

/// Where a divergence begins: link and name.
fn places(index: usize, cell: &Cell) -> Vec<(String, String)> {
    let Some(metrics) = &cell.metrics else { return Vec::new() };
    let mut places = Vec::new();
    let mut place = |part: &str, text: String| places.push((format!("#c{index}-{part}"), text));
    if let Some(first) = &metrics.nonfinite.first {
        place(
            "nonfinite",
            format!("{} row {} column {}: {}", first.tensor, first.row, first.column, first.test),
        );
    }
    let caches = [metrics.kv_before_storing.as_ref(), metrics.kv.as_ref()];
    if let Some(bad) = caches.into_iter().flatten().find_map(|kv| kv.first_bad.as_ref()) {
        place("layers", format!("layer {}, {}", bad.layer, bad.cache.name().to_uppercase()));
    }
    if let Some(bad) = metrics.steps.as_ref().and_then(|steps| steps.first_bad.as_ref()) {
        place("steps", format!("step {}", bad.step));
    }
    if metrics.top_token.real > 0 {
        let first = metrics.top_token.list.first();
        let row = first.map(|found| format!(", first in row {}", found.place.row)).unwrap_or_default();
        place("mismatches", format!("{} real mismatches{row}", metrics.top_token.real));
    }
    if let Some(greedy) = metrics.greedy.as_ref().filter(|greedy| !greedy.passes())
        && let Some(first) = &greedy.first_difference
    {
        place("greedy", format!("token {} of the free run", first.index));
    }
    if cell.status == Status::Fallback {
        place("placement", "placement".to_owned());
    }
    places
}
