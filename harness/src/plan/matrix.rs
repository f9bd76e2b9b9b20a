//! The matrix: which modes a model has, and which devices are tested where none are named. The rows of ready-made
//! matrices are in gate files (`crate::gate`).

use super::models::ResolvedModel;
use super::{Case, DeviceSelector, Mode, Options};

/// A model and the cases to run on it; no options stand for the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// As `--model` takes it.
    pub model: String,
    /// The modes; all default ones where none are named.
    pub modes: Vec<Mode>,
    /// The options.
    pub options: Vec<Options>,
    /// The devices, of which those count that build and machine have; all of them where none are named.
    pub devices: Vec<DeviceSelector>,
    /// Devices that must be there.
    pub required: Vec<DeviceSelector>,
    /// Whether the model may be absent, where it is one that has to be fetched.
    pub if_fetched: bool,
    /// Where the row stands, as `ci/gate.toml:12`, if it comes from a gate file.
    pub place: Option<String>,
}

/// The modes in which a model runs where none are named: all that its architecture has, generation only
/// where the manifest says how.
#[must_use]
pub fn default_modes(model: &ResolvedModel) -> Vec<Mode> {
    let hparams = &model.model.hparams;
    let always = match (hparams.block, hparams.architecture.is_diffusion()) {
        (Some(_), _) => vec![Mode::Unified, Mode::PromptKv],
        (None, true) => vec![Mode::Full, Mode::FullCache, Mode::Sparse],
        (None, false) => return vec![Mode::Prefill, Mode::Decode, Mode::Batch, Mode::Lifecycle],
    };
    let generates = model.settings.generate.is_some();
    always.into_iter().chain(generates.then_some(Mode::Generate)).collect()
}

/// Whether `mode` is one of the architecture's.
#[must_use]
pub fn has_mode(model: &ResolvedModel, mode: Mode) -> bool {
    let diffusion = model.model.hparams.architecture.is_diffusion();
    if model.model.hparams.block.is_some() {
        return matches!(mode, Mode::Unified | Mode::PromptKv | Mode::Generate);
    }
    match mode {
        Mode::Unified | Mode::PromptKv => false,
        Mode::Full | Mode::FullCache | Mode::Sparse | Mode::Sampler => diffusion,
        Mode::Generate => true,
        // Some layer must be left between the protected ones.
        Mode::Profile => {
            !diffusion && model.model.hparams.n_layer > 2 * runtime::generate::profile::PROTECTED
        }
        Mode::Prefill | Mode::Decode | Mode::Batch | Mode::Speculative | Mode::Lifecycle => !diffusion,
    }
}

/// The devices under test where none are named, out of those a build offers: every device and every CPU
/// variant but the plain CPU, which is the reference, and the variant that it uses.
#[must_use]
pub fn default_devices(
    offered: &[DeviceSelector],
    variants: &[String],
    in_use: Option<&str>,
) -> Vec<DeviceSelector> {
    let variants = variants.iter().filter(|variant| Some(variant.as_str()) != in_use);
    let variants = variants.map(|v| DeviceSelector { variant: Some(v.clone()), ..DeviceSelector::cpu() });
    let others = offered.iter().filter(|device| **device != DeviceSelector::cpu()).cloned();
    variants.chain(others).collect()
}

/// The case of `model` in `mode`.
#[must_use]
pub fn case(model: &ResolvedModel, mode: Mode, options: Options) -> Case {
    Case { model: model.name.clone(), weights: model.weights.clone(), mode, options }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_not_tested_against_itself() {
        let offered: Vec<DeviceSelector> =
            ["CPU", "CPU+repack", "Vulkan0"].iter().map(|d| d.parse().unwrap()).collect();
        let variants = ["zen4", "haswell", "x64"].map(str::to_owned);
        let devices = default_devices(&offered, &variants, Some("zen4"));
        let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
        assert_eq!(devices, ["CPU@haswell", "CPU@x64", "CPU+repack", "Vulkan0"]);
        assert!(default_devices(&offered[..1], &variants[..1], Some("zen4")).is_empty());
    }
}
