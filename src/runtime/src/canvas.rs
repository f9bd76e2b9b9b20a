//! Block diffusion on a device: a prompt is encoded into the K/V cache, which then stands as it is, and a canvas after
//! it is computed again and again, conditioned on its own logits of the step before. These stay on the device.

use ggml_sys::{BufferType, Context, DType, Ggml, Tensor};
use model_file::{HyperParams, Model, dequantize};
use serde::{Deserialize, Serialize};

use crate::cache::as_i64;
use crate::error::Error;
use crate::placement::{BufferUse, Purpose};
use crate::session::{FullPass, GraphRequest, Request, Rows, Session};

/// Bytes of the embedding's transpose that the host holds at a time, about.
const STRIPE: usize = 64 << 20;

/// Which of a block-diffusion network's phases a graph is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    /// None: networks of other kinds.
    #[default]
    Plain,
    /// A prompt, causal, into the cache.
    Encode,
    /// A canvas that sees the cache and itself; conditioned on the step before where it has that step's temperature.
    Canvas {
        /// The temperature of the step before; none on the first.
        temperature: Option<f32>,
    },
    /// So many tokens of a prompt, then a canvas, without a cache.
    Unified {
        /// Tokens of the prompt.
        prompt: usize,
        /// The temperature of the step before; none on the first.
        temperature: Option<f32>,
    },
}

impl Phase {
    /// Tokens of a graph of `n` that are a canvas's; none where it has no canvas.
    pub(crate) fn canvas(self, n: usize) -> Option<usize> {
        match self {
            Self::Plain | Self::Encode => None,
            Self::Canvas { .. } => Some(n),
            Self::Unified { prompt, .. } => Some(n - prompt),
        }
    }

    /// The temperature of the step before, where the canvas is conditioned on that.
    pub(crate) fn temperature(self) -> Option<f32> {
        match self {
            Self::Plain | Self::Encode => None,
            Self::Canvas { temperature } | Self::Unified { temperature, .. } => temperature,
        }
    }
}

/// What conditioning needs on the device: the embedding as probabilities are multiplied with it, and the logits of the
/// step before.
pub(crate) struct Conditioning {
    /// F32 `[n_vocab, n_embd]`: the transpose of the embedding.
    table: Tensor,
    home: BufferType,
    /// F32 `[n_vocab, canvas]`.
    logits: Option<Tensor>,
    /// Whether they are there.
    filled: bool,
    buffers: Vec<BufferUse>,
}

impl Conditioning {
    /// Puts the transpose of the model's embedding into `home`.
    pub(crate) fn load(ggml: &'static Ggml, model: &Model, home: BufferType) -> Result<Self, Error> {
        let h = &model.hparams;
        let ctx = Context::new(ggml, 1, 0)?;
        let table = ctx.tensor(DType::F32, &[as_i64(h.n_vocab), as_i64(h.n_embd)]);
        table.set_name("embedding_transposed");
        let bytes = ctx.allocate(&home, true)? as u64;
        transpose(model, &table)?;
        let buffers = vec![BufferUse { buffer: home.name(), purpose: Purpose::Weights, bytes }];
        Ok(Self { table, home, logits: None, filled: false, buffers })
    }

    /// Makes room for the logits of a canvas; those of one of another length are forgotten.
    fn prepare(&mut self, ggml: &'static Ggml, h: &HyperParams, canvas: usize) -> Result<(), Error> {
        let ne = [as_i64(h.n_vocab), as_i64(canvas)];
        if self.logits.as_ref().is_some_and(|t| t.ne()[..2] == ne) {
            return Ok(());
        }
        let ctx = Context::new(ggml, 1, 0)?;
        let logits = ctx.tensor(DType::F32, &ne);
        logits.set_name("conditioning_logits");
        let bytes = ctx.allocate(&self.home, false)? as u64;
        self.buffers.truncate(1);
        self.buffers.push(BufferUse { buffer: self.home.name(), purpose: Purpose::Cache, bytes });
        (self.logits, self.filled) = (Some(logits), false);
        Ok(())
    }

    pub(crate) fn table(&self) -> &Tensor {
        &self.table
    }

    /// The logits of the step before, and where those of this one go.
    ///
    /// # Panics
    /// Before a canvas was prepared.
    pub(crate) fn logits(&self) -> &Tensor {
        self.logits.as_ref().expect("a canvas was prepared")
    }

    pub(crate) fn buffers(&self) -> &[BufferUse] {
        &self.buffers
    }
}

/// Writes the transpose of the embedding, some of its columns at a time.
fn transpose(model: &Model, table: &Tensor) -> Result<(), Error> {
    let (n_vocab, n_embd) = (model.hparams.n_vocab, model.hparams.n_embd);
    let info = model.file.tensor("token_embd.weight").expect("opening the model has found it");
    let row_bytes = usize::try_from(info.bytes).expect("in memory") / n_vocab;
    let stripe = (STRIPE / 4 / n_vocab).clamp(1, n_embd);
    let mut row = vec![0f32; n_embd];
    for first in (0..n_embd).step_by(stripe) {
        let columns = stripe.min(n_embd - first);
        let mut part = vec![0f32; columns * n_vocab];
        for chunk in model.file.chunks(info, row_bytes as u64 * 4096) {
            let (offset, data) = chunk?;
            let at = usize::try_from(offset).expect("in memory") / row_bytes;
            for (i, bytes) in data.chunks_exact(row_bytes).enumerate() {
                dequantize(info.ty, bytes, &mut row)?;
                for (column, value) in row[first..first + columns].iter().enumerate() {
                    part[column * n_vocab + at + i] = *value;
                }
            }
        }
        let bytes: Vec<u8> = part.iter().flat_map(|v| v.to_ne_bytes()).collect();
        table.write_bytes(first * n_vocab * 4, &bytes)?;
    }
    Ok(())
}

/// `[prompt + canvas]` squared, row-major, 0 or minus infinity: a prompt's token sees those up to itself, the last
/// `window` of them; a canvas's sees the whole canvas and the prompt, the last `window - 1` positions of it.
pub(crate) fn unified_mask(prompt: usize, canvas: usize, window: Option<usize>) -> Vec<f32> {
    let window = window.unwrap_or(usize::MAX);
    let n = prompt + canvas;
    let sees = |q: usize, k: usize| match (q < prompt, k < prompt) {
        (true, true) => k <= q && q - k < window,
        (true, false) => false,
        (false, true) => prompt - k < window,
        (false, false) => true,
    };
    (0..n).flat_map(|q| (0..n).map(move |k| if sees(q, k) { 0.0 } else { f32::NEG_INFINITY })).collect()
}

impl Session {
    /// Encodes tokens after the cached ones and adds their keys and values to the cache. With `keep` the pass has them
    /// and the experts' choices too; it has no logits.
    ///
    /// # Errors
    /// When the model is no block-diffusion one, the cache is full, a token is outside the vocabulary, or ggml fails.
    pub fn encode(&mut self, tokens: &[u32], keep: bool) -> Result<FullPass, Error> {
        let (used, capacity) = (self.cached(), self.cache_capacity());
        if used + tokens.len() > capacity {
            return Err(Error::CacheFull { used, capacity, wanted: tokens.len() });
        }
        let positions: Vec<usize> = (used..used + tokens.len()).collect();
        let request = Request {
            tokens,
            positions: &positions,
            rows: Rows::Only(&[]),
            cached: Some(used + tokens.len()),
            keep_kv: keep,
            keep_residuals: false,
            phase: Phase::Encode,
        };
        let pass = self.compute(&request)?;
        self.set_cached(used + tokens.len());
        Ok(pass)
    }

    /// One pass over a canvas after the cached positions, which stay as they are: its logits, and with `keep` its keys,
    /// values and experts. Where `temperature` is given, the canvas is conditioned on the logits of the pass before,
    /// which had that temperature; the session keeps those of this one on the device.
    ///
    /// # Errors
    /// When the model is no block-diffusion one, there is no pass before over a canvas as long, a token is outside the
    /// vocabulary, or ggml fails.
    pub fn denoise(
        &mut self,
        canvas: &[u32],
        temperature: Option<f32>,
        keep: bool,
    ) -> Result<FullPass, Error> {
        let used = self.cached();
        let positions: Vec<usize> = (used..used + canvas.len()).collect();
        self.canvas_pass(canvas, &positions, Phase::Canvas { temperature }, Rows::All, keep)
    }

    /// Lets the next pass over the canvas be conditioned on these logits, `[canvas, n_vocab]`, instead of those that the
    /// last one gave.
    ///
    /// # Errors
    /// When there was no pass over a canvas of so many, or the device cannot be written.
    pub fn condition_on(&mut self, logits: &[f32]) -> Result<(), Error> {
        let held = self.conditioning.as_ref().filter(|held| held.filled).map(Conditioning::logits);
        let n_vocab = self.hparams.n_vocab;
        match held {
            Some(held) if held.bytes() == size_of_val(logits) => Ok(held.write_f32(logits)?),
            _ => Err(Error::Input(format!(
                "no pass over a canvas of {} tokens to be conditioned anew",
                logits.len() / n_vocab
            ))),
        }
    }

    /// A prompt and a canvas in one pass without a cache: logits of the canvas; keys, values and experts of both.
    ///
    /// # Errors
    /// As [`denoise`](Self::denoise).
    pub fn unified(
        &mut self,
        prompt: &[u32],
        canvas: &[u32],
        temperature: Option<f32>,
        keep: bool,
    ) -> Result<FullPass, Error> {
        let tokens = [prompt, canvas].concat();
        let positions: Vec<usize> = (0..tokens.len()).collect();
        let rows: Vec<usize> = (prompt.len()..tokens.len()).collect();
        let phase = Phase::Unified { prompt: prompt.len(), temperature };
        self.canvas_pass(&tokens, &positions, phase, Rows::Only(&rows), keep)
    }

    /// Makes room for what a canvas of so many tokens is conditioned on.
    fn prepare_canvas(&mut self, canvas: usize) -> Result<&mut Conditioning, Error> {
        let (ggml, h) = (self.ggml(), &self.hparams);
        let conditioning = self
            .conditioning
            .as_mut()
            .ok_or_else(|| Error::Input(format!("architecture {} has no canvas", h.architecture.name())))?;
        conditioning.prepare(ggml, h, canvas)?;
        Ok(conditioning)
    }

    /// Puts the session where it stood before a graph over a canvas that was noted: what the canvas is conditioned on, and
    /// the positions of the cache that count.
    pub(crate) fn stand_before_canvas(
        &mut self,
        noted: &GraphRequest,
        condition: Option<&[f32]>,
    ) -> Result<(), Error> {
        let Some(canvas) = noted.phase.canvas(noted.tokens.len()) else { return Ok(()) };
        self.prepare_canvas(canvas)?.filled = true;
        match (noted.phase.temperature(), condition) {
            (Some(_), Some(logits)) => self.condition_on(logits)?,
            (Some(_), None) => {
                let message = format!("a noted canvas of {canvas} tokens without what it is conditioned on");
                return Err(Error::Input(message));
            }
            // It is read by nothing, and a walk sees it.
            (None, _) => self.condition_on(&vec![0.0; canvas * self.hparams.n_vocab])?,
        }
        if matches!(noted.phase, Phase::Canvas { .. }) {
            self.set_cached(noted.positions.first().copied().unwrap_or(0));
        }
        Ok(())
    }

    /// What the next canvas would be conditioned on, where its phase says that it is.
    pub(crate) fn condition(&self, phase: Phase) -> Result<Option<Vec<f32>>, Error> {
        let held = self.conditioning.as_ref().filter(|held| held.filled && phase.temperature().is_some());
        Ok(held.map(|held| held.logits().read_f32()).transpose()?)
    }

    fn canvas_pass(
        &mut self,
        tokens: &[u32],
        positions: &[usize],
        phase: Phase,
        rows: Rows<'_>,
        keep: bool,
    ) -> Result<FullPass, Error> {
        let canvas = phase.canvas(tokens.len()).unwrap_or(0);
        if canvas == 0 {
            return Err(Error::Input("a canvas of no tokens".to_owned()));
        }
        let conditioning = self.prepare_canvas(canvas)?;
        if let Some(temperature) = phase.temperature() {
            if !conditioning.filled {
                return Err(Error::Input(format!("no pass over a canvas of {canvas} to be conditioned on")));
            }
            if !(temperature > 0.0) {
                return Err(Error::Input(format!("a temperature of {temperature}")));
            }
        }
        let request =
            Request { tokens, positions, rows, cached: None, keep_kv: keep, keep_residuals: false, phase };
        let pass = self.compute(&request)?;
        if let Some(conditioning) = &mut self.conditioning {
            conditioning.filled = true;
        }
        Ok(pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_mask_has_both_phases() {
        let seen = |window| {
            let mask = unified_mask(3, 2, window);
            mask.iter().map(|&v| if v == 0.0 { '1' } else { '0' }).collect::<String>()
        };
        assert_eq!(seen(None), ["10000", "11000", "11100", "11111", "11111"].concat());
        assert_eq!(seen(Some(2)), ["10000", "11000", "01100", "00111", "00111"].concat());
        assert_eq!(seen(Some(1)), ["10000", "01000", "00100", "00011", "00011"].concat());
    }
}
