//! Invariance on the best CPU variant of this machine, with one thread.

mod common;

use common::{Bench, Limits};
use ggml_sys::Selection;

#[test]
fn the_cpu_agrees_with_itself() {
    let ggml = common::open(&Selection::Cpu);
    common::check(&Bench::new(ggml, "CPU", Limits { shape: 1e-9, other: 1e-9 }));
}
