//! The autoregressive modes. Every arm reads the same tokens: where a mode chooses them, those of the reference.

use super::exchange::{Tokens, int, layers, open, rows, shape, signed, unsigned};
use super::protocol::{Failure, FailureKind, JobCell};
use super::step_kv::{StepKvs, once};
use crate::capture::{CaptureReader, CaptureWriter, Check, CheckBound, LayerProfile};
use crate::compare::Nmse;
use crate::plan::Attention;
use model_file::{Model, Tokenizer};
use runtime::generate::{autoregressive, most_likely, profile, speculative};
use runtime::{LayerKv, Logits, Rows, Session};
use std::path::Path;

/// What a mode works with.
pub(super) struct Bench<'a> {
    pub(super) session: &'a mut Session,
    pub(super) cell: &'a JobCell,
    pub(super) model: &'a Model,
    pub(super) writer: &'a mut CaptureWriter,
    /// What the mode finds out about its own device.
    pub(super) checks: Vec<Check>,
    /// What a reader of the capture should know.
    pub(super) notes: Vec<String>,
}

fn failed(error: runtime::Error) -> Failure {
    Failure::from(&error)
}

impl Bench<'_> {
    /// The prompt into an empty cache, every row.
    pub(super) fn prefill(&mut self) -> Tokens {
        let tokens = &self.cell.inputs.prompt;
        self.empty_cache(tokens.len())?;
        let hidden = self.hidden_row()?;
        let logits = self.session.extend(tokens, Rows::All).map_err(failed)?;
        for row in (0..logits.rows()).filter(|row| Some(*row) != hidden) {
            self.writer.row(int(row), 0, logits.row(row));
        }
        self.writer.tokens(&signed(tokens));
        self.write_cache()?;
        if let Some(hidden) = hidden {
            self.against_no_hidden_row(hidden, &logits)?;
        }
        if self.cell.id.case.options.attn == Attention::Flash {
            self.against_explicit(hidden, &logits)?;
        }
        Ok(None)
    }

    /// The row that sees nothing, if one is to.
    fn hidden_row(&self) -> Result<Option<usize>, Failure> {
        let n = self.cell.inputs.prompt.len();
        match self.cell.id.case.options.causal.hidden.map(|row| row as usize) {
            Some(row) if row >= n => {
                let message = format!("row {row} is to be hidden, of {n} tokens");
                Err(Failure { kind: FailureKind::Input, message })
            }
            hidden => Ok(hidden),
        }
    }

    /// What the device gave in a row that sees nothing, and whether the other rows are what they are without one.
    fn against_no_hidden_row(&mut self, hidden: usize, logits: &Logits) -> Result<(), Failure> {
        let tokens = &self.cell.inputs.prompt;
        fresh(self.session, tokens.len())?;
        self.session.set_hidden(None);
        let plain = self.session.extend(tokens, Rows::All).map_err(failed);
        self.session.set_hidden(Some(hidden));
        let [with, without] = [logits, &plain?].map(|logits| without_row(logits, Some(hidden)));
        let name = "rows beside one that sees nothing against the same without one";
        self.checks.push(apart(name, &without, &with, CheckBound::Logits));
        let row = logits.row(hidden);
        let odd = row.iter().filter(|value| !value.is_finite()).count();
        self.checks.push(Check {
            name: "logits that are not finite in the row that sees nothing".to_owned(),
            value: odd as f64,
            bound: CheckBound::Reported,
            detail: format!("row {hidden}, {} values", row.len()),
        });
        Ok(())
    }

    /// Flash attention against explicit attention.
    fn against_explicit(&mut self, hidden: Option<usize>, flash: &Logits) -> Result<(), Failure> {
        let tokens = &self.cell.inputs.prompt;
        fresh(self.session, tokens.len())?;
        self.session.set_attention(runtime::Attention::Explicit);
        let explicit = self.session.extend(tokens, Rows::All).map_err(failed);
        self.session.set_attention(runtime::Attention::Flash);
        let [flash, explicit] = [flash, &explicit?].map(|logits| without_row(logits, hidden));
        let name = "flash attention against explicit attention";
        self.checks.push(apart(name, &explicit, &flash, CheckBound::Logits));
        Ok(())
    }

    /// Two thirds of the prompt, then the rest in one batch, whose rows are kept.
    pub(super) fn batch(&mut self) -> Tokens {
        let tokens = &self.cell.inputs.prompt;
        let cached = self.at_least(2, "batch")? * 2 / 3;
        self.empty_cache(tokens.len())?;
        self.session.extend(&tokens[..cached], Rows::Last).map_err(failed)?;
        let logits = self.session.extend(&tokens[cached..], Rows::All).map_err(failed)?;
        rows(self.writer, &logits, cached, 1);
        self.writer.tokens(&signed(tokens));
        self.write_cache()?;
        self.writer.step_rows(&once([0, cached], tokens.len()));
        Ok(None)
    }

    /// The prompt, then one token after the other: the reference's own choice on every arm, and a free run.
    pub(super) fn decode(&mut self) -> Tokens {
        let (prompt, n) = (&self.cell.inputs.prompt, self.cell.inputs.follow);
        let given = self.given()?;
        self.empty_cache(prompt.len() + n)?;
        let logits = self.session.extend(prompt, Rows::Last).map_err(failed)?;
        self.decode_after(&logits, given.as_deref(), Self::prompt_again)
    }

    /// The prompt again, for a free run.
    fn prompt_again(&mut self) -> Result<Logits, Failure> {
        let (prompt, n) = (&self.cell.inputs.prompt, self.cell.inputs.follow);
        self.session.reset_cache(prompt.len() + n).map_err(failed)?;
        self.session.extend(prompt, Rows::Last).map_err(failed)
    }

    /// Decodes along `given` after a prompt whose last row is `logits`, and once more freely where `given` is not
    /// the session's own choice.
    fn decode_after(
        &mut self,
        logits: &Logits,
        given: Option<&[u32]>,
        again: impl FnOnce(&mut Self) -> Result<Logits, Failure>,
    ) -> Tokens {
        let (prompt, n) = (&self.cell.inputs.prompt, self.cell.inputs.follow);
        let mut margins = Vec::new();
        let margin = |logits: &Logits| most_likely(logits.row(0), None).margin as f32;
        let writer = &mut *self.writer;
        let tokens = autoregressive::decode_after(self.session, logits.clone(), n, given, |step, logits| {
            rows(writer, logits, prompt.len() - 1 + step, step);
            margins.push(margin(logits));
        })
        .map_err(failed)?;
        self.writer.tokens(&signed(&[prompt.as_slice(), &tokens].concat()));
        self.write_cache()?;
        self.write_decoded_steps();
        let free = match given {
            None => tokens,
            Some(_) => {
                margins.clear();
                let logits = again(self)?;
                autoregressive::decode_after(self.session, logits, n, None, |_, logits| {
                    margins.push(margin(logits));
                })
                .map_err(failed)?
            }
        };
        // The last row chose no token of the free run.
        margins.truncate(free.len());
        self.writer.greedy(&signed(&free));
        self.writer.greedy_margin(&margins);
        Ok(Some(free))
    }

    /// The prompt with a profile of the layers, then decoding without those that matter least: the reference's
    /// choice on every arm. Whether this arm would have chosen the same is a check.
    pub(super) fn profile(&mut self) -> Tokens {
        let (prompt, n) = (&self.cell.inputs.prompt, self.cell.inputs.follow);
        let wanted = self.cell.id.case.options.causal.skipped();
        let given = self.given()?;
        self.session.reset_cache(prompt.len() + n).map_err(failed)?;
        let (logits, impact) = profile::prefill(self.session, prompt).map_err(failed)?;
        let own = profile::least(&impact, wanted).map_err(failed)?;
        let skipped = match &self.cell.replay {
            None => own,
            Some(path) => {
                let reference = open(path)?;
                let theirs = reference.profile().ok_or_else(|| lacks(path, "profile"))?;
                let skipped: Vec<usize> =
                    unsigned(path, &theirs.skipped)?.into_iter().map(|l| l as usize).collect();
                self.checks.extend(profile_checks(&theirs.impact, &impact, &skipped, &own));
                skipped
            }
        };
        let last = logits.rows() - 1;
        for row in 0..last {
            self.writer.row(int(row), 0, logits.row(row));
        }
        let logits = Logits { vocab: logits.vocab, values: logits.row(last).to_vec() };
        let layers = skipped.iter().map(|&layer| int(layer)).collect();
        self.writer.profile(&LayerProfile { impact, skipped: layers });
        self.session.skip_layers(&skipped).map_err(failed)?;
        let done = self.decode_after(&logits, given.as_deref(), |bench| {
            bench.session.skip_layers(&[]).map_err(failed)?;
            let logits = bench.prompt_again()?;
            bench.session.skip_layers(&skipped).map_err(failed)?;
            Ok(logits)
        });
        self.session.skip_layers(&[]).map_err(failed)?;
        done
    }

    /// Text after the prompt as the options say, up to the model's own end: along the reference's, then freely.
    pub(super) fn generate(&mut self) -> Tokens {
        let (prompt, n) = (&self.cell.inputs.prompt, self.cell.inputs.follow);
        let tokenizer = Tokenizer::from_gguf(&self.model.file).map_err(|e| failed(e.into()))?;
        let options = &self.cell.id.case.options;
        let sampling = options.causal.sampling(&options.draws);
        let plan = autoregressive::Plan { n, sampling, end: tokenizer.eog_ids() };
        let given = self.given()?;
        self.empty_cache(prompt.len() + n)?;
        let writer = &mut *self.writer;
        let forced =
            autoregressive::generate(self.session, prompt, &plan, given.as_deref(), |step, logits| {
                rows(writer, logits, prompt.len() - 1 + step, step);
            })
            .map_err(failed)?;
        self.writer.tokens(&signed(&[prompt.as_slice(), &forced.tokens].concat()));
        self.write_cache()?;
        self.write_decoded_steps();
        let free = match given {
            None => forced,
            Some(_) => {
                self.session.reset_cache(prompt.len() + n).map_err(failed)?;
                autoregressive::generate(self.session, prompt, &plan, None, |_, _| {}).map_err(failed)?
            }
        };
        self.writer.greedy(&signed(&free.tokens));
        self.writer.greedy_margin(&free.margins.iter().map(|&m| m as f32).collect::<Vec<_>>());
        Ok(Some(free.tokens))
    }

    /// Speculative decoding: the reference's batches, refused tokens and all, on every arm, and a free run, which
    /// is held against plain greedy decoding on the same device.
    pub(super) fn speculative(&mut self, draft: &mut Session) -> Tokens {
        let (prompt, n) = (&self.cell.inputs.prompt, self.cell.inputs.follow);
        let capacity = prompt.len() + n;
        let ahead = self.cell.id.case.options.causal.proposals();
        let mut plain = Vec::new();
        self.session.reset_cache(capacity).map_err(failed)?;
        let greedy = autoregressive::decode(self.session, prompt, n, None, |_, row| plain.push(row.clone()))
            .map_err(failed)?;

        fresh(self.session, capacity)?;
        draft.reset_cache(capacity).map_err(failed)?;
        let mut own: Vec<(usize, Vec<u32>, Logits)> = Vec::new();
        let free = speculative::decode(self.session, draft, prompt, n, ahead, |checked| {
            own.push((checked.position, checked.tokens.to_vec(), checked.logits.clone()));
        })
        .map_err(failed)?;
        self.checks.extend(speculative_checks(prompt, &greedy, &plain, &free, &own));

        let batches = match &self.cell.replay {
            None => own.into_iter().map(|(position, tokens, _)| (position, tokens)).collect(),
            Some(path) => batches_of(&open(path)?, path, prompt.len())?,
        };
        fresh(self.session, capacity)?;
        let mut fed = prompt.clone();
        let writer = &mut *self.writer;
        // What a batch computes and the target refuses is overwritten by the next one.
        let mut steps = step_kvs(self.session, self.cell)?;
        speculative::replay(self.session, prompt, &batches, |target, checked| {
            rows(writer, checked.logits, checked.position, checked.batch);
            fed.extend(checked.tokens);
            // The prompt counts as a part of the first batch.
            let first = if checked.batch == 0 { 0 } else { checked.position };
            let computed: Vec<usize> = (first..target.cached()).collect();
            steps.push(checked.batch, &computed, |positions| target.read_cache_rows(positions));
        })
        .map_err(failed)?;
        self.writer.tokens(&signed(&fed));
        self.write_cache()?;
        self.notes.extend(steps.write(self.writer, self.session.hparams())?);
        self.writer.greedy(&signed(&free.tokens));
        self.writer.greedy_margin(&free.margins.iter().map(|&m| m as f32).collect::<Vec<_>>());
        Ok(Some(free.tokens))
    }

    /// A cache that is saved and restored, that diverges and returns, and that is shifted.
    pub(super) fn lifecycle(&mut self) -> Tokens {
        const KEEP: usize = 2;
        let tokens = self.cell.inputs.prompt.clone();
        let cached = self.at_least(9, "lifecycle")? * 2 / 3;
        let (prompt, rest) = tokens.split_at(cached);
        // Another continuation of the same length.
        let other: Vec<u32> = prompt.iter().rev().take(rest.len()).copied().collect();
        let session = &mut *self.session;
        fresh(session, tokens.len())?;
        let mut steps = step_kvs(session, self.cell)?;
        let mut step = |session: &Session, step, first: usize| {
            let computed: Vec<usize> = (first..session.cached()).collect();
            steps.push(step, &computed, |positions| session.read_cache_rows(positions));
        };

        let whole = session.extend(prompt, Rows::All).map_err(failed)?;
        rows(self.writer, &whole, 0, 0);
        step(session, 0, 0);
        let saved = session.save_cache().map_err(failed)?;
        let on = session.extend(rest, Rows::All).map_err(failed)?;
        rows(self.writer, &on, cached, 1);
        step(session, 1, cached);
        let after = session.read_cache().map_err(failed)?;

        fresh(session, tokens.len())?;
        session.restore_cache(&saved).map_err(failed)?;
        let restored = session.extend(rest, Rows::All).map_err(failed)?;
        self.checks.push(exact("going on from a restored cache against going on", &on, &restored));

        session.truncate(cached).map_err(failed)?;
        let diverged = session.extend(&other, Rows::All).map_err(failed)?;
        rows(self.writer, &diverged, cached, 2);
        step(session, 2, cached);
        session.truncate(cached).map_err(failed)?;
        let returned = session.extend(rest, Rows::All).map_err(failed)?;
        self.checks.push(exact("diverging and returning against going on", &on, &returned));

        // Drops a third of the prompt after the first two tokens, and goes on.
        let drop = (cached / 3).max(1);
        session.shift(KEEP, drop).map_err(failed)?;
        let shifted = session.read_cache().map_err(failed)?;
        let left = session.cached();
        let beyond = other.len().min(drop);
        let moved = session.extend(&other[..beyond], Rows::All).map_err(failed)?;
        rows(self.writer, &moved, left, 3);
        step(session, 3, left);
        self.writer.tokens(&signed(&[&tokens[..], &other, &other[..beyond]].concat()));
        layers(self.writer, session.hparams(), &session.read_cache().map_err(failed)?);
        self.notes.extend(steps.write(self.writer, session.hparams())?);

        let again = |session: &mut Session, tokens: &[u32], rest: &[u32]| {
            fresh(session, tokens.len() + rest.len())?;
            session.extend(tokens, Rows::Last).map_err(failed)?;
            let kv = session.read_cache().map_err(failed)?;
            Ok::<_, Failure>((session.extend(rest, Rows::All).map_err(failed)?, kv))
        };
        let short = [&tokens[..KEEP], &tokens[KEEP + drop..]].concat();
        let (logits, kv) = again(session, &short, &other[..beyond])?;
        let reported = CheckBound::Reported;
        let first = |kv: &[LayerKv]| kv.first().map(|layer| layer.k.clone()).unwrap_or_default();
        self.checks.push(apart(
            "keys of the first layer after a shift against recomputing",
            &first(&kv),
            &first(&shifted),
            // A quantised cache has rounded the one twice and the other once.
            if session.kv_type().is_quantised() { CheckBound::Reported } else { CheckBound::Kv },
        ));
        self.checks.push(apart(
            "logits after a shift against recomputing",
            &logits.values,
            &moved.values,
            reported,
        ));

        // The same graph again and again.
        const RUNS: usize = 20;
        fresh(session, tokens.len())?;
        session.extend(prompt, Rows::Last).map_err(failed)?;
        let mut first: Option<Logits> = None;
        let mut others = 0;
        for _ in 0..RUNS {
            session.truncate(cached).map_err(failed)?;
            let logits = session.extend(rest, Rows::All).map_err(failed)?;
            let bits = |logits: &Logits| logits.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            others += usize::from(first.as_ref().is_some_and(|first| bits(first) != bits(&logits)));
            first.get_or_insert(logits);
        }
        self.checks.push(Check {
            name: "identical runs that differ from the first in a bit".to_owned(),
            value: others as f64,
            bound: CheckBound::Reported,
            detail: format!("of {RUNS}"),
        });

        // One graph for all of it, single tokens after the prompt, and smaller pieces.
        let all = [prompt, &other].concat();
        fresh(session, all.len())?;
        let scratch = session.extend(&all, Rows::All).map_err(failed)?;
        let tail = &scratch.values[cached * scratch.vocab..];
        self.checks.push(apart(
            "a reused prefix against recomputing",
            tail,
            &diverged.values,
            CheckBound::Logits,
        ));
        fresh(session, tokens.len())?;
        session.extend(prompt, Rows::Last).map_err(failed)?;
        let mut decoded = Vec::new();
        for token in rest {
            decoded.extend(session.extend(&[*token], Rows::Last).map_err(failed)?.values);
        }
        self.checks.push(apart(
            "one token after the other against one batch",
            &on.values,
            &decoded,
            CheckBound::Logits,
        ));
        let flat = |kv: &[LayerKv]| kv.iter().flat_map(|l| [&l.k[..], &l.v].concat()).collect::<Vec<_>>();
        let (usual, whole) = (session.micro_batch(), [whole.values, on.values].concat());
        for size in [1, 7, 32] {
            session.set_micro_batch(Some(size));
            let pieces = fresh(session, tokens.len()).and_then(|()| {
                let logits = session.extend(&tokens, Rows::All).map_err(failed)?;
                Ok((logits, session.read_cache().map_err(failed)?))
            });
            session.set_micro_batch(usual);
            let (pieces, kv) = pieces?;
            let name = format!("micro-batches of {size} against longer ones");
            self.checks.push(apart(&name, &whole, &pieces.values, CheckBound::Logits));
            self.checks.push(apart(&format!("K/V of {name}"), &flat(&after), &flat(&kv), CheckBound::Kv));
        }
        Ok(None)
    }

    /// The length of the prompt, if it is at least so much.
    fn at_least(&self, least: usize, mode: &str) -> Result<usize, Failure> {
        let n = self.cell.inputs.prompt.len();
        if n >= least {
            return Ok(n);
        }
        let message = format!("a prompt of {n} tokens for mode {mode}, which needs {least}");
        Err(Failure { kind: FailureKind::Input, message })
    }

    /// Empties the cache and, where it is a quantised one, records what it is given to store.
    fn empty_cache(&mut self, capacity: usize) -> Result<(), Failure> {
        self.session.reset_cache(capacity).map_err(failed)?;
        if self.session.kv_type().is_quantised() {
            self.session.record_before_storing();
        }
        Ok(())
    }

    /// Writes the cache, and what it was given to store where that was recorded. Recording ends.
    fn write_cache(&mut self) -> Result<(), Failure> {
        let stored = self.session.read_cache().map_err(failed)?;
        layers(self.writer, self.session.hparams(), &stored);
        for (layer, kv) in self.session.take_recorded().iter().enumerate() {
            let shape = shape(self.session.hparams(), layer, kv.k.len());
            self.writer.layer_before_storing(layer, &kv.k, &kv.v, shape);
        }
        Ok(())
    }

    /// Says which step computed which position of what the cache holds: the prompt is step 0, each token after it one
    /// more.
    fn write_decoded_steps(&mut self) {
        let (prompt, end) = (self.cell.inputs.prompt.len(), self.session.cached());
        self.writer.step_rows(&once(std::iter::once(0).chain(prompt..end), end));
    }

    /// The reference's tokens after the prompt; none where this is the reference.
    fn given(&self) -> Result<Option<Vec<u32>>, Failure> {
        let Some(path) = &self.cell.replay else { return Ok(None) };
        let reference = open(path)?;
        let prompt = self.cell.inputs.prompt.len().min(reference.tokens().len());
        unsigned(path, &reference.tokens()[prompt..]).map(Some)
    }
}

/// An empty cache and compute buffers of their own for what follows: see [`Session::renew`].
fn fresh(session: &mut Session, capacity: usize) -> Result<(), Failure> {
    session.renew().map_err(failed)?;
    session.reset_cache(capacity).map_err(failed)
}

/// Keys and values by step, of the rows that the reference has.
fn step_kvs(session: &Session, cell: &JobCell) -> Result<StepKvs, Failure> {
    let reference = cell.replay.as_deref().map(open).transpose()?;
    Ok(StepKvs::new(session.hparams(), reference.as_ref()))
}

/// All values but those of one row.
fn without_row(logits: &Logits, left_out: Option<usize>) -> Vec<f32> {
    let rows = (0..logits.rows()).filter(|row| Some(*row) != left_out);
    rows.flat_map(|row| logits.row(row)).copied().collect()
}

fn lacks(path: &Path, what: &str) -> Failure {
    let message = format!("the reference {} has no {what}", path.display());
    Failure { kind: FailureKind::Input, message }
}

/// How many values differ in a bit.
fn exact(name: &str, reference: &Logits, x: &Logits) -> Check {
    let differ = reference.values.iter().zip(&x.values).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let lost = reference.values.len().abs_diff(x.values.len());
    Check {
        name: name.to_owned(),
        value: (differ + lost) as f64,
        bound: CheckBound::Exact,
        detail: format!("values of {} that differ in a bit", reference.values.len()),
    }
}

/// The NMSE of `x`.
fn apart(name: &str, reference: &[f32], x: &[f32], bound: CheckBound) -> Check {
    let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let value =
        if reference.len() == x.len() { Nmse::of(&wide(reference), &wide(x)).value() } else { f64::NAN };
    Check { name: name.to_owned(), value, bound, detail: String::new() }
}

/// Impacts of layers against the reference's, and whether they lead to the same choice: another one is a fault
/// unless the impacts of the layers that were exchanged are closer than the arms are.
fn profile_checks(theirs: &[f64], impact: &[f64], skipped: &[usize], own: &[usize]) -> [Check; 2] {
    let relative = |(r, x): (&f64, &f64)| (x - r).abs() / r.abs();
    let noise =
        theirs.iter().zip(impact).map(relative).fold(0.0, |a: f64, b| if b.is_nan() { b } else { a.max(b) });
    let only = |a: &[usize], b: &[usize]| a.iter().filter(|l| !b.contains(l)).copied().collect::<Vec<_>>();
    let (left, taken) = (only(skipped, own), only(own, skipped));
    let tie = |(&a, &b): (&usize, &usize)| (theirs[a] - theirs[b]).abs() <= 2.0 * noise * theirs[b].abs();
    let real = left.iter().zip(&taken).filter(|&pair| !tie(pair)).count();
    [
        Check {
            name: "impact of layers against the reference, largest relative difference".to_owned(),
            value: noise,
            bound: CheckBound::Reported,
            detail: String::new(),
        },
        Check {
            name: "layers that this device would have skipped and the reference not, apart from ties"
                .to_owned(),
            value: real as f64,
            bound: CheckBound::Exact,
            detail: format!("skipped {skipped:?}, its own choice {own:?}"),
        },
    ]
}

/// The free run against plain greedy decoding on the same device: equal, or the first difference is within the
/// noise between a batch and single tokens, which is measured on the rows that both computed.
fn speculative_checks(
    prompt: &[u32],
    greedy: &[u32],
    plain: &[Logits],
    free: &speculative::Speculated,
    own: &[(usize, Vec<u32>, Logits)],
) -> [Check; 2] {
    let first = greedy.iter().zip(&free.tokens).position(|(a, b)| a != b);
    // Rows up to the one that decided the first difference have the same tokens before them.
    let common = first.unwrap_or(greedy.len());
    let mut noise = 0f64;
    for (position, tokens, logits) in own {
        for (i, token) in tokens.iter().enumerate() {
            let decides = position + i + 1 - prompt.len();
            let fed = decides.checked_sub(1).map(|at| greedy[at]);
            if decides > common || fed.is_some_and(|fed| fed != *token) {
                break;
            }
            let single = plain[decides].row(0);
            let most = logits.row(i).iter().zip(single).map(|(a, b)| f64::from((a - b).abs()));
            noise = most.fold(noise, |a, b| if b.is_nan() { b } else { a.max(b) });
        }
    }
    let (value, detail) = match first {
        None => (0.0, format!("all {} tokens are equal; noise {noise:.1e}", greedy.len())),
        Some(at) => {
            let margin = most_likely(plain[at].row(0), None).margin;
            let tie = margin <= 2.0 * noise;
            let text = format!("token {at} differs with margin {margin:.1e}, noise {noise:.1e}");
            (if tie { 0.0 } else { 1.0 }, text)
        }
    };
    let acceptance = free.acceptance;
    [
        Check {
            name: "differences between speculative and plain greedy decoding beyond the noise of batches"
                .to_owned(),
            value,
            bound: CheckBound::Exact,
            detail,
        },
        Check {
            name: "share of proposed tokens that were accepted".to_owned(),
            value: acceptance.rate().unwrap_or(f64::NAN),
            bound: CheckBound::Reported,
            detail: format!(
                "{} of {} proposed tokens in {} batches",
                acceptance.accepted, acceptance.proposed, acceptance.batches
            ),
        },
    ]
}

/// The batches of a capture: the rows of one step, in order, are one batch, whose tokens follow each other in
/// `tokens` after the prompt.
fn batches_of(
    reference: &CaptureReader,
    path: &Path,
    prompt: usize,
) -> Result<Vec<(usize, Vec<u32>)>, Failure> {
    let positions = unsigned(path, reference.positions())?;
    let steps = unsigned(path, reference.step())?;
    let fed = reference.tokens().get(prompt..).unwrap_or_default();
    if fed.len() != positions.len() {
        return Err(lacks(path, "batches"));
    }
    let fed = unsigned(path, fed)?;
    let mut batches: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut last = None;
    for ((step, position), token) in steps.into_iter().zip(positions).zip(fed) {
        if last != Some(step) {
            batches.push((position as usize, Vec::new()));
            last = Some(step);
        }
        if let Some((_, tokens)) = batches.last_mut() {
            tokens.push(token);
        }
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(values: &[f32]) -> Logits {
        Logits { vocab: 2, values: values.to_vec() }
    }

    #[test]
    fn a_difference_in_a_bit_is_counted() {
        let a = logits(&[1.0, 0.0, f32::NAN, 2.0]);
        assert_eq!(exact("", &a, &a).value, 0.0);
        assert_eq!(exact("", &a, &logits(&[1.0, -0.0, f32::NAN, 2.5])).value, 2.0);
        assert_eq!(exact("", &a, &logits(&[1.0, 0.0])).value, 2.0);
    }

    #[test]
    fn values_of_another_length_are_no_figure() {
        assert!(apart("", &[1.0], &[1.0, 2.0], CheckBound::Kv).value.is_nan());
        assert_eq!(apart("", &[2.0], &[1.0], CheckBound::Kv).value, 0.25);
    }

    #[test]
    fn another_choice_of_layers_is_a_fault_unless_they_are_tied() {
        let theirs = [9.0, 9.0, 3.0, 1.0, 2.0, 9.0, 9.0];
        let close = theirs.map(|i| i * 1.001);
        let [noise, same] = profile_checks(&theirs, &close, &[3, 4], &[3, 4]);
        assert!((noise.value - 0.001).abs() < 1e-9 && same.value == 0.0);
        let [_, other] = profile_checks(&theirs, &close, &[3, 4], &[2, 3]);
        assert_eq!(other.value, 1.0);
        let tied = [9.0, 9.0, 2.001, 1.0, 2.0, 9.0, 9.0];
        let [_, other] = profile_checks(&tied, &tied.map(|i| i * 1.01), &[3, 4], &[2, 3]);
        assert_eq!(other.value, 0.0);
        let [noise, _] = profile_checks(&theirs, &[f64::NAN; 7], &[3, 4], &[2, 3]);
        assert!(noise.value.is_nan());
    }

    /// A prompt of one token, four decoded ones, two batches.
    #[test]
    fn a_speculative_run_may_differ_within_the_noise_only() {
        let plain: Vec<Logits> =
            [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5 - 1e-3], [0.0, 1.0]].iter().map(|r| logits(r)).collect();
        let greedy = [1, 0, 0, 1];
        let run = |tokens: &[u32]| speculative::Speculated {
            tokens: tokens.to_vec(),
            margins: vec![0.0; tokens.len()],
            acceptance: speculative::Acceptance { batches: 2, proposed: 2, accepted: 1 },
        };
        // The batch computes rows 1 and 2 after tokens 1 and 0, off by `noise`.
        let own = |noise: f32| vec![(1, vec![1, 0], logits(&[1.0 + noise, 0.0, 0.5, 0.5 - 1e-3 + noise]))];
        let [equal, rate] = speculative_checks(&[7], &greedy, &plain, &run(&[1, 0, 0, 1]), &own(0.0));
        assert_eq!((equal.value, rate.value), (0.0, 0.5));
        let [tie, _] = speculative_checks(&[7], &greedy, &plain, &run(&[1, 0, 1, 1]), &own(2e-3));
        assert_eq!(tie.value, 0.0, "{}", tie.detail);
        let [real, _] = speculative_checks(&[7], &greedy, &plain, &run(&[1, 0, 1, 1]), &own(1e-5));
        assert_eq!(real.value, 1.0, "{}", real.detail);
        let [nan, _] = speculative_checks(&[7], &greedy, &plain, &run(&[1, 0, 1, 1]), &own(f32::NAN));
        assert_eq!(nan.value, 1.0, "{}", nan.detail);
    }
}
