//! The scheduler: splits a graph over backends, gives it memory and computes it.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::rc::Rc;

use crate::api::RawSched;
use crate::backend::Backend;
use crate::context::Graph;
use crate::error::Error;
use crate::library::Ggml;
use crate::tensor::Tensor;

pub(crate) struct SchedulerInner {
    pub(crate) ggml: &'static Ggml,
    pub(crate) ptr: *mut RawSched,
    backends: Vec<Backend>,
    /// Counts allocations; tensors of an earlier one have lost their memory.
    pub(crate) generation: Cell<u64>,
}

impl Drop for SchedulerInner {
    fn drop(&mut self) {
        // SAFETY: owned, freed once, before the backends that it points at.
        unsafe { (self.ggml.api.ggml_backend_sched_free)(self.ptr) };
    }
}

/// A `ggml_backend_sched` over backends in order of preference; the last one must be the CPU.
pub struct Scheduler {
    pub(crate) inner: Rc<SchedulerInner>,
}

impl Scheduler {
    /// A scheduler for graphs of at most `graph_size` nodes and leaves, with `op_offload` off.
    ///
    /// # Errors
    /// When ggml cannot make it.
    ///
    /// # Panics
    /// When `backends` is empty.
    pub fn new(backends: Vec<Backend>, graph_size: usize) -> Result<Self, Error> {
        let ggml = backends.first().expect("a scheduler has at least one backend").ggml;
        let mut raw: Vec<_> = backends.iter().map(|b| b.ptr).collect();
        let n = c_int::try_from(raw.len()).expect("few backends");
        // SAFETY: `raw` holds `n` live backends, which the inner value keeps alive; no buffer types are given.
        let ptr = unsafe {
            (ggml.api.ggml_backend_sched_new)(raw.as_mut_ptr(), ptr::null_mut(), n, graph_size, false, false)
        };
        if ptr.is_null() {
            return Err(Error::Call { call: "ggml_backend_sched_new", why: format!("{n} backends") });
        }
        Ok(Self { inner: Rc::new(SchedulerInner { ggml, ptr, backends, generation: Cell::new(0) }) })
    }

    /// The backends, in order of preference.
    #[must_use]
    pub fn backends(&self) -> &[Backend] {
        &self.inner.backends
    }

    /// Takes memory back from the graph before and gives it to `graph`; `pins` are nodes that must run on
    /// the backend of that index.
    ///
    /// # Errors
    /// When memory is short.
    pub fn allocate(&self, graph: &Graph, pins: &[(Tensor, usize)]) -> Result<(), Error> {
        let (api, inner) = (&self.inner.ggml.api, &self.inner);
        inner.generation.set(inner.generation.get() + 1);
        // SAFETY: a live scheduler, graph and tensors of one build.
        let done = unsafe {
            (api.ggml_backend_sched_reset)(inner.ptr);
            for (node, backend) in pins {
                (api.ggml_backend_sched_set_tensor_backend)(
                    inner.ptr,
                    node.ptr,
                    inner.backends[*backend].ptr,
                );
            }
            (api.ggml_backend_sched_alloc_graph)(inner.ptr, graph.ptr)
        };
        if !done {
            return Err(Error::OutOfMemory { what: "compute buffers of a graph".to_owned() });
        }
        *graph.ctx.schedule.borrow_mut() = Some((Rc::clone(inner), inner.generation.get()));
        Ok(())
    }

    /// Computes `graph`, which was allocated last, and waits for the result.
    ///
    /// # Errors
    /// When a backend fails, or another graph was allocated since.
    pub fn compute(&self, graph: &Graph) -> Result<(), Error> {
        const CALL: &str = "ggml_backend_sched_graph_compute";
        let allocated = matches!(&*graph.ctx.schedule.borrow(), Some((s, _)) if Rc::ptr_eq(s, &self.inner));
        if !allocated {
            return Err(Error::Call {
                call: CALL,
                why: "the graph has no memory of this scheduler".to_owned(),
            });
        }
        graph.ctx.check_allocated(CALL)?;
        // SAFETY: a live scheduler and the graph it allocated.
        match unsafe { (self.inner.ggml.api.ggml_backend_sched_graph_compute)(self.inner.ptr, graph.ptr) } {
            0 => Ok(()),
            -2 => Err(Error::OutOfMemory { what: "computing a graph".to_owned() }),
            status => Err(Error::Call { call: CALL, why: format!("status {status}") }),
        }
    }

    /// How many parts the last allocated graph was split into.
    #[must_use]
    pub fn splits(&self) -> u64 {
        // SAFETY: a live scheduler.
        let n = unsafe { (self.inner.ggml.api.ggml_backend_sched_get_n_splits)(self.inner.ptr) };
        u64::try_from(n).unwrap_or(0)
    }

    /// The index of the backend that computes `node` of the last allocated graph.
    #[must_use]
    pub fn backend_of(&self, node: &Tensor) -> Option<usize> {
        // SAFETY: a live scheduler and tensor.
        let ptr =
            unsafe { (self.inner.ggml.api.ggml_backend_sched_get_tensor_backend)(self.inner.ptr, node.ptr) };
        self.inner.backends.iter().position(|b| b.ptr == ptr)
    }

    /// Bytes of compute buffers on the backend of index `i`.
    #[must_use]
    pub fn compute_bytes(&self, i: usize) -> usize {
        // SAFETY: a live scheduler and one of its backends.
        unsafe {
            (self.inner.ggml.api.ggml_backend_sched_get_buffer_size)(
                self.inner.ptr,
                self.inner.backends[i].ptr,
            )
        }
    }
}
