//! What can go wrong between this crate and a ggml build.

use std::path::PathBuf;

/// An error of loading or of calling a ggml build.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder holds no ggml build, or more than one.
    #[error("{}: {why}", folder.display())]
    NotABuild {
        /// The folder as given.
        folder: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A library of the build could not be opened.
    #[error("{}: cannot be loaded: {why}", file.display())]
    Load {
        /// The library.
        file: PathBuf,
        /// The loader's words, or what the file is.
        why: String,
    },
    /// A function that every supported build has is absent.
    #[error("{}: ggml {version} has no function `{symbol}`", file.display())]
    MissingSymbol {
        /// The library that was searched last.
        file: PathBuf,
        /// ggml's version, or "of unknown version".
        version: String,
        /// The function.
        symbol: &'static str,
    },
    /// A function that only newer builds have was asked for.
    #[error("this ggml build ({version}) lacks `{symbol}`")]
    Unsupported {
        /// ggml's version, or "of unknown version".
        version: String,
        /// The function.
        symbol: &'static str,
    },
    /// The layout of `ggml_tensor` is not the one this crate reads.
    #[error("{}: ggml_tensor has another layout than expected: {what}", file.display())]
    Abi {
        /// The base library.
        file: PathBuf,
        /// The field, the value and the expectation.
        what: String,
    },
    /// A second build was opened in the same process.
    #[error("{} is already open in this process; one process opens one ggml build", open.display())]
    AlreadyOpen {
        /// The folder opened first.
        open: PathBuf,
    },
    /// A ggml call failed.
    #[error("{call} failed: {why}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its status, or what it was asked for.
        why: String,
    },
    /// ggml could not allocate what was asked for.
    #[error("out of memory: {what}")]
    OutOfMemory {
        /// The buffer and its size.
        what: String,
    },
}
