//! The oracle against numbers from outside, against itself in other modes, and on real models.

mod anchors;
mod arithmetic;
mod block;
mod generation;
mod modes;
mod problems;
mod smollm2;
mod support;
mod threads;
