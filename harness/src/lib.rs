//! ggml-parity: the harness.

mod atomic;
pub mod builds;
pub mod capture;
pub mod cli;
pub mod compare;
pub mod figure;
pub mod gate;
mod hint;
pub mod named;
pub mod pipeline;
pub mod plan;
pub mod report;
pub mod verdict;
pub mod worker;
