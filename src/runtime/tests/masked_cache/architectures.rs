//! Layers of later architectures against the f64 oracle: norms of heads, windows by layer, GELU, experts.

use crate::bench::{alone, model, nmse64, on_cpu};
use model_file::{Experts, GenerateSpec};
use oracle::{Network, Rows as OracleRows};
use runtime::{Attention, LayerKv, Options, Rows};

/// F32 against f64.
const LIMIT: f64 = 1e-11;
/// Where GELU is read from a table in 16 bits, as ggml's CPU does.
const GELU_LIMIT: f64 = 1e-6;

fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| 5 + i * 37 % 120).collect()
}

fn hold(what: &str, limit: f64, reference: &[f64], x: &[f32]) {
    let error = nmse64(reference, x);
    println!("{what}: {error:.1e}");
    assert!(error <= limit, "{what}: {error:e}");
}

fn hold_kv(what: &str, limit: f64, reference: &[oracle::LayerKv], kv: &[LayerKv]) {
    assert_eq!(reference.len(), kv.len(), "{what}");
    for (layer, (r, x)) in reference.iter().zip(kv).enumerate() {
        hold(&format!("{what} k.{layer}"), limit, &r.k, &x.k);
        hold(&format!("{what} v.{layer}"), limit, &r.v, &x.v);
    }
}

#[test]
fn causal_ones_agree_however_the_tokens_are_cut() {
    let _alone = alone();
    for (name, limit) in [("gen-qwen3", LIMIT), ("gen-gemma3", GELU_LIMIT)] {
        let model = model(&GenerateSpec::preset(name).unwrap());
        let network = Network::open(&model).unwrap();
        // More than twice the window of sixteen.
        let tokens = tokens(40);
        let expected = network.full(&tokens, OracleRows::All).unwrap();
        for attention in [Attention::Explicit, Attention::Flash] {
            let mut session = on_cpu(&model, Options { attention, ..Options::default() });
            let found = session.full(&tokens, Rows::All, true).unwrap();
            // Flash attention of the CPU rounds queries to 16 bits where keys have 16, not here.
            let what = format!("{name} {attention:?}");
            hold(&what, limit, expected.logits.values(), &found.logits.values);
            hold_kv(&what, limit, &expected.kv, &found.kv);
            session.reset_cache(tokens.len()).unwrap();
            let mut values = session.extend(&tokens[..25], Rows::All).unwrap().values;
            for token in &tokens[25..] {
                values.extend(session.extend(&[*token], Rows::All).unwrap().values);
            }
            hold(&format!("{what} in steps"), limit, expected.logits.values(), &values);
            hold_kv(&format!("{what} in steps"), limit, &expected.kv, &session.read_cache().unwrap());
        }
    }
}

#[test]
fn a_windowed_layer_forgets_what_is_before_its_window() {
    let _alone = alone();
    let preset = GenerateSpec::preset("gen-gemma3").unwrap();
    // One layer that sees four positions.
    let spec = GenerateSpec { n_layer: 1, window: Some(4), ..preset };
    let model = model(&spec);
    let mut session = on_cpu(&model, Options::default());
    let before = tokens(12);
    let after = [&[3], &before[1..]].concat();
    let [a, b] = [&before, &after].map(|t| session.full(t, Rows::All, false).unwrap().logits);
    assert!(a.row(3) != b.row(3), "position 3 sees position 0");
    assert!(a.row(4) == b.row(4) && a.row(11) == b.row(11), "position 4 does not");
}

#[test]
fn experts_give_what_the_oracles_give() {
    let _alone = alone();
    let preset = |name| GenerateSpec::preset(name).unwrap();
    let of = |used, normalised| Experts { count: 6, used, n_ff: 256, normalised };
    let cases = [
        preset("gen-llada-moe"),
        preset("gen-llada-moe-300"),
        GenerateSpec { experts: Some(of(3, true)), ..preset("gen-llada-moe") },
        GenerateSpec { experts: Some(of(1, true)), ..preset("gen-llada-moe") },
    ];
    for spec in cases {
        let model = model(&spec);
        let network = Network::open(&model).unwrap();
        let mut session = on_cpu(&model, Options::default());
        let tokens = tokens(30);
        let expected = network.full(&tokens, OracleRows::All).unwrap();
        let found = session.full(&tokens, Rows::All, true).unwrap();
        let what = format!("{} {:?}", spec.name, spec.experts);
        hold(&what, LIMIT, expected.logits.values(), &found.logits.values);
        hold_kv(&what, LIMIT, &expected.kv, &found.kv);
        assert_eq!(found.routing.len(), spec.n_layer, "{what}");
        for (r, x) in expected.routing.iter().zip(&found.routing) {
            hold(&format!("{what}, router"), LIMIT, &r.logits, &x.logits);
            let chosen: Vec<usize> = x.chosen.iter().map(|&e| usize::try_from(e).unwrap()).collect();
            assert_eq!(r.chosen, chosen, "{what}");
        }
        // Every expert has worked, so that each one's weights were read.
        if spec.name == "gen-llada-moe" && spec.experts.is_some_and(|e| e.used > 1) {
            let all: std::collections::BTreeSet<i32> =
                found.routing.iter().flat_map(|r| r.chosen.iter().copied()).collect();
            assert_eq!(all.len(), 6, "{what}: {all:?}");
        }
    }
}
