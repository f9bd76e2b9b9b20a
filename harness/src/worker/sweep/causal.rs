//! An autoregressive model's answer: token after token up to the model's own end.

use super::SweepTask;
use super::kept::Generated;
use super::watch::Watch;
use runtime::Session;
use runtime::generate::autoregressive;

/// Generates after the prompt: freely, or along `given`.
pub(super) fn generate(
    session: &mut Session,
    task: &SweepTask,
    end: &[u32],
    given: Option<&Generated>,
    watch: &mut Watch,
) -> Result<Generated, runtime::Error> {
    let (prompt, n) = (&task.input.tokens, task.input.follow);
    let options = &task.id.arm.case.options;
    let plan = autoregressive::Plan { n, sampling: options.causal.sampling(&options.draws), end };
    let given = given.map(|given| given.tokens.as_slice());
    session.reset_cache(prompt.len() + n.max(given.map_or(0, <[u32]>::len)))?;
    let done = autoregressive::generate(session, prompt, &plan, given, |step, logits| {
        watch.row(prompt.len() - 1 + step, step, logits.row(0));
    })?;
    Ok(Generated { tokens: done.tokens, order: Vec::new(), margins: done.margins })
}
