//! One cell with everything that is known of it. Each part has an id, so that a link can lead to it.

use super::super::{Cell, Report};
use super::curves::{Chart, Series};
use super::{badge, command, curves, figures, matrix, placement, tokens};
use crate::capture::{Cache, KvSet};
use crate::compare::{KvNmse, Metrics, StepNmse, Steps};
use crate::gate::Declared;
use crate::report::format::scientific;
use crate::report::held;
use maud::{Markup, html};

/// So many red cells are unfolded from the start; a page with more would be slow to draw.
const UNFOLDED: usize = 20;

/// Every cell, in declared order. `order` is that of gravity.
pub(super) fn list(report: &Report, order: &[usize]) -> Markup {
    if report.cells.is_empty() {
        return html! {};
    }
    let mut ranks = vec![0; order.len()];
    for (rank, &index) in order.iter().enumerate() {
        ranks[index] = rank;
    }
    html! {
        section #cells aria-labelledby="cells-title" {
            h2 #cells-title { "Cells" }
            div #cell-list {
                @for (index, cell) in report.cells.iter().enumerate() {
                    (details(index, cell, ranks[index]))
                }
            }
        }
    }
}

fn details(index: usize, cell: &Cell, rank: usize) -> Markup {
    let worst = held::worst_ratio(cell);
    html! {
        details.cell #(format!("c{index}")) open[cell.is_red() && rank < UNFOLDED]
            data-status=(cell.status) data-red=(cell.is_red()) data-model=(matrix::group(cell))
            data-device=(matrix::column(cell)) data-declared=(index) data-worst=(rank) {
            summary {
                h3 { (badge(cell.status)) " " span.id { (cell.id) } }
                @if let Some(worst) = worst { span.worst { "worst figure " (super::times(worst)) " its limit" } }
            }
            div.body {
                @if !cell.reason.is_empty() { p.reason { (cell.reason) } }
                @if let Some(declared) = &cell.declared { (declarations(declared, cell)) }
                @if let Some(how) = &cell.retried { p { "Computed on the second try, after: " (how) } }
                p.reference {
                    @match &cell.reference {
                        Some(reference) => { "Compared with " code { (reference) } },
                        None => "Compared with nothing.",
                    }
                }
                (command("Run again", &cell.rerun))
                (figures::render(cell))
                (figures::attribution(cell))
                (charts(index, cell))
                (tokens::render(index, cell))
                (placement::render(index, cell))
            }
        }
    }
}

/// What the gate declares of the cell, and what was found before that was held against it.
fn declarations(declared: &Declared, cell: &Cell) -> Markup {
    html! {
        div.declared {
            p { "Declared in the gate" (if declared.holds { ", and so it is:" } else { ", but it is not so:" }) }
            ul {
                @for declaration in &declared.declarations {
                    li {
                        (declaration.expected) ": " (declaration.reason)
                        @if let Some(link) = &declaration.link { " (" (linked(link)) ")" }
                        " · " code { (declaration.place) }
                        @if let Some(expires) = &declaration.expires { " · counts until " (expires) }
                    }
                }
            }
            @if let Some(found) = &cell.found && found.status != cell.status {
                p { "Without the declaration: " (badge(found.status)) }
            }
        }
    }
}

/// A link where it is one of the web; a file or a number of an issue stays text.
fn linked(link: &str) -> Markup {
    let web = ["https://", "http://"].iter().any(|scheme| link.starts_with(scheme));
    html! { @if web { a href=(link) rel="noreferrer" { (link) } } @else { (link) } }
}

/// The curves over layers and over steps.
fn charts(index: usize, cell: &Cell) -> Markup {
    let Some(metrics) = &cell.metrics else { return html! {} };
    html! {
        div.charts {
            (layers(index, cell, metrics))
            @if let Some(steps) = &metrics.steps { (step_curve(index, cell, steps)) }
            @if cell.is_red() && let Some(kv) = &metrics.kv { (positions(index, cell, kv)) }
        }
    }
}

fn layers(index: usize, cell: &Cell, metrics: &Metrics) -> Markup {
    let limits = cell.limits.as_ref();
    let stored = limits.and_then(|l| l.kv_nmse.as_ref()).map(|bound| bound.limit);
    let before = limits.and_then(|l| l.kv_before_storing_nmse.as_ref()).map(|bound| bound.limit);
    let mut series = Vec::new();
    let mut add = |names: [&'static str; 2], kv: &KvNmse, set, limit| {
        for (name, &cache) in std::iter::zip(names, Cache::ALL) {
            let points = held::tensors(kv, set).filter(|tensor| tensor.1 == cache);
            let points = points.map(|(_, _, layer, nmse)| (layer as f64, nmse)).collect();
            series.push(Series { name, points, limit });
        }
    };
    if let Some(kv) = &metrics.kv {
        add(["K", "V"], kv, KvSet::Stored, stored);
    }
    if let Some(kv) = &metrics.kv_before_storing {
        add(["K before storing", "V before storing"], kv, KvSet::BeforeStoring, before);
    }
    if series.is_empty() {
        return html! {};
    }
    let sets = [(KvSet::BeforeStoring, &metrics.kv_before_storing), (KvSet::Stored, &metrics.kv)];
    let bad = sets.into_iter().find_map(|(set, kv)| {
        let bad = kv.as_ref()?.first_bad.as_ref()?;
        Some((bad.layer as f64, bad.nmse, set.tensor(bad.cache, bad.layer as usize)))
    });
    curves::render(&Chart {
        id: format!("c{index}-layers"),
        title: "NMSE of K and V in each layer".to_owned(),
        axis: "layer",
        series,
        bad,
        log: false,
        told: cell.is_red(),
    })
}

/// A figure that each step has: its name, where it is found, and what it is held to.
type StepFigure = (&'static str, fn(&StepNmse) -> Option<f64>, Option<f64>);

fn step_curve(index: usize, cell: &Cell, steps: &Steps) -> Markup {
    let limit = cell.limits.as_ref().map(|limits| limits.logits_nmse.limit);
    let kv_limit = cell.limits.as_ref().and_then(|l| l.kv_nmse.as_ref()).map(|bound| bound.limit);
    // A further figure of steps is a further line here.
    let figures: [StepFigure; 3] = [
        ("logits", |step| step.nmse, limit),
        ("K", |step| step.kv.map(|kv| kv.k), kv_limit),
        ("V", |step| step.kv.map(|kv| kv.v), kv_limit),
    ];
    let series = figures.into_iter().map(|(name, figure, limit)| {
        let told = steps.list.iter().filter_map(|step| Some((f64::from(step.step), figure(step)?)));
        Series { name, points: told.collect(), limit }
    });
    let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
    let bad = steps.first_bad.map(|bad| {
        let (nmse, cache) = match bad.cache {
            Some(found) => (found.nmse, format!(", {}.{}", found.cache, found.layer)),
            None => (bad.nmse.unwrap_or(f64::NAN), String::new()),
        };
        (f64::from(bad.step), nmse, format!("step {}{cache}", bad.step))
    });
    curves::render(&Chart {
        id: format!("c{index}-steps"),
        title: "NMSE of logits, K and V at each step".to_owned(),
        axis: "step",
        series,
        bad,
        log: false,
        told: cell.is_red(),
    })
}

/// The worst cache of a red cell, position by position.
fn positions(index: usize, cell: &Cell, kv: &KvNmse) -> Markup {
    let worst = &kv.worst;
    let limit = cell.limits.as_ref().and_then(|l| l.kv_nmse.as_ref()).map(|bound| bound.limit);
    let points = (0u32..).map(f64::from).zip(worst.positions.iter().copied()).collect();
    let name = format!("{}.{}", worst.cache, worst.layer);
    let heads = worst.heads.iter().enumerate().map(|(i, nmse)| format!("{i}: {}", scientific(*nmse)));
    let heads = heads.collect::<Vec<_>>().join(", ");
    html! {
        div {
            (curves::render(&Chart {
                id: format!("c{index}-positions"),
                title: format!("NMSE of {name}, the worst cache, at each position"),
                axis: "position",
                series: vec![Series { name: if worst.cache == Cache::K { "K" } else { "V" }, points, limit }],
                bad: None,
                log: false,
                told: false,
            }))
            p.heads { "NMSE of " (name) " by K/V head: " (heads) }
        }
    }
}
