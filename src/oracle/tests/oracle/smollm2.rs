//! SmolLM2-135M in Q4_1 against llama.cpp. The file is `GGML_PARITY_SMOLLM2`; without it these tests say that they
//! were skipped.

use std::path::PathBuf;
use std::time::Instant;

use oracle::Rows;
use oracle::generate::{autoregressive, most_likely};

use crate::support::{Tensors, nmse, open, tokens};

fn file() -> Option<PathBuf> {
    let path = std::env::var_os("GGML_PARITY_SMOLLM2").map(PathBuf::from);
    if path.is_none() {
        use std::io::Write as _;
        // Past the harness's capture, so that it shows.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: a test on SmolLM2: GGML_PARITY_SMOLLM2 does not name its file (ci/fetch-model gets it)"
        );
    }
    path
}

#[test]
fn a_forward_of_128_tokens_takes_under_a_minute() {
    let Some(path) = file() else { return };
    let started = Instant::now();
    let network = open(&path);
    println!("opening: {:.2} s", started.elapsed().as_secs_f64());
    let tokens = tokens(&network, 128);
    let started = Instant::now();
    let pass = network.full(&tokens, Rows::All).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    println!("128 tokens: {seconds:.2} s on {} threads", rayon::current_num_threads());
    assert_eq!(pass.logits.values().len(), 128 * 49_152);
    assert!(pass.logits.values().iter().all(|v| v.is_finite()));
    assert!(seconds < 60.0);
}

#[test]
fn logits_and_greedy_tokens_are_those_of_llama_cpp_within_its_noise() {
    let Some(path) = file() else { return };
    let network = open(&path);
    let anchor = Tensors::anchor("smollm2-135m-q4_1.llamacpp");
    let prompt = anchor.tokens("tokens");
    let pass = network.full(&prompt, Rows::All).unwrap();
    let expected = anchor.f32("logits");
    for (row, expected) in anchor.tokens("rows").into_iter().zip(expected.chunks(49_152)) {
        let figure = nmse(pass.logits.row(row as usize), expected);
        println!("row {row}: NMSE {figure:.2e}");
        // llama.cpp rounds activations to 8 bits: on this text 4e-3 at worst. With the weights widened to F32
        // ggml's CPU agrees with the oracle to 1.4e-12.
        assert!(figure <= 1e-2, "row {row}: {figure:e}");
    }
    for (row, token) in anchor.tokens("argmax").into_iter().enumerate() {
        let ours = most_likely(pass.logits.row(row), None).unwrap();
        assert!(ours.token == token || ours.margin < 0.5, "row {row}: {ours:?} for {token}");
    }

    let greedy = anchor.tokens("greedy");
    let mut cache = network.cache(prompt.len() + greedy.len());
    let started = Instant::now();
    let plan = autoregressive::Plan::new(&prompt, greedy.len());
    let ours = autoregressive::decode(&network, &mut cache, plan, |_, _| {}).unwrap();
    println!("prefill and {} tokens: {:.2} s", greedy.len(), started.elapsed().as_secs_f64());
    let smallest = ours.iter().map(|c| c.margin).fold(f64::INFINITY, f64::min);
    println!("smallest margin {smallest:.3}");
    let first = ours.iter().zip(&greedy).position(|(a, b)| a.token != *b);
    println!("first difference from llama.cpp: {first:?}");
    if let Some(i) = first {
        assert!(ours[i].margin < 0.5, "token {i}: {:?} for {}", ours[i], greedy[i]);
    }
}
