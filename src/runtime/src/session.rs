//! A model loaded on a device, ready to compute.

use std::cell::Cell;

use ggml_sys::{Backend, Context, DType, Device, Ggml, Scheduler, Tensor};
use model_file::{HyperParams, Model};
use serde::{Deserialize, Serialize};

use crate::blocks::{Builder, Kv};
use crate::cache::{KvCache, KvType, LayerKv, as_i64};
use crate::device::{DeviceRequest, Selected};
use crate::error::Error;
use crate::models::{self, Decoder};
use crate::placement::{BufferUse, Placement, Purpose};
use crate::scatter::Scatter;
use crate::traffic::Traffic;
use crate::weights::Weights;

/// How attention is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// As products and a soft-max.
    #[default]
    Explicit,
}

/// How a session runs its model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// CPU threads; 0 stands for 1.
    pub threads: usize,
    /// Attention.
    pub attention: Attention,
    /// The type of the K/V cache.
    pub kv: KvType,
    /// Tokens computed at once by [`Session::extend`]; all of them where none.
    pub micro_batch: Option<usize>,
    /// Layers placed on the device, the first ones; all where none.
    pub layers: Option<usize>,
    /// Writes the cache without `ggml_set_rows`, as has to be done on builds that lack it.
    pub avoid_set_rows: bool,
}

/// Which rows of logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows<'a> {
    /// One for each token.
    All,
    /// That of the last token.
    Last,
    /// Those of these tokens of the call, by index.
    Only(&'a [usize]),
}

/// Logits `[rows, vocab]`, row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Logits {
    /// The size of the vocabulary.
    pub vocab: usize,
    /// The values.
    pub values: Vec<f32>,
}

impl Logits {
    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.values.len() / self.vocab.max(1)
    }

    /// Row `i`.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.vocab..(i + 1) * self.vocab]
    }
}

/// What a forward pass without a cache gives.
#[derive(Debug, Clone, PartialEq)]
pub struct FullPass {
    /// The wanted rows.
    pub logits: Logits,
    /// Keys and values of every token, per layer; empty where they were not asked for.
    pub kv: Vec<LayerKv>,
}

/// One graph to compute.
pub(crate) struct Request<'a> {
    pub(crate) tokens: &'a [u32],
    /// The position of each token.
    pub(crate) positions: &'a [usize],
    pub(crate) rows: Rows<'a>,
    /// Positions of the cache that attention reads, the tokens' own included, after their keys and values
    /// were written to it; without it the tokens see only each other.
    pub(crate) cached: Option<usize>,
    /// Whether keys and values of the tokens are wanted.
    pub(crate) keep_kv: bool,
}

/// A model on a device.
pub struct Session {
    ggml: &'static Ggml,
    hparams: HyperParams,
    decoder: Decoder,
    selected: Selected,
    options: Options,
    weights: Weights,
    scheduler: Scheduler,
    cache: Option<KvCache>,
    placement: Placement,
    traffic: Cell<Traffic>,
    set_rows: bool,
}

impl Session {
    /// Loads `model` onto the requested device.
    ///
    /// # Errors
    /// When there is no such device, memory is short, or the file cannot be read.
    pub fn open(
        ggml: &'static Ggml,
        request: &DeviceRequest,
        model: &Model,
        options: Options,
    ) -> Result<Self, Error> {
        let selected = request.select(ggml)?;
        let weights = Weights::load(ggml, model, &selected, options.layers)?;
        let scheduler = scheduler(&selected, &model.hparams, &options)?;
        let set_rows = !options.avoid_set_rows
            && ggml.optional_functions().iter().any(|(name, there)| *name == "ggml_set_rows" && *there);
        Ok(Self {
            ggml,
            hparams: model.hparams.clone(),
            decoder: models::decoder(model.hparams.architecture),
            selected,
            options,
            weights,
            scheduler,
            cache: None,
            placement: Placement::default(),
            traffic: Cell::default(),
            set_rows,
        })
    }

    /// Gives the compute buffers back and starts with a fresh scheduler, as a session that was just opened
    /// does; weights and cache stay. Cells that share a session begin with this, so that none depends on what
    /// ran before it: on Mesa 22.3's llvmpipe a graph that made the buffers of an earlier one grow crashed in
    /// one of three runs.
    ///
    /// # Errors
    /// When the device cannot be initialised again.
    pub fn renew(&mut self) -> Result<(), Error> {
        self.scheduler = scheduler(&self.selected, &self.hparams, &self.options)?;
        Ok(())
    }

    /// The model's hyper-parameters.
    #[must_use]
    pub fn hparams(&self) -> &HyperParams {
        &self.hparams
    }

    /// The selected device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.selected.device
    }

    /// Where nodes ran since the session was opened or [`take_placement`](Self::take_placement) was called.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Hands out the counts and starts new ones.
    pub fn take_placement(&mut self) -> Placement {
        std::mem::take(&mut self.placement)
    }

    /// Bytes moved between host and device since the session was opened or
    /// [`take_traffic`](Self::take_traffic) was called.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    /// Hands out the counts and starts new ones.
    pub fn take_traffic(&mut self) -> Traffic {
        self.traffic.take()
    }

    /// What the session holds in device and host memory.
    #[must_use]
    pub fn buffers(&self) -> Vec<BufferUse> {
        let cache = self.cache.iter().flat_map(|c| c.buffers());
        let compute = self.scheduler.backends().iter().enumerate().map(|(i, backend)| BufferUse {
            buffer: backend.device().buffer_type().name(),
            purpose: Purpose::Compute,
            bytes: self.scheduler.compute_bytes(i) as u64,
        });
        self.weights.buffers().iter().chain(cache).cloned().chain(compute).collect()
    }

    /// One forward pass over `tokens` without a cache, in which every token sees every other (masked
    /// diffusion) or itself and earlier ones (autoregressive).
    ///
    /// # Errors
    /// When a token is outside the vocabulary, or ggml fails.
    pub fn full(&mut self, tokens: &[u32], rows: Rows<'_>, keep_kv: bool) -> Result<FullPass, Error> {
        let positions: Vec<usize> = (0..tokens.len()).collect();
        self.compute(&Request { tokens, positions: &positions, rows, cached: None, keep_kv })
    }

    /// Empties the cache and makes room for `capacity` positions; more count as full. Memory that is there is
    /// kept: one allocation serves a session whose first call asks for the most.
    ///
    /// # Errors
    /// When memory is short.
    pub fn reset_cache(&mut self, capacity: usize) -> Result<(), Error> {
        match &mut self.cache {
            Some(cache) if cache.allocated >= capacity => {
                cache.used = 0;
                cache.capacity = capacity;
                return Ok(());
            }
            _ => self.cache = None,
        }
        let home = |layer| {
            let device =
                if self.weights.meant_for_cpu(layer) { self.selected.cpu } else { self.selected.device };
            device.buffer_type()
        };
        self.cache = Some(KvCache::new(self.ggml, &self.hparams, self.options.kv, capacity, home)?);
        Ok(())
    }

    /// Positions in the cache.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cache.as_ref().map_or(0, |c| c.used)
    }

    /// Computes `tokens` after the cached ones and adds their keys and values to the cache.
    ///
    /// # Errors
    /// When the cache is full, a token is outside the vocabulary, or ggml fails. Nothing counts as cached
    /// then that was not before.
    pub fn extend(&mut self, tokens: &[u32], rows: Rows<'_>) -> Result<Logits, Error> {
        let (used, capacity) = self.cache.as_ref().map_or((0, 0), |c| (c.used, c.capacity));
        if used + tokens.len() > capacity {
            return Err(Error::CacheFull { used, capacity, wanted: tokens.len() });
        }
        let size = self.options.micro_batch.unwrap_or(tokens.len()).max(1);
        let mut logits = Logits { vocab: self.hparams.n_vocab, values: Vec::new() };
        for (i, piece) in tokens.chunks(size).enumerate() {
            let first = i * size;
            let last = first + piece.len() == tokens.len();
            let wanted: Vec<usize> = match rows {
                Rows::All => (0..piece.len()).collect(),
                Rows::Last if last => vec![piece.len() - 1],
                Rows::Last => Vec::new(),
                Rows::Only(list) => list
                    .iter()
                    .filter(|&&r| (first..first + piece.len()).contains(&r))
                    .map(|r| r - first)
                    .collect(),
            };
            let rows = if wanted.len() == piece.len() { Rows::All } else { Rows::Only(&wanted) };
            let from = used + first;
            let positions: Vec<usize> = (from..from + piece.len()).collect();
            let cached = Some(from + piece.len());
            let request = Request { tokens: piece, positions: &positions, rows, cached, keep_kv: false };
            logits.values.extend(self.compute(&request)?.logits.values);
        }
        if let Some(cache) = &mut self.cache {
            cache.used = used + tokens.len();
        }
        Ok(logits)
    }

    /// Positions that the cache has room for.
    #[must_use]
    pub fn cache_capacity(&self) -> usize {
        self.cache.as_ref().map_or(0, |c| c.capacity)
    }

    /// Notes that the first `positions` of the cache are filled.
    pub(crate) fn set_cached(&mut self, positions: usize) {
        if let Some(cache) = &mut self.cache {
            cache.used = positions;
        }
    }

    /// Keys and values of all cached positions, per layer.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn read_cache(&self) -> Result<Vec<LayerKv>, Error> {
        let Some(cache) = &self.cache else { return Ok(Vec::new()) };
        let mut traffic = self.traffic.get();
        traffic.cache_read += cache.filled_bytes();
        self.traffic.set(traffic);
        cache.read()
    }

    fn check_tokens(&self, tokens: &[u32], rows: Rows<'_>) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(Error::Input("a sequence of no tokens".to_owned()));
        }
        if let Some(bad) = tokens.iter().find(|&&t| t as usize >= self.hparams.n_vocab) {
            return Err(Error::Input(format!("token {bad} in a vocabulary of {}", self.hparams.n_vocab)));
        }
        if let Rows::Only(list) = rows
            && let Some(bad) = list.iter().find(|&&r| r >= tokens.len())
        {
            return Err(Error::Input(format!("row {bad} of {} tokens", tokens.len())));
        }
        Ok(())
    }

    /// Builds, places and computes one graph.
    pub(crate) fn compute(&mut self, request: &Request<'_>) -> Result<FullPass, Error> {
        let Request { tokens, positions: at, rows, cached, keep_kv } = *request;
        self.check_tokens(tokens, rows)?;
        let n = tokens.len();
        let n_kv = cached.unwrap_or(n);
        let size = graph_size(&self.hparams);
        let ctx = Context::new(self.ggml, size, size)?;
        let graph = ctx.graph(size)?;

        let token_input = Builder::input(&ctx, DType::I32, &[as_i64(n)], "tokens");
        let positions = Builder::input(&ctx, DType::I32, &[as_i64(n)], "positions");
        let mask =
            self.decoder.causal.then(|| Builder::input(&ctx, DType::F32, &[as_i64(n_kv), as_i64(n)], "mask"));
        let wanted: Option<Vec<i32>> = match rows {
            Rows::All => None,
            Rows::Last => Some(vec![index(n - 1)]),
            Rows::Only(list) => Some(list.iter().map(|&r| index(r)).collect()),
        };
        let row_input = wanted
            .as_ref()
            .filter(|w| !w.is_empty())
            .map(|w| Builder::input(&ctx, DType::I32, &[as_i64(w.len())], "rows"));
        let scatter = match cached {
            Some(_) => Some(Scatter::choose(&ctx, at, n_kv, self.options.kv, self.set_rows)?),
            None => None,
        };
        let kv = match (&self.cache, &scatter) {
            (Some(cache), Some(scatter)) => Kv::Cached { cache, n_kv, scatter },
            _ => Kv::Fresh,
        };
        let mut b = Builder {
            ctx,
            graph,
            hparams: &self.hparams,
            weights: &self.weights,
            attention: self.options.attention,
            n,
            positions: positions.clone(),
            mask: mask.clone(),
            kv,
            captured: Vec::new(),
            capture: keep_kv,
        };
        let x = b.embed(&token_input);
        let x = self.decoder.layers(&mut b, x)?;
        // No row is wanted of a micro-batch before the last: its cache writes are all that counts.
        let logits = if wanted.as_ref().is_some_and(Vec::is_empty) {
            b.graph.expand(&x);
            None
        } else {
            let logits = b.logits(&x, row_input.as_ref());
            b.graph.expand(&logits);
            Some(logits)
        };
        let Builder { graph, captured, .. } = b;

        let pins = self.pins(&graph.nodes())?;
        self.scheduler.allocate(&graph, &pins)?;
        let weights = &self.weights;
        self.placement.record(&self.scheduler, &graph, |node| {
            layer_of_node(&node.name()).is_some_and(|layer| weights.meant_for_cpu(layer))
        });

        token_input.write_i32(&tokens.iter().map(|&t| index(t as usize)).collect::<Vec<_>>())?;
        positions.write_i32(&at.iter().map(|&p| index(p)).collect::<Vec<_>>())?;
        if let Some(mask) = &mask {
            mask.write_f32(&causal_mask(at, n_kv))?;
        }
        if let (Some(input), Some(wanted)) = (&row_input, &wanted) {
            input.write_i32(wanted)?;
        }
        if let Some(scatter) = &scatter {
            scatter.fill(at, n_kv)?;
        }
        self.scheduler.compute(&graph)?;

        let inputs = [Some(&token_input), Some(&positions), mask.as_ref(), row_input.as_ref()];
        let index_input = scatter.as_ref().and_then(Scatter::input);
        let sent: usize = inputs.into_iter().chain([index_input]).flatten().map(Tensor::bytes).sum();
        let outputs = captured.iter().filter(|_| keep_kv).flat_map(|(k, v)| [k, v]).chain(&logits);
        self.traffic.get_mut().graph(sent, outputs.map(Tensor::bytes).sum());

        let read = |(k, v): &(Tensor, Tensor)| Ok(LayerKv { k: k.read_f32()?, v: v.read_f32()? });
        let kv = captured.iter().filter(|_| keep_kv).map(read).collect::<Result<_, Error>>()?;
        let values = logits.map_or(Ok(Vec::new()), |logits| logits.read_f32())?;
        Ok(FullPass { logits: Logits { vocab: self.hparams.n_vocab, values }, kv })
    }

    /// Nodes the device does not compute, to be placed on the CPU; some builds crash if the scheduler has to
    /// find that out.
    fn pins(&self, nodes: &[Tensor]) -> Result<Vec<(Tensor, usize)>, Error> {
        let backends = self.scheduler.backends();
        let last = backends.len() - 1;
        let mut pins = Vec::new();
        for node in nodes {
            if backends[0].device().supports(node) {
                continue;
            }
            if last == 0 || !backends[last].device().supports(node) {
                let sources: Vec<_> = (0..3).filter_map(|i| node.src(i)).collect();
                return Err(Error::UnsupportedNode {
                    device: backends[0].device().name(),
                    node: format!("{node:?} of {sources:?}"),
                });
            }
            pins.push((node.clone(), last));
        }
        Ok(pins)
    }
}

/// A scheduler over the device and, behind it, the CPU.
fn scheduler(selected: &Selected, hparams: &HyperParams, options: &Options) -> Result<Scheduler, Error> {
    let mut backends = vec![Backend::new(selected.device)?];
    if selected.device.name() != selected.cpu.name() {
        backends.push(Backend::new(selected.cpu)?);
    }
    for backend in &backends {
        // A GPU has no threads of ours to set.
        let _ = backend.set_threads(options.threads.max(1));
    }
    Ok(Scheduler::new(backends, graph_size(hparams))?)
}

/// Room for the nodes and leaves of one forward pass, twice over as the scheduler asks for.
fn graph_size(hparams: &HyperParams) -> usize {
    8192.max(hparams.n_layer * 128)
}

/// The layer in a node's name.
fn layer_of_node(name: &str) -> Option<usize> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// `[positions, n_kv]`, row-major: a token sees cached positions up to its own.
fn causal_mask(positions: &[usize], n_kv: usize) -> Vec<f32> {
    let sees = |p: usize, kv: usize| if kv <= p { 0.0 } else { f32::NEG_INFINITY };
    positions.iter().flat_map(|&p| (0..n_kv).map(move |kv| sees(p, kv))).collect()
}

fn index(i: usize) -> i32 {
    i32::try_from(i).expect("positions and tokens fit 31 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causal_mask_hides_the_future_only() {
        let inf = f32::NEG_INFINITY;
        assert_eq!(causal_mask(&[0, 1], 2), [0.0, inf, 0.0, 0.0]);
        assert_eq!(causal_mask(&[1, 2], 3), [0.0, 0.0, inf, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn node_names_carry_their_layer() {
        assert_eq!(layer_of_node("attn_q-12"), Some(12));
        assert_eq!(layer_of_node("embedding"), None);
    }
}
