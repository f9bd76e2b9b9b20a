//! Mode `sampler`: canvases of logits, sampled on the device by a graph of ggml, by what the backend brings itself, and
//! on the host after all logits were fetched.
//!
//! Logits are made anew by every arm, or are the model's own: then the reference keeps what its steps gave, and every
//! other arm samples the same. Uploading them is not counted, for a model would have left them on the device.

use super::child::describe;
use super::exchange::{int, open, signed};
use super::execute::{Loaded, ready, session_options, switches};
use super::masked;
use super::protocol::{Failure, FailureKind, JobCell, RunJob};
use crate::capture::{
    CaptureMeta, CaptureReader, CaptureWriter, NearTies, Placement, SCHEMA, SampledRows, SamplerCost, Traffic,
};
use crate::plan::canvas::{Canvases, checksum};
use crate::plan::sampler::{Dist, inv_temp};
use ggml_sys::Ggml;
use model_file::Model;
use runtime::dense_sampler::{DenseSampler, Sampled, Scan, Settings, Shape, host};
use runtime::generate::masked::Plan;
use runtime::{DeviceRequest, generate};
use std::collections::BTreeMap;
use std::time::Instant;

/// One canvas to sample.
pub(super) struct Round {
    pub(super) step: i32,
    /// The position of each row.
    pub(super) positions: Vec<i32>,
    /// `[rows, vocab]`, row-major.
    pub(super) logits: Vec<f32>,
    /// What each row is drawn by.
    pub(super) u: Vec<f32>,
}

/// Step, positions and logits of a canvas that is not made.
type Kept = (i32, Vec<i32>, Vec<f32>);

/// The canvases of a case, one after the other.
pub(super) struct Rounds {
    pub(super) vocab: usize,
    canvases: Canvases,
    /// Steps that are made.
    made: usize,
    rows: usize,
    /// Those that are not made.
    kept: Option<Vec<Kept>>,
}

impl Rounds {
    /// Those of a case whose logits are made; none where they are the model's own.
    pub(super) fn made(cell: &JobCell) -> Result<Option<Self>, Failure> {
        let options = cell.id.case.options.sampler;
        if options.dist == Dist::Steps {
            return Ok(None);
        }
        let vocab = match options.vocab {
            Some(vocab) => vocab as usize,
            None => {
                let model = Model::open(&cell.path).map_err(|e| Failure::from(&runtime::Error::from(e)))?;
                model.hparams.n_vocab
            }
        };
        let (made, rows) = (options.canvases(), options.rows());
        Ok(Some(Self { vocab, canvases: canvases(cell, vocab), made, rows, kept: None }))
    }

    /// Those that the reference has kept.
    pub(super) fn kept(cell: &JobCell, reference: &mut CaptureReader) -> Result<Self, Failure> {
        let (vocab, logits) = reference
            .sampled_logits()
            .map_err(|e| Failure { kind: FailureKind::Input, message: format!("the reference: {e}") })?;
        let mut kept: Vec<Kept> = Vec::new();
        let places = reference.step().iter().zip(reference.positions());
        for ((&step, &position), row) in places.zip(logits.chunks_exact(vocab.max(1))) {
            if kept.last().is_none_or(|last| last.0 != step) {
                kept.push((step, Vec::new(), Vec::new()));
            }
            let (_, positions, logits) = kept.last_mut().expect("just pushed");
            positions.push(position);
            logits.extend(row.iter().map(|&logit| logit as f32));
        }
        Ok(Self { vocab, canvases: canvases(cell, vocab), made: 0, rows: 0, kept: Some(kept) })
    }

    /// Those of the model's own steps, which the reference computes.
    fn steps(cell: &JobCell, loaded: &mut Loaded) -> Result<Self, Failure> {
        let session = &mut loaded.session;
        session.renew().map_err(|error| Failure::from(&error))?;
        let vocab = session.hparams().n_vocab;
        let sampling = generate::masked::Sampling::default();
        let plan = Plan { sampling, keep_kv: false, ..masked::plan(cell) };
        let mut kept = Vec::new();
        generate::masked::generate(session, &cell.inputs.prompt, plan, None, |view| {
            let positions = view.masked.iter().map(|&position| int(position)).collect();
            kept.push((int(view.step), positions, view.logits.values.clone()));
        })
        .map_err(|error| Failure::from(&error))?;
        Ok(Self { vocab, canvases: canvases(cell, vocab), made: 0, rows: 0, kept: Some(kept) })
    }

    pub(super) fn len(&self) -> usize {
        self.kept.as_ref().map_or(self.made, Vec::len)
    }

    pub(super) fn round(&self, i: usize) -> Round {
        match &self.kept {
            Some(kept) => {
                let (step, positions, logits) = kept[i].clone();
                let u = self.canvases.u(step.unsigned_abs() as usize, positions.len());
                Round { step, positions, logits, u }
            }
            None => Round {
                step: int(i),
                positions: (0..self.rows).map(int).collect(),
                logits: self.canvases.logits(i),
                u: self.canvases.u(i, self.rows),
            },
        }
    }
}

impl Round {
    /// Writes what is known of the rows before they are sampled.
    pub(super) fn write(&self, writer: &mut CaptureWriter, vocab: usize) {
        for (&position, row) in self.positions.iter().zip(self.logits.chunks_exact(vocab)) {
            writer.row(position, self.step, &[checksum(row)]);
        }
    }
}

fn canvases(cell: &JobCell, vocab: usize) -> Canvases {
    let options = &cell.id.case.options;
    Canvases::new(options.sampler, vocab, options.draws.seed())
}

/// Adds a row to `all`.
pub(super) fn push(all: &mut SampledRows, row: Option<(usize, usize, f64)>) {
    // An index beyond 31 bits is of no vocabulary, and no mark of a row that gives nothing.
    let index = |i: usize| i32::try_from(i).unwrap_or(i32::MAX);
    let (argmax, sampled, entropy) = match row {
        Some((argmax, sampled, entropy)) => (index(argmax), index(sampled), entropy),
        None => (-1, -1, f64::NAN),
    };
    all.argmax.push(argmax);
    all.sampled.push(sampled);
    all.entropy.push(entropy);
}

/// Adds the rows that a device gave.
fn extend(all: &mut SampledRows, rows: &[Option<Sampled>]) {
    for row in rows {
        let row = row.map(|row| (row.argmax as usize, row.token as usize, f64::from(row.entropy)));
        push(all, row);
    }
}

/// What all steps took together.
#[derive(Default)]
struct Spent {
    device: f64,
    own: Option<f64>,
    fetch: f64,
    host: f64,
    inputs: f64,
}

/// Runs `cell` and writes its capture.
pub(super) fn execute(
    ggml: &'static Ggml,
    job: &RunJob,
    cell: &JobCell,
    loaded: &mut Option<Loaded>,
) -> Result<(), Failure> {
    let failed = |error: runtime::Error| Failure::from(&error);
    let options = &cell.id.case.options;
    let threads = session_options(options, job.threads).threads;
    let rounds = match (Rounds::made(cell)?, &cell.replay) {
        (Some(made), _) => {
            // The memory of the model before goes back: the canvas may need it.
            *loaded = None;
            made
        }
        (None, Some(path)) => Rounds::kept(cell, &mut open(path)?)?,
        (None, None) => Rounds::steps(cell, ready(ggml, job, cell, loaded)?)?,
    };
    let request = DeviceRequest { name: job.device.base.clone(), buffer: job.device.buft.clone() };
    let (device, _) = request.find(ggml).map_err(failed)?;
    let inv_temp = inv_temp(&options.draws);
    let settings = Settings { inv_temp, threads, scan: None, planted: cell.fault };

    let mut writer = CaptureWriter::new(1);
    let (mut drawn, mut own) = (SampledRows::default(), SampledRows::default());
    let (mut ties, mut kept) = (NearTies::default(), Vec::new());
    let (mut placement, mut traffic) = (Placement::default(), Traffic::default());
    let mut spent = Spent::default();
    let mut sampler: Option<DenseSampler> = None;
    let mut fetched = Vec::new();
    for i in 0..rounds.len() {
        let started = Instant::now();
        let round = rounds.round(i);
        round.write(&mut writer, rounds.vocab);
        spent.inputs += started.elapsed().as_secs_f64();
        let shape = Shape { vocab: rounds.vocab, rows: round.positions.len() };
        let on_device = match sampler.take().filter(|sampler| sampler.shape() == shape) {
            Some(sampler) => sampler,
            None => {
                let mut fresh = DenseSampler::open(ggml, &request, shape, settings).map_err(failed)?;
                fresh.place(&round.logits).map_err(failed)?;
                // The first graph of its kind compiles its kernels, and the first fetch touches its memory.
                fresh.sample(&round.u).map_err(failed)?;
                fresh.reset_counts();
                fetched.resize(round.logits.len(), 0.0);
                fresh.fetch(&mut fetched).map_err(failed)?;
                fresh
            }
        };
        let on_device = sampler.insert(on_device);
        on_device.place(&round.logits).map_err(failed)?;
        let started = Instant::now();
        let rows = on_device.sample(&round.u).map_err(failed)?;
        spent.device += started.elapsed().as_secs_f64();
        extend(&mut drawn, &rows);
        let started = Instant::now();
        if let Some(rows) = on_device.own(&round.u).map_err(failed)? {
            *spent.own.get_or_insert_default() += started.elapsed().as_secs_f64();
            extend(&mut own, &rows);
        }
        let started = Instant::now();
        on_device.fetch(&mut fetched).map_err(failed)?;
        spent.fetch += started.elapsed().as_secs_f64();
        for row in host::sample(&fetched, shape, &round.u, inv_temp, threads) {
            ties.lowest.push(row.map_or(-1, |row| int(row.lowest)));
            ties.highest.push(row.map_or(-1, |row| int(row.highest)));
        }
        spent.host += started.elapsed().as_secs_f64();
        placement.add(on_device.placement());
        traffic.add(&on_device.traffic());
        on_device.reset_counts();
        if cell.replay.is_none() && options.sampler.dist == Dist::Steps {
            kept.extend(round.logits);
        }
    }
    let Some(sampler) = sampler else {
        return Err(Failure { kind: FailureKind::Input, message: "no step has a row to sample".to_owned() });
    };
    if !kept.is_empty() {
        writer.sampled_logits(&kept, rounds.vocab);
    }
    // The backend's own sampler says for all steps that it cannot, or for none.
    let own_rows = own.argmax.len();
    if own_rows == drawn.argmax.len() {
        writer.sampled(&own, true);
    } else if own_rows > 0 {
        let message = format!(
            "{} sampled {own_rows} of {} rows",
            sampler.own_name().unwrap_or_default(),
            drawn.argmax.len()
        );
        return Err(Failure { kind: FailureKind::Fault, message });
    }
    writer.sampled(&drawn, false);
    writer.near_ties(&ties);
    writer.tokens(&signed(&cell.inputs.prompt));
    let steps = rounds.len() as f64;
    let cost = SamplerCost {
        device_seconds: spent.device / steps,
        host_seconds: spent.host / steps,
        fetch_seconds: spent.fetch / steps,
        host_threads: threads as u64,
        device_bytes: traffic.to_device.largest + traffic.from_device.largest,
        host_bytes: sampler.shape().bytes() as u64,
        scan: match sampler.scan() {
            Scan::Cumsum => "cumsum",
            Scan::Triangle => "triangle",
        }
        .to_owned(),
        own: sampler.own_name().map(str::to_owned),
        own_seconds: spent.own.map(|seconds| seconds / steps),
    };
    let timings = [("inputs", spent.inputs), ("device", spent.device), ("host", spent.host)];
    let meta = CaptureMeta {
        schema: SCHEMA.to_owned(),
        case: cell.id.case.to_string(),
        model: cell.model.clone(),
        build: job.build.clone(),
        device: describe(&device, &job.device),
        features: device.features().into_iter().collect(),
        environment: switches(),
        placement,
        traffic: Some(traffic),
        bytes: sampler.buffers().to_vec(),
        peak_rss_bytes: runtime::peak_resident_bytes(),
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
        timings: timings
            .map(|(name, seconds)| (name.to_owned(), seconds))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        text: None,
        retried: cell.lost.clone(),
        notes: ggml.cpu_variant().map(|variant| format!("CPU variant {variant}")).into_iter().collect(),
        checks: Vec::new(),
        sampler: Some(cost),
    };
    Ok(writer.write(&cell.capture, &meta)?)
}

/// The oracle's part: the same canvases in f64, and which draws are near ties.
pub(super) fn oracle(
    cell: &JobCell,
    reference: &mut CaptureReader,
    writer: &mut CaptureWriter,
) -> Result<(), Failure> {
    let rounds = match Rounds::made(cell)? {
        Some(made) => made,
        None => Rounds::kept(cell, reference)?,
    };
    let inv_temp = inv_temp(&cell.id.case.options.draws);
    let (mut drawn, mut ties) = (SampledRows::default(), NearTies::default());
    for i in 0..rounds.len() {
        let round = rounds.round(i);
        round.write(writer, rounds.vocab);
        for row in oracle::sampler::draw_rows(&round.logits, rounds.vocab, &round.u, inv_temp) {
            push(&mut drawn, row.map(|row| (row.argmax, row.sampled, row.entropy)));
            ties.lowest.push(row.map_or(-1, |row| int(row.lowest)));
            ties.highest.push(row.map_or(-1, |row| int(row.highest)));
        }
    }
    writer.sampled(&drawn, false);
    writer.near_ties(&ties);
    writer.tokens(reference.tokens());
    Ok(())
}
