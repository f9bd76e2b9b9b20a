//! Against the f64 forwards of numpy and `transformers` and llama.cpp's F32 logits in `golden/anchors`.

use oracle::Rows;
use oracle::generate::most_likely;

use crate::support::{Tensors, nmse, open, repository};

/// Those with logits of llama.cpp.
const ANCHORS: [&str; 4] = ["dream", "llada", "qwen2", "llama"];
/// Those that `transformers` computed in f64.
const TRANSFORMERS: [&str; 3] = ["qwen3", "gemma3", "llada-moe"];

/// Two f64 implementations differ by rounding only: 3e-30. Where epsilon is 1e-5 (LLaDA, Llama) it is 4e-26, the
/// anchor having used the decimal and not the F32 in the file.
const LIMIT: f64 = 1e-20;

#[test]
fn logits_k_and_v_equal_the_f64_anchors() {
    for name in ANCHORS.into_iter().chain(TRANSFORMERS) {
        let network = open(&repository(&format!("golden/anchors/{name}-anchor.gguf")));
        let anchor = Tensors::anchor(&format!("{name}-anchor.f64"));
        let pass = network.full(&anchor.tokens("tokens"), Rows::All).unwrap();
        let mut figures = vec![("logits".to_string(), nmse(pass.logits.values(), &anchor.f64("logits")))];
        for (i, layer) in pass.kv.iter().enumerate() {
            for (part, values) in [("k", &layer.k), ("v", &layer.v)] {
                let tensor = format!("{part}.{i}");
                figures.push((tensor.clone(), nmse(values, &anchor.f64(&tensor))));
            }
        }
        assert_eq!(figures.len(), 1 + 2 * network.hparams().n_layer);
        for (tensor, figure) in figures {
            println!("{name} {tensor}: NMSE {figure:.2e}");
            assert!(figure <= LIMIT, "{name} {tensor}: NMSE {figure:e}");
        }
    }
}

#[test]
fn logits_agree_with_llama_cpp_to_f32s_rounding() {
    for name in ANCHORS {
        let network = open(&repository(&format!("golden/anchors/{name}-anchor.gguf")));
        let anchor = Tensors::anchor(&format!("{name}-anchor.llamacpp"));
        let pass = network.full(&anchor.tokens("tokens"), Rows::All).unwrap();
        let expected = anchor.f32("logits");
        let figure = nmse(pass.logits.values(), &expected);
        println!("{name}: NMSE {figure:.2e}");
        assert!(figure <= 1e-12, "{name}: NMSE {figure:e}");
        for (i, row) in expected.chunks(pass.logits.n_vocab()).enumerate() {
            let ours = most_likely(pass.logits.row(i), None).unwrap();
            assert_eq!(ours.token, most_likely(row, None).unwrap().token, "{name} row {i}");
        }
    }
}

#[test]
fn routers_choose_the_experts_of_the_anchor() {
    let network = open(&repository("golden/anchors/llada-moe-anchor.gguf"));
    let anchor = Tensors::anchor("llada-moe-anchor.f64");
    let pass = network.full(&anchor.tokens("tokens"), Rows::All).unwrap();
    assert_eq!(pass.routing.len(), 2);
    for (layer, routing) in pass.routing.iter().enumerate() {
        let figure = nmse(&routing.logits, &anchor.f64(&format!("router.{layer}")));
        assert!(figure <= LIMIT, "router {layer}: NMSE {figure:e}");
        let chosen: Vec<usize> =
            anchor.tokens(&format!("experts.{layer}")).iter().map(|&e| e as usize).collect();
        assert_eq!(routing.chosen, chosen, "layer {layer}");
    }
}
