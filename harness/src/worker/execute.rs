//! One case, from the loaded model to the capture file.

use super::child::describe;
use super::masked;
use super::protocol::{Failure, FailureKind, JobCell, RunJob};
use crate::capture::{CaptureMeta, CaptureReader, CaptureWriter, SCHEMA};
use crate::plan::{Attention, KvType, Mode, Options};
use ggml_sys::Ggml;
use model_file::tokenizer::Tokenizer;
use model_file::{HyperParams, Model};
use runtime::generate::{autoregressive, most_likely};
use runtime::{DeviceRequest, LayerKv, Logits, Rows, Session};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// A model that stays loaded while the cells that follow need it.
pub(super) struct Loaded {
    path: PathBuf,
    options: runtime::Options,
    session: Session,
    model: Model,
    load_seconds: f64,
}

/// Runs `cell` and writes its capture.
pub(super) fn execute(
    ggml: &'static Ggml,
    job: &RunJob,
    cell: &JobCell,
    loaded: &mut Option<Loaded>,
) -> Result<(), Failure> {
    let options = session_options(&cell.id.case.options, job.threads)?;
    if !loaded.as_ref().is_some_and(|l| l.path == cell.path && l.options == options) {
        // The memory of the model before goes back first.
        *loaded = None;
        *loaded = Some(load(ggml, job, cell, options)?);
    }
    let loaded = loaded.as_mut().expect("just loaded");
    let session = &mut loaded.session;
    session.renew().map_err(|error| Failure::from(&error))?;
    // What a cell before has left, had it failed.
    let _ = (session.take_placement(), session.take_traffic());
    let mut writer = CaptureWriter::new(session.hparams().n_vocab);
    let started = Instant::now();
    let text_tokens = match cell.id.case.mode {
        Mode::Full => masked::full(session, cell, &mut writer)?,
        Mode::FullCache => masked::full_cache(session, cell, &mut writer)?,
        Mode::Sparse => masked::generate(session, cell, &mut writer)?,
        Mode::Prefill => prefill(session, cell, &mut writer)?,
        Mode::Decode => decode(session, cell, &mut writer)?,
        Mode::Generate => masked::generate(session, cell, &mut writer)?,
    };
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
    let device = session.device();
    let meta = CaptureMeta {
        schema: SCHEMA.to_owned(),
        case: cell.id.case.to_string(),
        model: cell.model.clone(),
        build: job.build.clone(),
        device: describe(&device, &job.device),
        features: device.features().into_iter().collect(),
        environment: switches(),
        placement: session.take_placement(),
        traffic: Some(session.take_traffic()),
        bytes: session.buffers(),
        peak_rss_bytes: runtime::peak_resident_bytes(),
        threads: u32::try_from(loaded.options.threads).unwrap_or(u32::MAX),
        timings: BTreeMap::from([
            ("load".to_owned(), loaded.load_seconds),
            ("compute".to_owned(), compute_seconds),
        ]),
        text,
        notes: ggml.cpu_variant().map(|variant| format!("CPU variant {variant}")).into_iter().collect(),
    };
    writer
        .write(&cell.capture, &meta)
        .map_err(|error| Failure { kind: FailureKind::Fault, message: error.to_string() })
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
    let most = job.cells.iter().filter(|other| other.path == cell.path).map(room).max().unwrap_or(0);
    session.reset_cache(most).map_err(|error| Failure::from(&error))?;
    let load_seconds = started.elapsed().as_secs_f64();
    Ok(Loaded { path: cell.path.clone(), options, session, model, load_seconds })
}

fn session_options(options: &Options, threads: usize) -> Result<runtime::Options, Failure> {
    let unsupported = |what: &str| Failure {
        kind: FailureKind::Input,
        message: format!("{what} is not in this version of the runtime"),
    };
    Ok(runtime::Options {
        threads: options.threads.map_or(threads, |n| n as usize).max(1),
        attention: match options.attn {
            Attention::Explicit => runtime::Attention::Explicit,
            Attention::Flash => return Err(unsupported("attn=flash")),
        },
        kv: match options.kv {
            KvType::F32 => runtime::KvType::F32,
            KvType::F16 => runtime::KvType::F16,
            KvType::Q8_0 | KvType::Q4_0 => return Err(unsupported("a quantised K/V cache")),
        },
        micro_batch: options.ub.map(|n| n as usize),
        layers: options.layers.map(|n| n as usize),
        avoid_set_rows: false,
    })
}

/// The tokens that were generated, where a mode generates.
pub(super) type Tokens = Result<Option<Vec<u32>>, Failure>;

/// The prompt into an empty cache, every row.
fn prefill(session: &mut Session, cell: &JobCell, writer: &mut CaptureWriter) -> Tokens {
    let tokens = &cell.inputs.prompt;
    session.reset_cache(tokens.len()).map_err(|e| Failure::from(&e))?;
    let logits = session.extend(tokens, Rows::All).map_err(|e| Failure::from(&e))?;
    rows(writer, &logits, 0, 0);
    writer.tokens(&signed(tokens));
    layers(writer, session.hparams(), &session.read_cache().map_err(|e| Failure::from(&e))?);
    Ok(None)
}

/// The prompt, then one token after the other: the reference's own choice on every arm, and a free run.
fn decode(session: &mut Session, cell: &JobCell, writer: &mut CaptureWriter) -> Tokens {
    let (prompt, n) = (&cell.inputs.prompt, cell.inputs.follow);
    let given = match &cell.replay {
        None => None,
        Some(path) => {
            let reference = open(path)?;
            Some(unsigned(path, &reference.tokens()[prompt.len().min(reference.tokens().len())..])?)
        }
    };
    session.reset_cache(prompt.len() + n).map_err(|e| Failure::from(&e))?;
    let mut margins = Vec::new();
    let tokens = autoregressive::decode(session, prompt, n, given.as_deref(), |step, logits| {
        rows(writer, logits, prompt.len() - 1 + step, step);
        margins.push(most_likely(logits.row(0), None).margin as f32);
    })
    .map_err(|e| Failure::from(&e))?;
    writer.tokens(&signed(&[prompt.as_slice(), &tokens].concat()));
    layers(writer, session.hparams(), &session.read_cache().map_err(|e| Failure::from(&e))?);
    let free = match given {
        None => tokens,
        Some(_) => {
            session.reset_cache(prompt.len() + n).map_err(|e| Failure::from(&e))?;
            margins.clear();
            let observe = |_, logits: &Logits| margins.push(most_likely(logits.row(0), None).margin as f32);
            autoregressive::decode(session, prompt, n, None, observe).map_err(|e| Failure::from(&e))?
        }
    };
    // The last row chose no token of the free run.
    margins.truncate(free.len());
    writer.greedy(&signed(&free));
    writer.greedy_margin(&margins);
    Ok(Some(free))
}

pub(super) fn open(path: &std::path::Path) -> Result<CaptureReader, Failure> {
    CaptureReader::open(path)
        .map_err(|error| Failure { kind: FailureKind::Input, message: format!("the reference: {error}") })
}

pub(super) fn rows(writer: &mut CaptureWriter, logits: &Logits, first: usize, step: usize) {
    for i in 0..logits.rows() {
        writer.row(int(first + i), int(step), logits.row(i));
    }
}

pub(super) fn layers(writer: &mut CaptureWriter, h: &HyperParams, kv: &[LayerKv]) {
    for layer in kv {
        let shape = [layer.k.len() / (h.n_head_kv * h.head_dim), h.n_head_kv, h.head_dim];
        writer.layer(&layer.k, shape, &layer.v, shape);
    }
}

pub(super) fn int(n: usize) -> i32 {
    i32::try_from(n).expect("positions and steps fit 31 bits")
}

pub(super) fn signed(tokens: &[u32]) -> Vec<i32> {
    tokens.iter().map(|&t| i32::try_from(t).expect("token ids fit 31 bits")).collect()
}

pub(super) fn unsigned(path: &std::path::Path, values: &[i32]) -> Result<Vec<u32>, Failure> {
    let convert = |&v: &i32| {
        u32::try_from(v).map_err(|_| Failure {
            kind: FailureKind::Input,
            message: format!(
                "the reference {} holds the negative token, step or position {v}",
                path.display()
            ),
        })
    };
    values.iter().map(convert).collect()
}

/// The environment switches that change what backends do.
pub(crate) fn switches() -> BTreeMap<String, String> {
    std::env::vars()
        .filter(|(name, _)| ["GGML_", "VK_", "CUDA_"].iter().any(|p| name.starts_with(p)))
        .collect()
}
