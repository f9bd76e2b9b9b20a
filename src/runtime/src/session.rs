//! A model loaded on a device, ready to compute.

use std::cell::Cell;

use ggml_sys::{Backend, Context, DType, Device, Ggml, Scheduler, Tensor};
use model_file::{HyperParams, Model};
use serde::{Deserialize, Serialize};

use crate::attention::Kv;
use crate::blocks::{Builder, named};
use crate::cache::{KvCache, KvType, LayerKv, as_i64};
use crate::canvas::{Conditioning, Phase, unified_mask};
use crate::device::{DeviceRequest, Selected};
use crate::error::Error;
use crate::experts::{GivenExperts, Routed, RoutedPass, Routing};
use crate::fault::Fault;
use crate::masks::{self, Masks, causal_mask, hide};
use crate::models::{self, Decoder};
use crate::pins::Pins;
use crate::placement::{BufferUse, Placement, Purpose};
use crate::scatter::Scatter;
use crate::traffic::Traffic;
use crate::weights::Weights;

mod lifecycle;
mod observed;
mod placing;

pub use observed::{Given, GraphOutcome, GraphRequest, Recorder, Walker};

/// How attention is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// As products and a soft-max.
    #[default]
    Explicit,
    /// In one node, ggml's `flash_attn_ext`.
    Flash,
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
    /// A token sees itself and the `window - 1` tokens before it; all before it where none. Causal models
    /// only.
    pub window: Option<usize>,
    /// Writes the cache without `ggml_set_rows`, as has to be done on builds that lack it: into a quantised cache too,
    /// where `ggml_cpy` has been wrong on Vulkan, so that this can be tested.
    pub avoid_set_rows: bool,
    /// Work that is computed on the CPU though the device could do it; where it is given, everything else is placed
    /// node by node too, so that the scheduler takes nothing along.
    pub pins: Option<Pins>,
    /// A mistake to make: only tests of the harness plant one.
    #[doc(hidden)]
    pub planted: Option<Fault>,
    /// The token at this position sees nothing in the last layer. Causal models only.
    pub hidden: Option<usize>,
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
    /// The residual stream before the first layer and after each, `[n_tokens, n_embd]` row-major; empty where
    /// it was not asked for.
    pub residuals: Vec<Vec<f32>>,
    /// What the routers of experts decided, layer by layer; empty where there are none, or neither this nor keys and
    /// values were asked for.
    pub routing: Vec<Routing>,
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
    /// Whether keys and values of the tokens are wanted, as they are before they are stored.
    pub(crate) keep_kv: bool,
    /// Whether the residual stream is wanted.
    pub(crate) keep_residuals: bool,
    /// The phase of block diffusion.
    pub(crate) phase: Phase,
}

/// A model on a device.
pub struct Session {
    ggml: &'static Ggml,
    pub(crate) hparams: HyperParams,
    decoder: Decoder,
    selected: Selected,
    options: Options,
    weights: Weights,
    scheduler: Scheduler,
    cache: Option<KvCache>,
    placement: Placement,
    traffic: Cell<Traffic>,
    set_rows: bool,
    /// Layers that are left out, in order.
    skip: Vec<usize>,
    /// Keys and values as they were before they were stored, where they are to be recorded.
    pub(crate) recorded: Option<Vec<LayerKv>>,
    /// What routers decided in every graph, where that is to be recorded.
    routed: Option<Vec<RoutedPass>>,
    /// Experts that are to work, and how many of their rows were computed.
    given: Option<(GivenExperts, usize)>,
    /// Sees every graph, where somebody wants to.
    recorder: Option<Recorder>,
    /// What canvases are conditioned on, in block diffusion.
    pub(crate) conditioning: Option<Conditioning>,
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
        let set_rows = !options.avoid_set_rows
            && ggml.optional_functions().iter().any(|(name, there)| *name == "ggml_set_rows" && *there);
        options.kv.check(&model.hparams, &selected.device.name())?;
        if options.kv.is_quantised() && !set_rows && !options.avoid_set_rows {
            return Err(ggml.lacks("ggml_set_rows").into());
        }
        let decoder = models::decoder(model.hparams.architecture);
        if options.hidden.is_some() && !decoder.causal {
            return Err(Error::Input(format!(
                "a hidden row for architecture {}, which has no mask",
                model.hparams.architecture.name()
            )));
        }
        if options.window.is_some() && !decoder.causal {
            return Err(Error::Input(format!(
                "a sliding window for architecture {}, in which every token sees every other",
                model.hparams.architecture.name()
            )));
        }
        let weights = Weights::load(ggml, model, &selected, options.layers)?;
        let conditioning = match model.hparams.block {
            Some(_) => {
                let device = if weights.meant_for_cpu(0) { selected.cpu } else { selected.device };
                Some(Conditioning::load(ggml, model, device.buffer_type())?)
            }
            None => None,
        };
        let scheduler = scheduler(&selected, &model.hparams, &options)?;
        Ok(Self {
            ggml,
            hparams: model.hparams.clone(),
            decoder,
            selected,
            options,
            weights,
            scheduler,
            cache: None,
            placement: Placement::default(),
            traffic: Cell::default(),
            set_rows,
            skip: Vec::new(),
            recorded: None,
            routed: None,
            given: None,
            recorder: None,
            conditioning,
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
        self.recorder = None;
        Ok(())
    }

    /// The build.
    pub(crate) fn ggml(&self) -> &'static Ggml {
        self.ggml
    }

    /// The model's hyper-parameters.
    #[must_use]
    pub fn hparams(&self) -> &HyperParams {
        &self.hparams
    }

    /// Records what the routers of experts decide in every graph from now on.
    pub fn record_routing(&mut self) {
        self.routed = Some(Vec::new());
    }

    /// Lets these experts work on the rows of the graphs to come, where they are given, and the routers' own otherwise.
    /// What the routers choose is recorded all the same.
    pub fn follow_experts(&mut self, given: Option<GivenExperts>) {
        self.given = given.filter(|given| !given.layers.is_empty()).map(|given| (given, 0));
    }

    /// The experts that are given.
    #[must_use]
    pub fn followed_experts(&self) -> Option<&GivenExperts> {
        self.given.as_ref().map(|(given, _)| given)
    }

    /// Those given for the rows of the next graph, which are at `positions`, layer by layer.
    fn given_experts(&self, positions: &[usize]) -> Result<Option<Vec<Vec<i32>>>, Error> {
        match (&self.given, self.hparams.experts) {
            (Some((given, taken)), Some(experts)) => Ok(Some(given.rows(*taken, positions, experts)?)),
            _ => Ok(None),
        }
    }

    /// What was recorded since [`record_routing`](Self::record_routing), graph by graph; recording ends, and so does
    /// following others.
    pub fn take_routing(&mut self) -> Vec<RoutedPass> {
        self.given = None;
        self.routed.take().unwrap_or_default()
    }

    /// The type of the K/V cache.
    #[must_use]
    pub fn kv_type(&self) -> KvType {
        self.options.kv
    }

    /// Tokens computed at once; all of them where none.
    #[must_use]
    pub fn micro_batch(&self) -> Option<usize> {
        self.options.micro_batch
    }

    /// Computes at most so many tokens at once from now on.
    pub fn set_micro_batch(&mut self, tokens: Option<usize>) {
        self.options.micro_batch = tokens;
    }

    /// The mistake that a test has planted.
    pub(crate) fn planted(&self) -> Option<Fault> {
        self.options.planted
    }

    /// Computes attention in this way from now on.
    pub fn set_attention(&mut self, attention: Attention) {
        self.options.attention = attention;
    }

    /// Lets the token at this position see nothing in the last layer from now on.
    pub fn set_hidden(&mut self, position: Option<usize>) {
        self.options.hidden = position;
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
        let conditioning = self.conditioning.iter().flat_map(Conditioning::buffers);
        let compute = self.scheduler.backends().iter().enumerate().map(|(i, backend)| BufferUse {
            buffer: backend.device().buffer_type().name(),
            purpose: Purpose::Compute,
            bytes: self.scheduler.compute_bytes(i) as u64,
        });
        self.weights.buffers().iter().chain(cache).chain(conditioning).cloned().chain(compute).collect()
    }

    /// One forward pass over `tokens` without a cache, in which every token sees every other (masked
    /// diffusion) or itself and earlier ones (autoregressive).
    ///
    /// # Errors
    /// When a token is outside the vocabulary, or ggml fails.
    pub fn full(&mut self, tokens: &[u32], rows: Rows<'_>, keep_kv: bool) -> Result<FullPass, Error> {
        let positions: Vec<usize> = (0..tokens.len()).collect();
        let request = Request {
            tokens,
            positions: &positions,
            rows,
            cached: None,
            keep_kv,
            keep_residuals: false,
            phase: Phase::Plain,
        };
        self.compute(&request)
    }

    /// Leaves these layers out from now on; none of them for an empty list.
    ///
    /// # Errors
    /// When there is no such layer.
    pub fn skip_layers(&mut self, layers: &[usize]) -> Result<(), Error> {
        let n = self.hparams.n_layer;
        if let Some(bad) = layers.iter().find(|&&layer| layer >= n) {
            return Err(Error::Input(format!("layer {bad} is to be skipped, of {n}")));
        }
        self.skip = layers.to_vec();
        Ok(())
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
            let on_cpu = self.weights.meant_for_cpu(layer) || self.stores_on_cpu(layer);
            let device = if on_cpu { self.selected.cpu } else { self.selected.device };
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
        self.extend_observed(tokens, rows, false, |_| {})
    }

    /// As [`extend`](Self::extend); `observe` sees what each micro-batch gave, its residual stream where
    /// `keep_residuals` asks for it.
    pub(crate) fn extend_observed(
        &mut self,
        tokens: &[u32],
        rows: Rows<'_>,
        keep_residuals: bool,
        mut observe: impl FnMut(&FullPass),
    ) -> Result<Logits, Error> {
        let (used, capacity) = self.cache.as_ref().map_or((0, 0), |c| (c.used, c.capacity));
        if used + tokens.len() > capacity {
            return Err(Error::CacheFull { used, capacity, wanted: tokens.len() });
        }
        if self.recorded.is_some() && !self.skip.is_empty() {
            return Err(Error::Input("layers that are left out have no keys to record".to_owned()));
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
            let keep_kv = self.recorded.is_some();
            let request = Request {
                tokens: piece,
                positions: &positions,
                rows,
                cached,
                keep_kv,
                keep_residuals,
                phase: Phase::Plain,
            };
            let pass = self.compute(&request)?;
            if let Some(recorded) = &mut self.recorded {
                crate::cache::append(recorded, &pass.kv);
            }
            observe(&pass);
            logits.values.extend(pass.logits.values);
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
        self.count_cache_read(cache.filled_bytes());
        cache.read()
    }

    /// Keys and values of these cached positions, per layer, in this order.
    ///
    /// # Errors
    /// When one is not cached, or the device cannot be read.
    pub fn read_cache_rows(&self, positions: &[usize]) -> Result<Vec<LayerKv>, Error> {
        let cache = self.cache.as_ref().ok_or_else(|| Error::Input("no cache to read".to_owned()))?;
        let (rows, bytes) = cache.read_rows(positions)?;
        self.count_cache_read(bytes);
        Ok(rows)
    }

    fn count_cache_read(&self, bytes: u64) {
        let mut traffic = self.traffic.get();
        traffic.cache_read += bytes;
        self.traffic.set(traffic);
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
        let given = self.given_to(request)?;
        let pass = self.compute_with(request, None)?;
        self.show(request, given, &pass)?;
        Ok(pass)
    }

    /// The same while `walker` looks on; then nothing is read that the graph gives.
    fn compute_with(
        &mut self,
        request: &Request<'_>,
        mut walker: Option<&mut dyn Walker>,
    ) -> Result<FullPass, Error> {
        loop {
            // Once more at most: a fresh scheduler has memory for any graph, or an error.
            if let Some(pass) = self.try_compute(request, &mut walker)? {
                return Ok(pass);
            }
        }
    }

    /// The same; none where the graph got no memory and has to be built again.
    fn try_compute(
        &mut self,
        request: &Request<'_>,
        walker: &mut Option<&mut dyn Walker>,
    ) -> Result<Option<FullPass>, Error> {
        let Request { tokens, positions: at, rows, cached, keep_kv, keep_residuals, phase } = *request;
        self.check_tokens(tokens, rows)?;
        self.check_phase(phase)?;
        let n = tokens.len();
        let n_kv = cached.unwrap_or(n);
        let size = graph_size(&self.hparams);
        let ctx = Context::new(self.ggml, size, size)?;
        let graph = ctx.graph(size)?;

        let token_input = Builder::input(&ctx, DType::I32, &[as_i64(n)], "tokens");
        let positions = Builder::input(&ctx, DType::I32, &[as_i64(n)], "positions");
        let masks = self.masks(&ctx, at, n_kv, phase);
        let wanted: Option<Vec<i32>> = match rows {
            Rows::All => None,
            Rows::Last => Some(vec![index(n - 1)]),
            Rows::Only(list) => Some(list.iter().map(|&r| index(r)).collect()),
        };
        let row_input = wanted
            .as_ref()
            .filter(|w| !w.is_empty())
            .map(|w| Builder::input(&ctx, DType::I32, &[as_i64(w.len())], "rows"));
        let planted = self.options.planted;
        let stored = Fault::stored(planted, n, n_kv);
        let keep_routing = keep_kv || self.routed.is_some();
        let given = self.given_experts(at)?;
        let scatter = match cached {
            Some(_) => Some(Scatter::choose(&ctx, &at[..stored], n_kv, self.options.kv, self.set_rows)?),
            None => None,
        };
        let kv = match (&self.cache, &scatter) {
            (Some(cache), Some(scatter)) => Kv::Cached { cache, n_kv, scatter, stored },
            (Some(cache), None) if matches!(phase, Phase::Canvas { .. }) => {
                Kv::Held { cache, held: cache.used }
            }
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
            masks: &masks,
            kv,
            captured: Vec::new(),
            capture: keep_kv,
            keep_routing,
            given,
            routed: Vec::new(),
            kv_type: self.options.kv.dtype(),
            skip: &self.skip,
            residuals: keep_residuals.then(Vec::new),
            planted,
        };
        let x = b.embed(&token_input);
        let x = match phase {
            Phase::Plain => self.decoder.layers(&mut b, x)?,
            _ => models::block_layers(&mut b, x, phase, self.conditioning.as_ref())?,
        };
        // No row is wanted of a micro-batch before the last: its cache writes are all that counts.
        let logits = if wanted.as_ref().is_some_and(Vec::is_empty) {
            b.graph.expand(&x);
            None
        } else {
            let logits = b.logits(&x, row_input.as_ref())?;
            b.graph.expand(&logits);
            let keeps = phase.canvas(n).is_some() && planted != Some(Fault::ConditionLost);
            if let Some(conditioning) = self.conditioning.as_ref().filter(|_| keeps) {
                let kept = b.ctx.cpy(&logits, conditioning.logits());
                b.graph.expand(&named(kept, "conditioning_store", self.hparams.n_layer));
            }
            Some(logits)
        };
        let Builder { graph, captured, residuals, routed, .. } = b;
        // As it was built: in an allocated one the scheduler's copies stand for the inputs.
        if let Some(walker) = walker.as_deref_mut() {
            walker.describe(&self.noted(request), &graph.nodes());
        }
        if !self.allocate(&graph)? {
            return Ok(None);
        }

        token_input.write_i32(&tokens.iter().map(|&t| index(t as usize)).collect::<Vec<_>>())?;
        positions.write_i32(&at.iter().map(|&p| index(p)).collect::<Vec<_>>())?;
        masks.fill()?;
        if let (Some(input), Some(wanted)) = (&row_input, &wanted) {
            input.write_i32(wanted)?;
        }
        if let Some(scatter) = &scatter {
            scatter.fill(&at[..stored], n_kv)?;
        }
        if let Some(experts) = self.hparams.experts {
            routed.iter().try_for_each(|routed| routed.fill(experts))?;
        }
        if let Some(walker) = walker {
            observed::compute(&self.scheduler, &graph, *walker)?;
            return Ok(Some(FullPass {
                logits: Logits::default(),
                kv: Vec::new(),
                residuals: Vec::new(),
                routing: Vec::new(),
            }));
        }
        self.scheduler.compute(&graph)?;
        if let Some((_, taken)) = &mut self.given {
            *taken += n;
        }

        let index_input = scatter.as_ref().and_then(Scatter::input);
        let inputs = [Some(&token_input), Some(&positions), row_input.as_ref(), index_input];
        let sent: usize = inputs.into_iter().flatten().chain(masks.tensors()).map(Tensor::bytes).sum();
        let outputs = captured.iter().filter(|_| keep_kv).flat_map(|(k, v)| [k, v]).chain(&logits);
        let outputs = outputs.chain(residuals.iter().flatten());
        let decided: usize = routed.iter().filter(|_| keep_routing).map(Routed::bytes).sum();
        self.traffic.get_mut().graph(sent, outputs.map(Tensor::bytes).sum::<usize>() + decided);

        let read = |(k, v): &(Tensor, Tensor)| Ok(LayerKv { k: k.read_f32()?, v: v.read_f32()? });
        let kv = captured.iter().filter(|_| keep_kv).map(read).collect::<Result<_, Error>>()?;
        let values = logits.map_or(Ok(Vec::new()), |logits| logits.read_f32())?;
        let residuals = residuals.iter().flatten().map(Tensor::read_f32).collect::<Result<_, _>>()?;
        let routing = match self.hparams.experts.filter(|_| keep_routing) {
            Some(experts) => routed.iter().map(|r| r.read(experts)).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        if let Some(passes) = self.routed.as_mut().filter(|_| !routing.is_empty()) {
            passes.push(RoutedPass { positions: at.to_vec(), layers: routing.clone() });
        }
        let logits = Logits { vocab: self.hparams.n_vocab, values };
        Ok(Some(FullPass { logits, kv, residuals, routing }))
    }

    /// Block diffusion goes in phases, and nothing else does.
    fn check_phase(&self, phase: Phase) -> Result<(), Error> {
        if self.conditioning.is_some() == (phase != Phase::Plain) {
            return Ok(());
        }
        let name = self.hparams.architecture.name();
        Err(Error::Input(match phase {
            Phase::Plain => {
                format!("architecture {name} computes a prompt or a canvas, each in a way of its own")
            }
            _ => format!("architecture {name} has no canvas"),
        }))
    }

    /// What tokens at these positions see of `n_kv` ones: where the model or the phase is causal, nothing after
    /// themselves. A canvas sees everything that it is given.
    fn masks(&self, ctx: &Context, positions: &[usize], n_kv: usize, phase: Phase) -> Masks {
        let n_layer = self.hparams.n_layer;
        let mut masks = Masks::new(self.options.attention, positions.len(), n_kv, n_layer);
        if let Phase::Unified { prompt, .. } = phase {
            for (name, windowed) in [("mask", false), ("mask_window", true)] {
                let window = self.hparams.windowed.as_ref().map(|w| w.window).filter(|_| windowed);
                let layers = (0..n_layer).filter(|&l| self.hparams.layer(l).window.is_some() == windowed);
                masks.add(ctx, name, layers, || unified_mask(prompt, positions.len() - prompt, window));
            }
            return masks;
        }
        if !self.decoder.causal && phase != Phase::Encode {
            return masks;
        }
        let last = n_layer - 1;
        let hidden = self.options.hidden.filter(|hidden| positions.contains(hidden));
        let layers = |windowed: bool| {
            let kept = (0..n_layer).filter(|layer| !self.skip.contains(layer));
            kept.filter(move |&layer| {
                (hidden.is_none() || layer != last) && self.hparams.layer(layer).window.is_some() == windowed
            })
        };
        let values = |window: Option<usize>, hidden: Option<usize>| {
            let seen = Fault::seen(self.options.planted, positions);
            let mut values = causal_mask(&seen, n_kv, masks::shorter(window, self.options.window));
            hide(&mut values, positions, n_kv, hidden);
            values
        };
        masks.add(ctx, "mask", layers(false), || values(None, None));
        let window = self.hparams.windowed.as_ref().map(|w| w.window);
        masks.add(ctx, "mask_window", layers(true), || values(window, None));
        let apart = hidden.is_some() && !self.skip.contains(&last);
        let window = self.hparams.layer(last).window;
        masks.add(ctx, "mask_last", Some(last).filter(|_| apart), || values(window, hidden));
        masks
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

fn index(i: usize) -> i32 {
    i32::try_from(i).expect("positions and tokens fit 31 bits")
}
