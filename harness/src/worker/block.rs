//! Generation by block diffusion: along the reference's own trajectory, each step reading the reference's canvas,
//! conditioned on the reference's logits of the step before and computed by its experts, and then once more free running.

use super::exchange::{Tokens, int, layers, open, record_routing, routing, rows, signed, unsigned};
use super::masked::Findings;
use super::protocol::{Failure, FailureKind, JobCell};
use crate::capture::{CaptureError, CaptureReader, CaptureWriter, Unmask};
use model_file::EntropyBound;
use runtime::Session;
use runtime::generate::block::{self, Along, Denoised, Plan, Seen};

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
        condition(reference.as_mut().expect("there is one to go along"), step, length)
            .map_err(|error| runtime::Error::Input(error.to_string()))
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

/// What a reference's `step` gave at a canvas of `length` tokens, `[length, vocab]`.
pub(super) fn condition(
    reference: &mut CaptureReader,
    step: usize,
    length: usize,
) -> Result<Vec<f32>, CaptureError> {
    let mut logits = Vec::new();
    reference.logits(step * length, length, &mut logits)?;
    Ok(logits.into_iter().map(|z| z as f32).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

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
