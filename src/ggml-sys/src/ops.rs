//! The ops that models are built from. Shapes are ggml's: `[ne0, ne1, ...]`, fastest first. An op on shapes
//! that ggml does not accept ends the process with ggml's own message.

use std::ptr;

use crate::context::Context;
use crate::error::Error;
use crate::tensor::{DType, Tensor};

/// Parameters of rotary position embedding without context extension.
#[derive(Debug, Clone, Copy)]
pub struct RopeParams {
    /// Rotated dimensions per head.
    pub dims: i32,
    /// Halves (true, GPT-NeoX) or neighbouring pairs (false).
    pub neox: bool,
    /// The base of the frequencies.
    pub freq_base: f32,
}

/// `GGML_PREC_F32`: sums in 32 bits. (1 before the spring of 2025, when backends asked only whether it is the
/// default.)
const PREC_F32: std::ffi::c_int = 10;

fn raw(t: Option<&Tensor>) -> *mut crate::abi::RawTensor {
    t.map_or(ptr::null_mut(), |t| t.ptr)
}

/// Generates a method for an op of tensors of the same build and plain numbers.
macro_rules! op {
    ($(#[$doc:meta])* $name:ident($($t:ident),+ $(; $($p:ident: $ty:ty => $conv:expr),+)?) = $raw:ident) => {
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self, $($t: &Tensor),+ $(, $($p: $ty),+)?) -> Tensor {
            self.own(&[$($t),+], |api, ctx| {
                // SAFETY: live tensors of this build in a context with room; ggml checks shapes itself.
                unsafe { (api.$raw)(ctx, $($t.ptr),+ $(, $($conv),+)?) }
            })
        }
    };
}

/// `GGML_SORT_ORDER_DESC`.
const DESCENDING: std::ffi::c_int = 1;

/// Generates a method for an op that a build may lack.
macro_rules! optional_op {
    ($(#[$doc:meta])* $name:ident($($t:ident),+ $(; $($conv:expr),+)?) = $raw:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("When the build has no `", stringify!($raw), "`.")]
        pub fn $name(&self, $($t: &Tensor),+) -> Result<Tensor, Error> {
            let ggml = self.ggml();
            let raw = ggml.api.$raw.ok_or_else(|| ggml.lacks(stringify!($raw)))?;
            // SAFETY: live tensors of this build in a context with room; ggml checks shapes itself.
            Ok(self.own(&[$($t),+], |_, ctx| unsafe { raw(ctx, $($t.ptr),+ $(, $($conv),+)?) }))
        }
    };
}

impl Context {
    op!(/** `a + b`, `b` repeated over `a`. */ add(a, b) = ggml_add);
    op!(/** `a * b`, `b` repeated over `a`. */ mul(a, b) = ggml_mul);
    op!(/** `a * factor`. */ scale(a; factor: f32 => factor) = ggml_scale);
    op!(/** `a * sigmoid(a)`. */ silu(a) = ggml_silu);
    op!(/** Each row over its root mean square. */ rms_norm(a; eps: f32 => eps) = ggml_rms_norm);
    op!(/** `[k, m] x [k, n] -> [m, n]`, batches of `a` repeated over those of `b`. */ mul_mat(a, b) = ggml_mul_mat);
    op!(/** Rows of `a` by the I32 indices in `rows`, as F32. */ get_rows(a, rows) = ggml_get_rows);
    op!(/** A contiguous copy. */ cont(a) = ggml_cont);
    op!(/** Copies `a` into `b`, converting; the result is a view of `b`. */ cpy(a, b) = ggml_cpy);
    op!(/** A copy of another type. */ cast(a; dtype: DType => dtype.raw()) = ggml_cast);
    op!(/** `a` followed by `b` along dimension `dim`. */ concat(a, b; dim: i32 => dim) = ggml_concat);

    optional_op!(/** `a * Phi(a)`, by its approximation with a hyperbolic tangent. */ gelu(a) = ggml_gelu);
    optional_op!(/** The hyperbolic tangent. */ tanh(a) = ggml_tanh);
    optional_op!(/** `a / b`, `b` repeated over `a`. */ div(a, b) = ggml_div);
    optional_op!(/** The sum of each row, `[1, ne1, ...]`. */ sum_rows(a) = ggml_sum_rows);
    optional_op!(/** I32 indices that sort each row, the largest first. */ argsort(a; DESCENDING) = ggml_argsort);
    optional_op!(/** For each of the I32 `ids [used, n]` the product of that matrix of `a [k, m, matrices]` with a column of `b [k, used or 1, n]`, `[m, used, n]`. */ mul_mat_id(a, b, ids) = ggml_mul_mat_id);

    /// Dimension `i` of `a` becomes dimension `axes[i]`.
    #[must_use]
    pub fn permute(&self, a: &Tensor, axes: [i32; 4]) -> Tensor {
        // SAFETY: a live tensor of this build; ggml checks the axes.
        self.own(&[a], |api, ctx| unsafe {
            (api.ggml_permute)(ctx, a.ptr, axes[0], axes[1], axes[2], axes[3])
        })
    }

    /// The same data as `[ne0, ne1]`.
    #[must_use]
    pub fn reshape_2d(&self, a: &Tensor, ne: [i64; 2]) -> Tensor {
        // SAFETY: a live contiguous tensor of this build; ggml checks the number of elements.
        self.own(&[a], |api, ctx| unsafe { (api.ggml_reshape_2d)(ctx, a.ptr, ne[0], ne[1]) })
    }

    /// The same data as `[ne0, ne1, ne2]`.
    #[must_use]
    pub fn reshape_3d(&self, a: &Tensor, ne: [i64; 3]) -> Tensor {
        // SAFETY: as above.
        self.own(&[a], |api, ctx| unsafe { (api.ggml_reshape_3d)(ctx, a.ptr, ne[0], ne[1], ne[2]) })
    }

    /// `[ne0, ne1]` of `a` with rows `nb1` bytes apart, from byte `offset` on.
    ///
    /// # Panics
    /// When the view reaches past the end of `a`.
    #[must_use]
    pub fn view_2d(&self, a: &Tensor, ne: [i64; 2], nb1: usize, offset: usize) -> Tensor {
        self.check_view(a, &ne, &[nb1], offset);
        // SAFETY: the view lies inside the tensor, which was checked.
        self.own(&[a], |api, ctx| unsafe { (api.ggml_view_2d)(ctx, a.ptr, ne[0], ne[1], nb1, offset) })
    }

    /// `[ne0, ne1, ne2]` of `a` with strides `nb` in bytes, from byte `offset` on.
    ///
    /// # Panics
    /// When the view reaches past the end of `a`.
    #[must_use]
    pub fn view_3d(&self, a: &Tensor, ne: [i64; 3], nb: [usize; 2], offset: usize) -> Tensor {
        self.check_view(a, &ne, &nb, offset);
        // SAFETY: the view lies inside the tensor, which was checked.
        self.own(&[a], |api, ctx| unsafe {
            (api.ggml_view_3d)(ctx, a.ptr, ne[0], ne[1], ne[2], nb[0], nb[1], offset)
        })
    }

    fn check_view(&self, a: &Tensor, ne: &[i64], nb: &[usize], offset: usize) {
        // SAFETY: a pure function of a type in use.
        let row = unsafe { (self.ggml().api.ggml_row_size)(a.dtype().raw(), ne[0]) };
        let last: usize =
            ne[1..].iter().zip(nb).map(|(&n, &b)| usize::try_from(n - 1).expect("positive") * b).sum();
        assert!(offset + last + row <= a.bytes(), "a view of {ne:?} ends past tensor {a:?}");
    }

    /// Soft-max over rows of `a * scale + mask`; `mask` is F32 or F16 `[ne0, ne1]`.
    #[must_use]
    pub fn soft_max(&self, a: &Tensor, mask: Option<&Tensor>, scale: f32) -> Tensor {
        let sources: Vec<&Tensor> = std::iter::once(a).chain(mask).collect();
        // SAFETY: live tensors of this build; ggml checks shapes.
        self.own(&sources, |api, ctx| unsafe { (api.ggml_soft_max_ext)(ctx, a.ptr, raw(mask), scale, 0.0) })
    }

    /// Rotary embedding of `a [head_dim, heads, n]` at I32 `positions [n]`; `factors [dims / 2]` divide the
    /// frequencies.
    #[must_use]
    pub fn rope(&self, a: &Tensor, positions: &Tensor, factors: Option<&Tensor>, p: RopeParams) -> Tensor {
        let sources: Vec<&Tensor> = [a, positions].into_iter().chain(factors).collect();
        let mode = if p.neox { 2 } else { 0 };
        // SAFETY: live tensors of this build; ggml checks shapes. No context extension: scale 1, ext 0,
        // attention factor 1; the betas are then unused.
        self.own(&sources, |api, ctx| unsafe {
            (api.ggml_rope_ext)(
                ctx,
                a.ptr,
                positions.ptr,
                raw(factors),
                p.dims,
                mode,
                0,
                p.freq_base,
                1.0,
                0.0,
                1.0,
                32.0,
                1.0,
            )
        })
    }

    /// As [`mul_mat`](Self::mul_mat), summed in 32 bits: products of queries and keys leave the range of 16 bits.
    #[must_use]
    pub fn mul_mat_f32(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let product = self.mul_mat(a, b);
        // SAFETY: a live tensor of this op.
        unsafe { (self.ggml().api.ggml_mul_mat_set_prec)(product.ptr, PREC_F32) };
        product
    }

    /// Flash attention: `q [head_dim, n, heads]`, `k`, `v` `[head_dim, n_kv, kv_heads]`, F16 `mask
    /// [n_kv, n]` with rows padded to a multiple of 64 for old builds; the result is `[head_dim, heads, n]`,
    /// summed in 32 bits.
    #[must_use]
    pub fn flash_attention(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        scale: f32,
    ) -> Tensor {
        let sources: Vec<&Tensor> = [q, k, v].into_iter().chain(mask).collect();
        // SAFETY: live tensors of this build; ggml checks shapes.
        self.own(&sources, |api, ctx| unsafe {
            let mixed = (api.ggml_flash_attn_ext)(ctx, q.ptr, k.ptr, v.ptr, raw(mask), scale, 0.0, 0.0);
            (api.ggml_flash_attn_ext_set_prec)(mixed, PREC_F32);
            mixed
        })
    }

    /// Writes the rows of F32 `rows` into `a` at the I64 `indices`, converting; the result is a view of `a`.
    ///
    /// # Errors
    /// When the build has no `ggml_set_rows`.
    pub fn set_rows(&self, a: &Tensor, rows: &Tensor, indices: &Tensor) -> Result<Tensor, Error> {
        let ggml = self.ggml();
        let set_rows = ggml.api.ggml_set_rows.ok_or_else(|| ggml.lacks("ggml_set_rows"))?;
        // SAFETY: live tensors of this build; ggml checks shapes.
        Ok(self.own(&[a, rows, indices], |_, ctx| unsafe { set_rows(ctx, a.ptr, rows.ptr, indices.ptr) }))
    }
}
