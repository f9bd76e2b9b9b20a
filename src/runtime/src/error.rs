//! What can go wrong while a model runs.

/// An error of the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// ggml, or loading it, failed.
    #[error(transparent)]
    Ggml(#[from] ggml_sys::Error),
    /// The model file is at fault.
    #[error(transparent)]
    Model(#[from] model_file::Error),
    /// No device has this name.
    #[error("no device '{name}' in this build on this machine; there are: {}", known.join(", "))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The tokens do not fit into the K/V cache.
    #[error(
        "the K/V cache is full: {used} of {capacity} positions are taken and {wanted} more were asked for"
    )]
    CacheFull {
        /// Positions in use.
        used: usize,
        /// Positions there are.
        capacity: usize,
        /// Positions asked for.
        wanted: usize,
    },
    /// A token is outside the vocabulary, a sequence is empty, or a mode does not fit the model.
    #[error("{0}")]
    Input(String),
    /// The device does not compute a node of the graph.
    #[error("{device} does not support {node}")]
    UnsupportedNode {
        /// The device.
        device: String,
        /// Op, types and shapes.
        node: String,
    },
}
