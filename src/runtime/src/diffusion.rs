//! Masked diffusion through the K/V cache: every token sees every other, whether it was computed now or lies in the
//! cache.

use crate::cache::overwrite;
use crate::canvas::Phase;
use crate::error::Error;
use crate::session::{Logits, Request, Rows, Session};

impl Session {
    /// One forward pass over `tokens`, which also fills the cache with their keys and values; attention reads them
    /// from there. The cache must have room for them ([`reset_cache`](Self::reset_cache)).
    ///
    /// # Errors
    /// When the model is autoregressive, the cache is too small, a token is outside the vocabulary, or ggml fails.
    pub fn full_cached(&mut self, tokens: &[u32], rows: Rows<'_>) -> Result<Logits, Error> {
        self.check_bidirectional()?;
        let capacity = self.cache_capacity();
        if tokens.len() > capacity {
            return Err(Error::CacheFull { used: 0, capacity, wanted: tokens.len() });
        }
        let positions: Vec<usize> = (0..tokens.len()).collect();
        let cached = Some(tokens.len());
        let logits = self.compute_recorded(tokens, &positions, rows, cached)?;
        self.set_cached(tokens.len());
        Ok(logits)
    }

    /// Computes the tokens at `positions` anew, the others standing as the cache has them: attention sees all cached
    /// positions, and the new keys and values overwrite those of `positions`. [`Rows::Only`] counts in `tokens`.
    ///
    /// # Errors
    /// When the model is autoregressive, positions do not rise or are not in the cache, a token is outside the
    /// vocabulary, the build cannot scatter into a cache of this type, or ggml fails.
    pub fn recompute(
        &mut self,
        tokens: &[u32],
        positions: &[usize],
        rows: Rows<'_>,
    ) -> Result<Logits, Error> {
        self.check_bidirectional()?;
        if tokens.len() != positions.len() {
            return Err(Error::Input(format!("{} tokens at {} positions", tokens.len(), positions.len())));
        }
        if let Some(pair) = positions.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(Error::Input(format!("position {} is followed by {}", pair[0], pair[1])));
        }
        let used = self.cached();
        if let Some(&beyond) = positions.last().filter(|&&last| last >= used) {
            return Err(Error::Input(format!("position {beyond} of {used} cached ones")));
        }
        self.compute_recorded(tokens, positions, rows, Some(used))
    }

    /// One graph, whose keys and values take the place of those recorded for `positions`, where they are recorded.
    fn compute_recorded(
        &mut self,
        tokens: &[u32],
        positions: &[usize],
        rows: Rows<'_>,
        cached: Option<usize>,
    ) -> Result<Logits, Error> {
        let keep_kv = self.recorded.is_some();
        let request =
            Request { tokens, positions, rows, cached, keep_kv, keep_residuals: false, phase: Phase::Plain };
        let pass = self.compute(&request)?;
        let h = &self.hparams;
        if let Some(recorded) = &mut self.recorded {
            let width = |layer| h.layer(layer).kv_width();
            overwrite(recorded, &pass.kv, positions, cached.unwrap_or(tokens.len()), width);
        }
        Ok(pass.logits)
    }

    fn check_bidirectional(&self) -> Result<(), Error> {
        let architecture = self.hparams().architecture;
        if architecture.is_diffusion() {
            return Ok(());
        }
        Err(Error::Input(format!(
            "architecture {} is autoregressive: its cache grows token by token",
            architecture.name()
        )))
    }
}
