//! Looking at the nodes of a graph while the scheduler computes it, through ggml's evaluation callback.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use crate::abi::RawTensor;
use crate::context::{ContextInner, Graph};
use crate::error::Error;
use crate::scheduler::Scheduler;
use crate::tensor::Tensor;

/// Who looks at nodes.
pub trait Observer {
    /// Whether the computation is to stop after `node`, so that it can be read. The nodes between two stops are
    /// handed to the backend together, which may fuse them.
    fn stops_at(&mut self, node: &Tensor) -> bool;

    /// `node` was computed, and nothing after it. Its data may be read and overwritten. `false` ends the
    /// computation.
    fn computed(&mut self, node: &Tensor) -> bool;
}

/// What the callback works with, and what has become of it.
struct Bridge<'a> {
    observer: &'a mut dyn Observer,
    ctx: &'a Rc<ContextInner>,
    ended: bool,
    panic: Option<Box<dyn Any + Send>>,
}

impl Bridge<'_> {
    fn call(&mut self, node: *mut RawTensor, ask: bool) -> bool {
        if self.ended {
            // Asked: nothing more is wanted. Told: the scheduler leaves the split.
            return false;
        }
        let tensor = Tensor { ptr: node, ctx: Rc::clone(self.ctx) };
        // A panic must not cross ggml's frames.
        let answer = catch_unwind(AssertUnwindSafe(|| {
            if ask { self.observer.stops_at(&tensor) } else { self.observer.computed(&tensor) }
        }));
        let answer = answer.unwrap_or_else(|panic| {
            self.panic = Some(panic);
            self.ended = true;
            false
        });
        if !ask && !answer {
            self.ended = true;
        }
        answer
    }
}

unsafe extern "C" fn trampoline(node: *mut RawTensor, ask: bool, user: *mut c_void) -> bool {
    // SAFETY: `user` is the bridge that `compute_observed` keeps on its stack, and to which nothing else refers,
    // until it has taken the callback back; `node` is a node of the graph that it computes.
    unsafe { (*user.cast::<Bridge<'_>>()).call(node, ask) }
}

/// Takes the callback back, whatever happens.
struct Installed<'a>(&'a Scheduler);

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        let inner = &self.0.inner;
        if let Some(set) = inner.ggml.api.ggml_backend_sched_set_eval_callback {
            // SAFETY: a live scheduler; no callback is the default.
            unsafe { set(inner.ptr, None, std::ptr::null_mut()) };
        }
    }
}

impl Scheduler {
    /// As [`compute`](Self::compute), while `observer` looks on.
    ///
    /// # Errors
    /// Those of [`compute`](Self::compute), and a build without `ggml_backend_sched_set_eval_callback`.
    ///
    /// # Panics
    /// When `observer` does.
    pub fn compute_observed(&self, graph: &Graph, observer: &mut dyn Observer) -> Result<(), Error> {
        let inner = &self.inner;
        let set = inner
            .ggml
            .api
            .ggml_backend_sched_set_eval_callback
            .ok_or_else(|| inner.ggml.lacks("ggml_backend_sched_set_eval_callback"))?;
        let mut bridge = Bridge { observer, ctx: &graph.ctx, ended: false, panic: None };
        let user = (&raw mut bridge).cast::<c_void>();
        let result = {
            // SAFETY: a live scheduler; `bridge` outlives the guard that takes the callback back.
            unsafe { set(inner.ptr, Some(trampoline), user) };
            let _installed = Installed(self);
            self.compute(graph)
        };
        match bridge.panic {
            Some(panic) => resume_unwind(panic),
            None => result,
        }
    }
}
