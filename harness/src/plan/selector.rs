//! Device selectors: exact names of what computes, as the user writes them.

use super::{IdError, check_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// `[BUILD:]NAME[@VARIANT][+BUFFERS]`: `CPU`, `CPU@x64` (that variant library alone), `CPU+repack` (weights in
/// that extra buffer type), `BLAS`, `Vulkan0`, `CUDA0`, `MTL0`, `old:Vulkan0`.
///
/// Whether such a device exists is for the build to say; here only the form is checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceSelector {
    /// The build, where the selector names one.
    pub build: Option<String>,
    /// ggml's name of the device.
    pub base: String,
    /// The variant library of the CPU backend to load alone.
    pub variant: Option<String>,
    /// The extra buffer type that holds the weights.
    pub buft: Option<String>,
}

impl DeviceSelector {
    /// The reference: ggml's CPU backend, best variant, plain buffers.
    pub fn cpu() -> Self {
        Self { build: None, base: "CPU".to_owned(), variant: None, buft: None }
    }

    /// Whether the device is the CPU backend, in whatever variant and buffers.
    pub fn is_cpu(&self) -> bool {
        self.base == "CPU"
    }

    /// The same device without its build, as an id holds it.
    #[must_use]
    pub fn without_build(&self) -> Self {
        Self { build: None, ..self.clone() }
    }
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |mark: &str, name: &Option<String>| {
            name.as_ref().map(|n| format!("{mark}{n}")).unwrap_or_default()
        };
        let build = self.build.as_ref().map(|b| format!("{b}:")).unwrap_or_default();
        f.pad(&format!("{build}{}{}{}", self.base, part("@", &self.variant), part("+", &self.buft)))
    }
}

impl FromStr for DeviceSelector {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (build, rest) = match text.split_once(':') {
            Some((build, rest)) => (Some(build), rest),
            None => (None, text),
        };
        let (rest, buft) = match rest.split_once('+') {
            Some((rest, buft)) => (rest, Some(buft)),
            None => (rest, None),
        };
        let (base, variant) = match rest.split_once('@') {
            Some((base, variant)) => (base, Some(variant)),
            None => (rest, None),
        };
        check_name("device", base)?;
        for (field, name) in [("build", build), ("device variant", variant), ("device buffer type", buft)] {
            name.map_or(Ok(()), |name| check_name(field, name))?;
        }
        Ok(Self {
            build: build.map(str::to_owned),
            base: base.to_owned(),
            variant: variant.map(str::to_owned),
            buft: buft.map(str::to_owned),
        })
    }
}

impl TryFrom<String> for DeviceSelector {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<DeviceSelector> for String {
    fn from(selector: DeviceSelector) -> Self {
        selector.to_string()
    }
}
