//! A trace as text: pure functions of it.

use super::columns::Row;
use super::model::{Culprit, Finding, Group, NodeReport, Trace};
use super::summary::shape;
use crate::report::format::{one_line, scientific};
use std::fmt::Write as _;

/// How many introducers the console shows.
const SHOWN: usize = 10;

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), scientific)
}

fn introduced(node: &NodeReport) -> Option<f64> {
    node.introduced.as_ref().map(|figures| figures.nmse)
}

/// The finding in one line.
#[must_use]
pub fn verdict(trace: &Trace) -> String {
    match &trace.finding {
        Finding::Clean => format!("clean: none of {} nodes is over its limit", trace.nodes.len()),
        Finding::Accumulated => {
            "accumulated: no node is over its limit, but all of them together are over the cell's".to_owned()
        }
        Finding::Structure(what) => format!("structure: {}", one_line(what)),
        Finding::Node(number) => trace.nodes.get(*number).map_or_else(String::new, node_line),
        Finding::FusedOrScheduling(None) => {
            "fused or scheduling: every node is right alone and with its neighbours, the whole graph is not"
                .to_owned()
        }
        Finding::FusedOrScheduling(Some(window)) => {
            let ends =
                [window.nodes.first(), window.nodes.last()].map(|name| name.map_or("", String::as_str));
            format!(
                "fused or scheduling: {} nodes, {} to {}, are right alone and wrong together: {} is off by {} > {}",
                window.nodes.len(),
                ends[0],
                ends[1],
                window.node,
                scientific(window.nmse),
                scientific(window.limit),
            )
        }
    }
}

/// `first bad node: kq-0, layer 0, MUL_MAT f32 x f32, …`
fn node_line(node: &NodeReport) -> String {
    let layer = node.layer.map_or_else(String::new, |layer| format!(", layer {layer}"));
    let whose = match node.culprit() {
        Culprit::Device => "the device is off",
        Culprit::Reference => "the reference is off",
        Culprit::Both => "both are off",
        Culprit::Neither => "neither is off by the f64 value",
        Culprit::Unknown => "whose is not known",
    };
    let mut line = format!(
        "first bad node: {}{layer}: {} {} {}: introduces {}, limit {}; against f64 the device {}, the reference {}: {whose}",
        node.name,
        node.op,
        node.types,
        shape(node),
        figure(introduced(node)),
        scientific(node.limit),
        figure(node.device_truth),
        figure(node.reference_truth),
    );
    if !node.differs.is_empty() {
        let _ = write!(line, " ({})", one_line(&node.differs.join("; ")));
    }
    line
}

/// For the terminal.
#[must_use]
pub fn console(trace: &Trace) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", trace.cell);
    let _ = writeln!(
        out,
        "against {}, graph {} of {}: {}",
        trace.reference,
        trace.graph,
        trace.graphs.len(),
        whole(trace)
    );
    let _ = writeln!(out, "{}", verdict(trace));
    for note in trace.inputs.iter().chain(&trace.unmatched) {
        let _ = writeln!(out, "  {}", one_line(note));
    }
    let over = trace.nodes.iter().filter(|node| node.is_bad()).count();
    let untrue = trace.nodes.iter().filter(|node| node.without_truth.is_some()).count();
    let placed: Vec<String> = trace.placement.iter().map(|(name, n)| format!("{name} {n}")).collect();
    if !trace.nodes.is_empty() {
        let _ = writeln!(
            out,
            "nodes: {} ({}), over their limit {over}, without an f64 value {untrue}",
            trace.nodes.len(),
            placed.join(", ")
        );
        out.push('\n');
        table(&mut out, trace, SHOWN);
        out.push('\n');
        layer_table(&mut out, trace);
    }
    out
}

fn whole(trace: &Trace) -> String {
    trace.graphs.get(trace.graph).map_or_else(String::new, |graph| {
        format!(
            "{} tokens from position {}; computed whole, logits {}, K/V {}",
            graph.tokens,
            graph.position,
            figure(graph.logits),
            figure(graph.kv)
        )
    })
}

/// A row of the table of groups.
fn group_row(group: &Group) -> [String; 9] {
    [
        scientific(group.worst),
        figure(group.device_truth),
        figure(group.reference_truth),
        scientific(group.limit),
        group.nodes.to_string(),
        group.op.clone(),
        group.types.clone(),
        group.shape.clone(),
        group.node.clone(),
    ]
}

fn table(out: &mut String, trace: &Trace, most: usize) {
    let head =
        ["introduced", "device/f64", "reference/f64", "limit", "nodes", "op", "types", "shape", "worst node"];
    let rows = trace.groups.iter().take(most).map(group_row);
    aligned(out, head, &rows.collect::<Vec<_>>());
}

fn layer_table(out: &mut String, trace: &Trace) {
    let head = ["layer", "total after it", "most introduced", "by"];
    let rows = trace.layers.iter().map(|layer| {
        [layer.layer.to_string(), figure(layer.total), figure(layer.introduced), layer.node.clone()]
    });
    aligned(out, head, &rows.collect::<Vec<_>>());
}

/// Columns as wide as their widest field; the last is not filled up.
fn aligned<const N: usize>(out: &mut String, head: [&str; N], rows: &[[String; N]]) {
    let width = |i: usize| rows.iter().map(|row| row[i].len()).chain([head[i].len()]).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut line = |fields: &[&str]| {
        let padded: Vec<String> =
            fields.iter().zip(widths).map(|(field, width)| format!("{field:<width$}")).collect();
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    };
    line(&head);
    for row in rows {
        line(&row.each_ref().map(String::as_str));
    }
}

fn markdown_table<const N: usize>(
    out: &mut String,
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let _ = writeln!(out, "| {} |", head.join(" | "));
    let _ = writeln!(out, "|{}", "---|".repeat(N));
    for row in rows {
        let cells = row.map(|cell| one_line(&cell).replace('|', "\\|"));
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out.push('\n');
}

/// `trace.md`.
#[must_use]
pub fn markdown(trace: &Trace) -> String {
    let mut out = format!("# Trace of `{}`\n\n**{}**\n\n", trace.cell, verdict(trace).replace('|', "\\|"));
    let _ = writeln!(out, "Against `{}`, graph {}: {}.\n", trace.reference, trace.graph, whole(trace));
    for note in trace.inputs.iter().chain(&trace.unmatched) {
        let _ = writeln!(out, "- {}", one_line(note));
    }
    let _ = writeln!(out, "\n## Graphs\n");
    markdown_table(
        &mut out,
        ["graph", "tokens", "position", "cached", "logits", "K/V", "over"],
        trace.graphs.iter().enumerate().map(|(i, g)| {
            let over = g.differs.clone().unwrap_or_else(|| if g.over { "yes" } else { "" }.to_owned());
            let cached = g.cached.map_or_else(|| "-".to_owned(), |n| n.to_string());
            [
                i.to_string(),
                g.tokens.to_string(),
                g.position.to_string(),
                cached,
                figure(g.logits),
                figure(g.kv),
                over,
            ]
        }),
    );
    if !trace.nodes.is_empty() {
        let _ = writeln!(out, "## What each op introduces\n");
        markdown_table(
            &mut out,
            [
                "introduced",
                "device against f64",
                "reference against f64",
                "limit",
                "nodes",
                "op",
                "types",
                "shape",
                "worst node",
            ],
            trace.groups.iter().map(group_row),
        );
        let _ = writeln!(out, "## Layers\n");
        markdown_table(
            &mut out,
            ["layer", "total after it", "most introduced", "by"],
            trace
                .layers
                .iter()
                .map(|l| [l.layer.to_string(), figure(l.total), figure(l.introduced), l.node.clone()]),
        );
        let _ = writeln!(out, "## Heads\n\nThe head that introduces the most, of each node of attention.\n");
        markdown_table(
            &mut out,
            ["node", "worst head", "its error", "all heads"],
            trace.nodes.iter().filter(|node| !node.heads.is_empty()).map(|node| {
                let key = |nmse: &f64| if nmse.is_nan() { f64::INFINITY } else { *nmse };
                let worst = (0..node.heads.len())
                    .max_by(|&a, &b| key(&node.heads[a]).total_cmp(&key(&node.heads[b])).then(b.cmp(&a)))
                    .unwrap_or(0);
                let all: Vec<String> = node.heads.iter().map(|&nmse| scientific(nmse)).collect();
                [node.name.clone(), worst.to_string(), scientific(node.heads[worst]), all.join(" ")]
            }),
        );
        let placed: Vec<String> = trace.placement.iter().map(|(name, n)| format!("{name} {n}")).collect();
        let _ = writeln!(
            out,
            "Nodes: {}. All of them with their figures are in `nodes.csv`.\n",
            placed.join(", ")
        );
    }
    let _ = writeln!(out, "## Again\n\n```\n{}\n```", trace.rerun);
    out
}

/// `nodes.csv`.
#[must_use]
pub fn csv(trace: &Trace) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let head = [
        "number",
        "name",
        "layer",
        "op",
        "types",
        "shape",
        "backend",
        "total_nmse",
        "introduced_nmse",
        "introduced_max_abs",
        "not_finite",
        "worst_row",
        "worst_row_nmse",
        "device_truth_nmse",
        "reference_truth_nmse",
        "limit",
        "bad",
        "arm",
        "heads",
        "differs",
        "without_truth",
    ];
    let full = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{v:e}"));
    let rows = trace.nodes.iter().map(|node| {
        let alone = node.introduced.as_ref();
        vec![
            node.number.to_string(),
            node.name.clone(),
            node.layer.map_or_else(String::new, |layer| layer.to_string()),
            node.op.clone(),
            node.types.clone(),
            shape(node),
            node.backend.clone().unwrap_or_default(),
            full(node.total.as_ref().map(|f| f.nmse)),
            full(alone.map(|f| f.nmse)),
            full(alone.map(|f| f.max_abs)),
            alone.map_or_else(String::new, |f| f.not_finite.to_string()),
            alone.map_or_else(String::new, |f| f.worst_row.to_string()),
            full(alone.map(|f| f.worst_row_nmse)),
            full(node.device_truth),
            full(node.reference_truth),
            full(Some(node.limit)),
            node.is_bad().to_string(),
            node.culprit().to_string(),
            node.heads.iter().map(|nmse| format!("{nmse:e}")).collect::<Vec<_>>().join(" "),
            node.differs.join("; "),
            node.without_truth.clone().unwrap_or_default(),
        ]
    });
    let written = writer
        .write_record(head)
        .and_then(|()| rows.into_iter().try_for_each(|row| writer.write_record(row)));
    written.expect("writing into memory does not fail");
    let bytes = writer.into_inner().expect("writing into memory does not fail");
    String::from_utf8(bytes).expect("fields are text")
}

/// The products of weights by the number of columns.
#[must_use]
pub fn columns(rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows {
        let _ = writeln!(out, "{}  {}  (as {})", row.types, row.shape, row.node);
        let jumps = row.jumps();
        for (columns, nmse) in &row.errors {
            let mark = if jumps.contains(columns) { "  <- another kernel" } else { "" };
            let _ = writeln!(out, "  {columns:>6} columns  {}{mark}", scientific(nmse.0));
        }
    }
    out
}
