//! The oracle's arm: one case in f64 into a capture, along the trajectory of the reference. No ggml is opened.
//!
//! The oracle's passes give the same bits however a sequence is cut into them, so the causal modes are one pass over
//! what the reference's cache holds, and its rows are those at the positions that the reference names: a row under a
//! wrong position shows as a distance. A masked generation is replayed step by step, since there a pass depends on the
//! passes before.
//!
//! Where the case has a cache of another type than F32, the oracle's rounds what it stores as that type does, and
//! everything else stays F64: storing in four bits alone puts logits 4e-2 from those of an F64 cache, beyond every
//! limit, and says nothing about an arm.

use super::exchange::{int, open, shape, signed, unsigned};
use super::oracle_block;
use super::protocol::{Failure, FailureKind, JobCell};
use super::sampler;
use crate::capture::{
    BuildInfo, Cache, CaptureMeta, CaptureReader, CaptureWriter, DeviceInfo, DeviceKind, KvSet, LayerRouting,
    ORACLE, Placement, SCHEMA, StepRows, Unmask,
};
use crate::plan::inputs::Inputs;
use crate::plan::{Case, KvType, Mode};
use model_file::{HyperParams, Model};
use oracle::generate::masked;
use oracle::{BlockNetwork, GivenExperts, LayerKv, Network, Precision, Request, Routing, Rows};
use runtime::generate::masked::CacheUse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Why the oracle does not compute a case; `None` where it does.
#[must_use]
pub fn lacks(case: &Case, h: &HyperParams, inputs: &Inputs) -> Option<String> {
    let masks = |tokens: &[u32]| tokens.iter().any(|&token| Some(token) == h.mask_token);
    if let Some(message) = oracle_block::lacks(case, h) {
        return Some(message);
    }
    match case.mode {
        // Their layers, batches and caches are a function of the device's own figures or of its cache's life.
        Mode::Profile | Mode::Speculative | Mode::Lifecycle => {
            Some(format!("mode {} is not computed by the oracle", case.mode))
        }
        _ if !h.causal && case.options.causal.window.is_some() => {
            Some("a window of bidirectional attention is not computed by the oracle".to_owned())
        }
        // They would be filled too.
        Mode::Sparse | Mode::Generate if !h.causal && masks(&inputs.prompt) => {
            Some("a prompt that holds masks is not computed by the oracle".to_owned())
        }
        _ => None,
    }
}

/// Whether the oracle of a case reads the reference's logits, as it does where they are sampled or where canvases are
/// conditioned on them.
#[must_use]
pub fn reads_logits(case: &Case, h: &HyperParams) -> bool {
    case.mode == Mode::Sampler || h.block.is_some()
}

/// A network of either kind.
enum Body {
    Plain(Network),
    Block(BlockNetwork),
}

impl Body {
    fn hparams(&self) -> &HyperParams {
        match self {
            Self::Plain(network) => network.hparams(),
            Self::Block(network) => network.hparams(),
        }
    }
}

/// A model that stays open while the cells that follow need it.
pub(super) struct Loaded {
    path: PathBuf,
    network: Body,
    load_seconds: f64,
}

/// Computes `cell` and writes its capture.
pub(super) fn execute(cell: &JobCell, loaded: &mut Option<Loaded>) -> Result<(), Failure> {
    let path = cell.replay.as_ref().ok_or_else(|| input("the oracle has no trajectory to follow"))?;
    let mut reference = open(path)?;
    if cell.id.case.mode == Mode::Sampler {
        let mut writer = CaptureWriter::new(1);
        let started = Instant::now();
        sampler::oracle(cell, &mut reference, &mut writer)?;
        let timings = BTreeMap::from([("compute".to_owned(), started.elapsed().as_secs_f64())]);
        return Ok(writer.write(&cell.capture, &meta(cell, timings))?);
    }
    if loaded.as_ref().is_none_or(|l| l.path != cell.path) {
        let started = Instant::now();
        let model = Model::open(&cell.path).map_err(input)?;
        let network = match model.hparams.block {
            Some(_) => Body::Block(BlockNetwork::open(&model).map_err(failed)?),
            None => Body::Plain(Network::open(&model).map_err(failed)?),
        };
        let load_seconds = started.elapsed().as_secs_f64();
        *loaded = Some(Loaded { path: cell.path.clone(), network, load_seconds });
    }
    let Loaded { network, load_seconds, .. } = loaded.as_ref().expect("just loaded");
    if let Some(message) = lacks(&cell.id.case, network.hparams(), &cell.inputs) {
        return Err(Failure { kind: FailureKind::Unsupported, message });
    }
    let mut writer = CaptureWriter::new(network.hparams().n_vocab);
    let started = Instant::now();
    match (network, cell.id.case.mode) {
        (Body::Block(network), _) => oracle_block::execute(network, cell, &mut reference, &mut writer)?,
        (Body::Plain(network), Mode::Sparse | Mode::Generate) if !network.hparams().causal => {
            steps(network, cell, &reference, &mut writer)?;
        }
        (Body::Plain(network), _) => sequence(network, cell, &reference, &mut writer)?,
    }
    let timings = [("load", *load_seconds), ("compute", started.elapsed().as_secs_f64())];
    let meta = meta(cell, timings.map(|(name, seconds)| (name.to_owned(), seconds)).into());
    Ok(writer.write(&cell.capture, &meta)?)
}

/// One pass over the tokens that the reference's cache holds, with the rows that the reference has.
fn sequence(
    network: &Network,
    cell: &JobCell,
    reference: &CaptureReader,
    writer: &mut CaptureWriter,
) -> Result<(), Failure> {
    let tokens = unsigned(reference.path(), reference.tokens())?;
    let fed = match reference.layers() {
        0 => tokens.len(),
        _ => reference.kv_shape(Cache::K, 0)[0].min(tokens.len()),
    };
    let rows = unsigned(reference.path(), reference.positions())?;
    let rows: Vec<usize> = rows.into_iter().map(|row| row as usize).collect();
    let window = cell.id.case.options.causal.window.map(|n| n as usize);
    // Mode `full` has no cache to store in.
    let stored = if cell.id.case.mode == Mode::Full { Precision::F64 } else { precision(&cell.id.case) };
    let mut cache = network.cache_stored_as(fed, stored);
    let given = ReferenceExperts::of(reference)?;
    let given = given.as_ref().map(|experts| experts.given().take(fed)).transpose().map_err(failed)?;
    let experts = given.as_deref();
    let request = Request { rows: Rows::Only(&rows), window, experts, ..Request::new(&tokens[..fed]) };
    let pass = network.forward(&mut cache, request).map_err(failed)?;
    if given.is_some() {
        let mut routings = Routings::default();
        routings.push(0..fed, &pass.routing);
        routings.write(writer, network.hparams());
    }
    for (i, (&position, &step)) in reference.positions().iter().zip(reference.step()).enumerate() {
        writer.row(position, step, pass.logits.row(i));
    }
    writer.tokens(reference.tokens());
    layers(writer, network.hparams(), cache.layers());
    // Every position was computed once, by the step that the reference says.
    if let Some(rows) = reference.step_rows().filter(|_| reference.layers_of(KvSet::Steps) == 0) {
        writer.step_rows(rows);
    }
    for (layer, kv) in pass.kv.iter().enumerate().take(reference.layers_of(KvSet::BeforeStoring)) {
        writer.layer_before_storing(layer, &kv.k, &kv.v, shape(network.hparams(), layer, kv.k.len()));
    }
    Ok(())
}

/// How the cache of a case rounds what it stores. F32 is the arms' own arithmetic, not the case's.
fn precision(case: &Case) -> Precision {
    match case.options.kv {
        KvType::F32 => Precision::F64,
        KvType::F16 => Precision::F16,
        KvType::Q8_0 => Precision::Q8_0,
        KvType::Q4_0 => Precision::Q4_0,
    }
}

/// A masked generation in the order in which the reference unmasked, whatever rule led to it.
fn steps(
    network: &Network,
    cell: &JobCell,
    reference: &CaptureReader,
    writer: &mut CaptureWriter,
) -> Result<(), Failure> {
    let (inputs, case) = (&cell.inputs, &cell.id.case);
    let h = network.hparams();
    let unmask = reference.unmask().ok_or_else(|| input("the reference has no trajectory"))?;
    let cache = case.options.masked.cache_use(case.mode);
    let sparse = match cache {
        CacheUse::Sparse(sparse) => {
            Some(masked::Sparse { keep_active: sparse.keep_active, refresh: sparse.refresh })
        }
        CacheUse::None | CacheUse::Full => None,
    };
    let precision = if cache == CacheUse::None { Precision::F64 } else { precision(case) };
    let (masks, steps) = (inputs.follow, inputs.steps);
    let of_reference = ReferenceExperts::of(reference)?;
    let mut experts = of_reference.as_ref().map(ReferenceExperts::given);
    let plan = masked::Plan { masks, steps, sparse, precision, experts, ..masked::Plan::default() };
    let given = trajectory(reference.path(), unmask)?;
    // The reference's rows of every step; what the cache holds there after the oracle's own.
    let rows = reference.step_rows().cloned().unwrap_or_default();
    let mut by_step: Vec<LayerKv> = vec![LayerKv::default(); reference.layers_of(KvSet::Steps)];
    let mut before: Vec<LayerKv> = vec![LayerKv::default(); reference.layers_of(KvSet::BeforeStoring)];
    let mut routings = Routings::default();
    let mut computed = 0;
    let generated = masked::generate(network, &inputs.prompt, plan, Some(&given), |step| {
        computed += step.active.len();
        for (i, &position) in step.masked.iter().enumerate() {
            let read = if h.shift_logits { position.saturating_sub(1) } else { position };
            writer.row(int(read), int(step.step), step.logits.row(i));
        }
        let of_step = rows.step.iter().zip(&rows.position).filter(|(at, _)| **at == int(step.step));
        routings.push(step.active.iter().copied(), step.routing);
        for position in of_step.filter_map(|(_, &position)| usize::try_from(position).ok()) {
            for (layer, (all, held)) in by_step.iter_mut().zip(step.cache.layers()).enumerate() {
                let width = h.layer(layer).kv_width();
                all.k.extend(held.k.get(position * width..(position + 1) * width).unwrap_or_default());
                all.v.extend(held.v.get(position * width..(position + 1) * width).unwrap_or_default());
            }
        }
        for (layer, (all, computed)) in before.iter_mut().zip(step.kv).enumerate() {
            let width = h.layer(layer).kv_width();
            for (all, computed) in [(&mut all.k, &computed.k), (&mut all.v, &computed.v)] {
                all.resize(step.tokens.len() * width, 0.0);
                for (row, position) in computed.chunks_exact(width).zip(step.active) {
                    all[position * width..][..width].copy_from_slice(row);
                }
            }
        }
    })
    .map_err(failed)?;
    writer.tokens(&signed(&generated.tokens));
    writer.unmask(unmask);
    for (layer, kv) in before.iter().enumerate() {
        writer.layer_before_storing(layer, &kv.k, &kv.v, shape(h, layer, kv.k.len()));
    }
    if !by_step.is_empty() {
        let whole =
            |(layer, kv): (usize, &LayerKv)| kv.k.len() == rows.step.len() * h.layer(layer).kv_width();
        if !by_step.iter().enumerate().all(whole) {
            return Err(input("the reference has keys and values of steps or positions that there are not"));
        }
        writer.step_rows(&rows);
        for (layer, kv) in by_step.iter().enumerate() {
            writer.layer_by_step(layer, &kv.k, &kv.v, shape(h, layer, kv.k.len()));
        }
    }
    match cache {
        // Without a cache the reference's keys and values are of the finished sequence.
        CacheUse::None => {
            let n = generated.tokens.len();
            let last = experts.as_mut().map(|given| given.take(computed).and_then(|_| given.take(n)));
            let last = last.transpose().map_err(failed)?;
            let request = Request {
                rows: Rows::Only(&[]),
                experts: last.as_deref(),
                ..Request::new(&generated.tokens)
            };
            let pass = network.forward(&mut network.cache(n), request).map_err(failed)?;
            routings.push(0..n, &pass.routing);
            layers(writer, h, &pass.kv);
        }
        CacheUse::Full | CacheUse::Sparse(_) => layers(writer, h, generated.cache.layers()),
    }
    routings.write(writer, h);
    Ok(())
}

fn trajectory(path: &Path, unmask: &Unmask) -> Result<Vec<masked::Replay>, Failure> {
    let [step, position, token] =
        [&unmask.step, &unmask.position, &unmask.token].map(|list| unsigned(path, list));
    let replay = |((step, position), token): ((u32, u32), u32)| masked::Replay {
        step: step as usize,
        position: position as usize,
        token,
    };
    Ok(step?.into_iter().zip(position?).zip(token?).map(replay).collect())
}

pub(super) fn layers(writer: &mut CaptureWriter, h: &HyperParams, kv: &[LayerKv]) {
    for (i, layer) in kv.iter().enumerate() {
        let shape = shape(h, i, layer.k.len());
        writer.layer(&layer.k, shape, &layer.v, shape);
    }
}

/// The experts that worked in the reference.
pub(super) struct ReferenceExperts {
    /// Layer by layer, row by row in the order of computing.
    layers: Vec<Vec<usize>>,
    /// How many a row.
    used: usize,
}

impl ReferenceExperts {
    /// Those that a capture tells; none where it tells none.
    pub(super) fn of(reference: &CaptureReader) -> Result<Option<Self>, Failure> {
        let Some(routing) = reference.routing() else { return Ok(None) };
        let of_layer = |layer: &Vec<i32>| {
            let layer = unsigned(reference.path(), layer)?;
            Ok(layer.into_iter().map(|expert| expert as usize).collect())
        };
        let layers = routing.chosen.iter().map(of_layer).collect::<Result<_, Failure>>()?;
        Ok(Some(Self { layers, used: routing.used }))
    }

    /// From the first row on.
    pub(super) fn given(&self) -> GivenExperts<'_> {
        GivenExperts::new(&self.layers, self.used)
    }
}

/// What the routers of experts decided, pass by pass.
#[derive(Default)]
pub(super) struct Routings {
    rows: StepRows,
    layers: Vec<LayerRouting<f64>>,
    passes: usize,
}

impl Routings {
    /// Adds a pass over these positions.
    pub(super) fn push(&mut self, positions: impl Iterator<Item = usize>, routing: &[Routing]) {
        for position in positions.filter(|_| !routing.is_empty()) {
            self.rows.step.push(int(self.passes));
            self.rows.position.push(int(position));
        }
        self.passes += 1;
        self.layers.resize(routing.len(), LayerRouting { logits: Vec::new(), chosen: Vec::new() });
        for (all, new) in self.layers.iter_mut().zip(routing) {
            all.logits.extend_from_slice(&new.logits);
            all.chosen.extend(new.chosen.iter().map(|&expert| int(expert)));
        }
    }

    pub(super) fn write(self, writer: &mut CaptureWriter, h: &HyperParams) {
        if let Some(experts) = h.experts.filter(|_| !self.layers.is_empty()) {
            writer.routing(&self.rows, experts.count, experts.used, &self.layers);
        }
    }
}

fn meta(cell: &JobCell, timings: BTreeMap<String, f64>) -> CaptureMeta {
    CaptureMeta {
        schema: SCHEMA.to_owned(),
        case: cell.id.case.to_string(),
        model: cell.model.clone(),
        build: oracle_build(),
        device: DeviceInfo {
            selector: ORACLE.to_owned(),
            name: ORACLE.to_owned(),
            kind: DeviceKind::Cpu,
            description: "the f64 oracle".to_owned(),
            driver: None,
            memory_total: None,
        },
        features: BTreeMap::new(),
        environment: BTreeMap::new(),
        placement: Placement::default(),
        traffic: None,
        bytes: Vec::new(),
        peak_rss_bytes: runtime::peak_resident_bytes(),
        threads: std::thread::available_parallelism()
            .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
        timings,
        text: None,
        retried: None,
        notes: vec!["F64; the K/V cache rounded as the case's type does".to_owned()],
        checks: Vec::new(),
        sampler: None,
    }
}

/// What stands for the build in the oracle's captures: this program.
#[must_use]
pub fn oracle_build() -> BuildInfo {
    let version = Some(env!("CARGO_PKG_VERSION").to_owned());
    BuildInfo { name: ORACLE.to_owned(), version, ..BuildInfo::default() }
}

pub(super) fn input(message: impl ToString) -> Failure {
    Failure { kind: FailureKind::Input, message: message.to_string() }
}

pub(super) fn failed(error: oracle::Error) -> Failure {
    use oracle::Error as E;
    let kind = match error {
        E::Unsupported(_) => FailureKind::Unsupported,
        E::NoCandidate { .. } => FailureKind::Fault,
        _ => FailureKind::Input,
    };
    Failure { kind, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CellId;

    fn job(case: &str, path: &Path, replay: &Path, capture: &Path, inputs: Inputs) -> JobCell {
        let id: CellId = format!("{case}@b:oracle").parse().unwrap();
        let model = crate::capture::ModelInfo { sha256: "00".to_owned(), ..Default::default() };
        JobCell {
            id,
            path: path.to_owned(),
            model,
            inputs,
            replay: Some(replay.to_owned()),
            capture: capture.to_owned(),
            fault: None,
            pins: None,
            lost: None,
        }
    }

    fn inputs(prompt: &[u32], follow: usize, steps: usize) -> Inputs {
        let schedule = runtime::generate::masked::Schedule::Linear;
        Inputs { prompt: prompt.to_vec(), follow, steps, schedule, is_text: false, draft: None }
    }

    /// The capture of a reference: what the oracle reads of it.
    fn reference(path: &Path, job: &JobCell, tokens: &[i32], rows: &[(i32, i32)], unmask: Option<Unmask>) {
        let mut writer = CaptureWriter::new(1);
        rows.iter().for_each(|&(position, step)| writer.row(position, step, &[0f32]));
        writer.tokens(tokens);
        unmask.iter().for_each(|unmask| writer.unmask(unmask));
        writer.write(path, &meta(job, BTreeMap::new())).unwrap();
    }

    #[test]
    fn rows_are_those_at_the_references_positions() {
        let work = tempfile::tempdir().unwrap();
        let file = |name: &str| work.path().join(name);
        let path = file("m.gguf");
        model_file::generate(&model_file::GenerateSpec::preset("gen-llama").unwrap(), &path).unwrap();
        let (replay, capture) = (file("r"), file("c"));
        let job = job("m/f32/batch", &path, &replay, &capture, inputs(&[5, 9, 12, 7], 0, 1));
        reference(&replay, &job, &[5, 9, 12, 7], &[(2, 1), (3, 1)], None);
        execute(&job, &mut None).unwrap();
        let mut found = CaptureReader::open(&capture).unwrap();
        assert!(found.meta().is_oracle());
        assert_eq!((found.positions(), found.step()), ([2, 3].as_slice(), [1, 1].as_slice()));
        let network = Network::open(&Model::open(&path).unwrap()).unwrap();
        let pass = network.full(&[5, 9, 12, 7], Rows::Only(&[2, 3])).unwrap();
        let mut values = Vec::new();
        found.logits(0, 2, &mut values).unwrap();
        assert_eq!(values, pass.logits.values(), "every bit of an f64 is kept");
        found.kv(Cache::V, 1, 0, 4, &mut values).unwrap();
        assert_eq!(values, pass.kv[1].v);
    }

    #[test]
    fn a_generation_that_leaves_masks_is_replayed_to_its_last_step() {
        let work = tempfile::tempdir().unwrap();
        let file = |name: &str| work.path().join(name);
        let path = file("m.gguf");
        model_file::generate(&model_file::GenerateSpec::preset("gen-dream").unwrap(), &path).unwrap();
        let (replay, capture) = (file("r"), file("c"));
        let job = job("m/f32/sparse?keep=1", &path, &replay, &capture, inputs(&[5, 9], 2, 3));
        let unmask = Unmask { step: vec![1], position: vec![3], token: vec![7] };
        reference(&replay, &job, &[5, 9, 0, 7], &[(1, 0)], Some(unmask.clone()));
        execute(&job, &mut None).unwrap();
        let found = CaptureReader::open(&capture).unwrap();
        // Logits are shifted: the row before each mask.
        assert_eq!(found.positions(), [1, 2, 1, 2, 1]);
        assert_eq!(found.step(), [0, 0, 1, 1, 2]);
        assert_eq!(found.unmask(), Some(&unmask));
    }

    #[test]
    fn what_the_oracle_lacks_is_said() {
        let case = |id: &str| id.parse::<Case>().unwrap();
        let [llama, dream] =
            ["gen-llama", "gen-dream"].map(|name| model_file::GenerateSpec::preset(name).unwrap().hparams());
        let mask = dream.mask_token.unwrap();
        let plain = inputs(&[5, 9], 2, 3);
        assert!(lacks(&case("m/f32/lifecycle"), &llama, &plain).unwrap().contains("lifecycle"));
        assert!(lacks(&case("m/f32/generate?window=4"), &dream, &plain).is_some());
        assert_eq!(lacks(&case("m/f32/generate?window=4"), &llama, &plain), None);
        assert_eq!(lacks(&case("m/f32/sparse"), &dream, &plain), None);
        let masked = inputs(&[5, mask], 2, 3);
        assert!(lacks(&case("m/f32/sparse"), &dream, &masked).is_some());
        assert_eq!(lacks(&case("m/f32/full"), &dream, &masked), None);
    }
}
