//! The embedded inference runtime: one model on one device of one ggml build.
//!
//! [`Session`] is the room where it happens: it selects a device by its exact name, streams the weights of a
//! [`model_file::Model`] from the file into the device's memory, builds graphs with [`models`], lets ggml's
//! scheduler place them (and counts where it did), and keeps K/V caches on the device. [`generate`] turns
//! logits into tokens on the host, in f64, the same way for every device.

#![forbid(unsafe_code)]

mod attention;
mod blocks;
mod cache;
mod canvas;
pub mod dense_sampler;
mod device;
mod diffusion;
mod error;
mod experts;
mod fault;
pub mod generate;
mod masks;
mod memory;
pub mod models;
mod pins;
mod placement;
mod scatter;
mod session;
mod traffic;
mod weights;

pub use cache::{KvType, LayerKv};
pub use canvas::Phase;
pub use device::DeviceRequest;
pub use error::Error;
pub use experts::{GivenExperts, RoutedPass, Routing};
pub use fault::Fault;
pub use memory::peak_resident_bytes;
pub use pins::{Pins, Unit, UnitError};
pub use placement::{BackendNodes, BufferUse, Fallback, Placement, Purpose};
pub use session::{
    Attention, FullPass, Given, GraphOutcome, GraphRequest, Logits, Options, Recorder, Rows, Session, Walker,
};
pub use traffic::{Moved, Traffic};
