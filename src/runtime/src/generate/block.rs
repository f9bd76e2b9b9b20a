//! Block diffusion: canvases one after the other, each denoised step by step with the entropy-bound sampler
//! (Ben-Hamu et al. 2025, <https://arxiv.org/abs/2505.24857>; reference implementation `models/diffusion_gemma` of
//! <https://github.com/huggingface/transformers>).
//!
//! Noise comes from a generator whose every number depends on the seed, the canvas, the step, the position and the
//! purpose, so that a run along another's trajectory has the same: SplitMix64's finaliser `f(x)`, which adds its
//! constant first, and `h = f(seed)`, `h = f(h xor word)` for these four. Purpose 0 is a random token, 1 a draw.

use model_file::EntropyBound;

use super::most_likely;
use crate::error::Error;
use crate::session::{FullPass, Session};

/// What to generate.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The prompt; it may be empty.
    pub prompt: &'a [u32],
    /// Canvases at most.
    pub canvases: usize,
    /// Tokens of a canvas.
    pub canvas: usize,
    /// How each is denoised.
    pub sampler: EntropyBound,
    /// Seed of the noise.
    pub seed: u64,
    /// A token after whose canvas no other begins.
    pub end: Option<u32>,
    /// Whether keys, values and experts of every graph are read.
    pub keep: bool,
}

/// One canvas as it was denoised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Denoised {
    /// The tokens that each step read.
    pub steps: Vec<Vec<u32>>,
    /// The tokens that came of it.
    pub result: Vec<u32>,
}

/// Another run to go along.
pub struct Along<'a> {
    /// Its canvases, whose steps are then made, no more and no fewer.
    pub canvases: &'a [Denoised],
    /// What a step gave there, counted over all canvases, `[canvas, n_vocab]`: the next one of its canvas is conditioned
    /// on it. Without this each is conditioned on what the one before gave here.
    pub logits: Option<&'a mut dyn FnMut(usize) -> Result<Vec<f32>, Error>>,
}

/// What one row of logits gives at a temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The first of the most likely tokens.
    pub argmax: u32,
    /// Its logit less the best other's.
    pub argmax_margin: f64,
    /// Entropy in nats.
    pub entropy: f64,
    /// The token drawn.
    pub token: u32,
    /// How far the draw was from the running sums on either side of the token, as a probability.
    pub token_margin: f64,
}

/// What a graph gave.
#[derive(Debug)]
pub enum Seen<'a> {
    /// Tokens were encoded after those before.
    Encoded {
        /// The tokens.
        tokens: &'a [u32],
        /// Keys, values and experts, where they are kept.
        pass: &'a FullPass,
    },
    /// A step of a canvas, as it is before its tokens are placed.
    Step(Step<'a>),
}

/// A step of a canvas.
#[derive(Debug)]
pub struct Step<'a> {
    /// The canvas, from 0.
    pub canvas: usize,
    /// The step, from 0.
    pub step: usize,
    /// Its temperature.
    pub temperature: f32,
    /// The tokens it read.
    pub tokens: &'a [u32],
    /// What it computed.
    pub pass: &'a FullPass,
    /// What each row gave.
    pub sampled: &'a [Sampled],
    /// Which positions are accepted.
    pub accepted: &'a [bool],
    /// How near a sum of entropies came to the bound, in nats.
    pub accepted_margin: f64,
    /// Whether the canvas is finished by its own measure.
    pub finished: bool,
}

/// What was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Prompt and canvases.
    pub tokens: Vec<u32>,
    /// Each canvas as it was denoised.
    pub canvases: Vec<Denoised>,
    /// For each canvas, how sure its decisions were: while no two logits of a row move apart by more, and entropies
    /// not by more than that over the temperature and the canvas's length, they stay.
    pub margins: Vec<f64>,
}

/// Generates canvases after a prompt, free or along another run. `observe` sees every graph.
///
/// # Errors
/// When the plan or the trajectory cannot be; a row that gives no token; and as [`Session::encode`] and
/// [`Session::denoise`].
pub fn generate(
    session: &mut Session,
    plan: Plan<'_>,
    mut along: Option<Along<'_>>,
    mut observe: impl FnMut(&Seen<'_>) -> Result<(), Error>,
) -> Result<Generated, Error> {
    let given = along.as_ref().map(|along| along.canvases);
    check(&plan, given)?;
    let mut steps = 0;
    let canvases = given.map_or(plan.canvases, <[_]>::len);
    session.reset_cache((plan.prompt.len() + (canvases - 1) * plan.canvas).max(1))?;
    let mut tokens = plan.prompt.to_vec();
    let mut fresh = plan.prompt.to_vec();
    let (mut done, mut margins): (Vec<Denoised>, _) = (Vec::new(), Vec::new());
    for canvas in 0..canvases {
        let size = session.micro_batch().unwrap_or(fresh.len()).max(1);
        for piece in fresh.chunks(size) {
            let pass = session.encode(piece, plan.keep)?;
            observe(&Seen::Encoded { tokens: piece, pass: &pass })?;
        }
        let (made, margin) = denoise(session, &plan, canvas, &mut along, steps, &mut observe)?;
        steps += made.steps.len();
        tokens.extend_from_slice(&made.result);
        fresh.clone_from(&made.result);
        done.push(made);
        margins.push(margin);
        if along.is_none() && plan.end.is_some_and(|end| fresh.contains(&end)) {
            break;
        }
    }
    Ok(Generated { tokens, canvases: done, margins })
}

/// Denoises a canvas before which `steps` steps were made.
fn denoise(
    session: &mut Session,
    plan: &Plan<'_>,
    canvas: usize,
    along: &mut Option<Along<'_>>,
    steps: usize,
    observe: &mut impl FnMut(&Seen<'_>) -> Result<(), Error>,
) -> Result<(Denoised, f64), Error> {
    let n_vocab = session.hparams().n_vocab;
    let given = along.as_ref().map(|along| &along.canvases[canvas]);
    let mut conditions = along.as_mut().and_then(|along| along.logits.as_mut());
    let noise = |step, position| random_token(plan.seed, [canvas, step, position], n_vocab);
    let mut now: Vec<u32> = (0..plan.canvas).map(|p| noise(0, p)).collect();
    let mut before = None;
    let mut stop = Stop::new(&plan.sampler);
    let mut made = Denoised::default();
    let (mut margin, mut last) = (f64::INFINITY, f64::INFINITY);
    for step in 0..given.map_or(plan.sampler.max_steps, |g| g.steps.len()) {
        if let Some(given) = given {
            now.clone_from(&given.steps[step]);
        }
        if let Some(logits) = conditions.as_mut().filter(|_| step > 0) {
            session.condition_on(&logits(steps + step - 1)?)?;
        }
        let temperature = temperature(&plan.sampler, step);
        let pass = session.denoise(&now, before, plan.keep)?;
        let sampled = (0..plan.canvas)
            .map(|p| {
                let u = draw(plan.seed, [canvas, step, p]);
                sample(pass.logits.row(p), temperature, u).ok_or_else(|| {
                    Error::Input(format!(
                        "step {step} of canvas {canvas}: the logits of row {p} have a NaN or no finite maximum"
                    ))
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let entropies: Vec<f64> = sampled.iter().map(|s| s.entropy).collect();
        let (accepted, accepted_margin) = accepted(&entropies, f64::from(plan.sampler.bound));
        let argmax: Vec<u32> = sampled.iter().map(|s| s.argmax).collect();
        let finished = stop.finished(&argmax, &entropies);
        let mean = entropies.iter().sum::<f64>() / entropies.len() as f64;
        let apart = (mean - f64::from(plan.sampler.confidence)).abs();
        let t = f64::from(temperature);
        // A logit that moves by d moves a running sum of probabilities by at most d over twice the temperature.
        let drawn = sampled.iter().zip(&accepted).filter(|(_, accepted)| **accepted);
        let drawn = drawn.map(|(s, _)| 2.0 * t * s.token_margin).fold(f64::INFINITY, f64::min);
        margin = margin.min(drawn).min(t * accepted_margin / plan.canvas as f64).min(t * apart);
        last = sampled.iter().map(|s| s.argmax_margin).fold(f64::INFINITY, f64::min);
        let (tokens, pass, rows, mask) = (&now[..], &pass, &sampled[..], &accepted[..]);
        observe(&Seen::Step(Step {
            canvas,
            step,
            temperature,
            tokens,
            pass,
            sampled: rows,
            accepted: mask,
            accepted_margin,
            finished,
        }))?;
        made.steps.push(now.clone());
        made.result = argmax;
        if finished && given.is_none() {
            break;
        }
        let next = |p: usize| if accepted[p] { sampled[p].token } else { noise(step + 1, p) };
        now = (0..plan.canvas).map(next).collect();
        before = Some(temperature);
    }
    if let Some(given) = given {
        made.result.clone_from(&given.result);
    }
    Ok((made, margin.min(last)))
}

fn check(plan: &Plan<'_>, given: Option<&[Denoised]>) -> Result<(), Error> {
    let fault = |message: String| Err(Error::Input(message));
    if plan.canvases == 0 || plan.canvas == 0 || plan.sampler.max_steps == 0 {
        return fault("at least one canvas of one token and one step are needed".to_owned());
    }
    if given.is_some_and(<[_]>::is_empty) {
        return fault("a trajectory of no canvas".to_owned());
    }
    for (i, given) in given.into_iter().flatten().enumerate() {
        let (steps, most) = (given.steps.len(), plan.sampler.max_steps);
        if steps == 0 || steps > most {
            return fault(format!("canvas {i} of the trajectory has {steps} steps of at most {most}"));
        }
        if let Some(bad) = given.steps.iter().chain([&given.result]).find(|t| t.len() != plan.canvas) {
            return fault(format!(
                "canvas {i} of the trajectory has {} tokens, not {}",
                bad.len(),
                plan.canvas
            ));
        }
    }
    Ok(())
}

/// The temperature of a step, counted from 0: `t_max` on the first, from there in a line towards `t_min`.
#[must_use]
pub fn temperature(sampler: &EntropyBound, step: usize) -> f32 {
    let left = sampler.max_steps.saturating_sub(step) as f64 / sampler.max_steps as f64;
    let (min, max) = (f64::from(sampler.t_min), f64::from(sampler.t_max));
    (min + (max - min) * left) as f32
}

/// Reads a row with the draw `u`, from 0 up to 1: none where it has a NaN or no finite maximum.
#[must_use]
pub fn sample(row: &[f32], temperature: f32, u: f64) -> Option<Sampled> {
    if row.is_empty() || row.iter().any(|z| z.is_nan()) {
        return None;
    }
    let best = most_likely(row, None);
    let t = f64::from(temperature);
    let max = f64::from(row[best.token as usize]) / t;
    if !max.is_finite() {
        return None;
    }
    let below: Vec<f64> = row.iter().map(|&z| f64::from(z) / t - max).collect();
    let e: Vec<f64> = below.iter().map(|&z| libm::exp(z)).collect();
    let sum: f64 = e.iter().sum();
    // What has no weight adds nothing, also where it is infinitely far below.
    let spread: f64 = below.iter().zip(&e).filter(|(_, e)| **e > 0.0).map(|(z, e)| z * e).sum();
    let target = u * sum;
    let mut reached = 0.0;
    let mut found = (row.len() - 1, f64::INFINITY);
    for (i, e) in e.iter().enumerate() {
        let before = reached;
        reached += e;
        if reached >= target {
            found = (i, (target - before).min(reached - target));
            break;
        }
    }
    Some(Sampled {
        argmax: best.token,
        argmax_margin: best.margin,
        entropy: libm::log(sum) - spread / sum,
        token: u32::try_from(found.0).expect("tokens fit 32 bits"),
        token_margin: found.1 / sum,
    })
}

/// Which positions are accepted: the lowest entropies whose sum without the highest of them is within the bound, of
/// equals the lower position first; and how near such a sum came to the bound, or the highest accepted entropy to the
/// lowest of the others.
#[must_use]
pub fn accepted(entropies: &[f64], bound: f64) -> (Vec<bool>, f64) {
    let mut order: Vec<usize> = (0..entropies.len()).collect();
    order.sort_by(|&a, &b| entropies[a].total_cmp(&entropies[b]));
    let mut mask = vec![false; entropies.len()];
    let (mut sum, mut margin) = (0.0f64, f64::INFINITY);
    let mut before = f64::NEG_INFINITY;
    for position in order {
        // Nothing is before the first, which no noise refuses.
        if before > f64::NEG_INFINITY {
            margin = margin.min((bound - sum).abs());
        }
        // A NaN accepts nothing.
        if !(sum <= bound) {
            margin = margin.min(entropies[position] - before);
            break;
        }
        before = entropies[position];
        mask[position] = true;
        sum += entropies[position];
    }
    (mask, margin)
}

/// Whether a canvas is finished: the same most likely tokens for some steps, and little entropy.
struct Stop {
    last: Vec<Vec<u32>>,
    sampler: EntropyBound,
}

impl Stop {
    fn new(sampler: &EntropyBound) -> Self {
        Self { last: Vec::new(), sampler: *sampler }
    }

    fn finished(&mut self, argmax: &[u32], entropies: &[f64]) -> bool {
        let wanted = self.sampler.stability;
        let stable = self.last.len() >= wanted
            && self.last[self.last.len() - wanted..].iter().all(|tokens| tokens == argmax);
        self.last.push(argmax.to_vec());
        let mean = entropies.iter().sum::<f64>() / entropies.len() as f64;
        stable && mean < f64::from(self.sampler.confidence)
    }
}

/// The random tokens of a canvas of `length` that `step` would read had none been accepted.
#[must_use]
pub fn random_canvas(seed: u64, canvas: usize, step: usize, length: usize, n_vocab: usize) -> Vec<u32> {
    (0..length).map(|p| random_token(seed, [canvas, step, p], n_vocab)).collect()
}

/// The random token of a canvas, a step and a position.
fn random_token(seed: u64, at: [usize; 3], n_vocab: usize) -> u32 {
    let wide = u128::from(noise(seed, at, 0)) * n_vocab as u128;
    u32::try_from(wide >> 64).expect("below the size of the vocabulary")
}

/// The draw of a canvas, a step and a position.
fn draw(seed: u64, at: [usize; 3]) -> f64 {
    (noise(seed, at, 1) >> 11) as f64 / (1u64 << 53) as f64
}

fn noise(seed: u64, [canvas, step, position]: [usize; 3], purpose: u64) -> u64 {
    let finalise = |x: u64| {
        let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    let words = [canvas as u64, step as u64, position as u64, purpose];
    words.into_iter().fold(finalise(seed), |h, word| finalise(h ^ word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_by_hand() {
        // Probabilities 1/8, 1/2, 1/4, 1/8 at temperature 0.5.
        let row = [0.0, 4f32.ln() / 2.0, 2f32.ln() / 2.0, 0.0];
        let at = |u| sample(&row, 0.5, u).unwrap();
        assert_eq!(at(0.0).argmax, 1);
        assert!((at(0.0).entropy - 1.75 * std::f64::consts::LN_2).abs() < 1e-6);
        for (u, token) in [(0.0, 0), (0.12, 0), (0.13, 1), (0.62, 1), (0.63, 2), (0.9, 3), (0.999, 3)] {
            assert_eq!(at(u).token, token, "{u}");
        }
        assert!((at(0.13).token_margin - 0.005).abs() < 1e-6);
        assert_eq!(
            sample(&[2.0, 2.0, f32::NEG_INFINITY], 1.0, 0.999).map(|s| (s.argmax, s.token)),
            Some((0, 1))
        );
        for bad in [&[1.0, f32::NAN][..], &[f32::NEG_INFINITY], &[f32::INFINITY, 1.0], &[]] {
            assert_eq!(sample(bad, 1.0, 0.5), None, "{bad:?}");
        }
    }

    #[test]
    fn positions_are_accepted_up_to_the_bound_and_one_always() {
        assert_eq!(accepted(&[0.3, 0.05, 0.01, 0.06], 0.1).0, [false, true, true, true]);
        assert_eq!(accepted(&[2.0, 1.0, 1.0], 0.1).0, [false, true, false]);
        assert!((accepted(&[0.3, 0.05, 0.01, 0.06], 0.1).1 - 0.02).abs() < 1e-12);
        assert_eq!(accepted(&[0.5], f64::NAN).0, [false]);
    }

    #[test]
    fn a_canvas_ends_when_it_repeats_itself_with_little_entropy() {
        let mut stop = Stop::new(&EntropyBound::default());
        assert!(!stop.finished(&[1], &[0.001]));
        assert!(stop.finished(&[1], &[0.001]));
        assert!(!stop.finished(&[1], &[0.005]) && !stop.finished(&[2], &[0.001]));
        assert!(!stop.finished(&[2], &[f64::NAN]));
        assert!(Stop::new(&EntropyBound { stability: 0, ..EntropyBound::default() }).finished(&[1], &[0.0]));
    }

    #[test]
    fn the_temperature_begins_at_its_highest() {
        let sampler = EntropyBound { max_steps: 4, t_min: 0.5, t_max: 1.0, ..EntropyBound::default() };
        assert_eq!([0, 1, 3].map(|step| temperature(&sampler, step)), [1.0, 0.875, 0.625]);
    }

    #[test]
    fn noise_is_in_range_and_differs_by_purpose() {
        let tokens: Vec<u32> = (0..1000).map(|p| random_token(7, [0, 0, p], 5)).collect();
        assert!((0..5).all(|t| tokens.iter().filter(|&&x| x == t).count() > 150));
        let draws: Vec<f64> = (0..1000).map(|p| draw(7, [0, 0, p])).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        assert!((draws.iter().sum::<f64>() / 1000.0 - 0.5).abs() < 0.03);
        assert_ne!(noise(7, [0, 1, 2], 0), noise(7, [1, 0, 2], 0));
    }
}
