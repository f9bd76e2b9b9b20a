//! The trained model answers its problems.

use oracle::Rows;
use oracle::generate::most_likely;

use crate::problems::{Solver, read};
use crate::support::{Tensors, nmse, repository};

fn solver() -> Solver {
    Solver::open(&repository("corpus/models/dream-arith-4.8m-f16.gguf"))
}

#[test]
fn fifteen_times_twenty_three() {
    let solver = solver();
    assert_eq!(solver.tokens("15*23?"), [3, 3, 9, 13, 20, 10, 11, 22]);
    assert_eq!(solver.answer("15*23?").unwrap(), "15*20+15*3=300+45=345");
    let made = solver.generate("15*23?").unwrap();
    assert_eq!((made.steps, made.unmasked.len()), (16, 32));
    let smallest = made.unmasked.iter().map(|u| u.token_margin).fold(f64::INFINITY, f64::min);
    println!("smallest margin of a token: {smallest:.3}");
    assert!(smallest > 0.0);
}

#[test]
fn its_logits_agree_with_llama_cpp() {
    let anchor = Tensors::anchor("dream-arith-f16.llamacpp");
    let tokens = anchor.tokens("tokens");
    let pass = solver().network().full(&tokens, Rows::All).unwrap();
    let expected = anchor.f32("logits");
    let figure = nmse(pass.logits.values(), &expected);
    println!("NMSE of llama.cpp's F16 logits {figure:.2e}");
    // ggml's F16 kernels round activations to F16.
    assert!(figure <= 1e-5, "{figure:e}");
    for (i, row) in expected.chunks(64).enumerate() {
        let theirs = most_likely(row, None).unwrap();
        let ours = most_likely(pass.logits.row(i), None).unwrap();
        assert!(ours.token == theirs.token || ours.margin < 0.1, "row {i}: {ours:?}, {theirs:?}");
    }
}

/// A subset: the whole set takes minutes and is `cargo run --release -p oracle --example heldout`, which
/// gets 493 of 500 right.
#[test]
fn every_eighth_held_out_problem() {
    let problems = read(&repository("corpus/arithmetic-heldout.jsonl"));
    assert_eq!(problems.len(), 500);
    let solver = solver();
    let subset: Vec<_> = problems.iter().step_by(8).take(60).collect();
    let answers: Vec<_> = subset.iter().map(|p| (p, solver.answer(&p.prompt).unwrap())).collect();
    let wrong: Vec<_> = answers.iter().filter(|(p, answer)| p.answer != *answer).collect();
    println!("{wrong:#?}");
    // The model's one mistake among them is part of what it computes.
    let wrong: Vec<_> = wrong.iter().map(|(p, answer)| (p.prompt.as_str(), answer.as_str())).collect();
    assert_eq!(wrong, [("33*33?", "33*30+33*3=990+99=1079")]);
}
