//! The devices a build offers on this machine.

use std::ffi::{CStr, c_char, c_void};

use crate::api::{GetExtraBufts, GetFeatures, RawDevice};
use crate::backend::BufferType;
use crate::library::Ggml;
use crate::tensor::Tensor;

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A GPU with its own memory.
    Gpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// A library that speeds up single ops on host memory, as BLAS.
    Accelerator,
    /// Several devices that act as one.
    Meta,
    /// A number this crate does not know.
    Unknown(i32),
}

impl DeviceKind {
    /// One lower-case word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::IntegratedGpu => "integrated",
            Self::Accelerator => "accelerator",
            Self::Meta => "meta",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// A device, owned by the build and valid for the life of the process.
#[derive(Clone, Copy)]
pub struct Device {
    pub(crate) ggml: &'static Ggml,
    pub(crate) ptr: *mut RawDevice,
}

/// # Safety
/// `text` is null or a terminated string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Device {
    /// ggml's exact name, as `CPU`, `Vulkan0` or `CUDA1`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: devices are static, and so are their strings.
        unsafe { text((self.ggml.api.ggml_backend_dev_name)(self.ptr)) }
    }

    /// What hardware and driver say of themselves.
    #[must_use]
    pub fn description(&self) -> String {
        // SAFETY: as above.
        unsafe { text((self.ggml.api.ggml_backend_dev_description)(self.ptr)) }
    }

    /// The name of the registry, as `Vulkan`.
    #[must_use]
    pub fn registry(&self) -> String {
        // SAFETY: as above.
        unsafe {
            let reg = (self.ggml.api.ggml_backend_dev_backend_reg)(self.ptr);
            if reg.is_null() { String::new() } else { text((self.ggml.api.ggml_backend_reg_name)(reg)) }
        }
    }

    /// Free and total memory in bytes, as the backend states them.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a static device and two valid places.
        unsafe { (self.ggml.api.ggml_backend_dev_memory)(self.ptr, &raw mut free, &raw mut total) };
        (free, total)
    }

    /// What kind of device this is. ggml's enumeration gained the integrated GPU in the middle, so that 2
    /// means accelerator in older builds and integrated GPU in newer ones; libraries that only ever
    /// register accelerators tell the two apart.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        // SAFETY: a static device.
        let number = unsafe { (self.ggml.api.ggml_backend_dev_type)(self.ptr) };
        match number {
            0 => DeviceKind::Cpu,
            1 => DeviceKind::Gpu,
            2 if ["BLAS", "AMX", "ZenDNN", "zDNN"].contains(&self.registry().as_str()) => {
                DeviceKind::Accelerator
            }
            2 => DeviceKind::IntegratedGpu,
            3 => DeviceKind::Accelerator,
            4 => DeviceKind::Meta,
            other => DeviceKind::Unknown(other),
        }
    }

    /// The device's own buffer type.
    #[must_use]
    pub fn buffer_type(&self) -> BufferType {
        // SAFETY: a static device; every device has a buffer type.
        BufferType { ggml: self.ggml, ptr: unsafe { (self.ggml.api.ggml_backend_dev_buffer_type)(self.ptr) } }
    }

    /// Further buffer types that hold weights in another layout (`CPU_REPACK`, `AMX`).
    #[must_use]
    pub fn extra_buffer_types(&self) -> Vec<BufferType> {
        let Some(address) = self.proc_address(c"ggml_backend_dev_get_extra_bufts") else { return Vec::new() };
        let mut all = Vec::new();
        // SAFETY: ggml documents this name with this signature and a null-terminated static list as result.
        unsafe {
            let mut list = std::mem::transmute::<*mut c_void, GetExtraBufts>(address)(self.ptr);
            while !list.is_null() && !(*list).is_null() {
                all.push(BufferType { ggml: self.ggml, ptr: *list });
                list = list.add(1);
            }
        }
        all
    }

    /// Features of the backend as it states them (`AVX512 = 1`, `LLAMAFILE = 1`).
    #[must_use]
    pub fn features(&self) -> Vec<(String, String)> {
        let Some(address) = self.proc_address(c"ggml_backend_get_features") else { return Vec::new() };
        let mut all = Vec::new();
        // SAFETY: ggml documents this name with this signature and a list that ends with a null name.
        unsafe {
            let reg = (self.ggml.api.ggml_backend_dev_backend_reg)(self.ptr);
            let mut feature = std::mem::transmute::<*mut c_void, GetFeatures>(address)(reg);
            while !feature.is_null() && !(*feature).name.is_null() {
                all.push((text((*feature).name), text((*feature).value)));
                feature = feature.add(1);
            }
        }
        all
    }

    /// Whether the device can compute `node` (its types, shapes and where its weights lie).
    #[must_use]
    pub fn supports(&self, node: &Tensor) -> bool {
        // SAFETY: a static device and a live tensor of the same build.
        unsafe { (self.ggml.api.ggml_backend_dev_supports_op)(self.ptr, node.ptr) }
    }

    pub(crate) fn proc_address(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a static device and a terminated name.
        let address = unsafe {
            let reg = (self.ggml.api.ggml_backend_dev_backend_reg)(self.ptr);
            if reg.is_null() {
                return None;
            }
            (self.ggml.api.ggml_backend_reg_get_proc_address)(reg, name.as_ptr())
        };
        (!address.is_null()).then_some(address)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name(), self.kind().name())
    }
}

impl Ggml {
    /// All devices of the opened libraries, in ggml's order.
    #[must_use]
    pub fn devices(&'static self) -> Vec<Device> {
        // SAFETY: indices below the count; devices are static.
        unsafe {
            (0..(self.api.ggml_backend_dev_count)())
                .map(|i| Device { ggml: self, ptr: (self.api.ggml_backend_dev_get)(i) })
                .collect()
        }
    }
}
