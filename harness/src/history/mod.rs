//! What past runs measured, kept in one file, so that a figure that stays within its limit and keeps growing is seen
//! before it is over it.
//!
//! A *series* is one case on one device of one machine; its points are cells of runs. [`store`] is the file, [`drift`] says
//! what a drift is, [`render`] shows a series over runs or over builds.

pub mod drift;
pub mod render;
pub mod store;

pub use drift::{Drift, Rule};
pub use store::{History, HistoryError, Key, Metric, Point};
