//! `ggml-parity trace`: where in a graph does a device part from the reference?
//!
//! Both arms run the case as ever and note down its graphs ([`runtime::GraphRequest`]). One graph is chosen, and both
//! walk through it node by node: ggml's scheduler stops after each node, which is read into a *spool* on disk. The
//! device walks twice. From its own inputs each node shows its *total* error; with the reference's value put in the
//! place of each node after it was read, the next one shows what it *introduces* alone. The f64 value of each node
//! from the reference's inputs ([`eval`]) tells whose error it is.
//!
//! | module | what it is for |
//! |---|---|
//! | [`run`] | the parent's side: stages, the choice of a graph, the finding |
//! | [`walk`] | the worker's side: spools a graph while it is computed |
//! | [`graph`], [`spool`], `decode` | what lies on disk between them |
//! | [`eval`] | nodes in f64 |
//! | `compare`, [`figures`], [`limits`] | from spools to figures, and what they may be |
//! | [`windows`] | faults that are there only when nodes are computed together |
//! | [`repro`] | one node and its inputs as a file, and that file on a device |
//! | [`columns`] | products by the number of columns |
//! | [`pin`], [`ddmin`], [`journal`], [`pin_report`] | which work has to move to the CPU for parity to return |
//! | [`model`], `summary`, [`render`] | the result and how it is written |

pub mod columns;
mod compare;
pub mod ddmin;
mod decode;
pub mod eval;
pub mod figures;
pub mod graph;
pub mod journal;
pub mod limits;
pub mod model;
pub mod pin;
pub mod pin_report;
pub mod render;
pub mod repro;
pub mod run;
pub mod spool;
mod summary;
pub mod walk;
pub mod windows;

pub use model::{Culprit, Finding, NodeReport, Trace};
pub use run::{Bench, GraphChoice, Spools, TraceError, trace};

#[cfg(test)]
mod tests;
