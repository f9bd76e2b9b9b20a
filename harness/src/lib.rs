//! ggml-parity: the harness.

mod atomic;
pub mod builds;
pub mod calibrate;
pub mod capture;
pub mod cli;
pub mod compare;
pub mod comparison;
pub mod depth;
pub mod figure;
pub mod gate;
pub mod golden;
mod hint;
pub mod keep;
pub mod named;
pub mod pairs;
pub mod pipeline;
pub mod plan;
pub mod planted;
pub mod report;
pub mod selftest;
pub mod sweep;
pub mod trace;
pub mod verdict;
pub mod worker;
