//! The modes `unified` and `prompt-kv` of block diffusion: two passes over random canvases, the second conditioned on the
//! first, in one graph with the prompt or after it was encoded into the store.
//!
//! An arm that follows a reference is conditioned on the reference's logits and computed by its experts, so that each pass
//! stands for itself. Every arm is held to itself too: what the device keeps of a pass must condition the next one as the
//! same logits do when the host gives them, and where the store is of F32 both ways must agree.

use super::block::{Canvases, condition};
use super::exchange::{Tokens, layers, open, record_routing, routing, rows, signed};
use super::masked::Findings;
use super::protocol::{Failure, FailureKind, JobCell};
use crate::capture::{CaptureWriter, Check, CheckBound};
use crate::compare::Nmse;
use crate::plan::{KvType, Mode};
use runtime::generate::block::{random_canvas, temperature};
use runtime::{FullPass, GivenExperts, LayerKv, Session};

/// Passes of these modes.
pub(super) const PASSES: usize = 2;

/// Computes `cell` into `writer`.
pub(super) fn execute(
    session: &mut Session,
    cell: &JobCell,
    writer: &mut CaptureWriter,
    found: &mut Findings,
) -> Tokens {
    let runtime = |e: runtime::Error| Failure::from(&e);
    let (prompt, length) = (&cell.inputs.prompt[..], cell.inputs.follow);
    let through_store = cell.id.case.mode == Mode::PromptKv;
    let vocab = session.hparams().n_vocab;
    let canvases: Vec<Vec<u32>> = (0..PASSES).map(|step| random_canvas(0, 0, step, length, vocab)).collect();
    record_routing(session, cell.replay.as_deref())?;
    if through_store {
        session.reset_cache(prompt.len()).map_err(runtime)?;
        let size = session.micro_batch().unwrap_or(prompt.len()).max(1);
        for piece in prompt.chunks(size) {
            session.encode(piece, false).map_err(runtime)?;
        }
    }
    let in_one = Passes { prompt: Some(prompt), canvases: &canvases };
    let run = if through_store { Passes { prompt: None, ..in_one } } else { in_one };
    let given = cell.replay.as_deref().map(|path| conditions(path, length)).transpose()?;
    let mut passes: Vec<FullPass> = Vec::new();
    let mut read = Canvases::default();
    for (step, canvas) in canvases.iter().enumerate() {
        let pass = run.pass(session, step, given.as_deref()).map_err(runtime)?;
        rows(writer, &pass.logits, prompt.len(), step);
        read.push(step, prompt.len(), canvas);
        passes.push(pass);
    }
    let mut kv = if through_store { session.read_cache().map_err(runtime)? } else { Vec::new() };
    append(&mut kv, passes.last().map(|pass| pass.kv.clone()).unwrap_or_default());
    layers(writer, session.hparams(), &kv);
    let worked = routing(writer, session);
    read.write(writer);
    let tokens = [prompt, canvases.last().map_or(&[], |canvas| canvas)].concat();
    writer.tokens(&signed(&tokens));
    found.traffic = Some(session.traffic());

    session.renew().map_err(runtime)?;
    let shape = Shape { prompt: prompt.len(), canvas: length, through_store };
    session.follow_experts(Some(shape.passes_of(&worked, &[0, 1, 1])));
    found.checks.push(handed_over(session, run).map_err(runtime)?);
    if through_store && cell.id.case.options.kv == KvType::F32 {
        session.follow_experts(Some(shape.in_one_graph(&worked)));
        // A reference goes by what its own passes gave.
        let own = || passes.iter().take(PASSES - 1).map(|pass| pass.logits.values.clone()).collect();
        let given = given.unwrap_or_else(own);
        found.checks.extend(against_unified(session, in_one, &given, &passes, &kv).map_err(runtime)?);
    }
    session.follow_experts(None);
    Ok(None)
}

/// What each pass of a reference gave, but for the last one, which conditions none.
fn conditions(reference: &std::path::Path, length: usize) -> Result<Vec<Vec<f32>>, Failure> {
    let mut reference = open(reference)?;
    if reference.rows() != PASSES * length || reference.vocab() == 0 {
        let message = format!("the reference {} has other passes", reference.path().display());
        return Err(Failure { kind: FailureKind::Input, message });
    }
    let of_pass = |step| condition(&mut reference, step, length);
    let read: Result<_, _> = (0..PASSES - 1).map(of_pass).collect();
    read.map_err(|error| Failure { kind: FailureKind::Input, message: error.to_string() })
}

/// Passes over canvases, each in one graph with a prompt or after the one in the store.
#[derive(Clone, Copy)]
struct Passes<'a> {
    prompt: Option<&'a [u32]>,
    canvases: &'a [Vec<u32>],
}

impl Passes<'_> {
    /// One of them, conditioned on what is given of the pass before, else on what the device has kept of it; the first on
    /// nothing.
    fn pass(
        self,
        session: &mut Session,
        step: usize,
        given: Option<&[Vec<f32>]>,
    ) -> Result<FullPass, runtime::Error> {
        let sampler = session.hparams().block.map(|block| block.sampler).unwrap_or_default();
        let before = step.checked_sub(1);
        if let (Some(before), Some(given)) = (before, given) {
            session.condition_on(&given[before])?;
        }
        let temperature = before.map(|before| temperature(&sampler, before));
        match self.prompt {
            None => session.denoise(&self.canvases[step], temperature, true),
            Some(prompt) => session.unified(prompt, &self.canvases[step], temperature, true),
        }
    }
}

/// Whether the logits that stay on the device condition the second pass as the same do when they are read and given back.
fn handed_over(session: &mut Session, run: Passes) -> Result<Check, runtime::Error> {
    // What an earlier run has left there would do nearly as well.
    let nothing = vec![0.0; run.canvases[0].len() * session.hparams().n_vocab];
    session.condition_on(&nothing)?;
    let first = run.pass(session, 0, None)?.logits.values;
    let kept = run.pass(session, 1, None)?.logits.values;
    let given = run.pass(session, 1, Some(&[first]))?.logits.values;
    let name = "logits conditioned on what the device kept against what the host gave back";
    Ok(check(name, nmse([(&given, &kept)]), CheckBound::Exact))
}

/// The two ways on one device, conditioned alike.
fn against_unified(
    session: &mut Session,
    run: Passes,
    given: &[Vec<f32>],
    passes: &[FullPass],
    kv: &[LayerKv],
) -> Result<[Check; 2], runtime::Error> {
    let unified =
        (0..passes.len()).map(|step| run.pass(session, step, Some(given))).collect::<Result<Vec<_>, _>>()?;
    let logits = unified.iter().zip(passes).map(|(r, x)| (&r.logits.values, &x.logits.values));
    let whole = unified.last().map(|pass| &pass.kv[..]).unwrap_or_default();
    let caches = whole.iter().zip(kv).flat_map(|(r, x)| [(&r.k, &x.k), (&r.v, &x.v)]);
    let worst =
        caches.map(|pair| nmse([pair])).fold(0.0, |a: f64, b| if b.is_nan() || b > a { b } else { a });
    Ok([
        check("logits after an encoded prompt against those of one pass", nmse(logits), CheckBound::Logits),
        check("keys and values likewise, the worst layer", worst, CheckBound::Kv),
    ])
}

fn check(name: &str, value: f64, bound: CheckBound) -> Check {
    Check { name: name.to_owned(), value, bound, detail: String::new() }
}

/// How the rows that routers saw are laid out: an encoded prompt and then canvases, or a prompt before each canvas.
#[derive(Clone, Copy)]
struct Shape {
    prompt: usize,
    canvas: usize,
    through_store: bool,
}

impl Shape {
    /// The experts of these passes, one after the other.
    fn passes_of(self, worked: &GivenExperts, passes: &[usize]) -> GivenExperts {
        let (first, width) = match self.through_store {
            true => (self.prompt, self.canvas),
            false => (0, self.prompt + self.canvas),
        };
        let rows = passes.iter().flat_map(|pass| first + pass * width..first + (pass + 1) * width);
        chosen(worked, &rows.collect::<Vec<_>>())
    }

    /// The experts of an encoded prompt and the canvases after it, for graphs that hold the prompt and one canvas each.
    fn in_one_graph(self, worked: &GivenExperts) -> GivenExperts {
        let firsts = (self.prompt..worked.positions.len()).step_by(self.canvas.max(1));
        let rows = firsts.flat_map(|first| (0..self.prompt).chain(first..first + self.canvas));
        chosen(worked, &rows.collect::<Vec<_>>())
    }
}

/// The experts of these rows; none where there are none.
fn chosen(worked: &GivenExperts, rows: &[usize]) -> GivenExperts {
    let there = worked.positions.len();
    let rows: Vec<usize> = rows.iter().copied().filter(|&row| row < there).collect();
    let of_layer = |layer: &Vec<i32>| {
        let used = layer.len().checked_div(there).unwrap_or(0);
        rows.iter().flat_map(|row| &layer[row * used..][..used]).copied().collect()
    };
    GivenExperts {
        positions: rows.iter().map(|&row| worked.positions[row]).collect(),
        layers: worked.layers.iter().map(of_layer).collect(),
    }
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

    fn worked(positions: Vec<usize>) -> GivenExperts {
        let used =
            positions.iter().enumerate().flat_map(|(i, _)| [10 * i as i32, 10 * i as i32 + 1]).collect();
        GivenExperts { positions, layers: vec![used] }
    }

    #[test]
    fn a_graph_of_both_has_the_prompts_experts_before_each_canvas() {
        let shape = Shape { prompt: 2, canvas: 2, through_store: true };
        let both = shape.in_one_graph(&worked(vec![0, 1, 2, 3, 2, 3]));
        assert_eq!(both.positions, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(both.layers, [[0, 1, 10, 11, 20, 21, 30, 31, 0, 1, 10, 11, 40, 41, 50, 51]]);
    }

    #[test]
    fn passes_are_found_after_a_prompt_and_with_one() {
        let stored = Shape { prompt: 2, canvas: 1, through_store: true };
        let again = stored.passes_of(&worked(vec![0, 1, 2, 2]), &[0, 1, 1]);
        assert_eq!((again.positions, again.layers), (vec![2, 2, 2], vec![vec![20, 21, 30, 31, 30, 31]]));
        let whole = Shape { through_store: false, ..stored };
        let again = whole.passes_of(&worked(vec![0, 1, 2, 0, 1, 2]), &[1]);
        assert_eq!((again.positions, again.layers), (vec![0, 1, 2], vec![vec![30, 31, 40, 41, 50, 51]]));
    }
}
