//! The matrix: which cases run on which devices.

use super::models::ResolvedModel;
use super::{Case, CellId, DeviceSelector, Mode, Options};

/// The models of the default gate.
pub const DEFAULT_MODELS: [&str; 5] = ["gen-dream", "gen-llada", "gen-qwen2", "gen-llama", "dream-arith"];

/// The modes in which a model runs where none are named: all that its architecture has, generation only
/// where the manifest says how.
#[must_use]
pub fn default_modes(model: &ResolvedModel) -> Vec<Mode> {
    if !model.model.hparams.architecture.is_diffusion() {
        return vec![Mode::Prefill, Mode::Decode, Mode::Batch, Mode::Lifecycle];
    }
    let generates = model.settings.generate.is_some();
    [Some(Mode::Full), generates.then_some(Mode::Generate)].into_iter().flatten().collect()
}

/// Whether `mode` is one of the architecture's.
#[must_use]
pub fn has_mode(model: &ResolvedModel, mode: Mode) -> bool {
    let diffusion = model.model.hparams.architecture.is_diffusion();
    match mode {
        Mode::Full => diffusion,
        Mode::Generate => true,
        // Some layer must be left between the protected ones.
        Mode::Profile => {
            !diffusion && model.model.hparams.n_layer > 2 * runtime::generate::profile::PROTECTED
        }
        Mode::Prefill | Mode::Decode | Mode::Batch | Mode::Speculative | Mode::Lifecycle => !diffusion,
    }
}

/// The devices under test where none are named, out of those a build offers: every device but the plain
/// CPU, which is the reference, and the plainest of the CPU's variant libraries, whose kernels share the least
/// with the best one.
#[must_use]
pub fn default_devices(offered: &[DeviceSelector], variants: &[String]) -> Vec<DeviceSelector> {
    let plainest = variants
        .last()
        .filter(|_| variants.len() > 1)
        .map(|variant| DeviceSelector { variant: Some(variant.clone()), ..DeviceSelector::cpu() });
    let others = offered.iter().filter(|device| **device != DeviceSelector::cpu()).cloned();
    plainest.into_iter().chain(others).collect()
}

/// The cells of `cases` on `devices`, case by case.
#[must_use]
pub fn cells(cases: &[Case], build: &str, devices: &[DeviceSelector]) -> Vec<CellId> {
    cases
        .iter()
        .flat_map(|case| devices.iter().map(|device| CellId::new(case.clone(), build, device)))
        .collect()
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
        let devices: Vec<String> =
            default_devices(&offered, &variants).iter().map(ToString::to_string).collect();
        assert_eq!(devices, ["CPU@x64", "CPU+repack", "Vulkan0"]);
        assert!(default_devices(&offered[..1], &variants[..1]).is_empty());
    }
}
