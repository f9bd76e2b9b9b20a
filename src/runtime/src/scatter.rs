//! How new rows of keys and values get into the cache, on the device.

use ggml_sys::{Context, DType, Ggml, Tensor};

use crate::blocks::Builder;
use crate::cache::{KvType, as_i64};
use crate::error::Error;

/// The way into the cache for one graph, the same in every layer.
pub(crate) enum Scatter {
    /// `set_rows` at the I64 positions in this input.
    Rows(Tensor),
    /// The positions follow each other from this one on: one copy.
    Slot(usize),
    /// For builds without `set_rows`: the cache and the new rows one after the other, of which the I32 indices in
    /// this input, one for each cached position, select what the cache holds afterwards.
    Merge(Tensor),
}

impl Scatter {
    /// The way that this build has for `positions` in a cache of which `n_kv` positions are read; for none of them
    /// one that nothing is stored by.
    ///
    /// # Errors
    /// When there is none: selecting among the rows of a 16-bit cache ends the process on old builds.
    pub(crate) fn choose(
        ctx: &Context,
        positions: &[usize],
        n_kv: usize,
        kv: KvType,
        set_rows: bool,
    ) -> Result<Self, Error> {
        if positions.is_empty() {
            return Ok(Self::Slot(0));
        }
        if set_rows {
            let input = Builder::input(ctx, DType::I64, &[as_i64(positions.len())], "cache_rows");
            return Ok(Self::Rows(input));
        }
        if follow_each_other(positions) {
            return Ok(Self::Slot(positions[0]));
        }
        // Also where the build has it and is told not to use it.
        if kv != KvType::F32 {
            return Err(lacks_set_rows(ctx.ggml()));
        }
        Ok(Self::Merge(Builder::input(ctx, DType::I32, &[as_i64(n_kv)], "cache_merge")))
    }

    /// The input that [`fill`](Self::fill) writes.
    pub(crate) fn input(&self) -> Option<&Tensor> {
        match self {
            Self::Rows(input) | Self::Merge(input) => Some(input),
            Self::Slot(_) => None,
        }
    }

    /// Writes the input.
    pub(crate) fn fill(&self, positions: &[usize], n_kv: usize) -> Result<(), Error> {
        match self {
            Self::Rows(input) => {
                input.write_i64(&positions.iter().map(|&p| as_i64(p)).collect::<Vec<_>>())?
            }
            Self::Merge(input) => input.write_i32(&merged(positions, n_kv))?,
            Self::Slot(_) => {}
        }
        Ok(())
    }

    /// The node that writes `rows`, F32 `[row, n]`, into `cache`, `[row, capacity]`.
    pub(crate) fn store(
        &self,
        ctx: &Context,
        rows: &Tensor,
        cache: &Tensor,
        n_kv: usize,
    ) -> Result<Tensor, Error> {
        let (width, stride) = (cache.ne()[0], cache.nb()[1]);
        Ok(match self {
            Self::Rows(positions) => ctx.set_rows(cache, rows, positions)?,
            Self::Slot(first) => {
                let slot = ctx.view_2d(cache, [width, rows.ne()[1]], stride, first * stride);
                ctx.cpy(rows, &slot)
            }
            Self::Merge(index) => {
                let used = ctx.view_2d(cache, [width, as_i64(n_kv)], stride, 0);
                let both = ctx.concat(&used, rows, 1);
                ctx.cpy(&ctx.get_rows(&both, index), &used)
            }
        })
    }
}

fn follow_each_other(positions: &[usize]) -> bool {
    positions.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

/// For each of `n_kv` positions the row that it is to hold: its own, or that of the new one, which come after all
/// cached ones.
fn merged(positions: &[usize], n_kv: usize) -> Vec<i32> {
    let mut rows: Vec<usize> = (0..n_kv).collect();
    for (new, &position) in positions.iter().enumerate() {
        rows[position] = n_kv + new;
    }
    rows.into_iter().map(|row| i32::try_from(row).expect("rows of a cache fit 31 bits")).collect()
}

fn lacks_set_rows(ggml: &Ggml) -> Error {
    let version = ggml.version().unwrap_or("of unknown version").to_owned();
    ggml_sys::Error::Unsupported { version, symbol: "ggml_set_rows" }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_rows_replace_those_of_their_positions() {
        assert_eq!(merged(&[1, 3], 5), [0, 5, 2, 6, 4]);
        assert_eq!(merged(&[0], 1), [1]);
    }

    #[test]
    fn neighbours_in_order_are_one_copy() {
        assert!(follow_each_other(&[4, 5, 6]) && follow_each_other(&[9]));
        assert!(!follow_each_other(&[4, 6]) && !follow_each_other(&[5, 4]));
    }
}
