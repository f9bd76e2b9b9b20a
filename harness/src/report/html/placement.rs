//! Where the work was placed, what moved between host and device, and how long it took.

use super::super::Cell;
use super::{bytes, duration};
use crate::capture::{BackendNodes, Moved, Placement, Traffic};
use maud::{Markup, html};
use std::collections::BTreeSet;

/// Placement, bytes, memory and times of a cell; nothing where no worker told any.
pub(super) fn render(index: usize, cell: &Cell) -> Markup {
    html! {
        @if let Some(found) = &cell.placement { (placement(index, found)) }
        @if let Some(traffic) = &cell.traffic { (moved(traffic)) }
        @if !cell.timings.is_empty() || cell.peak_rss_bytes.is_some() { (costs(cell)) }
    }
}

fn placement(index: usize, found: &Placement) -> Markup {
    let used: Vec<&BackendNodes> = found.backends.iter().collect();
    let ops: BTreeSet<&String> = used.iter().flat_map(|backend| backend.ops.keys()).collect();
    let fell_back = |op: &str| found.fallbacks.iter().find(|fallback| fallback.op == op);
    html! {
        h4 #(format!("c{index}-placement")) { "Placement" }
        p {
            (found.graphs) " graphs in " (found.splits) " splits. Compute nodes: "
            @for (i, backend) in used.iter().enumerate() {
                @if i > 0 { ", " }
                strong { (backend.compute_nodes) } " on " (backend.name) " (and " (backend.view_nodes) " views)"
            }
            "."
        }
        @if !found.fallbacks.is_empty() {
            p.reason {
                "Fell back to the CPU: "
                @for (i, fallback) in found.fallbacks.iter().enumerate() {
                    @if i > 0 { ", " }
                    (fallback.op) " ×" (fallback.count) " (first " code { (fallback.node) } ")"
                }
                "."
            }
        }
        details {
            summary { "Nodes by op and backend" }
            div.scroll tabindex="0" role="group" aria-label="Nodes by op and backend" {
                table {
                    caption { "Compute nodes over all graphs" }
                    thead { tr { th scope="col" { "op" } @for backend in &used { th.n scope="col" { (backend.name) } } } }
                    tbody {
                        @for op in ops {
                            tr class=[fell_back(op).map(|_| "over")] {
                                th scope="row" { (op) @if fell_back(op).is_some() { ", fell back" } }
                                @for backend in &used { td.n { (backend.ops.get(op).copied().unwrap_or(0)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn moved(traffic: &Traffic) -> Markup {
    let row = |name: &str, moved: Moved| {
        html! { tr { th scope="row" { (name) } td.n { (bytes(moved.total)) } td.n { (bytes(moved.largest)) } } }
    };
    html! {
        div.scroll tabindex="0" role="group" aria-label="Bytes moved" {
            table {
                caption { "Bytes moved between host and device in " (traffic.graphs) " graphs" }
                thead { tr { th scope="col" { "direction" } th.n scope="col" { "in all" } th.n scope="col" { "largest graph" } } }
                tbody {
                    (row("to the device", traffic.to_device))
                    (row("from the device", traffic.from_device))
                    tr { th scope="row" { "K/V cache read outside of graphs" } td.n { (bytes(traffic.cache_read)) } td.n { "–" } }
                }
            }
        }
    }
}

fn costs(cell: &Cell) -> Markup {
    html! {
        h4 { "Time and memory" }
        ul.costs {
            @for (name, &seconds) in &cell.timings { li { (name) " " strong { (duration(seconds)) } } }
            @if let Some(peak) = cell.peak_rss_bytes { li { "peak memory " strong { (bytes(peak)) } } }
        }
    }
}
