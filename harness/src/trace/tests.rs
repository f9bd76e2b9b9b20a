//! What figures come to, and how that reads.

use super::figures::Figures;
use super::model::{GraphReport, SCHEMA};
use super::run::choose;
use super::summary::{groups, layers};
use super::windows::Window;
use super::*;
use std::collections::BTreeMap;

fn figures(nmse: f64) -> Figures {
    Figures { nmse, max_abs: nmse, not_finite: 0, worst_row: 0, worst_row_nmse: nmse }
}

fn node(number: usize, name: &str, introduced: f64, truths: [f64; 2]) -> NodeReport {
    NodeReport {
        number,
        name: name.to_owned(),
        layer: name.rsplit_once('-').and_then(|(_, layer)| layer.parse().ok()),
        op: "MUL_MAT".to_owned(),
        types: "f32 x f32".to_owned(),
        ne: [96, 33, 1, 1],
        product: Some([64, 96, 33]),
        backend: Some("Vulkan0".to_owned()),
        total: Some(figures(introduced * 2.0)),
        introduced: Some(figures(introduced)),
        heads: Vec::new(),
        device_truth: Some(truths[0]),
        reference_truth: Some(truths[1]),
        without_truth: None,
        limit: 1e-5,
        reason: "a test".to_owned(),
        differs: Vec::new(),
    }
}

fn graph(logits: Option<f64>, over: bool) -> GraphReport {
    GraphReport { tokens: 33, position: 0, cached: Some(33), logits, kv: Some(1e-12), over, differs: None }
}

fn trace(nodes: Vec<NodeReport>, finding: Finding) -> Trace {
    Trace {
        schema: SCHEMA.to_owned(),
        cell: "m/f32/prefill@b:Vulkan0".parse().unwrap(),
        reference: "m/f32/prefill@b:CPU".parse().unwrap(),
        graphs: vec![graph(Some(1e-9), false)],
        graph: 0,
        finding,
        inputs: Vec::new(),
        unmatched: Vec::new(),
        groups: groups(&nodes),
        layers: layers(&nodes),
        placement: BTreeMap::from([("Vulkan0".to_owned(), nodes.len())]),
        rerun: "ggml-parity trace m/f32/prefill@b:Vulkan0".to_owned(),
        seconds: 1.0,
        nodes,
    }
}

#[test]
fn the_arm_that_leaves_the_f64_value_is_named() {
    for (truths, culprit) in [
        ([1e-2, 1e-9], Culprit::Device),
        ([1e-9, 1e-2], Culprit::Reference),
        ([1e-2, f64::NAN], Culprit::Both),
        ([1e-9, 1e-9], Culprit::Neither),
    ] {
        assert_eq!(node(0, "a-0", 1e-2, truths).culprit(), culprit);
    }
    let unknown = NodeReport { reference_truth: None, ..node(0, "a-0", 1e-2, [1.0; 2]) };
    assert_eq!(unknown.culprit(), Culprit::Unknown);
}

#[test]
fn a_node_is_bad_by_either_arm_and_without_figures() {
    assert!(!node(0, "a-0", 1e-5, [1e-5, 1e-5]).is_bad());
    for bad in [
        node(0, "a-0", 2e-5, [0.0; 2]),
        node(0, "a-0", f64::NAN, [0.0; 2]),
        node(0, "a-0", 0.0, [2e-5, 2e-5]),
        node(0, "a-0", 0.0, [0.0, f64::NAN]),
        NodeReport { introduced: None, ..node(0, "a-0", 0.0, [0.0; 2]) },
    ] {
        assert!(bad.is_bad(), "{bad:?}");
    }
}

#[test]
fn nodes_are_grouped_and_the_worst_stands_for_its_group() {
    let nodes = vec![
        node(0, "a-0", 1e-9, [1e-9; 2]),
        node(1, "a-1", 3e-6, [2e-9; 2]),
        node(2, "b-1", f64::NAN, [0.0; 2]),
    ];
    let all = groups(&nodes[..2]);
    assert_eq!((all.len(), all[0].nodes, all[0].worst, all[0].node.as_str()), (1, 2, 3e-6, "a-1"));
    assert_eq!((all[0].shape.as_str(), all[0].device_truth), ("64 x 96, 33 columns", Some(2e-9)));
    assert!(groups(&nodes)[0].worst.is_nan());
    let layers = layers(&nodes);
    assert_eq!((layers.len(), layers[1].node.as_str()), (2, "b-1"));
    assert!(layers[1].total.unwrap().is_nan());
}

#[test]
fn the_first_graph_over_a_limit_is_chosen_or_else_the_worst() {
    let all =
        [graph(Some(1e-9), false), graph(Some(1e-3), true), graph(Some(1e-2), true), graph(None, false)];
    let of = |choice: &str| choose(choice.parse().unwrap(), &all);
    assert_eq!(["first-bad", "first", "worst", "last", "3"].map(|c| of(c).unwrap()), [1, 0, 2, 3, 3]);
    assert!(of("4").unwrap_err().contains("4 graphs"));
    assert_eq!(choose(GraphChoice::FirstBad, &all[..1]), Ok(0));
    let nan = [graph(Some(1e-3), false), graph(Some(f64::NAN), false)];
    assert_eq!(choose(GraphChoice::Worst, &nan), Ok(1));
    assert!(choose(GraphChoice::Worst, &[]).is_err());
    assert!("-1".parse::<GraphChoice>().is_err());
}

#[test]
fn every_finding_reads_as_one_line() {
    let nodes = || vec![node(0, "kq-0", 1e-2, [1e-2, 1e-9]), node(1, "kqv-0", 1e-9, [1e-9; 2])];
    let line = |finding| render::verdict(&trace(nodes(), finding));
    assert_eq!(
        line(Finding::Node(0)),
        "first bad node: kq-0, layer 0: MUL_MAT f32 x f32 64 x 96, 33 columns: introduces 1.0e-2, limit 1.0e-5; \
         against f64 the device 1.0e-2, the reference 1.0e-9: the device is off"
    );
    assert!(line(Finding::Clean).starts_with("clean: none of 2 nodes"));
    let window = Window { first: 0, last: 1, node: 1, nmse: 0.5, limit: 2e-5 };
    let window = window.named(&["kq-0".to_owned(), "kqv-0".to_owned()]);
    assert_eq!(
        trace(nodes(), Finding::FusedOrScheduling(Some(window.clone()))).bad_node().unwrap().name,
        "kqv-0"
    );
    let fused = line(Finding::FusedOrScheduling(Some(window)));
    assert!(fused.contains("2 nodes, kq-0 to kqv-0,") && fused.contains("5.0e-1 > 2.0e-5"), "{fused}");
    assert!(!line(Finding::Structure("a\nb".to_owned())).contains('\n'));
    assert!(line(Finding::Accumulated).starts_with("accumulated"));
}

#[test]
fn documents_hold_every_node_and_come_back() {
    let found = trace(vec![node(0, "a|b-0", f64::NAN, [1e-2, f64::INFINITY])], Finding::Node(0));
    let back: Trace = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
    assert_eq!(back.finding, found.finding);
    assert!(back.nodes[0].introduced.as_ref().unwrap().nmse.is_nan());
    assert_eq!(back.nodes[0].reference_truth, Some(f64::INFINITY));
    let text = render::csv(&found);
    let mut lines = csv::Reader::from_reader(text.as_bytes());
    assert_eq!(
        lines.records().map(|row| row.unwrap().get(1).unwrap().to_owned()).collect::<Vec<_>>(),
        ["a|b-0"]
    );
    let markdown = render::markdown(&found);
    assert!(markdown.contains("a\\|b-0") && markdown.contains(&found.rerun), "{markdown}");
    assert!(render::console(&found).contains("Vulkan0 1"));
}
