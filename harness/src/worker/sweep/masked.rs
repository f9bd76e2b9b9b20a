//! A masked model's answer: a canvas of masks behind the prompt, unmasked step by step.

use super::SweepTask;
use super::kept::{Decision, Generated};
use super::watch::Watch;
use runtime::Session;
use runtime::generate::masked::{self, Plan, Sampling, Unmask};

/// Generates behind the prompt: freely, or in the order of `given`.
pub(super) fn generate(
    session: &mut Session,
    task: &SweepTask,
    given: Option<&Generated>,
    watch: &mut Watch,
) -> Result<Generated, runtime::Error> {
    let (input, case) = (&task.input, &task.id.arm.case);
    let (options, draws) = (&case.options.masked, &case.options.draws);
    let plan = Plan {
        masks: input.follow,
        steps: input.steps,
        schedule: input.schedule,
        remasking: options.remasking(),
        sampling: Sampling { temperature: draws.temperature(), seed: draws.seed() },
        cache: options.cache_use(case.mode),
        keep_kv: false,
    };
    let shift = session.hparams().shift_logits;
    let given: Option<Vec<Unmask>> = given.map(|given| given.order.iter().map(unmask).collect());
    let done = masked::generate(session, &input.tokens, plan, given.as_deref(), |view| {
        for (i, &position) in view.masked.iter().enumerate() {
            let read = if shift { position.saturating_sub(1) } else { position };
            watch.row(read, view.step, view.logits.row(i));
        }
    })?;
    Ok(generated(&done, input.tokens.len()))
}

fn unmask(decision: &Decision) -> Unmask {
    let Decision { step, position, token } = *decision;
    Unmask { step, position, token, margin: f64::INFINITY }
}

/// What was generated. The margin of a token is the smallest of all decisions up to the one that made it, since an
/// earlier flip changes what later steps see; a mask that was left has that of the last.
fn generated(done: &masked::Generated, prompt: usize) -> Generated {
    let smallest = done.unmasked.iter().map(|u| u.margin).fold(f64::INFINITY, f64::min);
    let mut margins = vec![smallest; done.tokens.len() - prompt];
    let mut so_far = f64::INFINITY;
    for unmasked in &done.unmasked {
        so_far = so_far.min(unmasked.margin);
        margins[unmasked.position - prompt] = so_far;
    }
    let decision = |u: &Unmask| Decision { step: u.step, position: u.position, token: u.token };
    Generated {
        tokens: done.tokens[prompt..].to_vec(),
        order: done.unmasked.iter().map(decision).collect(),
        margins,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_shrink_along_the_trajectory() {
        let unmask = |step, position, margin| Unmask { step, position, token: 9, margin };
        let unmasked = vec![unmask(0, 2, 4.0), unmask(1, 4, 1.0), unmask(2, 1, 3.0)];
        let done = masked::Generated { tokens: vec![5, 9, 9, 7, 9], unmasked, mask: 7 };
        let generated = generated(&done, 1);
        assert_eq!(generated.margins, [1.0, 4.0, 1.0, 1.0]);
        assert_eq!(generated.tokens, [9, 9, 7, 9]);
        assert_eq!(generated.order[1], Decision { step: 1, position: 4, token: 9 });
    }
}
