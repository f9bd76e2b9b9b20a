//! The sampler that a backend may bring itself: `ggml_backend_<name>_diffusion_sample`, asked for by that name.

use std::ffi::{CString, c_int, c_void};

use crate::api::DiffusionSample;
use crate::device::Device;
use crate::error::Error;
use crate::tensor::{DType, Tensor};

/// A backend's own sampler of all rows of a canvas.
pub struct DiffusionSampler {
    name: String,
    call: DiffusionSample,
}

/// What it says of each row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draw {
    /// The index of the largest logit.
    pub argmax: Vec<i32>,
    /// The entropy of the soft-max in nats.
    pub entropy: Vec<f32>,
    /// The drawn index.
    pub sampled: Vec<i32>,
}

impl Device {
    /// The sampler that the device's backend exports, if it does. Backends that are another's sources compiled for
    /// other hardware keep that one's names.
    #[must_use]
    pub fn diffusion_sampler(&self) -> Option<DiffusionSampler> {
        let registry = self.registry().to_lowercase();
        let alias = match registry.as_str() {
            "rocm" | "musa" => Some("cuda"),
            "mtl" => Some("metal"),
            _ => None,
        };
        [Some(registry.as_str()), alias].into_iter().flatten().find_map(|backend| {
            let name = format!("ggml_backend_{backend}_diffusion_sample");
            let address = self.proc_address(&CString::new(name.as_str()).ok()?)?;
            // SAFETY: the name is published with this signature; `sample` checks what it is given.
            let call = unsafe { std::mem::transmute::<*mut c_void, DiffusionSample>(address) };
            Some(DiffusionSampler { name, call })
        })
    }
}

impl DiffusionSampler {
    /// The name that it was found under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Samples F32 `logits [vocab, rows]`, which lie on the device, with one `u` a row; `None` where the backend says
    /// that it cannot.
    ///
    /// # Errors
    /// When the tensor is not such a matrix, has no memory, or has another number of rows.
    pub fn sample(&self, logits: &Tensor, u: &[f32], inv_temp: f32) -> Result<Option<Draw>, Error> {
        const CALL: &str = "ggml_backend_*_diffusion_sample";
        let [vocab, rows, ..] = logits.ne();
        let n = u.len();
        let dense = logits.nb()[0] == 4 && usize::try_from(vocab).is_ok_and(|v| logits.nb()[1] == 4 * v);
        let fits = dense && usize::try_from(rows).is_ok_and(|rows| rows == n) && logits.elements() > 0;
        if logits.dtype() != DType::F32 || !fits || i64::try_from(logits.elements()) != Ok(vocab * rows) {
            let why = format!("{logits:?} for {n} rows");
            return Err(Error::Call { call: CALL, why });
        }
        // What reading it would need: memory that is still its own.
        logits.read_bytes(0, &mut [0; 4])?;
        let n_tokens = c_int::try_from(n).map_err(|e| Error::Call { call: CALL, why: e.to_string() })?;
        let mut drawn = Draw { argmax: vec![-1; n], entropy: vec![f32::NAN; n], sampled: vec![-1; n] };
        // SAFETY: a live tensor with memory, and four arrays of `n_tokens` elements each; the call returns when they
        // are filled.
        let done = unsafe {
            (self.call)(
                logits.ptr,
                u.as_ptr(),
                drawn.argmax.as_mut_ptr(),
                drawn.entropy.as_mut_ptr(),
                drawn.sampled.as_mut_ptr(),
                n_tokens,
                inv_temp,
            )
        };
        Ok(done.then_some(drawn))
    }
}
