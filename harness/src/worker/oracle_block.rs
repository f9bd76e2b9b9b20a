//! The oracle's arm of block diffusion: the canvases that the reference's steps read, by its experts and conditioned on its
//! logits of the step before.

use super::block::{Canvases, trajectory};
use super::exchange::{int, signed};
use super::oracle::{ReferenceExperts, Routings, failed, input, layers};
use super::phases::PASSES;
use super::protocol::{Failure, JobCell};
use crate::capture::{CaptureReader, CaptureWriter};
use crate::plan::{Case, Mode};
use model_file::{EntropyBound, HyperParams};
use oracle::generate::entropy::temperature;
use oracle::{BlockNetwork, CanvasPass, Conditioning, GivenExperts, LayerKv, Logits, Store};

/// Computes `cell` into `writer`.
pub(super) fn execute(
    network: &BlockNetwork,
    cell: &JobCell,
    reference: &mut CaptureReader,
    writer: &mut CaptureWriter,
) -> Result<(), Failure> {
    let (prompt, block) = (&cell.inputs.prompt[..], network.block());
    let generates = cell.id.case.mode == Mode::Generate;
    let length = if generates { block.canvas } else { cell.inputs.follow };
    let given = trajectory(reference, prompt.len(), length)?;
    if !generates && given.iter().map(|canvas| canvas.steps.len()).ne([PASSES]) {
        return Err(input("the reference has other passes"));
    }
    let steps = if generates { cell.inputs.steps } else { block.sampler.max_steps };
    let sampler = EntropyBound { max_steps: steps, ..block.sampler };
    let experts = ReferenceExperts::of(reference)?;
    let mut run = Run {
        network,
        writer: &mut *writer,
        store: network.store(),
        read: Canvases::default(),
        step: 0,
        routings: Routings::default(),
        given: experts.as_ref().map(ReferenceExperts::given),
        conditions: reference,
    };
    let size = cell.id.case.options.ub.map_or(usize::MAX, |n| n as usize).max(1);
    let (mut fresh, mut tokens) = (prompt.to_vec(), prompt.to_vec());
    let mut kv = Vec::new();
    for canvas in &given {
        if cell.id.case.mode != Mode::Unified {
            run.encode(&fresh, size)?;
        }
        let unified = (cell.id.case.mode == Mode::Unified).then_some(prompt);
        kv = run.denoise(&canvas.steps, unified, &sampler)?;
        tokens.extend_from_slice(&canvas.result);
        fresh.clone_from(&canvas.result);
    }
    let Run { store, read, routings, .. } = run;
    let h = network.hparams();
    writer.tokens(&signed(&tokens));
    read.write(writer);
    // The store of a generation; prompt and canvas of the other modes.
    layers(writer, h, &if generates { store.layers().to_vec() } else { joined(&store, kv) });
    routings.write(writer, h);
    Ok(())
}

/// What a run has come to.
struct Run<'a> {
    network: &'a BlockNetwork,
    writer: &'a mut CaptureWriter,
    store: Store,
    read: Canvases,
    step: usize,
    routings: Routings,
    /// The reference's experts, where it tells them.
    given: Option<GivenExperts<'a>>,
    /// The reference, whose logits steps are conditioned on.
    conditions: &'a mut CaptureReader,
}

impl<'a> Run<'a> {
    /// The experts of the next rows.
    fn take(&mut self, rows: usize) -> Result<Option<Vec<&'a [usize]>>, Failure> {
        self.given.as_mut().map(|given| given.take(rows)).transpose().map_err(failed)
    }

    fn encode(&mut self, tokens: &[u32], size: usize) -> Result<(), Failure> {
        for piece in tokens.chunks(size.min(tokens.len().max(1))) {
            let first = self.store.len();
            let given = self.take(piece.len())?;
            let encoded = self.network.encode(&mut self.store, piece, given.as_deref()).map_err(failed)?;
            if given.is_some() {
                self.routings.push(first..first + piece.len(), &encoded.experts);
            }
        }
        Ok(())
    }

    /// What the reference's step before gave, at a canvas of `length` tokens.
    fn condition(&mut self, length: usize) -> Result<Logits, Failure> {
        let mut rows = Vec::new();
        self.conditions.logits((self.step - 1) * length, length, &mut rows).map_err(input)?;
        Ok(Logits::from_rows(self.network.hparams().n_vocab, rows))
    }

    /// The steps of one canvas; K and V of the last.
    fn denoise(
        &mut self,
        steps: &[Vec<u32>],
        unified: Option<&[u32]>,
        sampler: &EntropyBound,
    ) -> Result<Vec<LayerKv>, Failure> {
        let mut kv = Vec::new();
        for (i, canvas) in steps.iter().enumerate() {
            let before = (i > 0).then(|| self.condition(canvas.len())).transpose()?;
            let previous = before.as_ref().map(|logits| Conditioning {
                logits,
                // As the arms have it, in 32 bits.
                temperature: f64::from(temperature(sampler, i - 1, sampler.max_steps) as f32),
            });
            let given = self.take(unified.map_or(0, <[u32]>::len) + canvas.len())?;
            let experts = given.as_deref();
            let pass = match unified {
                Some(prompt) => self.network.unified(prompt, canvas, previous, experts),
                None => self.network.denoise(&self.store, canvas, previous, experts),
            };
            let CanvasPass { logits, kv: rows, experts } = pass.map_err(failed)?;
            let first = unified.map_or(self.store.len(), <[u32]>::len);
            for row in 0..canvas.len() {
                self.writer.row(int(first + row), int(self.step), logits.row(row));
            }
            if given.is_some() {
                self.routings.push(if unified.is_some() { 0 } else { first }..first + canvas.len(), &experts);
            }
            self.read.push(self.step, first, canvas);
            self.step += 1;
            kv = rows;
        }
        Ok(kv)
    }
}

/// The stored rows of each layer and `kv` after them.
fn joined(store: &Store, kv: Vec<LayerKv>) -> Vec<LayerKv> {
    let both = |(held, new): (&LayerKv, LayerKv)| LayerKv {
        k: [&held.k[..], &new.k].concat(),
        v: [&held.v[..], &new.v].concat(),
    };
    store.layers().iter().zip(kv).map(both).collect()
}

/// Why the oracle does not compute a case of block diffusion; `None` where it does.
pub(super) fn lacks(case: &Case, h: &HyperParams) -> Option<String> {
    let stored = h.block.is_some() && case.options.kv != crate::plan::KvType::F32;
    stored.then(|| "a prompt stored in another type than F32 is not computed by the oracle".to_owned())
}
