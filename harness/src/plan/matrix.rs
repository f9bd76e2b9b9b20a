//! The matrix: which cases run on which devices.

use super::models::ResolvedModel;
use super::{Attention, Case, CausalOptions, DeviceSelector, KvType, Mode, Options};
use crate::named::named_enum;

named_enum! {
    /// Ready-made matrices.
    pub enum Preset as "preset" {
        /// The default gate: every architecture in its plain modes, and one quantised model of each kernel family.
        Quick = "quick",
        /// Every mode, every weight type in two shape families, and every size class of matrix products.
        Full = "full",
    }
}

/// Weight types of the preset `full` that need no blocks of 256.
const SMALL_BLOCKS: [&str; 10] =
    ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4"];
/// Autoregressive models at the edges of what kernels take: numbers beyond 16 bits, head sizes, heads a group.
const EDGES: [&str; 9] = [
    "adv-kq-range",
    "adv-activations",
    "adv-long-keys",
    "adv-head-64",
    "adv-head-80",
    "adv-head-96",
    "adv-head-128",
    "adv-head-256",
    "adv-gqa-12",
];
/// The same heads for masked diffusion; with `gen-dream-576` that is 1, 3, 4, 7 and 12 query heads a group.
const MASKED_EDGES: [&str; 7] = [
    "gen-dream-576",
    "adv-dream-head-64",
    "adv-dream-head-80",
    "adv-dream-head-96",
    "adv-dream-head-128",
    "adv-dream-head-256",
    "adv-dream-gqa-12",
];
/// Weight types with blocks of 256.
const LARGE_BLOCKS: [&str; 4] = ["q4_k", "q5_k", "q6_k", "q4_k_m"];
/// The row that sees nothing, in the middle of a tile.
const HIDDEN_ROW: u32 = 5;
/// Sequence lengths of the preset `full`, each in another class of kernels somewhere.
const LENGTHS: [u32; 11] = [1, 7, 31, 32, 33, 64, 127, 128, 129, 512, 513];

/// A model and the cases to run on it; no options stand for the defaults.
pub struct Row {
    /// As `--model` takes it.
    pub model: String,
    /// The modes; all default ones where none are named.
    pub modes: Vec<Mode>,
    /// The options.
    pub options: Vec<Options>,
}

impl Preset {
    /// What the preset runs.
    #[must_use]
    pub fn rows(self) -> Vec<Row> {
        use Mode::{
            Batch, Decode, Full, FullCache, Generate, Lifecycle, Prefill, Profile, Sparse, Speculative,
        };
        let row = |model: &str, modes: &[Mode], options: Vec<Options>| Row {
            model: model.to_owned(),
            modes: modes.to_vec(),
            options,
        };
        let plain = || vec![Options::default()];
        let mut rows = vec![
            row("gen-dream", &[Full], plain()),
            row("gen-llada", &[Full], plain()),
            row("gen-qwen2", &[Prefill, Decode], plain()),
            row("gen-llama", &[Prefill, Decode], plain()),
            row("dream-arith", &[Full, Generate], plain()),
            row("gen-dream:q4_k_m", &[Full], plain()),
            row("gen-llada:q5_k", &[Full], plain()),
            row("gen-qwen2:q8_0", &[Prefill, Decode], plain()),
            row("gen-llama-576:q4_0", &[Prefill, Decode], plain()),
        ];
        if self == Self::Quick {
            return rows;
        }
        for model in ["gen-dream", "gen-llada"] {
            rows.push(row(model, &[FullCache, Sparse, Generate], plain()));
            rows.push(row(&format!("{model}:q4_k_m"), &[FullCache, Sparse, Generate], plain()));
        }
        for model in ["gen-qwen2", "gen-llama"] {
            rows.push(row(model, &[Batch, Generate, Speculative, Lifecycle], plain()));
            let modes = [Prefill, Decode, Batch, Generate, Speculative, Lifecycle];
            rows.push(row(&format!("{model}:q4_k_m"), &modes, plain()));
            // Layers to leave out take more than two; these models are too narrow for blocks of 256.
            rows.push(row(&format!("{model}-8l"), &[Profile], plain()));
            rows.push(row(&format!("{model}-8l:q8_0"), &[Profile], plain()));
        }
        rows.extend(EDGES.iter().map(|model| row(model, &[Prefill, Decode], plain())));
        rows.extend(MASKED_EDGES.iter().map(|model| row(model, &[FullCache, Sparse], plain())));
        let hidden = CausalOptions { hidden: Some(HIDDEN_ROW), ..CausalOptions::default() };
        let hidden = |attn| Options { attn, causal: hidden, ..Options::default() };
        rows.push(row("gen-llama", &[Prefill], Attention::ALL.iter().map(|&attn| hidden(attn)).collect()));
        let flash = || {
            let types = KvType::ALL.iter();
            types.map(|&kv| Options { attn: Attention::Flash, kv, ..Options::default() }).collect()
        };
        for model in ["gen-qwen2", "gen-llama"] {
            rows.push(row(model, &[Prefill, Decode], flash()));
        }
        rows.push(row("gen-dream", &[FullCache, Sparse], flash()));
        let lengths = || LENGTHS.iter().map(|&n| Options { n: Some(n), ..Options::default() }).collect();
        let small =
            SMALL_BLOCKS.iter().flat_map(|ty| ["gen-llama-576", "gen-llama"].map(|m| format!("{m}:{ty}")));
        let large = LARGE_BLOCKS.iter().map(|ty| format!("gen-llama:{ty}"));
        rows.extend(small.chain(large).map(|model| row(&model, &[Prefill], lengths())));
        rows
    }
}

/// The modes in which a model runs where none are named: all that its architecture has, generation only
/// where the manifest says how.
#[must_use]
pub fn default_modes(model: &ResolvedModel) -> Vec<Mode> {
    if !model.model.hparams.architecture.is_diffusion() {
        return vec![Mode::Prefill, Mode::Decode, Mode::Batch, Mode::Lifecycle];
    }
    let generates = model.settings.generate.is_some();
    let always = [Mode::Full, Mode::FullCache, Mode::Sparse];
    always.into_iter().chain(generates.then_some(Mode::Generate)).collect()
}

/// Whether `mode` is one of the architecture's.
#[must_use]
pub fn has_mode(model: &ResolvedModel, mode: Mode) -> bool {
    let diffusion = model.model.hparams.architecture.is_diffusion();
    match mode {
        Mode::Full | Mode::FullCache | Mode::Sparse => diffusion,
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

    #[test]
    fn the_full_preset_holds_every_type_and_length() {
        let rows = Preset::Full.rows();
        for ty in SMALL_BLOCKS.iter().chain(&LARGE_BLOCKS) {
            assert!(rows.iter().any(|row| row.model == format!("gen-llama:{ty}") && row.options.len() == 11));
        }
        assert!(rows.len() > Preset::Quick.rows().len());
        for mode in Mode::ALL {
            assert!(rows.iter().any(|row| row.modes.contains(mode)), "{mode}");
        }
    }

    #[test]
    fn the_full_preset_holds_every_head_size_and_group_in_masked_and_causal_modes() {
        let specs: Vec<(model_file::GenerateSpec, Vec<Mode>)> = Preset::Full
            .rows()
            .into_iter()
            .filter(|row| row.options.iter().all(|options| options.attn == Attention::Explicit))
            .filter_map(|row| Some((model_file::GenerateSpec::preset(&row.model)?, row.modes)))
            .collect();
        for masked in [false, true] {
            let modes = if masked { [Mode::FullCache, Mode::Sparse] } else { [Mode::Prefill, Mode::Decode] };
            let of = |what: &dyn Fn(&model_file::GenerateSpec) -> bool| {
                specs.iter().any(|(spec, of)| modes.iter().all(|mode| of.contains(mode)) && what(spec))
            };
            for group in [1, 3, 4, 7, 12] {
                assert!(of(&|spec| spec.n_head / spec.n_head_kv == group), "{group} heads, masked {masked}");
            }
            for size in [64, 80, 96, 128, 256] {
                assert!(of(&|spec| spec.head_dim == size), "heads of {size}, masked {masked}");
            }
        }
    }

    #[test]
    fn flash_attention_is_in_the_full_preset_with_every_cache_type_and_not_in_the_quick_one() {
        let flash = |preset: Preset, kv| {
            let of_type = |o: &Options| o.attn == Attention::Flash && o.kv == kv;
            preset.rows().iter().filter(|row| row.options.iter().any(of_type)).count()
        };
        for &kv in KvType::ALL {
            assert!(flash(Preset::Full, kv) >= 3 && flash(Preset::Quick, kv) == 0, "{kv}");
        }
    }

    #[test]
    fn every_model_of_a_preset_exists_in_the_type_asked_for() {
        let work = tempfile::tempdir().unwrap();
        for row in Preset::Full.rows() {
            let model =
                super::super::models::resolve(&row.model, work.path()).unwrap_or_else(|e| panic!("{e}"));
            assert!(row.modes.iter().all(|&mode| has_mode(&model, mode)), "{}", row.model);
        }
    }
}
