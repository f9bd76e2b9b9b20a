//! Graphs that are noted down, repeated, and looked at node by node.
//!
//! A mode is a sequence of graphs. [`Session::record`] notes what each was asked for and shows what it gave, so that
//! another session can repeat the same sequence ([`Session::repeat`]) and stop inside one of its graphs
//! ([`Session::walk`]) without knowing the mode.

use ggml_sys::{Graph, Observer, Scheduler, Tensor};
use serde::{Deserialize, Serialize};

use super::{FullPass, Request, Rows, Session};
use crate::cache::{KvCache, LayerKv};
use crate::canvas::Phase;
use crate::error::Error;
use crate::experts::GivenExperts;

/// What one graph was asked to compute, complete in itself but for the weights, what the cache held and what was
/// [given](Given).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphRequest {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The position of each.
    pub positions: Vec<usize>,
    /// The tokens, by index, whose rows of logits are wanted; all where none.
    pub rows: Option<Vec<usize>>,
    /// Positions of the cache that attention reads; without it the tokens see only each other.
    pub cached: Option<usize>,
    /// Whether keys and values are read as they are before they are stored.
    pub keep_kv: bool,
    /// Whether the residual stream is read.
    pub keep_residuals: bool,
    /// Layers that are left out.
    pub skip: Vec<usize>,
    /// Positions there was room for in the cache.
    pub capacity: usize,
    /// The phase of a block-diffusion network.
    pub phase: Phase,
}

impl GraphRequest {
    /// Rows of the cache that the graph reads.
    #[must_use]
    pub fn cache_rows(&self) -> usize {
        match self.phase {
            Phase::Canvas { .. } => self.positions.first().copied().unwrap_or(0),
            _ => self.cached.unwrap_or(0),
        }
    }
}

/// What a graph goes by beside its request: on an arm that follows a reference, what that one made of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    /// The logits that a canvas is conditioned on, `[canvas, n_vocab]`.
    pub condition: Option<Vec<f32>>,
    /// The experts that work, layer by layer, `[tokens, used]`, where they are not the routers' own choice.
    pub experts: Option<Vec<Vec<i32>>>,
}

/// What a graph gave, as a recorder sees it.
pub struct GraphOutcome<'a> {
    /// Logits, and what else was asked for.
    pub pass: &'a FullPass,
    /// The rows of the cache at the graph's positions, after it; those of `pass` where it has no cache.
    pub kv: Vec<LayerKv>,
    /// What it went by.
    pub given: Given,
}

/// Takes down graphs.
pub type Recorder = Box<dyn FnMut(&GraphRequest, &GraphOutcome<'_>) -> Result<(), Error>>;

/// Looks at the nodes of one graph.
pub trait Walker {
    /// The graph is built, and has no memory yet. Later the scheduler puts copies of its own into the sources of nodes
    /// that read from another device.
    fn describe(&mut self, request: &GraphRequest, nodes: &[Tensor]);

    /// The graph has its memory and its inputs; nothing is computed yet. `backend` names where a node will be.
    ///
    /// # Errors
    /// What ends the walk.
    fn begin(&mut self, backend: &dyn Fn(&Tensor) -> Option<String>) -> Result<(), Error>;

    /// Whether to stop after `node`; the nodes between two stops are computed together.
    fn stops_at(&mut self, node: &Tensor) -> bool;

    /// `node` was computed and nothing after it: its data may be read and overwritten.
    ///
    /// # Errors
    /// What ends the walk.
    fn computed(&mut self, node: &Tensor) -> Result<(), Error>;
}

/// A walker as ggml's callback sees it.
struct Adapter<'a> {
    walker: &'a mut dyn Walker,
    error: Option<Error>,
}

impl Observer for Adapter<'_> {
    fn stops_at(&mut self, node: &Tensor) -> bool {
        self.walker.stops_at(node)
    }

    fn computed(&mut self, node: &Tensor) -> bool {
        self.error = self.walker.computed(node).err();
        self.error.is_none()
    }
}

/// Computes `graph`, which `walker` has described, while it looks on.
pub(super) fn compute(scheduler: &Scheduler, graph: &Graph, walker: &mut dyn Walker) -> Result<(), Error> {
    let backend = |node: &Tensor| scheduler.backend_of(node).map(|i| scheduler.backends()[i].device().name());
    walker.begin(&backend)?;
    let mut adapter = Adapter { walker, error: None };
    let done = scheduler.compute_observed(graph, &mut adapter);
    match adapter.error {
        Some(error) => Err(error),
        None => Ok(done?),
    }
}

impl Session {
    /// Shows every graph from now on to `recorder`, up to the next [`renew`](Self::renew): the modes begin with it
    /// what they only check themselves by.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// The request as others can repeat it.
    pub(super) fn noted(&self, request: &Request<'_>) -> GraphRequest {
        GraphRequest {
            tokens: request.tokens.to_vec(),
            positions: request.positions.to_vec(),
            rows: match request.rows {
                Rows::All => None,
                Rows::Last => Some(vec![request.tokens.len() - 1]),
                Rows::Only(list) => Some(list.to_vec()),
            },
            cached: request.cached,
            keep_kv: request.keep_kv,
            keep_residuals: request.keep_residuals,
            skip: self.skip.clone(),
            capacity: self.cache_capacity(),
            phase: request.phase,
        }
    }

    /// What a graph will go by, which it uses up and overwrites; nothing where there is no recorder to be shown it.
    pub(super) fn given_to(&self, request: &Request<'_>) -> Result<Given, Error> {
        if self.recorder.is_none() {
            return Ok(Given::default());
        }
        Ok(Given {
            condition: self.condition(request.phase)?,
            experts: self.given_experts(request.positions)?,
        })
    }

    /// Shows what `request` went by and gave.
    pub(super) fn show(&mut self, request: &Request<'_>, given: Given, pass: &FullPass) -> Result<(), Error> {
        let Some(mut recorder) = self.recorder.take() else { return Ok(()) };
        let kv = match (&self.cache, request.cached) {
            (Some(cache), Some(_)) => cache.read_written(request.positions)?,
            _ => pass.kv.clone(),
        };
        recorder(&self.noted(request), &GraphOutcome { pass, kv, given })?;
        self.recorder = Some(recorder);
        Ok(())
    }

    /// Computes again what was noted, by what it went by; the cache must have room for it.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn repeat(&mut self, request: &GraphRequest, given: &Given) -> Result<FullPass, Error> {
        self.again(request, given, None)
    }

    /// As [`repeat`](Self::repeat), while `walker` looks on. Nothing that the graph gives is read.
    ///
    /// # Errors
    /// Those of the graph and of the walker, and a build whose scheduler has no evaluation callback.
    pub fn walk(
        &mut self,
        request: &GraphRequest,
        given: &Given,
        walker: &mut dyn Walker,
    ) -> Result<(), Error> {
        self.again(request, given, Some(walker)).map(|_| ())
    }

    fn again(
        &mut self,
        request: &GraphRequest,
        given: &Given,
        walker: Option<&mut dyn Walker>,
    ) -> Result<FullPass, Error> {
        let n = request.tokens.len();
        let beyond = request.cached.filter(|&cached| {
            cached > self.cache_capacity() || request.positions.iter().any(|&p| p >= cached)
        });
        if request.positions.len() != n || beyond.is_some() {
            return Err(Error::Input(format!(
                "a noted graph of {n} tokens at {} positions, {:?} of {} cached ones",
                request.positions.len(),
                request.cached,
                self.cache_capacity()
            )));
        }
        self.skip_layers(&request.skip)?;
        self.stand_before_canvas(request, given.condition.as_deref())?;
        let experts = given.experts.clone();
        self.follow_experts(
            experts.map(|layers| GivenExperts { positions: request.positions.clone(), layers }),
        );
        let wanted = Request {
            tokens: &request.tokens,
            positions: &request.positions,
            rows: request.rows.as_ref().map_or(Rows::All, |rows| Rows::Only(rows)),
            cached: request.cached,
            keep_kv: request.keep_kv,
            keep_residuals: request.keep_residuals,
            phase: request.phase,
        };
        let done = self.compute_with(&wanted, walker);
        self.follow_experts(None);
        self.skip_layers(&[])?;
        done
    }
}

impl KvCache {
    /// The rows at `positions` of every layer, converted to F32: also those that a graph has just written and that do
    /// not count as cached yet.
    fn read_written(&self, positions: &[usize]) -> Result<Vec<LayerKv>, Error> {
        let read = |t: &Tensor| -> Result<Vec<f32>, Error> {
            let ty = model_file::TensorType::from_id(t.dtype().0)
                .ok_or_else(|| Error::Input(format!("a K/V cache of type {}", t.dtype_name())))?;
            let (row, width) = (t.nb()[1], usize::try_from(t.ne()[0]).expect("sizes are positive"));
            let mut bytes = vec![0u8; row];
            let mut out = vec![0f32; width * positions.len()];
            for (&position, values) in positions.iter().zip(out.chunks_exact_mut(width)) {
                t.read_bytes(position * row, &mut bytes)?;
                model_file::dequantize(ty, &bytes, values)?;
            }
            Ok(out)
        };
        self.k.iter().zip(&self.v).map(|(k, v)| Ok(LayerKv { k: read(k)?, v: read(v)? })).collect()
    }
}
