//! What every mode writes into captures and reads from the reference's.

use super::protocol::{Failure, FailureKind};
use crate::capture::{CaptureReader, CaptureWriter};
use model_file::HyperParams;
use runtime::{LayerKv, Logits};

/// The tokens that were generated, where a mode generates.
pub(super) type Tokens = Result<Option<Vec<u32>>, Failure>;

/// The reference's capture.
pub(super) fn open(path: &std::path::Path) -> Result<CaptureReader, Failure> {
    CaptureReader::open(path)
        .map_err(|error| Failure { kind: FailureKind::Input, message: format!("the reference: {error}") })
}

/// Adds the rows of one forward pass, which follow each other from position `first` on.
pub(super) fn rows(writer: &mut CaptureWriter, logits: &Logits, first: usize, step: usize) {
    for i in 0..logits.rows() {
        writer.row(int(first + i), int(step), logits.row(i));
    }
}

/// Adds keys and values of every layer.
pub(super) fn layers(writer: &mut CaptureWriter, h: &HyperParams, kv: &[LayerKv]) {
    for layer in kv {
        let shape = [layer.k.len() / (h.n_head_kv * h.head_dim), h.n_head_kv, h.head_dim];
        writer.layer(&layer.k, shape, &layer.v, shape);
    }
}

/// A position or step as captures hold it.
pub(super) fn int(n: usize) -> i32 {
    i32::try_from(n).expect("positions and steps fit 31 bits")
}

/// Tokens as captures hold them.
pub(super) fn signed(tokens: &[u32]) -> Vec<i32> {
    tokens.iter().map(|&t| i32::try_from(t).expect("token ids fit 31 bits")).collect()
}

/// Tokens, steps or positions of the reference's capture.
pub(super) fn unsigned(path: &std::path::Path, values: &[i32]) -> Result<Vec<u32>, Failure> {
    let convert = |&v: &i32| {
        u32::try_from(v).map_err(|_| Failure {
            kind: FailureKind::Input,
            message: format!(
                "the reference {} holds the negative token, step or position {v}",
                path.display()
            ),
        })
    };
    values.iter().map(convert).collect()
}
