//! The modes of block diffusion: `unified`, `prompt-kv` and `generate`.
//!
//! The first two are two passes over random canvases, the second conditioned on the first: in one graph with the
//! prompt, or after it was encoded into the store. They must agree, on every device with itself too. A generation
//! goes along the reference's own trajectory, each step reading the reference's canvas, conditioned on the
//! reference's logits of the step before and computed by its experts, and then once more free running.

use super::exchange::{Tokens, int, layers, open, record_routing, routing, rows, signed, unsigned};
use super::masked::Findings;
use super::protocol::{Failure, FailureKind, JobCell};
use crate::capture::{CaptureReader, CaptureWriter, Check, CheckBound, Unmask};
use crate::compare::Nmse;
use crate::plan::{KvType, Mode};
use model_file::EntropyBound;
use runtime::generate::block::{self, Along, Denoised, Plan, Seen};
use runtime::{FullPass, GivenExperts, LayerKv, Session};

/// Passes of the modes that do not generate.
pub(super) const PASSES: usize = 2;

/// The canvases that steps read, as captures hold them: each token a decision of its step.
#[derive(Default)]
pub(super) struct Canvases(Unmask);

impl Canvases {
    /// Adds the canvas that `step` read at `first` and the positions after it.
    pub(super) fn push(&mut self, step: usize, first: usize, tokens: &[u32]) {
        self.0.step.extend(tokens.iter().map(|_| int(step)));
        self.0.position.extend((first..first + tokens.len()).map(int));
        self.0.token.extend(signed(tokens));
    }

    pub(super) fn write(&self, writer: &mut CaptureWriter) {
        writer.unmask(&self.0);
    }
}

/// The trajectory of a reference: its canvases of `length` after `prompt` tokens, each with the steps that denoised it.
///
/// # Errors
/// A capture without one, or one of other lengths.
pub(super) fn trajectory(
    reference: &CaptureReader,
    prompt: usize,
    length: usize,
) -> Result<Vec<Denoised>, Failure> {
    let path = reference.path();
    let fault = |what: String| Failure {
        kind: FailureKind::Input,
        message: format!("the reference {} {what}", path.display()),
    };
    let unmask = reference.unmask().ok_or_else(|| fault("has no trajectory".to_owned()))?;
    let [step, position, token] =
        [&unmask.step, &unmask.position, &unmask.token].map(|list| unsigned(path, list));
    let (step, position, token) = (step?, position?, token?);
    let tokens = unsigned(path, reference.tokens())?;
    let whole = length > 0
        && tokens.len() > prompt
        && (tokens.len() - prompt).is_multiple_of(length)
        && token.len().is_multiple_of(length);
    if !whole {
        return Err(fault(format!("does not hold whole canvases of {length} tokens after {prompt}")));
    }
    let mut canvases: Vec<Denoised> = tokens[prompt..]
        .chunks_exact(length)
        .map(|result| Denoised { steps: Vec::new(), result: result.to_vec() })
        .collect();
    let parts = step.chunks_exact(length).zip(position.chunks_exact(length)).zip(token.chunks_exact(length));
    for ((step, position), token) in parts {
        let first = position[0] as usize;
        let in_order = position.iter().enumerate().all(|(i, &p)| p as usize == first + i);
        let canvas = first.checked_sub(prompt).filter(|at| at.is_multiple_of(length)).map(|at| at / length);
        let same = step.iter().all(|s| *s == step[0]);
        match canvas.and_then(|canvas| canvases.get_mut(canvas)).filter(|_| in_order && same) {
            Some(canvas) => canvas.steps.push(token.to_vec()),
            None => return Err(fault(format!("has a step at position {first} that is no canvas"))),
        }
    }
    Ok(canvases)
}

/// Prompt and canvas in one graph, or one after the other.
pub(super) fn phases(
    session: &mut Session,
    cell: &JobCell,
    writer: &mut CaptureWriter,
    found: &mut Findings,
) -> Tokens {
    let runtime = |e: runtime::Error| Failure::from(&e);
    let (prompt, length) = (&cell.inputs.prompt, cell.inputs.follow);
    let through_store = cell.id.case.mode == Mode::PromptKv;
    let canvases: Vec<Vec<u32>> = (0..PASSES).map(|step| canvas(session, step, length)).collect();
    record_routing(session, cell.replay.as_deref())?;
    if through_store {
        session.reset_cache(prompt.len()).map_err(runtime)?;
        let size = session.micro_batch().unwrap_or(prompt.len()).max(1);
        for piece in prompt.chunks(size) {
            session.encode(piece, false).map_err(runtime)?;
        }
    }
    let mut passes: Vec<FullPass> = Vec::new();
    let mut read = Canvases::default();
    for (step, canvas) in canvases.iter().enumerate() {
        let temperature = temperature(session, step);
        let pass = match through_store {
            true => session.denoise(canvas, temperature, true),
            false => session.unified(prompt, canvas, temperature, true),
        };
        let pass = pass.map_err(runtime)?;
        rows(writer, &pass.logits, prompt.len(), step);
        read.push(step, prompt.len(), canvas);
        passes.push(pass);
    }
    let mut kv = if through_store { session.read_cache().map_err(runtime)? } else { Vec::new() };
    let last = passes.last().map(|pass| pass.kv.clone()).unwrap_or_default();
    append(&mut kv, last);
    layers(writer, session.hparams(), &kv);
    let worked = routing(writer, session);
    read.write(writer);
    let tokens = [&prompt[..], canvases.last().map_or(&[], |canvas| canvas)].concat();
    writer.tokens(&signed(&tokens));
    found.traffic = Some(session.traffic());
    if through_store && cell.id.case.options.kv == KvType::F32 {
        session.follow_experts(Some(in_one_graph(&worked, prompt.len(), length)));
        let checks = against_unified(session, prompt, &canvases, &passes, &kv);
        session.follow_experts(None);
        found.checks.extend(checks.map_err(runtime)?);
    }
    Ok(None)
}

/// The random canvas that a pass reads.
fn canvas(session: &Session, step: usize, length: usize) -> Vec<u32> {
    block::random_canvas(0, 0, step, length, session.hparams().n_vocab)
}

/// What a pass is conditioned with: nothing on the first, then the temperature of the one before.
fn temperature(session: &Session, step: usize) -> Option<f32> {
    let sampler = session.hparams().block.map(|block| block.sampler).unwrap_or_default();
    step.checked_sub(1).map(|before| block::temperature(&sampler, before))
}

/// The experts of an encoded prompt and the canvases after it, for graphs that hold the prompt and one canvas each.
fn in_one_graph(worked: &GivenExperts, prompt: usize, canvas: usize) -> GivenExperts {
    let rows = worked.positions.len();
    let whole = |first: usize| (0..prompt).chain(first..rows.min(first + canvas));
    let order: Vec<usize> = (prompt..rows).step_by(canvas.max(1)).flat_map(whole).collect();
    let of_layer = |layer: &Vec<i32>| {
        let used = layer.len().checked_div(rows).unwrap_or(0);
        order.iter().flat_map(|row| &layer[row * used..][..used]).copied().collect()
    };
    GivenExperts {
        positions: order.iter().map(|&row| worked.positions[row]).collect(),
        layers: worked.layers.iter().map(of_layer).collect(),
    }
}

/// The two ways on one device.
fn against_unified(
    session: &mut Session,
    prompt: &[u32],
    canvases: &[Vec<u32>],
    passes: &[FullPass],
    kv: &[LayerKv],
) -> Result<Vec<Check>, runtime::Error> {
    session.renew()?;
    let mut unified = Vec::new();
    for (step, canvas) in canvases.iter().enumerate() {
        let temperature = temperature(session, step);
        unified.push(session.unified(prompt, canvas, temperature, true)?);
    }
    let logits = unified.iter().zip(passes).map(|(r, x)| (&r.logits.values, &x.logits.values));
    let whole = unified.last().map(|pass| &pass.kv[..]).unwrap_or_default();
    let caches = whole.iter().zip(kv).flat_map(|(r, x)| [(&r.k, &x.k), (&r.v, &x.v)]);
    let worst =
        caches.map(|pair| nmse([pair])).fold(0.0, |a: f64, b| if b.is_nan() || b > a { b } else { a });
    let check =
        |name: &str, value, bound| Check { name: name.to_owned(), value, bound, detail: String::new() };
    Ok(vec![
        check("logits after an encoded prompt against those of one pass", nmse(logits), CheckBound::Logits),
        check("keys and values likewise, the worst layer", worst, CheckBound::Kv),
    ])
}

/// A generation: on the reference's trajectory the rows of every step and the store at the end; then a free run.
pub(super) fn generate(
    session: &mut Session,
    cell: &JobCell,
    writer: &mut CaptureWriter,
    found: &mut Findings,
) -> Tokens {
    let runtime = |e: runtime::Error| Failure::from(&e);
    let inputs = &cell.inputs;
    let (length, sampler) = match session.hparams().block {
        Some(block) => (block.canvas, block.sampler),
        None => (0, EntropyBound::default()),
    };
    let plan = Plan {
        prompt: &inputs.prompt,
        canvases: inputs.follow.checked_div(length).unwrap_or(0),
        canvas: length,
        sampler: EntropyBound { max_steps: inputs.steps, ..sampler },
        seed: cell.id.case.options.draws.seed(),
        end: None,
        keep: false,
    };
    let mut reference = cell.replay.as_deref().map(open).transpose()?;
    let given = reference.as_ref().map(|r| trajectory(r, inputs.prompt.len(), length)).transpose()?;
    record_routing(session, cell.replay.as_deref())?;
    let (mut read, mut steps) = (Canvases::default(), 0);
    let mut conditions = |step: usize| {
        let mut logits = Vec::new();
        let reference = reference.as_mut().expect("there is one to go along");
        reference
            .logits(step * length, length, &mut logits)
            .map_err(|error| runtime::Error::Input(error.to_string()))?;
        Ok(logits.into_iter().map(|z| z as f32).collect())
    };
    let along = given.as_deref().map(|canvases| Along { canvases, logits: Some(&mut conditions) });
    let forced = block::generate(session, plan, along, |seen| {
        if let Seen::Step(step) = seen {
            let first = inputs.prompt.len() + step.canvas * length;
            rows(writer, &step.pass.logits, first, steps);
            read.push(steps, first, step.tokens);
            steps += 1;
        }
        Ok(())
    })
    .map_err(runtime)?;
    read.write(writer);
    writer.tokens(&signed(&forced.tokens));
    routing(writer, session);
    let kv = session.read_cache().map_err(runtime)?;
    layers(writer, session.hparams(), &kv);
    found.traffic = Some(session.traffic());
    let free = match given {
        None => forced,
        Some(_) => block::generate(session, plan, None, |_| Ok(())).map_err(runtime)?,
    };
    writer.greedy(&signed(&free.tokens));
    writer.greedy_margin(&margins(&free, inputs.prompt.len(), length));
    Ok(Some(free.tokens[inputs.prompt.len()..].to_vec()))
}

/// The margin of each token: the smallest of all decisions up to its canvas's end. Infinite for the prompt.
fn margins(free: &block::Generated, prompt: usize, length: usize) -> Vec<f32> {
    let mut margins = vec![f32::INFINITY; prompt];
    let mut smallest = f64::INFINITY;
    for margin in &free.margins {
        smallest = smallest.min(*margin);
        margins.extend(std::iter::repeat_n(smallest as f32, length));
    }
    margins
}

/// Adds rows of every layer after those that are there.
fn append(all: &mut Vec<LayerKv>, new: Vec<LayerKv>) {
    if all.is_empty() {
        *all = new;
        return;
    }
    for (all, new) in all.iter_mut().zip(new) {
        all.k.extend(new.k);
        all.v.extend(new.v);
    }
}

/// NMSE over pairs of reference and test.
fn nmse<'a>(pairs: impl IntoIterator<Item = (&'a Vec<f32>, &'a Vec<f32>)>) -> f64 {
    let mut sums = Nmse::default();
    for (r, x) in pairs.into_iter().flat_map(|(r, x)| r.iter().zip(x)) {
        sums.add(f64::from(*r), f64::from(*x));
    }
    sums.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_of_both_has_the_prompts_experts_before_each_canvas() {
        let worked = GivenExperts {
            positions: vec![0, 1, 2, 3, 2, 3],
            layers: vec![vec![10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61]],
        };
        let both = in_one_graph(&worked, 2, 2);
        assert_eq!(both.positions, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(both.layers, [[10, 11, 20, 21, 30, 31, 40, 41, 10, 11, 20, 21, 50, 51, 60, 61]]);
    }

    #[test]
    fn margins_shrink_from_canvas_to_canvas() {
        let margins = |margins: &[f64]| {
            let free =
                block::Generated { tokens: vec![0; 5], canvases: Vec::new(), margins: margins.to_vec() };
            super::margins(&free, 1, 2)
        };
        assert_eq!(margins(&[2.0, 3.0]), [f32::INFINITY, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(margins(&[2.0, 1.0]), [f32::INFINITY, 2.0, 2.0, 1.0, 1.0]);
    }
}
