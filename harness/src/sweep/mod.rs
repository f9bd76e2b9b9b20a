//! Sweeps over a corpus: what goes in, what counts as a right answer, and what may be concluded.
//!
//! A gate asks whether figures are within their limits; a sweep asks whether users get other answers. [`corpus`]
//! reads the items, [`answer`] judges a text, [`stats`] puts error bars on the difference: all three are pure, with no
//! model, no device, no clock. [`arms`] and [`items`] say what is asked of whom, [`run`] has workers do it and [`journal`]
//! keeps every row, [`summary`] makes figures of the rows of [`result`], and [`render`] writes them.

pub mod answer;
pub mod answers;
pub mod arms;
pub mod corpus;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod html;
pub mod items;
pub mod journal;
pub mod merge;
pub mod power;
pub mod render;
pub mod result;
pub mod rows;
pub mod run;
pub mod stats;
pub mod summary;
mod verdict;
