//! Outcomes: what a declaration expects of its cells, and up to which bound.

use super::GateError;
use super::error::Source;
use crate::report::Cell;
use crate::verdict::{Finding, FindingKind, Status, within};
use crate::worker::death;
use serde::Deserialize;
use toml::Spanned;

/// What is expected, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOutcome {
    status: Option<Spanned<Status>>,
    logits_nmse: Option<Spanned<f64>>,
    row_nmse: Option<Spanned<f64>>,
    kv_nmse: Option<Spanned<f64>>,
    kv_before_storing_nmse: Option<Spanned<f64>>,
    kl_mean: Option<Spanned<f64>>,
    check: Option<Spanned<f64>>,
    mismatches: Option<u32>,
    experts: Option<u32>,
    nonfinite: Option<u32>,
    greedy: Option<u32>,
    nodes: Option<u32>,
    ops: Option<Vec<String>>,
    signal: Option<Spanned<String>>,
    lacks: Option<Spanned<String>>,
}

/// What is expected of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// Figures beyond their limits, each up to a bound.
    Diverged(Vec<(FindingKind, f64)>),
    /// Work on the CPU: at most so many compute nodes, of these ops where any are named.
    Fallback {
        /// The most compute nodes.
        nodes: u32,
        /// The ops, as `GET_ROWS` or `GET_ROWS iq4_nl`.
        ops: Vec<String>,
    },
    /// The worker dies, by this signal where one is named.
    Crashed(Option<i32>),
    /// The cell takes longer than its time.
    Timeout,
    /// Memory is short.
    OutOfMemory,
    /// The build or device lacks something, which the proof names.
    Unsupported(Option<String>),
}

/// Checks that the fields of an outcome belong together.
pub(super) fn check(raw: &Spanned<RawOutcome>, source: Source<'_>) -> Result<Outcome, GateError> {
    let span = raw.span();
    let raw = raw.get_ref();
    let status = raw.status.as_ref().map_or(Status::Diverged, |status| *status.get_ref());
    let figures = figures(raw, source)?;
    let fields = [
        ("logits_nmse, mismatches and the like", !figures.is_empty(), Status::Diverged),
        ("nodes", raw.nodes.is_some(), Status::Fallback),
        ("ops", raw.ops.is_some(), Status::Fallback),
        ("signal", raw.signal.is_some(), Status::Crashed),
        ("lacks", raw.lacks.is_some(), Status::Unsupported),
    ];
    if let Some((field, _, of)) = fields.iter().find(|(_, given, of)| *given && *of != status) {
        return Err(source.error(&span, format!("{field}: for status {of}, not {status}")));
    }
    Ok(match status {
        Status::Diverged if figures.is_empty() => {
            let message = "a divergence needs a bound: logits_nmse, row_nmse, kv_nmse, kv_before_storing_nmse, kl_mean, \
                           check, mismatches, experts, nonfinite or greedy";
            return Err(source.error(&span, message));
        }
        Status::Diverged => Outcome::Diverged(figures),
        Status::Fallback => match raw.nodes {
            Some(nodes @ 1..) => Outcome::Fallback { nodes, ops: raw.ops.clone().unwrap_or_default() },
            _ => {
                return Err(
                    source.error(&span, "a fallback needs `nodes`, the most compute nodes on the CPU")
                );
            }
        },
        Status::Crashed => {
            Outcome::Crashed(raw.signal.as_ref().map(|name| signal(name, source)).transpose()?)
        }
        Status::Timeout => Outcome::Timeout,
        Status::OutOfMemory => Outcome::OutOfMemory,
        Status::Unsupported => Outcome::Unsupported(raw.lacks.as_ref().map(|text| text.get_ref().clone())),
        Status::Pass | Status::Expected | Status::UnexpectedPass | Status::Missing => {
            let span = raw.status.as_ref().map_or(span, Spanned::span);
            let message = format!(
                "status `{status}` cannot be declared; diverged, fallback, crashed, timeout, out-of-memory or \
                 unsupported can"
            );
            return Err(source.error(&span, message));
        }
    })
}

/// The bounds of figures; each must be a positive number.
fn figures(raw: &RawOutcome, source: Source<'_>) -> Result<Vec<(FindingKind, f64)>, GateError> {
    let numbers = [
        (FindingKind::Logits, &raw.logits_nmse),
        (FindingKind::Row, &raw.row_nmse),
        (FindingKind::Kv, &raw.kv_nmse),
        (FindingKind::BeforeStoring, &raw.kv_before_storing_nmse),
        (FindingKind::Kl, &raw.kl_mean),
        (FindingKind::Check, &raw.check),
    ];
    let mut all = Vec::new();
    for (figure, number) in numbers {
        let Some(number) = number else { continue };
        let value = *number.get_ref();
        if !(value.is_finite() && value > 0.0) {
            return Err(
                source.error(&number.span(), format!("{figure} is {value}, expected a positive number"))
            );
        }
        all.push((figure, value));
    }
    let counts = [
        (FindingKind::Mismatches, raw.mismatches),
        (FindingKind::Experts, raw.experts),
        (FindingKind::NonFinite, raw.nonfinite),
        (FindingKind::Greedy, raw.greedy),
    ];
    all.extend(counts.into_iter().filter_map(|(figure, count)| Some((figure, f64::from(count?)))));
    Ok(all)
}

fn signal(name: &Spanned<String>, source: Source<'_>) -> Result<i32, GateError> {
    let text = name.get_ref();
    let number = text.parse().ok().or_else(|| death::signal_number(text));
    number
        .ok_or_else(|| source.error(&name.span(), format!("signal `{text}`: a name as SIGABRT, or a number")))
}

impl Outcome {
    /// What is expected, in words.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Diverged(figures) => {
                let bounds = figures.iter().map(|(figure, bound)| match figure {
                    FindingKind::Greedy => format!("greedy >= {bound}"),
                    FindingKind::Mismatches | FindingKind::Experts | FindingKind::NonFinite => {
                        format!("{figure} <= {bound}")
                    }
                    _ => format!("{figure} <= {bound:?}"),
                });
                format!("diverged with {}", bounds.collect::<Vec<_>>().join(", "))
            }
            Self::Fallback { nodes, ops } if ops.is_empty() => format!("fallback of at most {nodes} nodes"),
            Self::Fallback { nodes, ops } => format!("fallback of at most {nodes} nodes, {}", ops.join(", ")),
            Self::Crashed(Some(signal)) => format!("crashed with signal {signal}"),
            Self::Crashed(None) => "crashed".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::OutOfMemory => "out-of-memory".to_owned(),
            Self::Unsupported(Some(lacks)) => format!("unsupported for want of {lacks}"),
            Self::Unsupported(None) => "unsupported".to_owned(),
        }
    }

    /// Whether `finding` is of the kind that is expected, within its bound or not.
    pub(super) fn is_about(&self, finding: &Finding, cell: &Cell) -> bool {
        match self {
            Self::Diverged(_) => self.bound(finding, cell).is_some(),
            Self::Fallback { .. } => finding.figure == FindingKind::Fallback,
            _ => false,
        }
    }

    /// Whether `finding` of `cell` is forgiven: it is of the kind that is expected, and within its bound.
    pub(super) fn forgives(&self, finding: &Finding, cell: &Cell) -> bool {
        match self {
            Self::Diverged(figures) => match self.bound(finding, cell) {
                // Of a greedy run so many tokens at least must be equal.
                Some(bound) if finding.figure == FindingKind::Greedy => within(bound, finding.value),
                Some(bound) if finding.value.is_finite() => within(finding.value, bound),
                // Where values that are not finite are declared, no sum over them is finite either.
                Some(_) => {
                    finding.figure != FindingKind::NonFinite
                        && figures.iter().any(|(figure, _)| *figure == FindingKind::NonFinite)
                }
                None => false,
            },
            Self::Fallback { nodes, ops } => {
                finding.figure == FindingKind::Fallback
                    && within(finding.value, f64::from(*nodes))
                    && (ops.is_empty() || fell_back(cell).iter().all(|op| named(op, ops)))
            }
            _ => false,
        }
    }

    /// The bound on a figure. The worst row, where it has none of its own, may grow as all logits may.
    fn bound(&self, finding: &Finding, cell: &Cell) -> Option<f64> {
        let Self::Diverged(figures) = self else { return None };
        let of = |figure| figures.iter().find(|(f, _)| *f == figure).map(|(_, bound)| *bound);
        match (of(finding.figure), finding.figure) {
            (None, FindingKind::Row) => {
                let limits = cell.limits.as_ref()?;
                of(FindingKind::Logits)
                    .map(|bound| bound * (limits.row_nmse.limit / limits.logits_nmse.limit))
            }
            (bound, _) => bound,
        }
    }

    /// Whether a cell without a capture of its own ended as expected.
    pub(super) fn is_end_of(&self, cell: &Cell) -> bool {
        match (self, cell.status) {
            (Self::Crashed(wanted), Status::Crashed) => wanted
                .is_none_or(|signal| cell.death.as_ref().is_some_and(|death| death.signal == Some(signal))),
            (Self::Timeout, Status::Timeout) | (Self::OutOfMemory, Status::OutOfMemory) => true,
            (Self::Unsupported(lacks), Status::Unsupported) => {
                lacks.as_ref().is_none_or(|text| cell.reason.contains(text.as_str()))
            }
            _ => false,
        }
    }
}

/// The ops that fell back; one without a name where the report does not tell, which nothing forgives.
fn fell_back(cell: &Cell) -> Vec<&str> {
    let ops = cell.placement.as_ref().map(crate::verdict::ops_on_cpu).unwrap_or_default();
    if ops.is_empty() { vec![""] } else { ops }
}

/// Whether `op`, as `GET_ROWS iq4_nl`, is among `ops`, with its type or without.
fn named(op: &str, ops: &[String]) -> bool {
    ops.iter().any(|name| op == name || op.split(' ').next() == Some(name.as_str()))
}
