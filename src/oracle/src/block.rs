//! A block-diffusion network: a prompt that is encoded once, and a canvas that is denoised after it.
//!
//! Both phases run over one stack of layers. [`BlockNetwork::encode`] is causal and adds the prompt's K and V to a
//! [`Store`]; [`BlockNetwork::denoise`] computes a canvas that attends to the store and to all of itself, and stores
//! nothing. [`BlockNetwork::unified`] does both in one pass without a store, and must give the same.

use model_file::{BlockDiffusion, HyperParams, Model};

use crate::Error;
use crate::cache::LayerKv;
use crate::experts::{self, Routing};
use crate::models::{DiffusionGemma, Rows};
use crate::network::Logits;

/// What a canvas is conditioned on: the step before.
#[derive(Debug, Clone, Copy)]
pub struct Conditioning<'a> {
    /// Its logits, a row for each position of the canvas.
    pub logits: &'a Logits,
    /// Its temperature.
    pub temperature: f64,
}

/// K and V of the positions that were encoded, layer by layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    layers: Vec<LayerKv>,
    len: usize,
}

impl Store {
    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// K (after RoPE) and V, `[len, heads, head size]` with each layer's own numbers of heads and elements.
    pub fn layers(&self) -> &[LayerKv] {
        &self.layers
    }
}

/// What encoding gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// K and V of the encoded rows in each layer.
    pub kv: Vec<LayerKv>,
    /// The experts of each layer.
    pub experts: Vec<Routing>,
}

/// What a pass over a canvas gave.
#[derive(Debug, Clone, PartialEq)]
pub struct CanvasPass {
    /// Logits of the canvas, soft-capped, `[canvas, n_vocab]`.
    pub logits: Logits,
    /// K and V of the pass's rows in each layer: the canvas's, after the prompt's in a unified pass.
    pub kv: Vec<LayerKv>,
    /// The experts of each layer for the same rows.
    pub experts: Vec<Routing>,
}

/// An open block-diffusion network.
#[derive(Debug)]
pub struct BlockNetwork {
    hparams: HyperParams,
    block: BlockDiffusion,
    body: DiffusionGemma,
}

impl BlockNetwork {
    /// Opens the network of a model file, which stays mapped.
    ///
    /// # Errors
    /// A network of another kind, a weight type whose values are not known here, or a file that cannot be mapped.
    pub fn open(model: &Model) -> Result<Self, Error> {
        let hparams = model.hparams.clone();
        let Some(block) = hparams.block else {
            return Err(Error::Unsupported(format!("{} is no block-diffusion model", hparams.architecture)));
        };
        let body = DiffusionGemma::open(model)?;
        Ok(Self { hparams, block, body })
    }

    /// The network's hyper-parameters.
    pub fn hparams(&self) -> &HyperParams {
        &self.hparams
    }

    /// Those of block diffusion.
    pub fn block(&self) -> &BlockDiffusion {
        &self.block
    }

    /// A store of no positions.
    pub fn store(&self) -> Store {
        Store { layers: vec![LayerKv::default(); self.hparams.n_layer], len: 0 }
    }

    /// Encodes tokens after those in the store, and adds them to it, by the experts that are `given` where some are:
    /// layer by layer `[n, used]`.
    ///
    /// # Errors
    /// A token outside the vocabulary; experts of other rows; weights that cannot be decoded.
    pub fn encode(
        &self,
        store: &mut Store,
        tokens: &[u32],
        given: Option<&[&[usize]]>,
    ) -> Result<Encoded, Error> {
        self.check(tokens, 0)?;
        self.check_experts(given, tokens.len())?;
        let rows = Rows {
            prompt: tokens,
            canvas: &[],
            previous: None,
            held: &store.layers,
            first: store.len,
            experts: given,
        };
        let output = self.body.forward(&self.hparams, &rows)?;
        for (held, new) in store.layers.iter_mut().zip(&output.kv) {
            held.k.extend_from_slice(&new.k);
            held.v.extend_from_slice(&new.v);
        }
        store.len += tokens.len();
        Ok(Encoded { kv: output.kv, experts: output.experts })
    }

    /// One pass over a canvas that stands after the stored positions, by the experts that are `given` where some are:
    /// layer by layer `[n, used]`.
    ///
    /// # Errors
    /// An empty canvas, experts of other rows, a token outside the vocabulary, logits of another canvas to be
    /// conditioned on, a temperature that is not above 0; weights that cannot be decoded.
    pub fn denoise(
        &self,
        store: &Store,
        canvas: &[u32],
        previous: Option<Conditioning<'_>>,
        given: Option<&[&[usize]]>,
    ) -> Result<CanvasPass, Error> {
        self.pass(&Rows {
            prompt: &[],
            canvas,
            previous,
            held: &store.layers,
            first: store.len,
            experts: given,
        })
    }

    /// Prompt and canvas in one pass, without a store.
    ///
    /// # Errors
    /// As [`denoise`](Self::denoise).
    pub fn unified(
        &self,
        prompt: &[u32],
        canvas: &[u32],
        previous: Option<Conditioning<'_>>,
        given: Option<&[&[usize]]>,
    ) -> Result<CanvasPass, Error> {
        let held = &self.store().layers[..];
        self.pass(&Rows { prompt, canvas, previous, held, first: 0, experts: given })
    }

    fn pass(&self, rows: &Rows<'_>) -> Result<CanvasPass, Error> {
        let Rows { prompt, canvas, previous, experts, .. } = *rows;
        self.check(prompt, 0)?;
        self.check(canvas, prompt.len())?;
        if canvas.is_empty() {
            return Err(Error::Plan("a canvas of no tokens".to_string()));
        }
        if let Some(Conditioning { logits, temperature }) = previous {
            if (logits.rows(), logits.n_vocab()) != (canvas.len(), self.hparams.n_vocab) {
                return Err(Error::Plan(format!(
                    "a canvas of {} tokens is conditioned on {} rows of {} logits",
                    canvas.len(),
                    logits.rows(),
                    logits.n_vocab()
                )));
            }
            if !(temperature > 0.0) {
                return Err(Error::Plan(format!("a temperature of {temperature}")));
            }
        }
        self.check_experts(experts, prompt.len() + canvas.len())?;
        let output = self.body.forward(&self.hparams, rows)?;
        let logits = Logits::from_rows(self.hparams.n_vocab, output.logits);
        Ok(CanvasPass { logits, kv: output.kv, experts: output.experts })
    }

    fn check_experts(&self, given: Option<&[&[usize]]>, n: usize) -> Result<(), Error> {
        given.map_or(Ok(()), |given| experts::check(given, self.hparams.experts, self.hparams.n_layer, n))
    }

    fn check(&self, tokens: &[u32], first: usize) -> Result<(), Error> {
        let n_vocab = self.hparams.n_vocab;
        match tokens.iter().position(|&t| t as usize >= n_vocab) {
            Some(i) => Err(Error::Token { index: first + i, token: tokens[i], n_vocab }),
            None => Ok(()),
        }
    }
}
