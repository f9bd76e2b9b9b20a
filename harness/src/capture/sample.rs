//! A small capture for tests, made from a seed, in which faults can be planted.

use super::{CaptureMeta, CaptureReader, CaptureWriter, StepRows, Unmask};
use std::path::Path;

/// Tensors of a capture before they are written. Its caches have [`Sample::KV`] = `[positions, heads, width]`.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) meta: CaptureMeta,
    pub(crate) tokens: Vec<i32>,
    /// `[rows][vocab]`.
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) positions: Vec<i32>,
    pub(crate) step: Vec<i32>,
    /// K and V of each layer.
    pub(crate) layers: Vec<[Vec<f32>; 2]>,
    pub(crate) greedy: Option<Vec<i32>>,
    pub(crate) greedy_margin: Option<Vec<f32>>,
    pub(crate) unmask: Option<Unmask>,
    /// Which step computed which rows of `layers`.
    pub(crate) step_rows: Option<StepRows>,
}

impl Sample {
    pub(crate) const KV: [usize; 3] = [5, 2, 4];

    /// A capture of two layers with values of about unit variance.
    pub(crate) fn new(rows: usize, vocab: usize) -> Self {
        let mut noise = Noise::new(1);
        let mut meta = CaptureMeta::foreign("sample");
        meta.model.sha256 = "5a".repeat(32);
        meta.case = "sample/f32/prefill".to_owned();
        let count = i32::try_from(rows).unwrap();
        let size = Self::KV.iter().product();
        Self {
            meta,
            tokens: (0..count).map(|t| t * 7 % 5).collect(),
            logits: (0..rows).map(|_| noise.values(vocab)).collect(),
            positions: (0..count).collect(),
            step: vec![0; rows],
            layers: (0..2).map(|_| [noise.values(size), noise.values(size)]).collect(),
            greedy: None,
            greedy_margin: None,
            unmask: None,
            step_rows: None,
        }
    }

    /// The same with noise of `size` added to every value.
    pub(crate) fn with_noise(&self, size: f32) -> Self {
        let mut noise = Noise::new(2);
        let mut noisy = self.clone();
        let caches = noisy.layers.iter_mut().flatten();
        for value in noisy.logits.iter_mut().chain(caches).flatten() {
            *value += size * noise.next();
        }
        noisy
    }

    pub(crate) fn write(&self, path: &Path) {
        let mut writer = CaptureWriter::new(self.logits.first().map_or(0, Vec::len));
        for ((row, &position), &step) in self.logits.iter().zip(&self.positions).zip(&self.step) {
            writer.row(position, step, row);
        }
        writer.tokens(&self.tokens);
        for [k, v] in &self.layers {
            writer.layer(k, Self::KV, v, Self::KV);
        }
        if let Some(greedy) = &self.greedy {
            writer.greedy(greedy);
        }
        if let Some(margins) = &self.greedy_margin {
            writer.greedy_margin(margins);
        }
        if let Some(unmask) = &self.unmask {
            writer.unmask(unmask);
        }
        if let Some(rows) = &self.step_rows {
            writer.step_rows(rows);
        }
        writer.write(path, &self.meta).unwrap();
    }

    /// Writes the capture to a file that is gone once it is open.
    pub(crate) fn open(&self) -> CaptureReader {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sample.safetensors");
        self.write(&path);
        CaptureReader::open(&path).unwrap()
    }
}

/// Values of about normal distribution from a seed (splitmix64).
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 40) as f32 / (1 << 24) as f32
    }

    /// The sum of twelve uniform values less six.
    pub(crate) fn next(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}
