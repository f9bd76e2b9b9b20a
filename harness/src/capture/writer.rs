//! Writing captures.

use super::meta::SCHEMA;
use super::reader::{META_KEY, SAMPLED_LOGITS, SCHEMA_KEY};
use super::{
    Cache, CaptureError, CaptureMeta, Float, KvSet, LayerProfile, LayerRouting, NearTies, SampledRows,
    StepRows, Unmask, routing,
};
use crate::atomic;
use safetensors::{Dtype, SafeTensorError, View};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

/// Collects the tensors of a capture and writes them in one go, to a temporary name that is then renamed, so a
/// worker that dies leaves no half file.
///
/// # Panics
/// Its methods panic on slices that do not have the stated shape: that is a fault of the caller, not of data.
pub struct CaptureWriter {
    vocab: usize,
    logits: Vec<u8>,
    /// The type of the logits: that of the first row.
    dtype: Option<Dtype>,
    positions: Vec<i32>,
    step: Vec<i32>,
    tokens: Vec<i32>,
    layers: usize,
    extra: Vec<(String, Tensor)>,
}

impl CaptureWriter {
    /// An empty capture of logits with `vocab` columns.
    pub fn new(vocab: usize) -> Self {
        Self {
            vocab,
            logits: Vec::new(),
            dtype: None,
            positions: Vec::new(),
            step: Vec::new(),
            tokens: Vec::new(),
            layers: 0,
            extra: Vec::new(),
        }
    }

    /// Adds the logits `[vocab]` that forward `step` put out at `position`.
    pub fn row<T: Float>(&mut self, position: i32, step: i32, logits: &[T]) {
        assert_eq!(logits.len(), self.vocab, "logits of one row");
        assert_eq!(*self.dtype.get_or_insert(T::DTYPE), T::DTYPE, "rows of one type");
        logits.iter().for_each(|value| value.write(&mut self.logits));
        self.positions.push(position);
        self.step.push(step);
    }

    /// Sets the tokens that were fed in.
    pub fn tokens(&mut self, tokens: &[i32]) {
        self.tokens = tokens.to_vec();
    }

    /// Adds the caches of the next layer, each `[positions, kv_heads, head_dim]`, row-major.
    pub fn layer<T: Float>(&mut self, k: &[T], k_shape: [usize; 3], v: &[T], v_shape: [usize; 3]) {
        for (cache, values, shape) in [(Cache::K, k, k_shape), (Cache::V, v, v_shape)] {
            self.extra.push((cache.tensor(self.layers), Tensor::floats(values, &shape)));
        }
        self.layers += 1;
    }

    /// Adds what the caches of layer `layer` were before they were stored, both of `shape`
    /// `[positions, kv_heads, head_dim]`.
    pub fn layer_before_storing<T: Float>(&mut self, layer: usize, k: &[T], v: &[T], shape: [usize; 3]) {
        for (cache, values) in [(Cache::K, k), (Cache::V, v)] {
            let name = KvSet::BeforeStoring.tensor(cache, layer);
            self.extra.push((name, Tensor::floats(values, &shape)));
        }
    }

    /// Says which pass computed which rows of the caches.
    pub fn step_rows(&mut self, rows: &StepRows) {
        for (name, list) in [("kv_step", &rows.step), ("kv_position", &rows.position)] {
            self.extra.push((name.to_owned(), Tensor::integers(list)));
        }
    }

    /// Adds what the caches of layer `layer` held at each entry of [`Self::step_rows`] right after its pass, both of
    /// `shape` `[entries, kv_heads, head_dim]`.
    pub fn layer_by_step<T: Float>(&mut self, layer: usize, k: &[T], v: &[T], shape: [usize; 3]) {
        for (cache, values) in [(Cache::K, k), (Cache::V, v)] {
            self.extra.push((KvSet::Steps.tensor(cache, layer), Tensor::floats(values, &shape)));
        }
    }

    /// Says which of `experts` experts worked on each of `rows`, `used` of them, layer by layer.
    pub fn routing<T: Float>(
        &mut self,
        rows: &StepRows,
        experts: usize,
        used: usize,
        layers: &[LayerRouting<T>],
    ) {
        for (name, list) in [("route_step", &rows.step), ("route_position", &rows.position)] {
            self.extra.push((name.to_owned(), Tensor::integers(list)));
        }
        let count = rows.step.len();
        for (i, layer) in layers.iter().enumerate() {
            self.extra.push((routing::router_name(i), Tensor::floats(&layer.logits, &[count, experts])));
            assert_eq!(layer.chosen.len(), count * used, "experts of {count} rows");
            let chosen = Tensor { shape: vec![count, used], ..Tensor::integers(&layer.chosen) };
            self.extra.push((routing::experts_name(i), chosen));
        }
    }

    /// Sets what a profile of the layers said.
    pub fn profile(&mut self, profile: &LayerProfile) {
        let impact: Vec<f32> = profile.impact.iter().map(|&v| v as f32).collect();
        self.extra.push(("profile.impact".to_owned(), Tensor::floats(&impact, &[impact.len()])));
        self.extra.push(("profile.skipped".to_owned(), Tensor::integers(&profile.skipped)));
    }

    /// Sets the tokens of the free run.
    pub fn greedy(&mut self, tokens: &[i32]) {
        self.extra.push(("greedy".to_owned(), Tensor::integers(tokens)));
    }

    /// Sets the margin of each token of the free run (see the [module](super)).
    pub fn greedy_margin(&mut self, margins: &[f32]) {
        self.extra.push(("greedy.margin".to_owned(), Tensor::floats(margins, &[margins.len()])));
    }

    /// Sets the trajectory of a masked generation.
    pub fn unmask(&mut self, unmask: &Unmask) {
        for (name, list) in [("step", &unmask.step), ("position", &unmask.position), ("token", &unmask.token)]
        {
            self.extra.push((format!("unmask.{name}"), Tensor::integers(list)));
        }
    }

    /// Sets what the dense sampler said of each row, or the one that the backend brings `itself`.
    pub fn sampled(&mut self, rows: &SampledRows, itself: bool) {
        let prefix = if itself { "sampler.own" } else { "sampler" };
        for (name, list) in [("argmax", &rows.argmax), ("sampled", &rows.sampled)] {
            self.extra.push((format!("{prefix}.{name}"), Tensor::integers(list)));
        }
        let entropy = Tensor::floats(&rows.entropy, &[rows.entropy.len()]);
        self.extra.push((format!("{prefix}.entropy"), entropy));
    }

    /// Sets the draws that are near ties of each row.
    pub fn near_ties(&mut self, ties: &NearTies) {
        for (name, list) in [("sampler.lowest", &ties.lowest), ("sampler.highest", &ties.highest)] {
            self.extra.push((name.to_owned(), Tensor::integers(list)));
        }
    }

    /// Sets the logits `[rows, vocab]` that were sampled, row-major.
    pub fn sampled_logits(&mut self, logits: &[f32], vocab: usize) {
        let tensor = Tensor::floats(logits, &[logits.len() / vocab.max(1), vocab]);
        self.extra.push((SAMPLED_LOGITS.to_owned(), tensor));
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file system's, or metadata that safetensors cannot hold.
    pub fn write(self, path: &Path, meta: &CaptureMeta) -> Result<(), CaptureError> {
        let document = serde_json::to_string(meta).map_err(|error| CaptureError::header(path, error))?;
        let metadata =
            HashMap::from([(SCHEMA_KEY.to_owned(), SCHEMA.to_owned()), (META_KEY.to_owned(), document)]);
        let mut tensors = self.extra;
        let shape = vec![self.positions.len(), self.vocab];
        let dtype = self.dtype.unwrap_or(Dtype::F32);
        tensors.push(("logits".to_owned(), Tensor { dtype, shape, bytes: self.logits }));
        tensors.push(("positions".to_owned(), Tensor::integers(&self.positions)));
        tensors.push(("step".to_owned(), Tensor::integers(&self.step)));
        tensors.push(("tokens".to_owned(), Tensor::integers(&self.tokens)));
        atomic::write_with(path, |partial| {
            safetensors::serialize_to_file(tensors, Some(metadata), partial).map_err(|error| match error {
                // A full disk must still look like one.
                SafeTensorError::IoError(error) => error,
                other => std::io::Error::other(other),
            })
        })
        .map_err(|source| CaptureError::io(path, source))
    }
}

/// A tensor as it goes to the file.
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn floats<T: Float>(values: &[T], shape: &[usize]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "values of shape {shape:?}");
        let mut bytes = Vec::with_capacity(size_of_val(values));
        values.iter().for_each(|value| value.write(&mut bytes));
        Self { dtype: T::DTYPE, shape: shape.to_vec(), bytes }
    }

    fn integers(values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: Dtype::I32, shape: vec![values.len()], bytes }
    }
}

impl View for Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
