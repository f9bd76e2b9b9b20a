//! A network and its passes.
//!
//! There is one pass, [`Network::forward`]: tokens at positions, on a cache. The modes are calls of it:
//!
//! | mode | call |
//! |---|---|
//! | `full` | [`Network::full`]: a fresh cache, dropped afterwards |
//! | `full-cache` | [`Network::full_cache`]: a cleared cache, filled |
//! | `sparse` | [`Network::sparse`]: some positions of a filled cache anew |
//! | `prefill`, `decode`, `batch` | [`Network::extend`]: n tokens after those in the cache |

use std::collections::HashMap;
use std::ops::Range;

use model_file::{HyperParams, Model};

use crate::cache::{Cache, LayerKv, Precision};
use crate::error::Error;
use crate::experts::{self, Routing};
use crate::models::{self, PreNorm};

/// Which rows of a pass get logits. Rows are indices into the pass's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows<'a> {
    /// All, in order.
    All,
    /// The last.
    Last,
    /// These, in this order; repeated ones are computed again. May be none.
    Only(&'a [usize]),
}

/// What a pass computes.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// Their positions, ascending; `None`: those after the last in the cache.
    pub positions: Option<&'a [usize]>,
    /// Which rows get logits.
    pub rows: Rows<'a>,
    /// Layers left out: the residual stream passes them unchanged and their cache is not touched.
    pub skip: &'a [usize],
    /// Sliding window of causal attention: a position sees at most this many, itself included.
    pub window: Option<usize>,
    /// Experts that are to work whatever the routers choose: layer by layer, of those that have any and are not left
    /// out, `[n, used]`.
    pub experts: Option<&'a [&'a [usize]]>,
}

impl<'a> Request<'a> {
    /// Tokens after the last in the cache, logits of the last row, all layers, no window.
    pub fn new(tokens: &'a [u32]) -> Self {
        Self { tokens, positions: None, rows: Rows::Last, skip: &[], window: None, experts: None }
    }
}

/// Logits of some rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    n_vocab: usize,
    values: Vec<f64>,
}

impl Logits {
    /// From `[rows, n_vocab]`, row-major.
    pub fn from_rows(n_vocab: usize, values: Vec<f64>) -> Self {
        Self { n_vocab, values }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.n_vocab
    }

    /// Elements of a row.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Row `i` of those asked for, `[n_vocab]`.
    ///
    /// # Panics
    /// Without such a row.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.n_vocab..(i + 1) * self.n_vocab]
    }

    /// All, `[rows, n_vocab]`, row-major.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

/// What a pass gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Pass {
    /// Logits of the rows asked for. Row i is the network's output at position i, never shifted.
    pub logits: Logits,
    /// K (after RoPE) and V of this pass's tokens in each layer, `[n, n_head_kv, head_dim]`, as computed,
    /// before the cache rounds them. Empty for skipped layers.
    pub kv: Vec<LayerKv>,
    /// What the router of each layer with experts decided.
    pub routing: Vec<Routing>,
    /// For each layer the squared norm, over all rows of the pass, of the change it makes to the residual
    /// stream; 0 for skipped layers.
    pub change: Vec<f64>,
}

/// What [`Network::forward`] has checked.
pub(crate) struct Plan<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) positions: Vec<usize>,
    /// Rows of the cache that each token sees, by the layer's own window.
    pub(crate) visible: HashMap<Option<usize>, Vec<Range<usize>>>,
    /// Rows that get logits.
    pub(crate) rows: Vec<usize>,
    pub(crate) skip: &'a [usize],
    /// Experts that are to work, by layer.
    pub(crate) experts: Option<&'a [&'a [usize]]>,
}

/// An open network. Its weights stay mapped; passes share it between threads.
#[derive(Debug)]
pub struct Network {
    hparams: HyperParams,
    body: PreNorm,
}

impl Network {
    /// Opens the network of a model file. The file stays mapped as long as the network lives.
    ///
    /// # Errors
    /// A weight type whose values are not known here, or a file that cannot be mapped.
    pub fn open(model: &Model) -> Result<Self, Error> {
        Ok(Self { hparams: model.hparams.clone(), body: models::open(model)? })
    }

    /// The network's hyper-parameters.
    pub fn hparams(&self) -> &HyperParams {
        &self.hparams
    }

    /// An empty cache of `capacity` positions in f64.
    pub fn cache(&self, capacity: usize) -> Cache {
        self.cache_stored_as(capacity, Precision::F64)
    }

    /// An empty cache of `capacity` positions that rounds what is written to it.
    pub fn cache_stored_as(&self, capacity: usize, precision: Precision) -> Cache {
        Cache::new(&self.hparams, capacity, precision)
    }

    /// One pass. In each layer K and V of the tokens are written to the cache, rounded to its precision, over
    /// the rows of their positions or after the last; then each token attends to the cache's rows: all of them
    /// (bidirectional networks) or those up to its own position (causal ones). Positions are also RoPE's.
    ///
    /// Causal networks only append; a pass over earlier positions would leave later rows stale.
    ///
    /// # Errors
    /// Tokens, positions, rows or layers that cannot be; a full cache; a cache of another network, or with
    /// rows that were skipped earlier. These are found before anything is written. If decoding weights or
    /// rounding K/V fails, some layers have been written: clear the cache, or truncate it to what it held
    /// before if the pass only appended.
    pub fn forward(&self, cache: &mut Cache, request: Request<'_>) -> Result<Pass, Error> {
        let plan = self.plan(cache, &request)?;
        let pass = self.body.forward(&self.hparams, cache, &plan)?;
        if let Some(last) = plan.positions.last() {
            cache.grow_to(last + 1);
        }
        Ok(pass)
    }

    /// `full`: the whole sequence without a cache.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn full(&self, tokens: &[u32], rows: Rows<'_>) -> Result<Pass, Error> {
        self.forward(&mut self.cache(tokens.len()), Request { rows, ..Request::new(tokens) })
    }

    /// `full-cache`: the whole sequence; the cache is cleared and filled with it.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn full_cache(&self, cache: &mut Cache, tokens: &[u32], rows: Rows<'_>) -> Result<Pass, Error> {
        cache.clear();
        self.forward(cache, Request { rows, ..Request::new(tokens) })
    }

    /// `sparse`: of the sequence `tokens`, only the `active` positions (ascending) go through the layers.
    /// Their K and V overwrite the cache, which must hold the sequence; they attend to all its rows. `rows`
    /// are indices into `active`.
    ///
    /// # Errors
    /// A cache that does not hold just this sequence's positions, an active position outside it, a causal
    /// network; and as [`forward`](Self::forward).
    pub fn sparse(
        &self,
        cache: &mut Cache,
        tokens: &[u32],
        active: &[usize],
        rows: Rows<'_>,
    ) -> Result<Pass, Error> {
        if self.hparams.causal {
            return Err(Error::Unsupported("a causal network has no sparse passes".to_string()));
        }
        if cache.len() != tokens.len() {
            return Err(Error::Positions(format!(
                "a sparse pass over {} tokens needs a cache of as many positions, it holds {}",
                tokens.len(),
                cache.len()
            )));
        }
        if let Some(outside) = active.iter().find(|&&p| p >= tokens.len()) {
            return Err(Error::Positions(format!(
                "active position {outside} is outside the sequence of {}",
                tokens.len()
            )));
        }
        let tokens: Vec<u32> = active.iter().map(|&p| tokens[p]).collect();
        self.forward(cache, Request { positions: Some(active), rows, ..Request::new(&tokens) })
    }

    /// `prefill`, `decode`, `batch`: tokens after the last in the cache.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn extend(&self, cache: &mut Cache, tokens: &[u32], rows: Rows<'_>) -> Result<Pass, Error> {
        self.forward(cache, Request { rows, ..Request::new(tokens) })
    }

    /// Context shift: removes `count` positions from `first` on and moves the later ones up, their K rotated
    /// back by `count` positions. Deeper layers' rows still come from the removed context, by design.
    ///
    /// # Errors
    /// Positions that the cache does not hold, a cache of another network or with skipped rows.
    pub fn shift(&self, cache: &mut Cache, first: usize, count: usize) -> Result<(), Error> {
        cache.check(&self.hparams)?;
        if first.checked_add(count).is_none_or(|end| end > cache.len()) {
            return Err(Error::Positions(format!(
                "{count} positions from {first} on are to be removed, the cache holds {}",
                cache.len()
            )));
        }
        let back = -(count as f64);
        cache.remove(first, count, |layer, k, rows| self.body.rotate(layer, k, &vec![back; rows]))
    }

    fn plan<'a>(&self, cache: &Cache, request: &Request<'a>) -> Result<Plan<'a>, Error> {
        let h = &self.hparams;
        let Request { tokens, rows, skip, window, .. } = *request;
        let n = tokens.len();
        cache.check(h)?;
        if let Some((index, &token)) = tokens.iter().enumerate().find(|(_, t)| **t as usize >= h.n_vocab) {
            return Err(Error::Token { index, token, n_vocab: h.n_vocab });
        }
        if let Some(&layer) = skip.iter().find(|&&l| l >= h.n_layer) {
            return Err(Error::NoSuchLayer { layer, layers: h.n_layer });
        }
        let positions = match request.positions {
            None => (cache.len()..cache.len() + n).collect(),
            Some(positions) => positions.to_vec(),
        };
        check_positions(&positions, n, cache, h.causal)?;
        for layer in (0..h.n_layer).filter(|l| !skip.contains(l)) {
            cache.check_layer(layer)?;
        }
        let end = positions.last().map_or(0, |p| p + 1).max(cache.len());
        match (h.causal, window) {
            (_, Some(0)) => return Err(Error::Plan("a window of no positions".to_string())),
            (false, Some(_)) => {
                return Err(Error::Unsupported("a sliding window of bidirectional attention".to_string()));
            }
            _ => {}
        }
        let seen = |own: Option<usize>| -> Vec<Range<usize>> {
            if !h.causal {
                return vec![0..end; n];
            }
            let window = [own, window].into_iter().flatten().min();
            let first = |p: usize| window.map_or(0, |window| (p + 1).saturating_sub(window));
            positions.iter().map(|&p| first(p)..p + 1).collect()
        };
        let windows = (0..h.n_layer).map(|layer| h.layer(layer).window);
        let visible = windows.map(|window| (window, seen(window))).collect();
        let rows = match rows {
            Rows::All => (0..n).collect(),
            Rows::Last => n.checked_sub(1).into_iter().collect(),
            Rows::Only(rows) => rows.to_vec(),
        };
        if let Some(&row) = rows.iter().find(|&&r| r >= n) {
            return Err(Error::Row { row, rows: n });
        }
        if let Some(given) = request.experts {
            experts::check(given, h.experts, h.n_layer - skip.len(), n)?;
        }
        Ok(Plan { tokens, positions, visible, rows, skip, experts: request.experts })
    }
}

/// Ascending, of the right number, without a gap after the cache's last, within its capacity; appending only
/// where later rows would become stale.
fn check_positions(positions: &[usize], n: usize, cache: &Cache, causal: bool) -> Result<(), Error> {
    if positions.len() != n {
        return Err(Error::Positions(format!("{} positions for {n} tokens", positions.len())));
    }
    if let Some(pair) = positions.windows(2).find(|p| p[0] >= p[1]) {
        return Err(Error::Positions(format!("{} follows {}, not ascending", pair[1], pair[0])));
    }
    let mut next = cache.len();
    for &p in positions {
        if p >= cache.capacity() {
            return Err(Error::CacheFull { position: p, capacity: cache.capacity() });
        }
        if p > next {
            return Err(Error::Positions(format!("{p} leaves a gap after the {next} positions before it")));
        }
        if p == next {
            next += 1;
        } else if causal {
            return Err(Error::Positions(format!(
                "{p} lies inside the cache of {} positions, where a causal network would leave stale rows; \
                 truncate it first",
                cache.len()
            )));
        }
    }
    Ok(())
}
