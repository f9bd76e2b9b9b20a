//! Block diffusion: canvases one after the other, each denoised step by step.
//!
//! A canvas begins as random tokens. Each step is a pass over it, conditioned on the logits of the step before; every
//! position draws a token at the step's temperature, the positions of lowest entropy keep theirs, and the others get new
//! random ones. The result is the canvas of most likely tokens at the last step; it is encoded, and the next canvas
//! begins.

use model_file::EntropyBound;

use crate::generate::entropy::{Noise, Sample, Stop, accepted, sample, temperature};
use crate::{BlockNetwork, CanvasPass, Conditioning, Error, GivenExperts, Logits, Store};

/// What to generate.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan<'a> {
    /// The prompt; it may be empty.
    pub prompt: &'a [u32],
    /// Canvases.
    pub canvases: usize,
    /// Tokens of a canvas.
    pub canvas: usize,
    /// How each is denoised.
    pub sampler: EntropyBound,
    /// Seed of the noise.
    pub seed: u64,
    /// A token after whose canvas no other begins.
    pub end: Option<u32>,
    /// Experts that are to work whatever the routers choose, on the rows of all passes, encoded ones among them.
    pub experts: Option<GivenExperts<'a>>,
    /// What each step gave in another run, counted over all canvases: the next one of its canvas is conditioned on it,
    /// not on this run's own.
    pub conditions: Option<&'a [Logits]>,
}

/// One canvas as another run denoised it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The tokens that each step read.
    pub steps: Vec<Vec<u32>>,
    /// The tokens that came of it.
    pub result: Vec<u32>,
}

/// A step as it is before its tokens are placed.
#[derive(Debug)]
pub struct Step<'a> {
    /// The canvas, from 0.
    pub canvas: usize,
    /// The step, from 0.
    pub step: usize,
    /// Its temperature.
    pub temperature: f64,
    /// The tokens it read.
    pub tokens: &'a [u32],
    /// What it computed.
    pub pass: &'a CanvasPass,
    /// What each row gave.
    pub samples: &'a [Sample],
    /// Which positions are accepted.
    pub accepted: &'a [bool],
    /// Whether the canvas is finished by its own measure.
    pub finished: bool,
}

/// What was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Prompt and canvases.
    pub tokens: Vec<u32>,
    /// Each canvas as it was denoised.
    pub canvases: Vec<Given>,
    /// K and V of the prompt and of all canvases but the last.
    pub store: Store,
}

/// Generates canvases after a prompt, free or along `given`, whose canvases and steps are then made, no more and no
/// fewer. `observe` sees every step.
///
/// # Errors
/// No canvas or no step, canvases of another length; a row that gives no token; and as [`BlockNetwork::denoise`].
pub fn generate(
    network: &BlockNetwork,
    plan: Plan<'_>,
    given: Option<&[Given]>,
    mut observe: impl FnMut(&Step<'_>),
) -> Result<Generated, Error> {
    check(&plan, given)?;
    let (n_vocab, noise) = (network.hparams().n_vocab, Noise { seed: plan.seed });
    let mut store = network.store();
    let mut tokens = plan.prompt.to_vec();
    let mut fresh = plan.prompt.to_vec();
    let mut experts = plan.experts;
    let mut of_rows = |rows| experts.as_mut().map(|given| given.take(rows)).transpose();
    let mut made_steps = 0;
    let mut done: Vec<Given> = Vec::new();
    for canvas in 0..given.map_or(plan.canvases, <[_]>::len) {
        if !fresh.is_empty() {
            network.encode(&mut store, &fresh, of_rows(fresh.len())?.as_deref())?;
        }
        let given = given.map(|g| &g[canvas]);
        let steps = given.map_or(plan.sampler.max_steps, |g| g.steps.len());
        let mut now: Vec<u32> = (0..plan.canvas).map(|p| noise.token(canvas, 0, p, n_vocab)).collect();
        let mut before: Option<(Logits, f64)> = None;
        let mut stop = Stop::new(&plan.sampler);
        let mut made = Given { steps: Vec::new(), result: Vec::new() };
        for step in 0..steps {
            if let Some(given) = given {
                now.clone_from(&given.steps[step]);
            }
            let temperature = temperature(&plan.sampler, step, plan.sampler.max_steps);
            let previous = before.as_ref().map(|(logits, t)| Conditioning { logits, temperature: *t });
            let pass = network.denoise(&store, &now, previous, of_rows(now.len())?.as_deref())?;
            let samples = (0..plan.canvas)
                .map(|p| {
                    sample(pass.logits.row(p), temperature, noise.draw(canvas, step, p))
                        .ok_or(Error::NoCandidate { step, position: store.len() + p })
                })
                .collect::<Result<Vec<_>, _>>()?;
            let entropies: Vec<f64> = samples.iter().map(|s| s.entropy).collect();
            let argmax: Vec<u32> = samples.iter().map(|s| s.argmax).collect();
            let (accepted, _) = accepted(&entropies, f64::from(plan.sampler.bound));
            let finished = stop.finished(&argmax, &entropies);
            let (tokens, samples) = (&now[..], &samples[..]);
            observe(&Step {
                canvas,
                step,
                temperature,
                tokens,
                pass: &pass,
                samples,
                accepted: &accepted,
                finished,
            });
            made.steps.push(now.clone());
            made.result = argmax;
            if finished && given.is_none() {
                break;
            }
            now =
                (0..plan.canvas)
                    .map(|p| {
                        if accepted[p] {
                            samples[p].sampled
                        } else {
                            noise.token(canvas, step + 1, p, n_vocab)
                        }
                    })
                    .collect();
            let of_step = plan.conditions.map(|given| &given[made_steps]);
            before = Some((of_step.cloned().unwrap_or(pass.logits), temperature));
            made_steps += 1;
        }
        if let Some(given) = given {
            made.result.clone_from(&given.result);
        }
        tokens.extend_from_slice(&made.result);
        fresh.clone_from(&made.result);
        done.push(made);
        if plan.end.is_some_and(|end| fresh.contains(&end)) && given.is_none() {
            break;
        }
    }
    Ok(Generated { tokens, canvases: done, store })
}

fn check(plan: &Plan<'_>, given: Option<&[Given]>) -> Result<(), Error> {
    if plan.canvases == 0 || plan.canvas == 0 || plan.sampler.max_steps == 0 {
        return Err(Error::Plan("at least one canvas of one token and one step are needed".to_string()));
    }
    for (i, given) in given.into_iter().flatten().enumerate() {
        if given.steps.is_empty() || given.steps.len() > plan.sampler.max_steps {
            return Err(Error::Trajectory(format!(
                "canvas {i} has {} steps of at most {}",
                given.steps.len(),
                plan.sampler.max_steps
            )));
        }
        if let Some(bad) = given.steps.iter().chain([&given.result]).find(|t| t.len() != plan.canvas) {
            return Err(Error::Trajectory(format!(
                "canvas {i} has {} tokens where {} are wanted",
                bad.len(),
                plan.canvas
            )));
        }
    }
    Ok(())
}
