//! The constants of the graph, which lie on the device.
//!
//! An index is found as the argmax of scores that are all different, since the op may return any of equal ones. Scores
//! are whole numbers below 2^24, which F32 holds exactly.

use ggml_sys::{BufferType, Context, DType, Ggml, Tensor};

use super::Shape;
use crate::cache::as_i64;
use crate::error::Error;

/// Columns of a block: running sums go over blocks, then within one.
pub(super) const BLOCK: usize = 512;

/// The largest vocabulary whose scores F32 holds.
pub(super) const MOST: usize = 1 << 22;

/// Below every finite logit that a model gives, and above what backends begin the search for a maximum with: a row
/// without a finite logit must not make an index of -1, by which rows would then be looked up.
const GUARD: f32 = -3e38;

/// The tensors.
pub(super) struct Tables {
    /// `[1, rows]`: a column beside the logits.
    pub(super) guard: Tensor,
    /// `[padded - vocab, rows]` of minus infinity, where the vocabulary is not a whole number of blocks.
    pub(super) pad: Option<Tensor>,
    /// `[padded]`: the score of each column that holds the maximum.
    pub(super) order: Tensor,
    /// `[blocks]`: the score of a block at which the sum is reached, and what is added where it is not.
    pub(super) block: [Tensor; 2],
    /// `[BLOCK, blocks]`: the same for the columns of each block.
    pub(super) column: [Tensor; 2],
    /// `[BLOCK, blocks]`: the index of each column.
    pub(super) index: Tensor,
    /// `[n, n]` for `blocks` and [`BLOCK`]: ones where a column comes no later than the row.
    pub(super) triangles: Option<[Tensor; 2]>,
    /// Bytes of all of them.
    pub(super) bytes: usize,
}

/// Blocks of a vocabulary.
pub(super) fn blocks(vocab: usize) -> usize {
    vocab.div_ceil(BLOCK)
}

/// More than any index.
pub(super) fn beyond(columns: usize) -> f32 {
    2.0 * columns.next_power_of_two() as f32
}

/// The scores of `n` places in order, the `valid` first of which may be chosen: what each has where the sum is reached,
/// so that the first such one wins, and what is added where it is not, so that of none the last valid one does.
fn scores(n: usize, valid: usize) -> [Vec<f32>; 2] {
    let far = beyond(n);
    let reached = (0..n).map(|i| if i < valid { -(i as f32) } else { -4.0 * far });
    let missed = (0..n).map(|i| if i < valid { 2.0 * i as f32 - 2.0 * far } else { 0.0 });
    [reached.collect(), missed.collect()]
}

impl Tables {
    pub(super) fn new(
        ggml: &'static Ggml,
        kind: &BufferType,
        shape: Shape,
        triangle: bool,
        last_maximum: bool,
    ) -> Result<Self, Error> {
        let Shape { vocab, rows } = shape;
        let (blocks, padded) = (blocks(vocab), blocks(vocab) * BLOCK);
        let ctx = Context::new(ggml, 16, 0)?;
        let mut fill: Vec<(Tensor, Vec<f32>)> = Vec::new();
        let mut table = |ne: &[usize], values: Vec<f32>| {
            let ne: Vec<i64> = ne.iter().map(|&n| as_i64(n)).collect();
            let tensor = ctx.tensor(DType::F32, &ne);
            fill.push((tensor.clone(), values));
            tensor
        };
        let guard = table(&[1, rows], vec![GUARD; rows]);
        let extra = padded - vocab;
        let pad = (extra > 0).then(|| table(&[extra, rows], vec![f32::NEG_INFINITY; extra * rows]));
        let place = |i: usize| if last_maximum { i as f32 } else { -(i as f32) };
        let order = table(&[padded], (0..padded).map(place).collect());
        let block = scores(blocks, blocks).map(|values| table(&[blocks], values));
        let valid = |block: usize| (vocab - block * BLOCK).min(BLOCK);
        let of_blocks = |part: usize| -> Vec<f32> {
            (0..blocks).flat_map(|block| scores(BLOCK, valid(block))[part].clone()).collect()
        };
        let column = [0, 1].map(|part| table(&[BLOCK, blocks], of_blocks(part)));
        let index = table(&[BLOCK, blocks], (0..padded).map(|i| i as f32).collect());
        let ones = |n: usize| (0..n * n).map(|i| if i % n <= i / n { 1.0 } else { 0.0 }).collect();
        let triangles = triangle.then(|| [blocks, BLOCK].map(|n| table(&[n, n], ones(n))));
        let bytes = ctx.allocate(kind, false)?;
        for (tensor, values) in &fill {
            tensor.write_f32(values)?;
        }
        Ok(Self { guard, pad, order, block, column, index, triangles, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The winner among places of which those from `reached` on are reached.
    fn winner(n: usize, valid: usize, reached: usize) -> usize {
        let [base, missed] = scores(n, valid);
        let score = |i: usize| base[i] + if i < reached { missed[i] } else { 0.0 };
        let best = (0..n).fold(0, |best, i| if score(i) > score(best) { i } else { best });
        assert!((0..n).filter(|&i| i < valid && score(i) == score(best)).count() == 1, "one winner");
        best
    }

    #[test]
    fn the_first_place_that_is_reached_wins_and_the_last_valid_one_where_none_is() {
        for (n, valid) in [(1, 1), (2, 2), (512, 512), (512, 1), (512, 488), (513, 513)] {
            for reached in [0, 1, n / 2, n - 1, n] {
                let wanted = if reached < valid { reached } else { valid - 1 };
                assert_eq!(winner(n, valid, reached), wanted, "{n} {valid} {reached}");
            }
        }
    }

    #[test]
    fn scores_are_whole_numbers_that_f32_holds() {
        for n in [1, 512, MOST / BLOCK] {
            for list in scores(n, n) {
                assert!(list.iter().all(|score| score.fract() == 0.0 && score.abs() <= 16_777_216.0));
            }
        }
        assert!(beyond(MOST) <= 8_388_608.0);
    }
}
