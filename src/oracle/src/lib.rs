//! The oracle: Dream, LLaDA and LLaDA-MoE, Qwen2 and Qwen3, Llama, Gemma 3 and DiffusionGemma in f64, in every cache
//! mode.
//!
//! It is the third arm of a comparison. It says which of two ggml backends is wrong when they differ, so it
//! shares the file reader with the runtime and nothing else: it is written from the models' papers, not from
//! a graph. Weights are read as the file's formats define them (`model_file::dequantize`, which gives F32);
//! from there on everything is f64: activations, the K/V cache, sums, softmax, RoPE's angles.
//!
//! | module | what it is for |
//! |---|---|
//! | [`network`] | [`Network::open`], [`Network::forward`] and the modes as calls of it |
//! | [`block`] | block diffusion: [`BlockNetwork`], its prompt store and both its phases |
//! | [`cache`] | the K/V [`Cache`], with storage types emulated ([`Precision`]) |
//! | [`generate`] | greedy decoding, speculative decoding, layer profiles, masked diffusion |
//! | [`sampler`] | the dense sampler of a diffusion canvas |
//! | `models` | one file an architecture, twins of the runtime's |
//! | `matrix`, `attention`, `rope`, `ops` | the arithmetic |
//!
//! # Reproducibility
//!
//! Every output element is one sum in an order that depends on its length alone: not on the number of
//! threads, of rows in the pass, or of the tile it falls in. So results are bitwise the same for any thread
//! count, and a prefill with decoding equals one longer prefill bit for bit. Nothing is contracted to fused
//! multiply-add. Between platforms only `exp`, `ln`, `pow`, `sin` and `cos` may differ, in the last place:
//! results agree to about 1e-12.
//!
//! # Example
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("x.gguf");
//! # let spec = model_file::GenerateSpec { n_layer: 1, ..model_file::GenerateSpec::preset("gen-llama").unwrap() };
//! # model_file::generate(&spec, &path)?;
//! use oracle::{Network, Rows};
//! let network = Network::open(&model_file::Model::open(&path)?)?;
//! let mut cache = network.cache(8);
//! network.extend(&mut cache, &[5, 9, 12], Rows::Last)?; // prefill
//! let pass = network.extend(&mut cache, &[7], Rows::All)?; // decode
//! let whole = network.full(&[5, 9, 12, 7], Rows::Last)?;
//! assert_eq!(pass.logits, whole.logits);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

/// Raised whenever what the oracle computes changes by more than last places: what was kept of it before is stale.
pub const REVISION: u32 = 1;

mod attention;
pub mod block;
pub mod cache;
mod error;
mod experts;
pub mod generate;
mod matrix;
mod models;
pub mod network;
mod ops;
mod rope;
pub mod sampler;

pub use block::{BlockNetwork, CanvasPass, Conditioning, Encoded, Store};
pub use cache::{Cache, LayerKv, Precision};
pub use error::Error;
pub use experts::{GivenExperts, Routing};
pub use network::{Logits, Network, Pass, Request, Rows};
