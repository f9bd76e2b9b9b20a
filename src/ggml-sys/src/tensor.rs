//! Tensors: shapes and types, held together with the context that owns them.

use std::ffi::{CStr, c_int};
use std::rc::Rc;

use crate::abi::RawTensor;
use crate::context::ContextInner;
use crate::error::Error;

/// A ggml data type by its number in ggml and GGUF (the file format fixes the numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType(pub u32);

impl DType {
    /// 32-bit float.
    pub const F32: Self = Self(0);
    /// 16-bit float.
    pub const F16: Self = Self(1);
    /// 4-bit blocks of 32 with an f16 scale.
    pub const Q4_0: Self = Self(2);
    /// 8-bit blocks of 32 with an f16 scale.
    pub const Q8_0: Self = Self(8);
    /// 32-bit integer.
    pub const I32: Self = Self(26);
    /// 64-bit integer.
    pub const I64: Self = Self(27);

    pub(crate) fn raw(self) -> c_int {
        c_int::try_from(self.0).expect("type numbers are small")
    }
}

/// A tensor of a [`Context`](crate::Context). Cloning copies the handle, not the data; the context and
/// the buffers of its tensors live as long as any handle.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) ptr: *mut RawTensor,
    pub(crate) ctx: Rc<ContextInner>,
}

impl Tensor {
    fn raw(&self) -> &RawTensor {
        // SAFETY: `ptr` points at a tensor of `ctx`, which is alive as long as `self`; the layout was
        // checked when the build was opened.
        unsafe { &*self.ptr }
    }

    /// Elements per dimension, fastest first; unused dimensions are 1.
    #[must_use]
    pub fn ne(&self) -> [i64; 4] {
        self.raw().ne
    }

    /// Stride in bytes per dimension.
    #[must_use]
    pub fn nb(&self) -> [usize; 4] {
        self.raw().nb
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.ne().iter().map(|&n| usize::try_from(n).expect("ggml's dimensions are not negative")).product()
    }

    /// The data type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        DType(self.raw().ty.unsigned_abs())
    }

    /// ggml's name of the data type, as `f32` or `q4_K`.
    #[must_use]
    pub fn dtype_name(&self) -> String {
        self.ctx.ggml.type_name(self.dtype())
    }

    /// The tensor's name, empty if it has none.
    #[must_use]
    pub fn name(&self) -> String {
        let bytes: Vec<u8> = self.raw().name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Names the tensor (ggml keeps the first 63 bytes).
    pub fn set_name(&self, name: &str) {
        let name = std::ffi::CString::new(name.replace('\0', " ")).expect("no zero byte is left");
        // SAFETY: a live tensor and a terminated string, which ggml copies.
        unsafe { (self.ctx.ggml.api.ggml_set_name)(self.ptr, name.as_ptr()) };
    }

    /// Size of the data in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // SAFETY: a live tensor.
        unsafe { (self.ctx.ggml.api.ggml_nbytes)(self.ptr) }
    }

    /// ggml's name of the op that computes this tensor, `NONE` for a leaf; unary ops carry their own name.
    #[must_use]
    pub fn op(&self) -> String {
        // SAFETY: a live tensor; the result is a static string.
        unsafe { CStr::from_ptr((self.ctx.ggml.api.ggml_op_desc)(self.ptr)) }.to_string_lossy().into_owned()
    }

    /// Source `i` of the op, if it has one.
    #[must_use]
    pub fn src(&self, i: usize) -> Option<Tensor> {
        let ptr = *self.raw().src.get(i)?;
        // A source may belong to another context; `ctx` keeps those it was built from.
        (!ptr.is_null()).then(|| Tensor { ptr, ctx: Rc::clone(&self.ctx) })
    }

    /// Whether this is a view of another tensor's data.
    #[must_use]
    pub fn is_view(&self) -> bool {
        !self.raw().view_src.is_null()
    }

    /// The tensor whose data this one looks at, itself where it is no view. ggml resolves views of views.
    #[must_use]
    pub fn root(&self) -> Tensor {
        let view_src = self.raw().view_src;
        let ptr = if view_src.is_null() { self.ptr } else { view_src };
        // The viewed tensor may belong to another context; `ctx` keeps those it was built from.
        Tensor { ptr, ctx: Rc::clone(&self.ctx) }
    }

    /// Where this tensor's data begins in that of its [`root`](Self::root), in bytes.
    #[must_use]
    pub fn offset_in_root(&self) -> usize {
        if self.is_view() { self.raw().view_offs } else { 0 }
    }

    /// Distinguishes this tensor from every other that is alive.
    #[must_use]
    pub fn id(&self) -> usize {
        self.ptr as usize
    }

    /// The op's parameters as ggml keeps them: integers, and the bits of floats.
    #[must_use]
    pub fn op_params(&self) -> [i32; 16] {
        self.raw().op_params
    }

    /// Whether the caller reads this tensor after the graph, so that its memory is not reused.
    #[must_use]
    pub fn is_output(&self) -> bool {
        const OUTPUT: i32 = 2;
        self.raw().flags & OUTPUT != 0
    }

    /// Marks the tensor as an input: the scheduler keeps its memory for the caller to write.
    #[must_use]
    pub fn input(self) -> Self {
        // SAFETY: a live tensor.
        unsafe { (self.ctx.ggml.api.ggml_set_input)(self.ptr) };
        self
    }

    /// Marks the tensor as an output: its memory is not reused within the graph.
    #[must_use]
    pub fn output(self) -> Self {
        // SAFETY: a live tensor.
        unsafe { (self.ctx.ggml.api.ggml_set_output)(self.ptr) };
        self
    }

    fn check_range(&self, call: &'static str, offset: usize, len: usize) -> Result<(), Error> {
        self.ctx.check_allocated(call)?;
        let total = self.bytes();
        if offset.checked_add(len).is_none_or(|end| end > total) {
            return Err(Error::Call {
                call,
                why: format!("bytes {offset}+{len} of tensor '{}', which has {total}", self.name()),
            });
        }
        let raw = self.raw();
        // SAFETY: a view's source is a live tensor of the same or a kept context.
        let buffer = if raw.view_src.is_null() { raw.buffer } else { unsafe { (*raw.view_src).buffer } };
        if buffer.is_null() {
            return Err(Error::Call { call, why: format!("tensor '{}' has no memory yet", self.name()) });
        }
        Ok(())
    }

    /// Writes `data` at `offset` bytes into the tensor, on whatever device it lies.
    ///
    /// # Errors
    /// When the range is outside the tensor or the tensor has no memory.
    pub fn write_bytes(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check_range("ggml_backend_tensor_set", offset, data.len())?;
        // SAFETY: the range was checked, the tensor has a live buffer, and the call copies before it returns.
        unsafe {
            (self.ctx.ggml.api.ggml_backend_tensor_set)(self.ptr, data.as_ptr().cast(), offset, data.len())
        };
        Ok(())
    }

    /// Reads `out.len()` bytes at `offset` from the tensor, from whatever device it lies on.
    ///
    /// # Errors
    /// When the range is outside the tensor or the tensor has no memory.
    pub fn read_bytes(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check_range("ggml_backend_tensor_get", offset, out.len())?;
        // SAFETY: the range was checked, the tensor has a live buffer, and the call fills `out` before it returns.
        unsafe {
            (self.ctx.ggml.api.ggml_backend_tensor_get)(self.ptr, out.as_mut_ptr().cast(), offset, out.len())
        };
        Ok(())
    }

    /// Writes a whole tensor of 32-bit floats.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes), or when type or length differ.
    pub fn write_f32(&self, values: &[f32]) -> Result<(), Error> {
        self.expect_whole("ggml_backend_tensor_set", DType::F32, values.len())?;
        self.write_bytes(0, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// Writes a whole tensor of 16-bit floats, given as their bits.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes), or when type or length differ.
    pub fn write_f16_bits(&self, values: &[u16]) -> Result<(), Error> {
        self.expect_whole("ggml_backend_tensor_set", DType::F16, values.len())?;
        self.write_bytes(0, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// Writes a whole tensor of 32-bit integers.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes), or when type or length differ.
    pub fn write_i32(&self, values: &[i32]) -> Result<(), Error> {
        self.expect_whole("ggml_backend_tensor_set", DType::I32, values.len())?;
        self.write_bytes(0, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// Writes a whole tensor of 64-bit integers.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes), or when type or length differ.
    pub fn write_i64(&self, values: &[i64]) -> Result<(), Error> {
        self.expect_whole("ggml_backend_tensor_set", DType::I64, values.len())?;
        self.write_bytes(0, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// Reads a whole contiguous tensor of 32-bit floats.
    ///
    /// # Errors
    /// As [`read_bytes`](Self::read_bytes), or when the type differs.
    pub fn read_f32(&self) -> Result<Vec<f32>, Error> {
        let n = self.elements();
        self.expect_whole("ggml_backend_tensor_get", DType::F32, n)?;
        let mut bytes = vec![0u8; n * 4];
        self.read_bytes(0, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Reads a whole contiguous tensor of 32-bit integers.
    ///
    /// # Errors
    /// As [`read_bytes`](Self::read_bytes), or when the type differs.
    pub fn read_i32(&self) -> Result<Vec<i32>, Error> {
        let n = self.elements();
        self.expect_whole("ggml_backend_tensor_get", DType::I32, n)?;
        let mut bytes = vec![0u8; n * 4];
        self.read_bytes(0, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn expect_whole(&self, call: &'static str, dtype: DType, len: usize) -> Result<(), Error> {
        if self.dtype() != dtype || self.elements() != len {
            return Err(Error::Call {
                call,
                why: format!(
                    "tensor '{}' is {} {:?}, not {} values of type {}",
                    self.name(),
                    self.dtype_name(),
                    self.ne(),
                    len,
                    self.ctx.ggml.type_name(dtype)
                ),
            });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} '{}' {} {:?}", self.op(), self.name(), self.dtype_name(), self.ne())
    }
}
