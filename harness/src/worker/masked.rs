//! The modes of masked diffusion: `full`, `full-cache`, `sparse` and `generate`.
//!
//! Generations are computed along the reference's own trajectory, so that one flipped near-tie does not spoil every
//! later step, and once more free running. Where the cache is used, the device is also held against itself without it.

use super::exchange::{Tokens, int, layers, open, record_routing, routing, rows, shape, signed, unsigned};
use super::protocol::{Failure, FailureKind, JobCell};
use super::step_kv::StepKvs;
use crate::capture::{CaptureReader, CaptureWriter, Check, CheckBound, Traffic, Unmask};
use crate::compare::Nmse;
use crate::plan::KvType;
use runtime::generate::masked::{self, CacheUse, Plan};
use runtime::{LayerKv, Logits, Rows, Session};

/// What a mode finds out beside its capture.
#[derive(Default)]
pub(super) struct Findings {
    /// What the device does against itself.
    pub(super) checks: Vec<Check>,
    /// What the captured run moved, without the runs that it is checked with.
    pub(super) traffic: Option<Traffic>,
    /// What a reader of the capture should know.
    pub(super) notes: Vec<String>,
}

/// The prompt and its masks.
fn canvas(session: &Session, cell: &JobCell) -> Vec<u32> {
    let mask = session.hparams().mask_token.unwrap_or(0);
    let mut tokens = cell.inputs.prompt.clone();
    tokens.resize(tokens.len() + cell.inputs.follow, mask);
    tokens
}

/// One forward pass without a cache, every row.
pub(super) fn full(session: &mut Session, cell: &JobCell, writer: &mut CaptureWriter) -> Tokens {
    let tokens = canvas(session, cell);
    record_routing(session, cell.replay.as_deref())?;
    let pass = session.full(&tokens, Rows::All, true).map_err(|e| Failure::from(&e))?;
    routing(writer, session);
    rows(writer, &pass.logits, 0, 0);
    writer.tokens(&signed(&tokens));
    layers(writer, session.hparams(), &pass.kv);
    Ok(None)
}

/// One forward pass through the cache, every row; keys and values as the cache holds them afterwards.
pub(super) fn full_cache(
    session: &mut Session,
    cell: &JobCell,
    writer: &mut CaptureWriter,
    found: &mut Findings,
) -> Tokens {
    let tokens = canvas(session, cell);
    session.reset_cache(tokens.len()).map_err(|e| Failure::from(&e))?;
    record(session);
    record_routing(session, cell.replay.as_deref())?;
    let logits = session.full_cached(&tokens, Rows::All).map_err(|e| Failure::from(&e))?;
    let worked = routing(writer, session);
    rows(writer, &logits, 0, 0);
    writer.tokens(&signed(&tokens));
    let kv = session.read_cache().map_err(|e| Failure::from(&e))?;
    layers(writer, session.hparams(), &kv);
    before_storing(session, writer);

    found.traffic = Some(session.traffic());
    // Storing in fewer bits changes keys and values; computing must not.
    let exact = cell.id.case.options.kv == KvType::F32;
    session.renew().map_err(|e| Failure::from(&e))?;
    session.follow_experts(Some(worked));
    let without = session.full(&tokens, Rows::All, exact).map_err(|e| Failure::from(&e))?;
    session.follow_experts(None);
    let check =
        |name: &str, value, bound| Check { name: name.to_owned(), value, bound, detail: String::new() };
    let value = nmse([(&without.logits.values, &logits.values)]);
    found.checks.push(check("logits through the cache against those without", value, CheckBound::Logits));
    if exact {
        let pairs = |of: fn(&LayerKv) -> &Vec<f32>| {
            let each = without.kv.iter().zip(&kv).map(|(r, x)| nmse([(of(r), of(x))]));
            each.fold(0.0, |a: f64, b| if b.is_nan() { b } else { a.max(b) })
        };
        let (k, v) = (pairs(|layer| &layer.k), pairs(|layer| &layer.v));
        found.checks.push(check(
            "keys in the cache against those without, the worst layer",
            k,
            CheckBound::Kv,
        ));
        found.checks.push(check(
            "values in the cache against those without, the worst layer",
            v,
            CheckBound::Kv,
        ));
    }
    Ok(None)
}

/// A masked generation: on the reference's trajectory and by its experts, the rows of every step and the keys and
/// values at the end; then a free run.
pub(super) fn generate(
    session: &mut Session,
    cell: &JobCell,
    writer: &mut CaptureWriter,
    found: &mut Findings,
) -> Tokens {
    let inputs = &cell.inputs;
    let plan = plan(cell);
    let reference = cell.replay.as_deref().map(open).transpose()?;
    let given = reference.as_ref().map(trajectory).transpose()?;
    let mut by_step = StepKvs::new(session.hparams(), reference.as_ref());
    if plan.cache != CacheUse::None {
        record(session);
    }
    record_routing(session, cell.replay.as_deref())?;
    let shift = session.hparams().shift_logits;
    let mut steps = Vec::new();
    let forced = masked::generate(session, &inputs.prompt, plan, given.as_deref(), |view| {
        for (i, &position) in view.masked.iter().enumerate() {
            let read = if shift { position.saturating_sub(1) } else { position };
            writer.row(int(read), int(view.step), view.logits.row(i));
        }
        by_step.push(view.step, view.active, |positions| view.kv.rows(positions));
        if plan.cache != CacheUse::None {
            steps.push(view.logits.clone());
        }
    })
    .map_err(|e| Failure::from(&e))?;
    writer.tokens(&signed(&forced.tokens));
    let kv = at_the_end(session, plan, &forced).map_err(|e| Failure::from(&e))?;
    layers(writer, session.hparams(), &kv);
    let worked = routing(writer, session);
    before_storing(session, writer);
    found.notes.extend(by_step.write(writer, session.hparams())?);
    writer.unmask(&Unmask {
        step: forced.unmasked.iter().map(|u| int(u.step)).collect(),
        position: forced.unmasked.iter().map(|u| int(u.position)).collect(),
        token: signed(&forced.unmasked.iter().map(|u| u.token).collect::<Vec<_>>()),
    });
    found.traffic = Some(session.traffic());
    if plan.cache != CacheUse::None {
        // A sparse cache computes other rows.
        session.follow_experts(Some(worked).filter(|_| plan.cache == CacheUse::Full));
        let check = against_no_cache(session, cell, plan, &forced, &steps);
        session.follow_experts(None);
        found.checks.push(check.map_err(|e| Failure::from(&e))?);
    }
    let free = match given {
        None => forced,
        Some(_) => {
            let plan = Plan { keep_kv: false, ..plan };
            masked::generate(session, &inputs.prompt, plan, None, |_| {}).map_err(|e| Failure::from(&e))?
        }
    };
    writer.greedy(&signed(&free.tokens));
    writer.greedy_margin(&margins(&free));
    Ok(Some(free.resolved(inputs.prompt.len())))
}

/// The logits of all steps against those of the same device without a cache, along the same trajectory. A sparse cache
/// is an approximation, whose error is reported; a full one must agree.
fn against_no_cache(
    session: &mut Session,
    cell: &JobCell,
    plan: Plan,
    forced: &masked::Generated,
    steps: &[Logits],
) -> Result<Check, runtime::Error> {
    let (name, bound) = match plan.cache {
        CacheUse::Sparse(_) => ("logits of sparse steps against full ones", CheckBound::Reported),
        _ => ("logits through the cache against those without", CheckBound::Logits),
    };
    let mut without = Vec::new();
    let plan = Plan { cache: CacheUse::None, keep_kv: false, ..plan };
    session.renew()?;
    masked::generate(session, &cell.inputs.prompt, plan, Some(&forced.unmasked), |view| {
        without.push(view.logits.clone());
    })?;
    let pairs = || without.iter().zip(steps).map(|(r, x)| (&r.values, &x.values));
    let worst = pairs().map(|pair| nmse([pair])).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let detail = worst.map(|(step, value)| format!("worst step {step}: {value:.1e}")).unwrap_or_default();
    Ok(Check { name: name.to_owned(), value: nmse(pairs()), bound, detail })
}

/// NMSE over pairs of reference and test.
fn nmse<'a>(pairs: impl IntoIterator<Item = (&'a Vec<f32>, &'a Vec<f32>)>) -> f64 {
    let mut sums = Nmse::default();
    for (r, x) in pairs.into_iter().flat_map(|(r, x)| r.iter().zip(x)) {
        sums.add(f64::from(*r), f64::from(*x));
    }
    sums.value()
}

/// What the inputs and the options make of a generation.
pub(super) fn plan(cell: &JobCell) -> Plan {
    let (inputs, case) = (&cell.inputs, &cell.id.case);
    let (options, draws) = (&case.options.masked, &case.options.draws);
    Plan {
        masks: inputs.follow,
        steps: inputs.steps,
        schedule: inputs.schedule,
        remasking: options.remasking(),
        sampling: masked::Sampling { temperature: draws.temperature(), seed: draws.seed() },
        cache: options.cache_use(case.mode),
        keep_kv: true,
    }
}

/// Keys and values after a generation: those of the cache, or of one more forward where there is none.
fn at_the_end(
    session: &mut Session,
    plan: Plan,
    generated: &masked::Generated,
) -> Result<Vec<LayerKv>, runtime::Error> {
    match plan.cache {
        // The one graph that is larger than those before it: see `Session::renew`.
        CacheUse::None => {
            session.renew()?;
            Ok(session.full(&generated.tokens, Rows::Only(&[]), true)?.kv)
        }
        CacheUse::Full | CacheUse::Sparse(_) => session.read_cache(),
    }
}

/// The margin of each token: the smallest of all decisions up to the step that chose it, since an earlier
/// flip changes what later steps see. Infinite for the prompt; for a mask that was left that of the last decision.
fn margins(free: &masked::Generated) -> Vec<f32> {
    let smallest = free.unmasked.iter().map(|u| u.margin).fold(f64::INFINITY, f64::min);
    let masked = |&token: &u32| if token == free.mask { smallest as f32 } else { f32::INFINITY };
    let mut margins: Vec<f32> = free.tokens.iter().map(masked).collect();
    let mut smallest = f64::INFINITY;
    for unmask in &free.unmasked {
        smallest = smallest.min(unmask.margin);
        margins[unmask.position] = smallest as f32;
    }
    margins
}

/// Records what a quantised cache is given to store.
fn record(session: &mut Session) {
    if session.kv_type().is_quantised() {
        session.record_before_storing();
    }
}

/// Writes what was recorded: for each position what it was last given. Recording ends.
fn before_storing(session: &mut Session, writer: &mut CaptureWriter) {
    for (layer, kv) in session.take_recorded().iter().enumerate() {
        let shape = shape(session.hparams(), layer, kv.k.len());
        writer.layer_before_storing(layer, &kv.k, &kv.v, shape);
    }
}

/// The order in which the reference unmasked.
fn trajectory(reference: &CaptureReader) -> Result<Vec<masked::Unmask>, Failure> {
    let path = reference.path();
    let unmask = reference.unmask().ok_or_else(|| Failure {
        kind: FailureKind::Input,
        message: format!("the reference {} has no trajectory", path.display()),
    })?;
    let step = unsigned(path, &unmask.step)?;
    let position = unsigned(path, &unmask.position)?;
    let token = unsigned(path, &unmask.token)?;
    let unmask = |((step, position), token): ((u32, u32), u32)| masked::Unmask {
        step: step as usize,
        position: position as usize,
        token,
        margin: f64::INFINITY,
    };
    Ok(step.into_iter().zip(position).zip(token).map(unmask).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::generate::masked::Generated;

    #[test]
    fn margins_shrink_along_the_trajectory_and_a_mask_left_over_has_the_last() {
        let unmask = |step, position, margin| masked::Unmask { step, position, token: 9, margin };
        let unmasked = vec![unmask(0, 2, 4.0), unmask(1, 4, 1.0), unmask(2, 1, 3.0)];
        let free = Generated { tokens: vec![5, 9, 9, 7, 9], unmasked, mask: 7 };
        assert_eq!(margins(&free), [f32::INFINITY, 1.0, 4.0, 1.0, 1.0]);
    }
}
