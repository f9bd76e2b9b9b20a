//! Answers the held-out arithmetic problems with `dream-arith` and says how many are right.
//!
//! `cargo run --release -p oracle --example heldout [-- FIRST COUNT]`

use std::path::Path;
use std::time::Instant;

#[path = "../tests/oracle/problems.rs"]
#[allow(dead_code)] // The tests use more of it.
mod problems;

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let numbers: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().expect("a number")).collect();
    let solver = problems::Solver::open(&corpus.join("models/dream-arith-4.8m-f16.gguf"));
    let mut set = problems::read(&corpus.join("arithmetic-heldout.jsonl"));
    if let &[first, count] = numbers.as_slice() {
        set = set.into_iter().skip(first).take(count).collect();
    }
    let started = Instant::now();
    let mut right = 0;
    for problem in &set {
        let answer = solver.answer(&problem.prompt).expect("an answer");
        if answer == problem.answer {
            right += 1;
        } else {
            println!("{} is answered {answer}, not {}", problem.prompt, problem.answer);
        }
    }
    println!(
        "{right} of {} right in {:.1} s on {} threads",
        set.len(),
        started.elapsed().as_secs_f64(),
        rayon::current_num_threads()
    );
}
