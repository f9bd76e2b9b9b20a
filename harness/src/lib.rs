//! ggml-parity: the harness.

mod atomic;
pub mod builds;
pub mod capture;
pub mod cli;
pub mod compare;
pub mod figure;
pub mod keep;
pub mod named;
pub mod pairs;
pub mod pipeline;
pub mod plan;
pub mod report;
pub mod selftest;
pub mod sweep;
pub mod verdict;
pub mod worker;
