//! What every mode writes into captures and reads from the reference's.

use super::protocol::{Failure, FailureKind};
use crate::capture::{CaptureReader, CaptureWriter, LayerRouting, StepRows};
use model_file::HyperParams;
use runtime::{GivenExperts, LayerKv, Logits, Session};

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
    for (i, layer) in kv.iter().enumerate() {
        let shape = shape(h, i, layer.k.len());
        writer.layer(&layer.k, shape, &layer.v, shape);
    }
}

/// `[positions, kv_heads, head_dim]` of so many values of a layer's K or V.
pub(super) fn shape(h: &HyperParams, layer: usize, values: usize) -> [usize; 3] {
    let of = h.layer(layer);
    [values / of.kv_width(), of.n_head_kv, of.head_dim]
}

/// Records what routers of experts choose from here on. On an arm that follows a reference the reference's experts work.
pub(super) fn record_routing(
    session: &mut Session,
    reference: Option<&std::path::Path>,
) -> Result<(), Failure> {
    session.record_routing();
    let Some(path) = reference.filter(|_| session.hparams().experts.is_some()) else { return Ok(()) };
    if let Some(routing) = open(path)?.routing() {
        let positions = unsigned(path, &routing.rows.position)?.into_iter().map(|p| p as usize).collect();
        session.follow_experts(Some(GivenExperts { positions, layers: routing.chosen.clone() }));
    }
    Ok(())
}

/// Adds what the routers of experts have chosen since recording began. It ends, and so does following the reference's.
/// Returns which experts worked.
pub(super) fn routing(writer: &mut CaptureWriter, session: &mut Session) -> GivenExperts {
    let followed = session.followed_experts().cloned();
    let passes = session.take_routing();
    let Some(experts) = session.hparams().experts.filter(|_| !passes.is_empty()) else {
        return GivenExperts::default();
    };
    let mut rows = StepRows::default();
    let mut layers: Vec<LayerRouting<f32>> = Vec::new();
    for (step, pass) in passes.iter().enumerate() {
        rows.step.extend(pass.positions.iter().map(|_| int(step)));
        rows.position.extend(pass.positions.iter().map(|&position| int(position)));
        layers.resize(pass.layers.len(), LayerRouting { logits: Vec::new(), chosen: Vec::new() });
        for (all, new) in layers.iter_mut().zip(&pass.layers) {
            all.logits.extend_from_slice(&new.logits);
            all.chosen.extend_from_slice(&new.chosen);
        }
    }
    writer.routing(&rows, experts.count, experts.used, &layers);
    followed.unwrap_or_else(|| GivenExperts::of(&passes))
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
