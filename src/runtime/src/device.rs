//! Exact device selection.

use ggml_sys::{BufferType, Device, DeviceKind, Ggml};

use crate::error::Error;

/// A device by ggml's exact name, and the buffer type for its weights where it is not the plain one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// ggml's name, as `CPU` or `Vulkan0`.
    pub name: String,
    /// An extra buffer type, as `repack` or `amx`; `None` for plain buffers.
    pub buffer: Option<String>,
}

/// The devices of one session.
pub(crate) struct Selected {
    pub(crate) device: Device,
    pub(crate) cpu: Device,
    /// Where matrices go if it is not the device's own buffer type.
    pub(crate) matrices: Option<BufferType>,
}

impl DeviceRequest {
    /// The plain device of this name.
    #[must_use]
    pub fn plain(name: &str) -> Self {
        Self { name: name.to_owned(), buffer: None }
    }

    pub(crate) fn select(&self, ggml: &'static Ggml) -> Result<Selected, Error> {
        let devices = ggml.devices();
        let unknown = || Error::UnknownDevice { name: self.to_string(), known: names(&devices) };
        let device = *devices.iter().find(|d| d.name() == self.name).ok_or_else(unknown)?;
        let cpu = *devices.iter().find(|d| d.kind() == DeviceKind::Cpu).ok_or_else(unknown)?;
        let matrices = match &self.buffer {
            None => None,
            Some(name) => Some(
                device
                    .extra_buffer_types()
                    .into_iter()
                    .find(|b| short_name(&device, b) == *name)
                    .ok_or_else(unknown)?,
            ),
        };
        Ok(Selected { device, cpu, matrices })
    }
}

impl std::fmt::Display for DeviceRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.buffer {
            None => write!(f, "{}", self.name),
            Some(buffer) => write!(f, "{}+{buffer}", self.name),
        }
    }
}

/// `CPU_REPACK` of `CPU` is `repack`; `AMX` is `amx`.
pub(crate) fn short_name(device: &Device, buffer: &BufferType) -> String {
    let name = buffer.name();
    let prefix = format!("{}_", device.name());
    name.strip_prefix(&prefix).unwrap_or(&name).to_lowercase()
}

/// Every selector these devices answer to.
pub(crate) fn names(devices: &[Device]) -> Vec<String> {
    devices
        .iter()
        .flat_map(|d| {
            let extra =
                d.extra_buffer_types().into_iter().map(|b| format!("{}+{}", d.name(), short_name(d, &b)));
            std::iter::once(d.name()).chain(extra).collect::<Vec<_>>()
        })
        .collect()
}

impl DeviceRequest {
    /// The device, and where it wants its matrices if that is not its own buffer type.
    ///
    /// # Errors
    /// When there is no such device or buffer type.
    pub fn find(&self, ggml: &'static Ggml) -> Result<(Device, Option<BufferType>), Error> {
        self.select(ggml).map(|selected| (selected.device, selected.matrices))
    }

    /// Every selector that the devices of `ggml` answer to, in ggml's order.
    #[must_use]
    pub fn known(ggml: &'static Ggml) -> Vec<String> {
        names(&ggml.devices())
    }
}
