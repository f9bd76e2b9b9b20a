//! Reading captures row by row: logits of a large vocabulary do not fit in memory twice.

use super::header::TensorFile;
use super::meta::SCHEMA;
use super::{
    Cache, CaptureError, CaptureMeta, KvSet, LayerProfile, NearTies, Routing, SampledRows, StepRows, Unmask,
    results, routing, sampled,
};
use crate::plan::Case;
use std::path::Path;

/// What was sampled, where it cannot be made again.
pub(super) const SAMPLED_LOGITS: &str = "sampler.logits";

/// An open capture. Shapes, types and row counts were checked when it was opened; tensors stay on disk.
pub struct CaptureReader {
    file: TensorFile,
    meta: CaptureMeta,
    foreign: bool,
    rows: usize,
    vocab: usize,
    tokens: Vec<i32>,
    positions: Vec<i32>,
    step: Vec<i32>,
    /// By [`KvSet`].
    kv_shapes: [Vec<[[usize; 3]; 2]>; 3],
    step_rows: Option<StepRows>,
    routing: Option<Routing>,
    profile: Option<LayerProfile>,
    greedy: Option<Vec<i32>>,
    greedy_margin: Option<Vec<f64>>,
    unmask: Option<Unmask>,
    sampled: Option<SampledRows>,
    sampled_own: Option<SampledRows>,
    near_ties: Option<NearTies>,
}

impl CaptureReader {
    /// Opens a capture that one of our workers, or a runtime that follows the format in full, wrote.
    ///
    /// # Errors
    /// A file that cannot be read, is cut short, or has a missing or malformed tensor or metadata key.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let file = TensorFile::open(path)?;
        let meta = read_meta(&file)?;
        Self::check(file, meta, false)
    }

    /// Opens a capture of another runtime: metadata may be missing, and so may `positions` and `step`, which
    /// then are 0, 1, 2, … and 0. Its model hash is unknown, so a comparison cannot check it. Such a file may say
    /// of which case it is by a key `case` of its `__metadata__`. Files of llama.cpp's `llama-results` are
    /// captures of this kind too.
    ///
    /// # Errors
    /// As [`Self::open`], apart from what may be missing.
    pub fn open_foreign(path: &Path) -> Result<Self, CaptureError> {
        if results::is_gguf(path)? {
            let (file, rows, meta) = results::open(path)?;
            let mut reader = Self::check(file, meta, true)?;
            (reader.positions, reader.step) = rows;
            return Ok(reader);
        }
        let file = TensorFile::open(path)?;
        if file.metadata(META_KEY).is_some() {
            let meta = read_meta(&file)?;
            return Self::check(file, meta, false);
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let case = file.metadata(CASE_KEY).unwrap_or_default().to_owned();
        if !case.is_empty() && case.parse::<Case>().is_err() {
            return Err(file.wrong("__metadata__.case", case, "a case id, as gen-qwen2/f32/prefill"));
        }
        Self::check(file, CaptureMeta { case, ..CaptureMeta::foreign(&name) }, true)
    }

    fn check(mut file: TensorFile, meta: CaptureMeta, foreign: bool) -> Result<Self, CaptureError> {
        let [rows, vocab] = file.float_shape("logits")?;
        if rows == 0 || vocab == 0 {
            return Err(file.wrong(
                "logits",
                format!("[{rows}, {vocab}]"),
                "at least one row and one column",
            ));
        }
        let tokens = file.integers("tokens")?;
        let names = file.names();
        let has = |name: &str| names.iter().any(|n| n == name);
        let mut row_list = |name: &str, default: &dyn Fn(usize) -> i32| {
            if foreign && !has(name) {
                return Ok((0..rows).map(default).collect());
            }
            let list = file.integers(name)?;
            check_length(&file, name, list.len(), rows)?;
            Ok(list)
        };
        let positions = row_list("positions", &|row| i32::try_from(row).unwrap_or(i32::MAX))?;
        let step = row_list("step", &|_| 0)?;
        let [stored, before, steps] = KvSet::ALL.map(|set| kv_shapes(&file, &names, set));
        let kv_shapes = [stored?, before?, steps?];
        let step_rows = step_rows(&mut file, &names, &kv_shapes)?;
        let routing = routing::read(&mut file, &names)?;
        let profile = if has("profile.impact") {
            let [layers] = file.float_shape("profile.impact")?;
            let mut impact = Vec::new();
            file.rows("profile.impact", 0, layers, &mut impact)?;
            Some(LayerProfile { impact, skipped: file.integers("profile.skipped")? })
        } else {
            None
        };

        let greedy = if has("greedy") { Some(file.integers("greedy")?) } else { None };
        let greedy_margin = match (&greedy, has("greedy.margin")) {
            (_, false) => None,
            (None, true) => return Err(CaptureError::missing(&file.path, "greedy")),
            (Some(greedy), true) => {
                let [count] = file.float_shape("greedy.margin")?;
                check_length(&file, "greedy.margin", count, greedy.len())?;
                let mut margins = Vec::new();
                file.rows("greedy.margin", 0, count, &mut margins)?;
                Some(margins)
            }
        };
        let unmask = if names.iter().any(|n| n.starts_with("unmask.")) {
            let unmask = Unmask {
                step: file.integers("unmask.step")?,
                position: file.integers("unmask.position")?,
                token: file.integers("unmask.token")?,
            };
            check_length(&file, "unmask.position", unmask.position.len(), unmask.step.len())?;
            check_length(&file, "unmask.token", unmask.token.len(), unmask.step.len())?;
            Some(unmask)
        } else {
            None
        };
        let sampled = sampled::rows(&mut file, "sampler", rows)?;
        let sampled_own = sampled::rows(&mut file, "sampler.own", rows)?;
        let near_ties = sampled::near_ties(&mut file, rows)?;
        Ok(Self {
            file,
            meta,
            foreign,
            rows,
            vocab,
            tokens,
            positions,
            step,
            kv_shapes,
            step_rows,
            routing,
            profile,
            greedy,
            greedy_margin,
            unmask,
            sampled,
            sampled_own,
            near_ties,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Name, type and shape of every tensor, a line each, in the order of the names.
    pub fn outline(&self) -> String {
        let mut names = self.file.names();
        names.sort();
        let line = |name: &String| {
            let info = self.file.info(name).ok()?;
            Some(format!("{name} {:?} {:?}\n", info.dtype, info.shape))
        };
        names.iter().filter_map(line).collect()
    }

    /// Its metadata.
    pub fn meta(&self) -> &CaptureMeta {
        &self.meta
    }

    /// Whether the file has no metadata of ours: nothing is known of its model, build and device.
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Rows of `logits`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of `logits`.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Layers whose K and V were captured.
    pub fn layers(&self) -> usize {
        self.layers_of(KvSet::Stored)
    }

    /// Layers whose K and V were captured in one state.
    pub fn layers_of(&self, set: KvSet) -> usize {
        self.kv_shapes[set as usize].len()
    }

    /// `[positions, kv_heads, head_dim]` of one cache.
    ///
    /// # Panics
    /// When `layer` is not below [`Self::layers`].
    pub fn kv_shape(&self, cache: Cache, layer: usize) -> [usize; 3] {
        self.kv_shape_of(KvSet::Stored, cache, layer)
    }

    /// `[positions, kv_heads, head_dim]` of one cache in one state.
    ///
    /// # Panics
    /// When `layer` is not below [`Self::layers_of`].
    pub fn kv_shape_of(&self, set: KvSet, cache: Cache, layer: usize) -> [usize; 3] {
        self.kv_shapes[set as usize][layer][cache as usize]
    }

    /// Which pass computed which rows of the caches.
    pub fn step_rows(&self) -> Option<&StepRows> {
        self.step_rows.as_ref()
    }

    /// Which experts worked on each token.
    pub fn routing(&self) -> Option<&Routing> {
        self.routing.as_ref()
    }

    /// Reads `count` rows of a layer's router logits from `first` on into `out`, which is cleared: `[count, experts]`,
    /// row-major.
    ///
    /// # Errors
    /// The file system's.
    ///
    /// # Panics
    /// When the layer or the rows are not in the capture.
    pub fn router(
        &mut self,
        layer: usize,
        first: usize,
        count: usize,
        out: &mut Vec<f64>,
    ) -> Result<(), CaptureError> {
        self.file.rows(&routing::router_name(layer), first, count, out)
    }

    /// What a profile of the layers said.
    pub fn profile(&self) -> Option<&LayerProfile> {
        self.profile.as_ref()
    }

    /// The tokens that were fed in.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// The position of each row.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// The step of each row.
    pub fn step(&self) -> &[i32] {
        &self.step
    }

    /// The tokens of the free run.
    pub fn greedy(&self) -> Option<&[i32]> {
        self.greedy.as_deref()
    }

    /// The margin of each token of the free run, in logits.
    pub fn greedy_margin(&self) -> Option<&[f64]> {
        self.greedy_margin.as_deref()
    }

    /// The trajectory of a masked generation.
    pub fn unmask(&self) -> Option<&Unmask> {
        self.unmask.as_ref()
    }

    /// What the dense sampler said of each row.
    pub fn sampled(&self) -> Option<&SampledRows> {
        self.sampled.as_ref()
    }

    /// What the sampler that the backend brings said of each row.
    pub fn sampled_own(&self) -> Option<&SampledRows> {
        self.sampled_own.as_ref()
    }

    /// The draws that are near ties of each row.
    pub fn near_ties(&self) -> Option<&NearTies> {
        self.near_ties.as_ref()
    }

    /// Whether it keeps the logits that were sampled, since they cannot be made again.
    #[must_use]
    pub fn holds_sampled_logits(&self) -> bool {
        self.file.info(SAMPLED_LOGITS).is_ok()
    }

    /// The logits `[rows, vocab]` that were sampled, and their columns, where they cannot be made again.
    ///
    /// # Errors
    /// No such tensor, one of another number of rows, and the file system's.
    pub fn sampled_logits(&mut self) -> Result<(usize, Vec<f64>), CaptureError> {
        let [rows, vocab] = self.file.float_shape(SAMPLED_LOGITS)?;
        check_length(&self.file, SAMPLED_LOGITS, rows, self.rows)?;
        let mut all = Vec::new();
        self.file.rows(SAMPLED_LOGITS, 0, rows, &mut all)?;
        Ok((vocab, all))
    }

    /// Reads `count` rows of logits from `first` on into `out`, which is cleared: `[count, vocab]`, row-major.
    ///
    /// # Errors
    /// The file system's.
    ///
    /// # Panics
    /// When the rows are not below [`Self::rows`].
    pub fn logits(&mut self, first: usize, count: usize, out: &mut Vec<f64>) -> Result<(), CaptureError> {
        self.file.rows("logits", first, count, out)
    }

    /// Reads `count` positions of a cache from `first` on into `out`, which is cleared:
    /// `[count, kv_heads, head_dim]`, row-major.
    ///
    /// # Errors
    /// The file system's.
    ///
    /// # Panics
    /// When the layer or the positions are not in the capture.
    pub fn kv(
        &mut self,
        cache: Cache,
        layer: usize,
        first: usize,
        count: usize,
        out: &mut Vec<f64>,
    ) -> Result<(), CaptureError> {
        self.kv_of(KvSet::Stored, cache, layer, first, count, out)
    }

    /// As [`Self::kv`], in one state.
    ///
    /// # Errors
    /// The file system's.
    ///
    /// # Panics
    /// When the layer or the positions are not in the capture.
    pub fn kv_of(
        &mut self,
        set: KvSet,
        cache: Cache,
        layer: usize,
        first: usize,
        count: usize,
        out: &mut Vec<f64>,
    ) -> Result<(), CaptureError> {
        self.file.rows(&set.tensor(cache, layer), first, count, out)
    }
}

/// The key of `__metadata__` that holds [`CaptureMeta`].
pub(crate) const META_KEY: &str = "ggml-parity";
/// The key of `__metadata__` that holds the schema alone, for readers that parse no JSON.
pub(super) const SCHEMA_KEY: &str = "schema";
/// The key of `__metadata__` by which a file without [`CaptureMeta`] may say of which case it is.
const CASE_KEY: &str = "case";

fn read_meta(file: &TensorFile) -> Result<CaptureMeta, CaptureError> {
    let missing = |key| CaptureError::missing(&file.path, format!("__metadata__.{key}"));
    let schema = file.metadata(SCHEMA_KEY).ok_or_else(|| missing(SCHEMA_KEY))?;
    let document = file.metadata(META_KEY).ok_or_else(|| missing(META_KEY))?;
    if schema != SCHEMA {
        return Err(file.wrong("__metadata__.schema", schema, SCHEMA));
    }
    let meta: CaptureMeta = serde_json::from_str(document)
        .map_err(|error| file.wrong("__metadata__.ggml-parity", error, "a capture's metadata"))?;
    if meta.model.sha256.is_empty() {
        return Err(file.wrong("model.sha256", "empty", "the hash of the model file"));
    }
    Ok(meta)
}

/// The shapes of K and V in one state for layers 0, 1, …; a gap between them is a missing tensor.
fn kv_shapes(file: &TensorFile, names: &[String], set: KvSet) -> Result<Vec<[[usize; 3]; 2]>, CaptureError> {
    let layer = |name: &str| {
        let layer = name.split_once('.')?.1.parse::<usize>().ok()?;
        Cache::ALL.iter().any(|&cache| set.tensor(cache, layer) == name).then_some(layer)
    };
    // Every layer needs a tensor, so a name like `k.4000000000` cannot make this loop long.
    let count = names.iter().filter_map(|name| layer(name)).max().map_or(0, |last| last.saturating_add(1));
    let mut shapes = Vec::new();
    for layer in 0..count {
        let [k_name, v_name] = [Cache::K, Cache::V].map(|cache| set.tensor(cache, layer));
        let k = file.float_shape::<3>(&k_name)?;
        let v = file.float_shape::<3>(&v_name)?;
        if k.contains(&0) {
            return Err(file.wrong(&k_name, format!("{k:?}"), "no empty dimension"));
        }
        if k[..2] != v[..2] || v[2] == 0 {
            let expected = format!("{} positions and {} heads, as K has", k[0], k[1]);
            return Err(file.wrong(&v_name, format!("{v:?}"), expected));
        }
        shapes.push([k, v]);
    }
    Ok(shapes)
}

/// The index of rows by pass, and whether it fits the tensors that it is of.
fn step_rows(
    file: &mut TensorFile,
    names: &[String],
    shapes: &[Vec<[[usize; 3]; 2]>; 3],
) -> Result<Option<StepRows>, CaptureError> {
    let has = |name: &str| names.iter().any(|n| n == name);
    let by_step = &shapes[KvSet::Steps as usize];
    if !has("kv_step") && !has("kv_position") && by_step.is_empty() {
        return Ok(None);
    }
    let rows = StepRows { step: file.integers("kv_step")?, position: file.integers("kv_position")? };
    check_length(file, "kv_position", rows.position.len(), rows.step.len())?;
    if let Some(pair) = rows.step.windows(2).find(|pair| pair[0] > pair[1]) {
        return Err(file.wrong(
            "kv_step",
            format!("{} after {}", pair[1], pair[0]),
            "steps that do not fall",
        ));
    }
    if let Some(below) = rows.position.iter().find(|&&position| position < 0) {
        return Err(file.wrong("kv_position", below, "positions from 0 on"));
    }
    for (layer, [k, _]) in by_step.iter().enumerate() {
        check_length(file, &KvSet::Steps.tensor(Cache::K, layer), k[0], rows.step.len())?;
    }
    if by_step.is_empty() {
        let held = shapes[KvSet::Stored as usize].iter().map(|[k, _]| k[0]).min().unwrap_or(0);
        let mut seen = vec![false; held];
        for &position in &rows.position {
            match seen.get_mut(position as usize) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => return Err(file.wrong("kv_position", position, "each position once")),
                None => return Err(file.wrong("kv_position", position, format!("positions below {held}"))),
            }
        }
    }
    Ok(Some(rows))
}

pub(super) fn check_length(
    file: &TensorFile,
    name: &str,
    found: usize,
    wanted: usize,
) -> Result<(), CaptureError> {
    if found == wanted {
        return Ok(());
    }
    Err(file.wrong(name, format!("{found} long"), format!("{wanted} entries")))
}
