//! What happens to a cache beside growing: going back, being saved and restored, and moving.

use ggml_sys::{Context, DType, Tensor};

use super::{Session, graph_size, index};
use crate::attention::{rope_factors, rope_params};
use crate::blocks::Builder;
use crate::cache::{LayerKv, as_i64};
use crate::error::Error;
use crate::fault::Fault;

impl Session {
    /// Forgets all cached positions from `length` on.
    ///
    /// # Errors
    /// When fewer are cached.
    pub fn truncate(&mut self, length: usize) -> Result<(), Error> {
        let used = self.cached();
        match &mut self.cache {
            Some(cache) if length <= used => cache.used = length,
            None if length == 0 => {}
            _ => return Err(Error::Input(format!("a cache of {used} positions is to keep {length}"))),
        }
        if let Some(recorded) = &mut self.recorded {
            for (i, layer) in recorded.iter_mut().enumerate() {
                let row = self.hparams.layer(i).kv_width();
                layer.k.truncate(length * row);
                layer.v.truncate(length * row);
            }
        }
        Ok(())
    }

    /// Records keys and values as they are before they are stored, from now on and from an empty cache, so
    /// that what storing does to them can be told from what computing did.
    pub fn record_before_storing(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// What was recorded since [`record_before_storing`](Self::record_before_storing), per layer; recording
    /// ends.
    pub fn take_recorded(&mut self) -> Vec<LayerKv> {
        self.recorded.take().unwrap_or_default()
    }

    /// The cached positions as bytes, which [`restore_cache`](Self::restore_cache) takes back.
    ///
    /// # Errors
    /// When there is no cache, or the device cannot be read.
    pub fn save_cache(&self) -> Result<Vec<u8>, Error> {
        let cache = self.cache.as_ref().ok_or_else(|| Error::Input("no cache to save".to_owned()))?;
        self.count_cache_read(cache.filled_bytes());
        cache.save()
    }

    /// Puts saved positions into the cache instead of those that are in it.
    ///
    /// # Errors
    /// When the bytes are no saved cache, are one of another model or type, or hold more than the cache can.
    pub fn restore_cache(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let cache = self.cache.as_mut().ok_or_else(|| Error::Input("no cache to restore into".to_owned()))?;
        cache.restore(bytes)?;
        let written = cache.filled_bytes();
        self.traffic.get_mut().cache_written += written;
        Ok(())
    }

    /// Drops `drop` cached positions after the first `keep`: those that follow move down, and their keys are
    /// rotated back to the positions they get, on the device. What they hold of the dropped positions through
    /// attention stays in them, so this is not what computing the shorter sequence gives, but for the keys of
    /// the first layer.
    ///
    /// # Errors
    /// When fewer positions are cached, or the device cannot compute the rotation.
    pub fn shift(&mut self, keep: usize, drop: usize) -> Result<(), Error> {
        let used = self.cached();
        if keep + drop > used {
            return Err(Error::Input(format!("{keep} + {drop} positions of a cache of {used} to shift")));
        }
        let moved = used - keep - drop;
        while drop > 0 && moved > 0 && !self.try_shift(keep, drop, moved)? {}
        self.truncate(keep + moved)
    }

    /// Moves the last `moved` positions; false where the graph got no memory and has to be built again.
    fn try_shift(&mut self, keep: usize, drop: usize, moved: usize) -> Result<bool, Error> {
        let size = graph_size(&self.hparams);
        let ctx = Context::new(self.ggml, size, size)?;
        let graph = ctx.graph(size)?;
        let back = Builder::input(&ctx, DType::I32, &[as_i64(moved)], "positions");
        let rows = Builder::input(&ctx, DType::I64, &[as_i64(moved)], "cache_rows");
        let cache = self.cache.as_ref().expect("positions are cached");
        let h = &self.hparams;
        for layer in 0..h.n_layer {
            let shape = h.layer(layer);
            let (head, kv_heads) = (as_i64(shape.head_dim), as_i64(shape.n_head_kv));
            let flat = [head * kv_heads, as_i64(moved)];
            let factors = rope_factors(&self.weights, &shape);
            for (store, what) in [(&cache.k[layer], "k"), (&cache.v[layer], "v")] {
                let row = store.nb()[1];
                let name = |t: Tensor, part: &str| {
                    t.set_name(&format!("{what}_{part}-{layer}"));
                    t
                };
                let old = ctx.view_2d(store, flat, row, (keep + drop) * row);
                // Out of the cache before anything is written into it: the ranges may overlap.
                let values = match store.dtype() {
                    DType::F32 => name(ctx.cont(&old), "moved"),
                    _ => name(ctx.cast(&old, DType::F32), "moved"),
                };
                let values = if what == "k" {
                    let heads = ctx.reshape_3d(&values, [head, kv_heads, as_i64(moved)]);
                    let params = Fault::rope(self.options.planted, rope_params(h, &shape));
                    let turned = name(ctx.rope(&heads, &back, factors, params), "turned");
                    ctx.reshape_2d(&turned, flat)
                } else {
                    values
                };
                let written = if self.set_rows {
                    ctx.set_rows(store, &values, &rows)?
                } else {
                    ctx.cpy(&values, &ctx.view_2d(store, flat, row, keep * row))
                };
                graph.expand(&name(written, "store"));
            }
        }
        if !self.allocate(&graph)? {
            return Ok(false);
        }
        back.write_i32(&vec![-index(drop); moved])?;
        if self.set_rows {
            rows.write_i64(&(keep..keep + moved).map(as_i64).collect::<Vec<_>>())?;
        }
        self.scheduler.compute(&graph)?;
        let rows = Some(&rows).filter(|_| self.set_rows);
        let sent: usize = rows.into_iter().chain([&back]).map(Tensor::bytes).sum();
        self.traffic.get_mut().graph(sent, 0);
        Ok(true)
    }
}
