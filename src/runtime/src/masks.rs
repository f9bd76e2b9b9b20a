//! What each token sees in each layer, as inputs of a graph.

use ggml_sys::{Context, DType, Tensor};

use crate::blocks::Builder;
use crate::cache::as_i64;
use crate::error::Error;
use crate::session::Attention;

/// Flash attention of older builds wants masks with a multiple of so many rows.
const FLASH_ROWS: usize = 64;

/// The masks of one graph; layers that see everything have none.
pub(crate) struct Masks {
    attention: Attention,
    /// Tokens of the graph.
    n: usize,
    /// Positions that attention reads.
    n_kv: usize,
    inputs: Vec<(Tensor, Vec<f32>)>,
    /// The input of each layer.
    of_layer: Vec<Option<usize>>,
}

impl Masks {
    /// None yet, for `n_layer` layers over `n` tokens that read `n_kv` positions.
    pub(crate) fn new(attention: Attention, n: usize, n_kv: usize, n_layer: usize) -> Self {
        Self { attention, n, n_kv, inputs: Vec::new(), of_layer: vec![None; n_layer] }
    }

    /// Gives these layers, if there are any, the mask `values`, `[n, n_kv]` row-major, 0 or minus infinity. Its tensor
    /// is `[n_kv, n]`: F32 for explicit attention, F16 with padded rows for flash.
    pub(crate) fn add(
        &mut self,
        ctx: &Context,
        name: &str,
        layers: impl IntoIterator<Item = usize>,
        values: impl FnOnce() -> Vec<f32>,
    ) {
        let at = self.inputs.len();
        let mut wanted = false;
        for layer in layers {
            self.of_layer[layer] = Some(at);
            wanted = true;
        }
        // What no node reads gets no memory that could be written.
        if !wanted {
            return;
        }
        let (dtype, rows) = match self.attention {
            Attention::Explicit => (DType::F32, self.n),
            Attention::Flash => (DType::F16, self.n.next_multiple_of(FLASH_ROWS)),
        };
        let input = Builder::input(ctx, dtype, &[as_i64(self.n_kv), as_i64(rows)], name);
        self.inputs.push((input, values()));
    }

    /// The mask of a layer.
    pub(crate) fn of(&self, layer: usize) -> Option<&Tensor> {
        self.of_layer[layer].map(|i| &self.inputs[i].0)
    }

    /// All of them.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs.iter().map(|(tensor, _)| tensor)
    }

    /// Writes them.
    pub(crate) fn fill(&self) -> Result<(), Error> {
        for (input, values) in &self.inputs {
            match self.attention {
                Attention::Explicit => input.write_f32(values)?,
                Attention::Flash => {
                    let len = self.n_kv * self.n.next_multiple_of(FLASH_ROWS);
                    input.write_f16_bits(&flash_mask(values, len))?;
                }
            }
        }
        Ok(())
    }
}

/// `[positions, n_kv]`, row-major: a token sees cached positions up to its own, the last `window` of them.
pub(crate) fn causal_mask(positions: &[usize], n_kv: usize, window: Option<usize>) -> Vec<f32> {
    let window = window.unwrap_or(usize::MAX);
    let sees = |p: usize, kv: usize| if kv <= p && p - kv < window { 0.0 } else { f32::NEG_INFINITY };
    positions.iter().flat_map(|&p| (0..n_kv).map(move |kv| sees(p, kv))).collect()
}

/// Lets the token at position `hidden` see nothing in a mask of [`causal_mask`]'s shape.
pub(crate) fn hide(mask: &mut [f32], positions: &[usize], n_kv: usize, hidden: Option<usize>) {
    for (row, &position) in mask.chunks_exact_mut(n_kv.max(1)).zip(positions) {
        if Some(position) == hidden {
            row.fill(f32::NEG_INFINITY);
        }
    }
}

/// The mask in 16 bits, filled up to `len` values with rows that see nothing.
fn flash_mask(mask: &[f32], len: usize) -> Vec<u16> {
    let hidden = std::iter::repeat(f32::NEG_INFINITY);
    mask.iter().copied().chain(hidden).take(len).map(|v| half::f16::from_f32(v).to_bits()).collect()
}

/// The shorter of two windows.
pub(crate) fn shorter(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    [a, b].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causal_mask_hides_the_future_only() {
        let inf = f32::NEG_INFINITY;
        assert_eq!(causal_mask(&[0, 1], 2, None), [0.0, inf, 0.0, 0.0]);
        assert_eq!(causal_mask(&[1, 2], 3, None), [0.0, 0.0, inf, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_window_of_two_sees_the_token_itself_and_the_one_before() {
        let inf = f32::NEG_INFINITY;
        assert_eq!(causal_mask(&[2, 3], 4, Some(2)), [inf, 0.0, 0.0, inf, inf, inf, 0.0, 0.0]);
        assert_eq!(causal_mask(&[2], 3, Some(9)), causal_mask(&[2], 3, None));
    }

    #[test]
    fn a_hidden_row_sees_nothing_and_the_others_what_they_saw() {
        let inf = f32::NEG_INFINITY;
        let mut mask = causal_mask(&[1, 2], 3, None);
        hide(&mut mask, &[1, 2], 3, Some(1));
        assert_eq!(mask, [inf, inf, inf, 0.0, 0.0, 0.0]);
        hide(&mut mask, &[1, 2], 3, Some(7));
        assert_eq!(mask[3..], [0.0, 0.0, 0.0]);
    }

    #[test]
    fn rows_added_to_a_flash_mask_see_nothing() {
        assert_eq!(flash_mask(&[0.0, f32::NEG_INFINITY], 4), [0, 0xFC00, 0xFC00, 0xFC00]);
    }

    #[test]
    fn of_two_windows_the_shorter_counts() {
        assert_eq!(
            [shorter(Some(4), Some(9)), shorter(None, Some(9)), shorter(None, None)],
            [Some(4), Some(9), None]
        );
    }
}
