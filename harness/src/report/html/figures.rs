//! Figures beside their limits, what the distributions say, and which arm is off.

use super::super::{Arm, Attribution, Cell};
use super::times;
use crate::capture::CheckBound;
use crate::plan::Mode;
use crate::report::format::scientific;
use crate::report::held::{self, Held, ratio};
use crate::verdict::Limits;
use maud::{Markup, html};

/// The figures of a cell; nothing where captures were not compared.
pub(super) fn render(cell: &Cell) -> Markup {
    let held = held::figures(cell);
    let Some(metrics) = &cell.metrics else { return checks(cell) };
    let found = &metrics.distribution;
    html! {
        h4 { "Figures and limits" }
        div.scroll tabindex="0" role="group" aria-label="Figures and limits" {
            table.figures {
                caption { "Each figure, its limit, and the figure as a share of the limit" }
                thead { tr { th scope="col" { "figure" } th.n scope="col" { "value" } th.n scope="col" { "limit" } th scope="col" { "share of the limit" } th scope="col" { "where" } th scope="col" { "why this limit" } } }
                tbody { @for figure in &held { (row(figure)) } }
            }
        }
        @if metrics.sampler.is_none() { p.more {
            "Rows: p50 " (scientific(metrics.logits.p50)) ", p99 " (scientific(metrics.logits.p99))
            ". KL: p99 " (scientific(found.kl_p99)) ", largest " (scientific(found.kl_max)) " nats"
            ". Top-" (found.top_k) " overlap: mean " (percent(found.overlap_mean)) ", least " (percent(found.overlap_min))
            ". Entropy: largest difference " (scientific(found.entropy_max_difference)) " nats"
            ". One logit: largest error " (scientific(found.max_abs_error)) ", relative " (scientific(found.max_rel_error)) "."
        } }
        (checks(cell))
    }
}

fn row(held: &Held) -> Markup {
    let figure = |value: f64| if held.counts { value.to_string() } else { scientific(value) };
    html! {
        tr class=[(!held.ok()).then_some("over")] {
            th scope="row" { (held.name) }
            td.n { (figure(held.value)) }
            td.n { (held.limit.map_or_else(|| "none".to_owned(), figure)) }
            td {
                @match held.ratio() {
                    Some(_) if held.counts => (if held.ok() { "✓" } else { "✕" }),
                    Some(ratio) => (bar(ratio)),
                    None => "–",
                }
            }
            td { (held.place) }
            td.why { (held.reason) }
        }
    }
}

/// A bar on a logarithmic scale from a thousandth of the limit to a thousand times it, the limit in its middle.
fn bar(ratio: f64) -> Markup {
    let share = if ratio <= 0.0 { 0.0 } else { ((ratio.log10() + 3.0) / 6.0).clamp(0.01, 1.0) };
    let width = (share * 100.0).round();
    let over = ratio > 1.0;
    html! {
        span.bar {
            svg class=[over.then_some("over")] viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" {
                rect width=(width) height="1" {}
            }
            (if over { "✕ " } else { "✓ " }) (times(ratio))
        }
    }
}

/// What the device was found to do against itself.
fn checks(cell: &Cell) -> Markup {
    if cell.checks.is_empty() {
        return html! {};
    }
    html! {
        h4 { "The device against itself" }
        div.scroll tabindex="0" role="group" aria-label="The device against itself" {
            table {
                caption { "Checks that the worker made on the device alone" }
                thead { tr { th scope="col" { "check" } th.n scope="col" { "figure" } th scope="col" { "held to" } th scope="col" { "detail" } } }
                tbody {
                    @for check in &cell.checks {
                        tr class=[beyond(check.bound, check.value, cell.limits.as_ref()).then_some("over")] {
                            th scope="row" { (check.name) }
                            td.n { (scientific(check.value)) }
                            td { (check.bound) }
                            td { (check.detail) }
                        }
                    }
                }
            }
        }
    }
}

fn beyond(bound: CheckBound, value: f64, limits: Option<&Limits>) -> bool {
    let limit = match bound {
        CheckBound::Exact => Some(0.0),
        CheckBound::Logits => limits.map(|limits| limits.logits_nmse.limit),
        CheckBound::Kv => limits.and_then(|limits| limits.kv_nmse.as_ref()).map(|bound| bound.limit),
        CheckBound::Reported => None,
    };
    limit.is_some_and(|limit| ratio(value, limit) > 1.0)
}

/// Which arm is off, with both distances from the oracle; or why there is no attribution.
pub(super) fn attribution(cell: &Cell) -> Markup {
    let Some(found) = &cell.attribution else {
        return html! {
            @if let Some(why) = &cell.without_oracle { h4 { "Attribution" } p { "None: " (why) "." } }
        };
    };
    html! {
        h4 { "Attribution" }
        p { strong { (found.verdict) } ": " (sentence(found.verdict)) }
        @if cell.mode != Mode::Sampler { div.scroll tabindex="0" role="group" aria-label="Attribution" {
            table {
                caption { "Each arm against the f64 oracle" }
                thead { tr { th scope="col" { "arm" } th.n scope="col" { "logits NMSE" } th scope="col" { "share of the limit" } th.n scope="col" { "worst K/V NMSE" } th scope="col" { "share of the limit" } } }
                tbody {
                    (arm("reference", cell, found.reference_nmse, found.reference_kv_nmse, found))
                    (arm("device", cell, found.device_nmse, found.device_kv_nmse, found))
                }
            }
        } }
    }
}

fn arm(name: &str, cell: &Cell, logits: f64, kv: Option<f64>, found: &Attribution) -> Markup {
    let limits = cell.limits.as_ref();
    let off = match name {
        "device" => matches!(found.verdict, Arm::Device | Arm::Both),
        _ => matches!(found.verdict, Arm::Reference | Arm::Both),
    };
    let kv_limit = limits.and_then(|limits| limits.kv_nmse.as_ref()).map(|bound| bound.limit);
    html! {
        tr class=[off.then_some("over")] {
            th scope="row" { (name) (if off { ", off" } else { "" }) }
            td.n { (scientific(logits)) }
            td { @if let Some(limits) = limits { (bar(ratio(logits, limits.logits_nmse.limit))) } @else { "–" } }
            td.n { (kv.map_or_else(|| "–".to_owned(), scientific)) }
            td { @if let Some((kv, limit)) = kv.zip(kv_limit) { (bar(ratio(kv, limit))) } @else { "–" } }
        }
    }
}

fn sentence(arm: Arm) -> &'static str {
    match arm {
        Arm::Device => "the device is beyond the limits, the reference is not.",
        Arm::Reference => {
            "the reference is beyond the limits, the device is not; the device is held to the oracle."
        }
        Arm::Both => "both arms are beyond the limits, however close they are to each other.",
        Arm::Agree => "both arms are within the limits of the oracle.",
    }
}

/// A share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
