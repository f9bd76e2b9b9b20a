//! Contexts own tensors and their buffers; graphs order what is to be computed.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::ptr;
use std::rc::Rc;

use crate::abi::RawTensor;
use crate::api::{InitParams, RawContext, RawGraph};
use crate::backend::{Buffer, BufferType};
use crate::error::Error;
use crate::library::Ggml;
use crate::scheduler::SchedulerInner;
use crate::tensor::{DType, Tensor};

pub(crate) struct ContextInner {
    pub(crate) ggml: &'static Ggml,
    pub(crate) ptr: *mut RawContext,
    capacity: usize,
    used: Cell<usize>,
    buffers: RefCell<Vec<Buffer>>,
    /// Contexts whose tensors are sources of tensors here.
    kept: RefCell<Vec<Rc<ContextInner>>>,
    /// The scheduler that gave this context's graph its memory, and which of its allocations that was.
    pub(crate) schedule: RefCell<Option<(Rc<SchedulerInner>, u64)>>,
}

impl ContextInner {
    /// Whether reading and writing data is allowed now: the memory a scheduler gave ends with its next
    /// allocation.
    pub(crate) fn check_allocated(&self, call: &'static str) -> Result<(), Error> {
        match &*self.schedule.borrow() {
            Some((scheduler, generation)) if scheduler.generation.get() != *generation => Err(Error::Call {
                call,
                why: "the scheduler has given this graph's memory to another graph".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: this was the last handle; buffers, which `buffers` frees next, do not point into the context.
        unsafe { (self.ggml.api.ggml_free)(self.ptr) };
    }
}

/// A ggml context without memory for data: tensors get theirs from [`allocate`](Self::allocate) or from a
/// scheduler.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Rc<ContextInner>,
}

impl Context {
    /// A context for at most `tensors` tensors and one graph of `graph_size` nodes and leaves (0: none).
    ///
    /// # Errors
    /// When ggml cannot allocate it.
    pub fn new(ggml: &'static Ggml, tensors: usize, graph_size: usize) -> Result<Self, Error> {
        // SAFETY: pure functions of their arguments.
        let (tensor, graph) = unsafe {
            ((ggml.api.ggml_tensor_overhead)(), (ggml.api.ggml_graph_overhead_custom)(graph_size, false))
        };
        let mem_size = tensor * tensors + if graph_size > 0 { graph } else { 0 };
        // SAFETY: plain parameters; ggml owns the memory.
        let ptr = unsafe {
            (ggml.api.ggml_init)(InitParams { mem_size, mem_buffer: ptr::null_mut(), no_alloc: true })
        };
        if ptr.is_null() {
            return Err(Error::OutOfMemory { what: format!("a ggml context of {mem_size} bytes") });
        }
        Ok(Self {
            inner: Rc::new(ContextInner {
                ggml,
                ptr,
                capacity: tensors,
                used: Cell::new(0),
                buffers: RefCell::default(),
                kept: RefCell::default(),
                schedule: RefCell::default(),
            }),
        })
    }

    /// The build this context belongs to.
    #[must_use]
    pub fn ggml(&self) -> &'static Ggml {
        self.inner.ggml
    }

    /// A new tensor of shape `ne`, fastest dimension first.
    ///
    /// # Panics
    /// When `ne` has more than four dimensions.
    #[must_use]
    pub fn tensor(&self, dtype: DType, ne: &[i64]) -> Tensor {
        assert!((1..=4).contains(&ne.len()), "a tensor has 1 to 4 dimensions, not {}", ne.len());
        let n = i32::try_from(ne.len()).expect("at most 4");
        self.own(&[], |api, ctx| {
            // SAFETY: `ne` has `n` entries; the context has room, which `own` checked.
            unsafe { (api.ggml_new_tensor)(ctx, dtype.raw(), n, ne.as_ptr()) }
        })
    }

    /// Wraps the tensor that `make` creates in this context from `sources`, whose contexts are kept alive.
    ///
    /// # Panics
    /// When the context is full: its size is a constant of the code that builds the graph.
    pub(crate) fn own(
        &self,
        sources: &[&Tensor],
        make: impl FnOnce(&crate::api::Api, *mut RawContext) -> *mut RawTensor,
    ) -> Tensor {
        let inner = &self.inner;
        assert!(inner.used.get() < inner.capacity, "a context for {} tensors is full", inner.capacity);
        inner.used.set(inner.used.get() + 1);
        for source in sources {
            let same = |kept: &Rc<ContextInner>| Rc::ptr_eq(kept, &source.ctx);
            if !same(inner) && !inner.kept.borrow().iter().any(same) {
                inner.kept.borrow_mut().push(Rc::clone(&source.ctx));
            }
        }
        let ptr = make(&inner.ggml.api, inner.ptr);
        assert!(!ptr.is_null(), "ggml made no tensor");
        Tensor { ptr, ctx: Rc::clone(inner) }
    }

    /// Allocates one buffer of `kind` for all tensors of this context that have no memory yet, and marks it
    /// as holding weights where `weights` is true. Returns its size in bytes.
    ///
    /// # Errors
    /// When the device has not enough memory.
    pub fn allocate(&self, kind: &BufferType, weights: bool) -> Result<usize, Error> {
        let api = &self.inner.ggml.api;
        // SAFETY: a live context and a buffer type of the same build.
        let ptr = unsafe { (api.ggml_backend_alloc_ctx_tensors_from_buft)(self.inner.ptr, kind.ptr) };
        if ptr.is_null() {
            return Err(Error::OutOfMemory {
                what: format!("a buffer in {} for {} tensors", kind.name(), self.inner.used.get()),
            });
        }
        let buffer = Buffer { ggml: self.inner.ggml, ptr };
        buffer.set_weights(weights);
        let bytes = buffer.bytes();
        self.inner.buffers.borrow_mut().push(buffer);
        Ok(bytes)
    }

    /// Fills all buffers of this context with zeros.
    pub fn clear(&self) {
        self.inner.buffers.borrow().iter().for_each(Buffer::clear);
    }

    /// A graph of at most `size` nodes and leaves.
    ///
    /// # Errors
    /// When ggml cannot make it.
    pub fn graph(&self, size: usize) -> Result<Graph, Error> {
        // SAFETY: the context was made with room for a graph of this size.
        let ptr = unsafe { (self.inner.ggml.api.ggml_new_graph_custom)(self.inner.ptr, size, false) };
        if ptr.is_null() {
            return Err(Error::OutOfMemory { what: format!("a graph of {size} nodes") });
        }
        Ok(Graph { ptr, ctx: Rc::clone(&self.inner) })
    }
}

/// A graph of tensors to compute, in order.
pub struct Graph {
    pub(crate) ptr: *mut RawGraph,
    pub(crate) ctx: Rc<ContextInner>,
}

impl Graph {
    /// Adds `tensor` and everything it needs.
    pub fn expand(&self, tensor: &Tensor) {
        // SAFETY: a live graph and a live tensor; sources from other contexts are kept by the tensor's context.
        unsafe { (self.ctx.ggml.api.ggml_build_forward_expand)(self.ptr, tensor.ptr) };
    }

    /// The nodes in the order of computation.
    #[must_use]
    pub fn nodes(&self) -> Vec<Tensor> {
        let api = &self.ctx.ggml.api;
        // SAFETY: a live graph; indices are below the count.
        unsafe {
            (0..(api.ggml_graph_n_nodes)(self.ptr))
                .map(|i| Tensor { ptr: (api.ggml_graph_node)(self.ptr, i), ctx: Rc::clone(&self.ctx) })
                .collect()
        }
    }
}

impl Ggml {
    /// Whether this build knows a data type; one that it does not know ends the process when it is used.
    /// MXFP4 came shortly before builds began to state their version.
    #[must_use]
    pub fn has_type(&self, dtype: DType) -> bool {
        match dtype.0 {
            0..39 => true,
            39 => self.version().is_some(),
            _ => false,
        }
    }

    /// ggml's name of a data type.
    #[must_use]
    pub fn type_name(&self, dtype: DType) -> String {
        // SAFETY: a type number that came from a tensor or is a constant of this crate; the string is static.
        let name = unsafe { (self.api.ggml_type_name)(dtype.raw()) };
        if name.is_null() {
            return format!("type {}", dtype.0);
        }
        // SAFETY: not null, static and terminated.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Quantises rows of `row` values with ggml's own code, without an importance matrix.
    ///
    /// # Panics
    /// When `values` is not a whole number of rows, or a row not a whole number of blocks.
    #[must_use]
    pub fn quantize(&self, dtype: DType, values: &[f32], row: usize) -> Vec<u8> {
        assert!(row > 0 && values.len().is_multiple_of(row), "{} values in rows of {row}", values.len());
        let (n, rows) =
            (i64::try_from(row).expect("small"), i64::try_from(values.len() / row).expect("small"));
        // SAFETY: a pure function of a type in use.
        let row_bytes = unsafe { (self.api.ggml_row_size)(dtype.raw(), n) };
        let mut out = vec![0u8; row_bytes * (values.len() / row)];
        // SAFETY: source and destination have the sizes that ggml computes for these rows.
        let written = unsafe {
            let (from, to) = (values.as_ptr(), out.as_mut_ptr().cast());
            (self.api.ggml_quantize_chunk)(dtype.raw(), from, to, 0, rows, n, std::ptr::null())
        };
        assert_eq!(written, out.len(), "ggml_quantize_chunk wrote another number of bytes");
        out
    }
}
