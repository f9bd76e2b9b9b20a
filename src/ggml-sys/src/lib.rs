//! ggml's C API, opened at run time from a folder of libraries.
//!
//! A ggml build is an input of this project, never a link-time dependency: [`Ggml::open`] loads the
//! libraries of one build, fills a table of functions, checks that the memory layout of a tensor is the
//! one this crate reads, and hands out owner types ([`Context`], [`Graph`], [`Buffer`], [`Backend`],
//! [`Scheduler`]) whose use is safe. This is the only crate of raw pointers.
//!
//! One process opens one build, once, and never unloads it: two builds cannot share an address space
//! (their libraries carry the same names), and drivers leave threads behind.

mod abi;
mod api;
mod backend;
mod context;
mod device;
mod diffusion;
mod error;
mod library;
mod observe;
mod ops;
mod optional;
mod scheduler;
mod tensor;

pub use backend::{Backend, Buffer, BufferType};
pub use context::{Context, Graph};
pub use device::{Device, DeviceKind};
pub use diffusion::{DiffusionSampler, Draw};
pub use error::Error;
pub use library::{Ggml, LibraryFile, Selection};
pub use observe::Observer;
pub use ops::RopeParams;
pub use scheduler::Scheduler;
pub use tensor::{DType, Tensor};
