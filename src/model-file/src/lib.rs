//! Model files, without ggml: everything the runtime and the oracle must agree on before either computes.
//!
//! | module | what it is for |
//! |---|---|
//! | [`gguf`] | the container: a reader that trusts nothing in the file, and an atomic writer |
//! | [`tensor_type`] | ggml's tensor types with their block sizes |
//! | [`hparams`] | hyper-parameters, from llama.cpp's keys and from the `diffuse.` converter's |
//! | [`block`] | what block diffusion adds to them |
//! | [`model`] | which tensors a model must have and in which shapes; [`Model::open`] checks all of it |
//! | [`mod@generate`] | seeded two-layer models whose bytes are the same on every platform |
//! | [`quant`] | values to and from ggml's block formats |
//! | [`requantize`] | a model with other weight types |
//! | [`tokenizer`] | byte-level BPE, SentencePiece and chat templates from the file's own metadata |
//!
//! Every error names the file, the field, its value and where in the file it stands ([`Error`]).
//! A file that cannot be right is refused here, so that no arm of a comparison has to guess.
#![deny(unsafe_code)]

pub mod block;
mod byte_level;
mod error;
pub mod generate;
pub mod gguf;
pub mod hparams;
pub mod model;
pub mod quant;
pub mod requantize;
pub mod tensor_type;
pub mod tokenizer;

pub use block::{BlockDiffusion, EntropyBound};
pub use error::{Error, ErrorKind};
pub use generate::{BlockSpec, GenerateSpec, generate, presets};
pub use gguf::{Array, GgufFile, GgufWriter, Mapped, Metadata, TensorInfo, Value};
pub use hparams::{Architecture, Convention, Experts, HyperParams, LayerShape, RopeKind, Windowed};
pub use model::{Model, TensorSpec, tensor_table};
pub use quant::{dequantize, quantize};
pub use requantize::{WeightMix, requantize_model};
pub use tensor_type::TensorType;
pub use tokenizer::{ChatOptions, EncodeOptions, Message, SpecialTokens, TokenType, Tokenizer};
