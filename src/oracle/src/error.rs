//! What can go wrong.

/// An error of the oracle. Nothing is clamped, wrapped or guessed: what cannot be computed is one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file's tensors cannot be read, or a K/V value does not fit the storage type.
    #[error(transparent)]
    Model(#[from] model_file::Error),

    /// A token lies outside the vocabulary.
    #[error("token {token} at index {index} is outside the vocabulary of {n_vocab}")]
    Token {
        /// Its place in the pass.
        index: usize,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },

    /// The positions of a pass cannot be: wrong number, not ascending, or leaving a gap in the cache.
    #[error("positions: {0}")]
    Positions(String),

    /// A wanted row is not in the pass.
    #[error("row {row} is wanted, the pass has {rows} rows")]
    Row {
        /// The row asked for.
        row: usize,
        /// Rows in the pass.
        rows: usize,
    },

    /// The cache cannot hold a position. It never wraps.
    #[error("the cache is full: position {position} is beyond its {capacity} rows")]
    CacheFull {
        /// The first position without a row.
        position: usize,
        /// Rows the cache has.
        capacity: usize,
    },

    /// A layer of the cache lacks rows because it was skipped (or a pass failed half-way).
    #[error("layer {layer} of the cache holds {has} of {needs} rows: it was skipped earlier")]
    SkippedRows {
        /// The layer.
        layer: usize,
        /// Rows it holds.
        has: usize,
        /// Rows the cache has.
        needs: usize,
    },

    /// The cache was made for another network.
    #[error("the cache is of another network: {0}")]
    ForeignCache(String),

    /// A layer that does not exist is to be skipped.
    #[error("layer {layer} is to be skipped, the network has {layers}")]
    NoSuchLayer {
        /// The layer asked for.
        layer: usize,
        /// Layers there are.
        layers: usize,
    },

    /// The network cannot do what is asked: masked diffusion without a mask token, and the like.
    #[error("{0}")]
    Unsupported(String),

    /// A generation's settings contradict themselves.
    #[error("{0}")]
    Plan(String),

    /// A recorded trajectory does not fit the sequence.
    #[error("the trajectory does not fit: {0}")]
    Trajectory(String),

    /// A row of logits has a NaN, or no finite candidate: no token can be chosen.
    #[error("step {step}: the logits for position {position} have a NaN or no finite candidate")]
    NoCandidate {
        /// Step of the generation.
        step: usize,
        /// Position whose token was to be chosen.
        position: usize,
    },
}
