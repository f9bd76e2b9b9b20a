//! Ops that not every build has: what a sampler reduces rows with, and what later architectures are made of.

use crate::context::Context;
use crate::error::Error;
use crate::tensor::Tensor;

/// Generates a method for an op that not every build has.
macro_rules! optional_op {
    ($(#[$doc:meta])* $name:ident($($t:ident),+ $(; $($p:ident: $ty:ty),+)?) = $raw:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When the build lacks the function of ggml's that makes this op.
        pub fn $name(&self, $($t: &Tensor),+ $(, $($p: $ty),+)?) -> Result<Tensor, Error> {
            let ggml = self.ggml();
            let make = ggml.api.$raw.ok_or_else(|| ggml.lacks(stringify!($raw)))?;
            // SAFETY: live tensors of this build in a context with room; ggml checks shapes itself.
            Ok(self.own(&[$($t),+], |_, ctx| unsafe { make(ctx, $($t.ptr),+ $(, $($p),+)?) }))
        }
    };
}

/// `GGML_SORT_ORDER_DESC`.
const DESCENDING: std::ffi::c_int = 1;

impl Context {
    optional_op!(/** `a - b`, `b` repeated over `a`. */ sub(a, b) = ggml_sub);
    optional_op!(/** `a / b`, `b` repeated over `a`. */ div(a, b) = ggml_div);
    optional_op!(/** `e` to the power of `a`. */ exp(a) = ggml_exp);
    optional_op!(/** The natural logarithm of `a`. */ log(a) = ggml_log);
    optional_op!(/** 1 where `a` is above 0, else 0. */ step(a) = ggml_step);
    optional_op!(/** `a` within bounds, in the memory of `a`: nothing else may read it. */ clamp(a; least: f32, most: f32) = ggml_clamp);
    optional_op!(/** The index, I32, of a largest value of each row of a matrix; of equal ones any. */ argmax(a) = ggml_argmax);
    optional_op!(/** The sum of each row, as rows of one. */ sum_rows(a) = ggml_sum_rows);
    optional_op!(/** The running sum along each row. */ cumsum(a) = ggml_cumsum);
    optional_op!(/** `a` repeated until it has the shape of `like`. */ repeat(a, like) = ggml_repeat);
    optional_op!(/** `a * Phi(a)`, by its approximation with a hyperbolic tangent. */ gelu(a) = ggml_gelu);
    optional_op!(/** The hyperbolic tangent. */ tanh(a) = ggml_tanh);
    optional_op!(/** For each of the I32 `ids [used, n]` the product of that matrix of `a [k, m, matrices]` with a column of `b [k, used or 1, n]`, `[m, used, n]`. */ mul_mat_id(a, b, ids) = ggml_mul_mat_id);
    optional_op!(/** I32 indices that sort each row, by ggml's number of an order. */ argsort_by(a; order: std::ffi::c_int) = ggml_argsort);

    /// I32 indices that sort each row, the largest first.
    ///
    /// # Errors
    /// When the build lacks the function of ggml's that makes this op.
    pub fn argsort(&self, a: &Tensor) -> Result<Tensor, Error> {
        self.argsort_by(a, DESCENDING)
    }
}
