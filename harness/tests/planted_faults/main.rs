//! Faults planted on purpose, through the real pipeline: the cell is red where the device has one, the oracle names
//! the arm that has it, and what all arms share is caught by the anchors from outside.

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod files;
mod gate;
mod misread;
mod sparse;
