//! The sampler as ggml ops.
//!
//! What the ops leave open is not relied on: `argmax` may return any of equal maxima, and `step(0)` is 0 on one backend
//! and 1 on another. So the maximum is looked up at any argmax, compared by scale and clamp, and indices are the argmax
//! of scores that are all different ([`tables`](super::tables)). Nothing is subtracted from an infinity that could be
//! one itself, but in rows that have no finite maximum, and those show as an entropy of NaN.

use ggml_sys::{Context, Error, Graph, Tensor};

use super::tables::{BLOCK, Tables, beyond};
use super::{Scan, Shape};
use crate::cache::as_i64;
use crate::fault::Fault;

/// Any difference times this is beyond 1, and 0 stays 0.
const STEEP: f32 = 3e38;

/// Below it `exp` is 0 in F32; minus infinity times a weight of 0 would be a NaN.
const DEEP: f32 = -200.0;

/// Nodes and leaves that a graph has at most.
pub(super) const NODES: usize = 128;

/// What a graph of the sampler is made of.
pub(super) struct Builder<'a> {
    pub(super) ctx: &'a Context,
    pub(super) graph: &'a Graph,
    pub(super) shape: Shape,
    pub(super) tables: &'a Tables,
    pub(super) scan: Scan,
    pub(super) inv_temp: f32,
    pub(super) planted: Option<Fault>,
}

/// The three numbers of each row.
pub(super) struct Outputs {
    /// I32 `[rows]`.
    pub(super) argmax: Tensor,
    /// F32, one a row.
    pub(super) entropy: Tensor,
    /// F32, one a row: an index.
    pub(super) token: Tensor,
}

/// The running sum along the rows of `x [n, rows]`; `triangle` is `[n, n]`.
pub(super) fn running_sum(
    ctx: &Context,
    x: &Tensor,
    scan: Scan,
    triangle: Option<&Tensor>,
) -> Result<Tensor, Error> {
    let [n, rows, ..] = x.ne();
    match (scan, triangle) {
        (Scan::Triangle, Some(triangle)) => {
            // Each row n times, of which the j-th copy keeps the first j + 1 columns.
            let shape = ctx.tensor(x.dtype(), &[n, n, rows]);
            let copies = ctx.repeat(&ctx.reshape_3d(x, [n, 1, rows]), &shape)?;
            Ok(ctx.reshape_2d(&ctx.sum_rows(&ctx.mul(&copies, triangle))?, [n, rows]))
        }
        _ => ctx.cumsum(x),
    }
}

impl Builder<'_> {
    /// The graph over `logits [vocab, rows]` and `u [1, rows]`.
    pub(super) fn build(&self, logits: &Tensor, u: &Tensor) -> Result<Outputs, Error> {
        let (ctx, tables) = (self.ctx, self.tables);
        let rows = as_i64(self.shape.rows);
        let distance = self.below_maximum(logits)?;

        let missed = self.missed(&distance)?;
        let score = ctx.add(&ctx.scale(&missed, -beyond(self.padded())), &tables.order);
        let argmax = self.named(ctx.argmax(&score)?, "argmax");

        let weights = self.named(ctx.exp(&ctx.scale(&distance, self.inv_temp))?, "weights");
        let blocks = self.block_sums(&weights)?;
        let total = self.named(ctx.sum_rows(&blocks)?, "total");
        let entropy = match self.planted {
            Some(Fault::EntropyWithoutMean) => ctx.log(&total)?,
            _ => {
                let scaled = ctx.clamp(&ctx.scale(&distance, self.inv_temp), DEEP, 0.0)?;
                let terms = self.block_sums(&ctx.mul(&scaled, &weights))?;
                ctx.sub(&ctx.log(&total)?, &ctx.div(&ctx.sum_rows(&terms)?, &total)?)?
            }
        };
        let entropy = self.named(entropy, "entropy");

        let target = self.named(ctx.mul(&total, u), "target");
        let token = match self.planted {
            Some(Fault::CumsumOneLevel) => self.in_one_level(&weights, &target)?,
            _ => self.in_two_levels(&weights, &blocks, &target)?,
        };
        let token = self.named(ctx.reshape_2d(&token, [1, rows]), "token");
        let outputs = Outputs { argmax: argmax.output(), entropy: entropy.output(), token: token.output() };
        for output in [&outputs.argmax, &outputs.entropy, &outputs.token] {
            self.graph.expand(output);
        }
        Ok(outputs)
    }

    fn padded(&self) -> usize {
        super::tables::blocks(self.shape.vocab) * BLOCK
    }

    fn named(&self, tensor: Tensor, name: &str) -> Tensor {
        tensor.set_name(name);
        tensor
    }

    /// Each logit less the largest of its row, `[padded, rows]`.
    fn below_maximum(&self, logits: &Tensor) -> Result<Tensor, Error> {
        let (ctx, tables) = (self.ctx, self.tables);
        let (vocab, rows) = (as_i64(self.shape.vocab), as_i64(self.shape.rows));
        let guarded = ctx.concat(logits, &tables.guard, 0);
        let any = ctx.reshape_2d(&ctx.argmax(&guarded)?, [1, rows]);
        let largest = ctx.get_rows(&ctx.reshape_3d(&guarded, [1, vocab + 1, rows]), &any);
        let largest = self.named(ctx.reshape_2d(&largest, [1, rows]), "largest");
        let all = match &tables.pad {
            Some(pad) => ctx.concat(logits, pad, 0),
            None => logits.clone(),
        };
        Ok(self.named(ctx.sub(&all, &largest)?, "distance"))
    }

    /// 1 where `x` is below 0, and 0 where it is 0.
    fn missed(&self, x: &Tensor) -> Result<Tensor, Error> {
        self.ctx.clamp(&self.ctx.scale(x, -STEEP), 0.0, 1.0)
    }

    /// The sum of each block of `x [padded, rows]`, `[blocks, rows]`.
    fn block_sums(&self, x: &Tensor) -> Result<Tensor, Error> {
        let (ctx, rows) = (self.ctx, as_i64(self.shape.rows));
        let blocks = as_i64(self.padded() / BLOCK);
        let sums = ctx.sum_rows(&ctx.reshape_3d(x, [as_i64(BLOCK), blocks, rows]))?;
        Ok(ctx.reshape_2d(&sums, [blocks, rows]))
    }

    /// The first index at which the running sum of `weights` reaches `target`: first the block, then the column in it.
    fn in_two_levels(&self, weights: &Tensor, sums: &Tensor, target: &Tensor) -> Result<Tensor, Error> {
        let (ctx, tables) = (self.ctx, self.tables);
        let (block, rows) = (as_i64(BLOCK), as_i64(self.shape.rows));
        let blocks = sums.ne()[0];
        let [over_blocks, within] = match &tables.triangles {
            Some([blocks, columns]) => [Some(blocks), Some(columns)],
            None => [None, None],
        };
        let up_to = running_sum(ctx, sums, self.scan, over_blocks)?;
        let missed = self.missed(&ctx.sub(&up_to, target)?)?;
        let score = ctx.add(&ctx.mul(&missed, &tables.block[1]), &tables.block[0]);
        // I32 [rows]; as [1, rows] it looks up one row in each of `rows` matrices.
        let chosen = self.named(ctx.argmax(&score)?, "block");
        let one_each = ctx.reshape_2d(&chosen, [1, rows]);
        let before = ctx.reshape_3d(&ctx.sub(&up_to, sums)?, [1, blocks, rows]);
        let before = ctx.reshape_2d(&ctx.get_rows(&before, &one_each), [1, rows]);
        let inside = ctx.get_rows(&ctx.reshape_3d(weights, [block, blocks, rows]), &one_each);
        let inside = running_sum(ctx, &ctx.reshape_2d(&inside, [block, rows]), self.scan, within)?;

        let missed = self.missed(&ctx.sub(&ctx.add(&inside, &before), target)?)?;
        let [reached, other] = [0, 1].map(|part| ctx.get_rows(&tables.column[part], &chosen));
        let score = ctx.add(&ctx.mul(&missed, &other), &reached);
        let column = ctx.reshape_2d(&ctx.argmax(&score)?, [1, rows]);
        let index = ctx.get_rows(&tables.index, &chosen);
        Ok(ctx.get_rows(&ctx.reshape_3d(&index, [1, block, rows]), &column))
    }

    /// The planted mistake: one running sum over the whole row.
    fn in_one_level(&self, weights: &Tensor, target: &Tensor) -> Result<Tensor, Error> {
        let (ctx, tables) = (self.ctx, self.tables);
        let padded = as_i64(self.padded());
        let missed = self.missed(&ctx.sub(&ctx.cumsum(weights)?, target)?)?;
        let score = ctx.add(&ctx.scale(&missed, -beyond(self.padded())), &tables.order);
        Ok(ctx.get_rows(&ctx.reshape_2d(&tables.index, [1, padded]), &ctx.argmax(&score)?))
    }
}
