//! One case, from the loaded model to the capture file.

use super::block;
use super::causal::Bench;
use super::child::describe;
use super::masked::{self, Findings};
use super::phases;
use super::protocol::{Failure, FailureKind, JobCell, RunJob};
use super::sampler;
use crate::capture::{CaptureMeta, CaptureWriter, SCHEMA};
use crate::plan::causal::Store;
use crate::plan::{Attention, KvType, Mode, Options};
use ggml_sys::Ggml;
use model_file::Model;
use model_file::tokenizer::Tokenizer;
use runtime::{DeviceRequest, Recorder, Session};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// A model that stays loaded while the cells that follow need it.
pub(super) struct Loaded {
    path: PathBuf,
    options: runtime::Options,
    pub(super) session: Session,
    model: Model,
    load_seconds: f64,
}

/// Runs `cell` and writes its capture; `recorder` sees its graphs.
pub(super) fn execute(
    ggml: &'static Ggml,
    job: &RunJob,
    cell: &JobCell,
    loaded: &mut Option<Loaded>,
    recorder: Option<Recorder>,
) -> Result<(), Failure> {
    if cell.id.case.mode == Mode::Sampler {
        return sampler::execute(ggml, job, cell, loaded);
    }
    let loaded = ready(ggml, job, cell, loaded)?;
    let session = &mut loaded.session;
    session.renew().map_err(|error| Failure::from(&error))?;
    if let Some(recorder) = recorder {
        session.record(recorder);
    }
    // What a cell before has left, had it failed.
    let _ =
        (session.take_placement(), session.take_traffic(), session.take_recorded(), session.take_routing());
    let mut writer = CaptureWriter::new(session.hparams().n_vocab);
    let started = Instant::now();
    let mode = cell.id.case.mode;
    let mut traffic = None;
    // The model that proposed tokens: its work and memory count as the cell's.
    let mut drafted: Option<Session> = None;
    let mut notes: Vec<String> =
        ggml.cpu_variant().map(|variant| format!("CPU variant {variant}")).into_iter().collect();
    let (text_tokens, checks) = if mode == Mode::Full {
        (masked::full(session, cell, &mut writer)?, Vec::new())
    } else if session.hparams().block.is_some() {
        let mut found = Findings::default();
        let tokens = match mode {
            Mode::Unified | Mode::PromptKv => phases::execute(session, cell, &mut writer, &mut found)?,
            Mode::Generate => block::generate(session, cell, &mut writer, &mut found)?,
            _ => return Err(no_such_mode(session, mode)),
        };
        traffic = found.traffic;
        notes.extend(found.notes);
        (tokens, found.checks)
    } else if session.hparams().architecture.is_diffusion() {
        let mut found = Findings::default();
        let tokens = match mode {
            Mode::FullCache => masked::full_cache(session, cell, &mut writer, &mut found)?,
            Mode::Sparse | Mode::Generate => masked::generate(session, cell, &mut writer, &mut found)?,
            _ => return Err(no_such_mode(session, mode)),
        };
        traffic = found.traffic;
        notes.extend(found.notes);
        (tokens, found.checks)
    } else {
        let draft = match mode {
            Mode::Speculative => Some(draft(ggml, job, cell, &loaded.options)?),
            _ => None,
        };
        let model = &loaded.model;
        let mut bench =
            Bench { session, cell, model, writer: &mut writer, checks: Vec::new(), notes: Vec::new() };
        let tokens = match (mode, draft) {
            (Mode::Prefill, _) => bench.prefill()?,
            (Mode::Decode, _) => bench.decode()?,
            (Mode::Batch, _) => bench.batch()?,
            (Mode::Profile, _) => bench.profile()?,
            (Mode::Generate, _) => bench.generate()?,
            (Mode::Lifecycle, _) => bench.lifecycle()?,
            (Mode::Speculative, Some(mut draft)) => {
                let tokens = bench.speculative(&mut draft)?;
                drafted = Some(draft);
                tokens
            }
            _ => return Err(no_such_mode(session, mode)),
        };
        notes.extend(bench.notes);
        (tokens, bench.checks)
    };
    let session = &mut loaded.session;
    let compute_seconds = started.elapsed().as_secs_f64();
    let text = match text_tokens.filter(|_| cell.inputs.is_text) {
        None => None,
        Some(tokens) => {
            let tokenizer = Tokenizer::from_gguf(&loaded.model.file)
                .map_err(|e| Failure::from(&runtime::Error::from(e)))?;
            let end = tokens.iter().position(|t| tokenizer.eog_ids().contains(t)).unwrap_or(tokens.len());
            Some(tokenizer.decode(&tokens[..end]))
        }
    };
    let mut placement = session.take_placement();
    let mut traffic = traffic.unwrap_or_else(|| session.traffic());
    let mut bytes = session.buffers();
    if let Some(draft) = &mut drafted {
        placement.add(&draft.take_placement());
        traffic.add(&draft.traffic());
        bytes.extend(draft.buffers());
    }
    let device = session.device();
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
        bytes,
        peak_rss_bytes: runtime::peak_resident_bytes(),
        threads: u32::try_from(loaded.options.threads).unwrap_or(u32::MAX),
        timings: BTreeMap::from([
            ("load".to_owned(), loaded.load_seconds),
            ("compute".to_owned(), compute_seconds),
        ]),
        text,
        retried: cell.lost.clone(),
        notes,
        checks,
        sampler: None,
    };
    Ok(writer.write(&cell.capture, &meta)?)
}

/// The session that `cell` runs in: the one that is there, where it is of the same model and options.
pub(super) fn ready<'a>(
    ggml: &'static Ggml,
    job: &RunJob,
    cell: &JobCell,
    loaded: &'a mut Option<Loaded>,
) -> Result<&'a mut Loaded, Failure> {
    let options = runtime::Options {
        planted: cell.fault,
        pins: cell.pins.clone(),
        ..session_options(&cell.id.case.options, job.threads)
    };
    if !loaded.as_ref().is_some_and(|l| l.path == cell.path && l.options == options) {
        // The memory of the model before goes back first.
        *loaded = None;
        *loaded = Some(load(ggml, job, cell, options)?);
    }
    Ok(loaded.as_mut().expect("just loaded"))
}

fn load(
    ggml: &'static Ggml,
    job: &RunJob,
    cell: &JobCell,
    options: runtime::Options,
) -> Result<Loaded, Failure> {
    let started = Instant::now();
    let model = Model::open(&cell.path).map_err(|e| Failure::from(&runtime::Error::from(e)))?;
    let request = DeviceRequest { name: job.device.base.clone(), buffer: job.device.buft.clone() };
    let mut session =
        Session::open(ggml, &request, &model, options.clone()).map_err(|error| Failure::from(&error))?;
    // One cache for all cells that this session will run.
    let room = |cell: &JobCell| cell.inputs.prompt.len() + cell.inputs.follow;
    let same = |other: &&JobCell| other.path == cell.path || other.id == cell.id;
    let most = job.cells.iter().filter(same).map(room).max().unwrap_or(0);
    session.reset_cache(most).map_err(|error| Failure::from(&error))?;
    let load_seconds = started.elapsed().as_secs_f64();
    Ok(Loaded { path: cell.path.clone(), options, session, model, load_seconds })
}

fn no_such_mode(session: &Session, mode: Mode) -> Failure {
    let message = format!("architecture {} has no mode {mode}", session.hparams().architecture.name());
    Failure { kind: FailureKind::Input, message }
}

/// The model that proposes tokens: another file, or the model itself without the second half of its layers.
fn draft(
    ggml: &'static Ggml,
    job: &RunJob,
    cell: &JobCell,
    options: &runtime::Options,
) -> Result<Session, Failure> {
    let path = cell.inputs.draft.as_ref();
    let other = JobCell { path: path.unwrap_or(&cell.path).clone(), ..cell.clone() };
    let mut session = load(ggml, job, &other, options.clone())?.session;
    if path.is_none() {
        let n = session.hparams().n_layer;
        let skipped: Vec<usize> = (n.div_ceil(2)..n).collect();
        session.skip_layers(&skipped).map_err(|error| Failure::from(&error))?;
    }
    Ok(session)
}

pub(super) fn session_options(options: &Options, threads: usize) -> runtime::Options {
    runtime::Options {
        threads: options.threads.map_or(threads, |n| n as usize).max(1),
        attention: match options.attn {
            Attention::Explicit => runtime::Attention::Explicit,
            Attention::Flash => runtime::Attention::Flash,
        },
        kv: match options.kv {
            KvType::F32 => runtime::KvType::F32,
            KvType::F16 => runtime::KvType::F16,
            KvType::Q8_0 => runtime::KvType::Q8_0,
            KvType::Q4_0 => runtime::KvType::Q4_0,
        },
        micro_batch: options.ub.map(|n| n as usize),
        layers: options.layers.map(|n| n as usize),
        window: options.causal.window.map(|n| n as usize),
        avoid_set_rows: options.causal.store == Some(Store::Cpy),
        hidden: options.causal.hidden.map(|n| n as usize),
        pins: None,
        planted: None,
    }
}

/// The environment switches that change what backends do.
pub(crate) fn switches() -> BTreeMap<String, String> {
    std::env::vars()
        .filter(|(name, _)| ["GGML_", "VK_", "CUDA_"].iter().any(|p| name.starts_with(p)))
        // Ours say where things are and how long they may take.
        .filter(|(name, _)| !name.starts_with("GGML_PARITY_"))
        .collect()
}
