//! The matrix: a row for each case, a column for each device of a build, and in each field a status and how far the
//! logits are from their limit.

use super::super::held::{self, Held};
use super::super::{Cell, Report};
use super::{sign, times};
use crate::report::format::scientific;
use crate::verdict::Status;
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Where a cell stands: the model and weights of its group, its mode and options, its column.
struct Grid {
    columns: Vec<String>,
    groups: Vec<(String, Vec<String>)>,
    cells: BTreeMap<(usize, usize, usize), usize>,
}

/// The index of `value`, which is added where it is new.
fn place<T: PartialEq>(list: &mut Vec<T>, value: T) -> usize {
    list.iter().position(|known| *known == value).unwrap_or_else(|| {
        list.push(value);
        list.len() - 1
    })
}

/// The column of a cell.
pub(super) fn column(cell: &Cell) -> String {
    format!("{}:{}", cell.build, cell.device)
}

/// The group of a cell.
pub(super) fn group(cell: &Cell) -> String {
    format!("{} / {}", cell.model, cell.weights)
}

/// The mode and the options of a cell.
fn line(cell: &Cell) -> String {
    let options = cell.options.to_string();
    if options.is_empty() { cell.mode.to_string() } else { format!("{}?{options}", cell.mode) }
}

impl Grid {
    fn of(report: &Report) -> Self {
        let mut grid = Self { columns: Vec::new(), groups: Vec::new(), cells: BTreeMap::new() };
        for (index, cell) in report.cells.iter().enumerate() {
            let column = place(&mut grid.columns, column(cell));
            let name = group(cell);
            let group = grid.groups.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                grid.groups.push((name, Vec::new()));
                grid.groups.len() - 1
            });
            let row = place(&mut grid.groups[group].1, line(cell));
            grid.cells.insert((group, row, column), index);
        }
        grid
    }
}

/// The matrix with its legend; nothing for a report without cells.
pub(super) fn render(report: &Report) -> Markup {
    if report.cells.is_empty() {
        return html! {};
    }
    let grid = Grid::of(report);
    html! {
        section #matrix aria-labelledby="matrix-title" {
            h2 #matrix-title { "Matrix" }
            (controls(report, &grid))
            p.more {
                "Each field: status, NMSE of the logits, and that figure as a share of its limit (1× is the limit). "
                "Of a sampler, the largest difference of entropies. "
                "Where only another figure is beyond its limit, it stands there with its name. "
                "A field leads to its details."
            }
            div.scroll.wide tabindex="0" role="region" aria-label="Matrix of cases and devices" {
                table.matrix {
                    caption.away { "Cases and devices" }
                    thead {
                        tr {
                            th scope="col" { "case" }
                            @for (i, column) in grid.columns.iter().enumerate() {
                                th scope="col" data-column=(i) { (breakable(column)) }
                            }
                        }
                    }
                    @for (g, (name, rows)) in grid.groups.iter().enumerate() {
                        tbody data-model=(name) {
                            tr.group { th scope="rowgroup" colspan=(grid.columns.len() + 1) { span { (name) } } }
                            @for (r, row) in rows.iter().enumerate() {
                                tr {
                                    th scope="row" { (breakable(row)) }
                                    @for column in 0..grid.columns.len() {
                                        td data-column=(column) {
                                            @match grid.cells.get(&(g, r, column)) {
                                                Some(&index) => (field(index, &report.cells[index])),
                                                None => span.none { span aria-hidden="true" { "·" } span.away { "not in this run" } },
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            (legend())
        }
    }
}

fn field(index: usize, cell: &Cell) -> Markup {
    let figures = held::figures(cell);
    let beyond = figures.iter().filter(|held| !held.ok());
    let farthest = beyond.max_by(|a, b| a.ratio().unwrap_or(0.0).total_cmp(&b.ratio().unwrap_or(0.0)));
    // The logits come first, and stay where they are beyond their limit as well.
    let logits = figures.first();
    let shown = if logits.is_some_and(|logits| !logits.ok()) { logits } else { farthest.or(logits) };
    let ratio = shown.and_then(Held::ratio);
    html! {
        a class=(format!("field {}", heat(cell, ratio))) href=(format!("#c{index}")) data-status=(cell.status) data-red=(cell.is_red()) {
            span.word { span aria-hidden="true" { (sign(cell.status)) } " " (cell.status) }
            @if let Some(shown) = shown {
                @if logits.is_some_and(Held::ok) && !shown.ok() { span.name { (shown.name) } }
                span.figure {
                    @if shown.counts { (shown.value) } @else { (scientific(shown.value)) }
                    @if let Some(ratio) = ratio { " " span.times { (times(ratio)) } }
                }
            }
        }
    }
}

/// The class that colours a field: by status, and by the distance from the limit.
fn heat(cell: &Cell, ratio: Option<f64>) -> String {
    let depth = match (cell.status, ratio) {
        (Status::Pass, Some(r)) if r <= 1e-3 => " h0",
        (Status::Pass, Some(r)) if r <= 1e-2 => " h1",
        (Status::Pass, Some(r)) if r <= 0.1 => " h2",
        (Status::Pass, Some(r)) if r <= 0.5 => " h3",
        (Status::Pass, _) => " h4",
        (Status::Diverged, Some(r)) if r <= 10.0 => " h0",
        (Status::Diverged, Some(r)) if r <= 1e3 => " h1",
        (Status::Diverged, _) => " h2",
        _ => "",
    };
    format!("s-{}{depth}", cell.status)
}

fn legend() -> Markup {
    let pass = ["≤ 0.001×", "≤ 0.01×", "≤ 0.1×", "≤ 0.5×", "≤ 1×"];
    let diverged = ["≤ 10×", "≤ 1000×", "more"];
    html! {
        ul.legend aria-label="Colours of the matrix" {
            @for (i, text) in pass.iter().enumerate() {
                li { span class=(format!("swatch s-pass h{i}")) aria-hidden="true" {} "pass " (text) }
            }
            @for (i, text) in diverged.iter().enumerate() {
                li { span class=(format!("swatch s-diverged h{i}")) aria-hidden="true" {} "diverged " (text) }
            }
        }
    }
}

/// Filters and the order of the cells; the script shows them, since nothing but the script can make them work.
fn controls(report: &Report, grid: &Grid) -> Markup {
    let statuses =
        Status::ALL.iter().filter(|&&status| report.cells.iter().any(|cell| cell.status == status));
    html! {
        form #controls hidden {
            label { "Status " select #by-status { option value="" { "all" } option value="red" { "red only" }
                @for status in statuses { option value=(status) { (status) } } } }
            label { "Model " select #by-model { option value="" { "all" }
                @for (name, _) in &grid.groups { option value=(name) { (name) } } } }
            label { "Device " select #by-device { option value="" { "all" }
                @for name in &grid.columns { option value=(name) { (name) } } } }
            label { "Order of cells " select #by-order { option value="declared" { "as declared" } option value="worst" { "worst first" } } }
            button #reset type="reset" { "Reset" }
            p #shown role="status" {}
        }
    }
}

/// Text with places to break a line after the signs that ids are made of.
fn breakable(text: &str) -> Markup {
    let mut parts = text.split_inclusive(['/', ':', '&', '?', '@', '+']);
    html! { @for part in parts.by_ref() { (part) wbr; } }
}
