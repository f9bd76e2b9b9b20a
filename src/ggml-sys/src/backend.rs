//! Backends (a device's command stream), buffer types and buffers.

use std::ffi::{CStr, c_int};

use crate::api::{RawBackend, RawBuffer, RawBufferType, SetThreads};
use crate::device::Device;
use crate::error::Error;
use crate::library::Ggml;

/// A kind of memory in which tensors can lie; owned by the build, valid for the life of the process.
#[derive(Clone, Copy)]
pub struct BufferType {
    pub(crate) ggml: &'static Ggml,
    pub(crate) ptr: *mut RawBufferType,
}

impl BufferType {
    /// ggml's name, as `CPU`, `CPU_REPACK` or `Vulkan0`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: buffer types are static; the name is a static string.
        unsafe { CStr::from_ptr((self.ggml.api.ggml_backend_buft_name)(self.ptr)) }
            .to_string_lossy()
            .into_owned()
    }

    /// Whether the memory can be read by the host.
    #[must_use]
    pub fn is_host(&self) -> bool {
        // SAFETY: buffer types are static.
        unsafe { (self.ggml.api.ggml_backend_buft_is_host)(self.ptr) }
    }
}

/// Memory on a device; freed when dropped.
pub struct Buffer {
    pub(crate) ggml: &'static Ggml,
    pub(crate) ptr: *mut RawBuffer,
}

impl Buffer {
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: a live buffer.
        unsafe { (self.ggml.api.ggml_backend_buffer_get_size)(self.ptr) }
    }

    pub(crate) fn set_weights(&self, weights: bool) {
        // SAFETY: a live buffer; 0 is any use, 1 is weights.
        unsafe { (self.ggml.api.ggml_backend_buffer_set_usage)(self.ptr, c_int::from(weights)) };
    }

    pub(crate) fn clear(&self) {
        // SAFETY: a live buffer.
        unsafe { (self.ggml.api.ggml_backend_buffer_clear)(self.ptr, 0) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { (self.ggml.api.ggml_backend_buffer_free)(self.ptr) };
    }
}

/// An initialised device; freed when dropped.
pub struct Backend {
    pub(crate) ggml: &'static Ggml,
    pub(crate) ptr: *mut RawBackend,
    device: Device,
}

impl Backend {
    /// Initialises `device`.
    ///
    /// # Errors
    /// When the device refuses, as a GPU without a working driver does.
    pub fn new(device: Device) -> Result<Self, Error> {
        // SAFETY: a device of this build; null means no parameters.
        let ptr = unsafe { (device.ggml.api.ggml_backend_dev_init)(device.ptr, std::ptr::null()) };
        if ptr.is_null() {
            return Err(Error::Call {
                call: "ggml_backend_dev_init",
                why: format!("device {}", device.name()),
            });
        }
        Ok(Self { ggml: device.ggml, ptr, device })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// ggml's name of the backend.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: a live backend; the name lives as long.
        unsafe { CStr::from_ptr((self.ggml.api.ggml_backend_name)(self.ptr)) }.to_string_lossy().into_owned()
    }

    /// Sets the number of threads, where the backend has any. Returns whether it has.
    #[must_use]
    pub fn set_threads(&self, threads: usize) -> bool {
        let Some(address) = self.device.proc_address(c"ggml_backend_set_n_threads") else { return false };
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: ggml documents this name with this signature; the backend is of the registry that gave it.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, SetThreads>(address)(self.ptr, threads) };
        true
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { (self.ggml.api.ggml_backend_free)(self.ptr) };
    }
}
