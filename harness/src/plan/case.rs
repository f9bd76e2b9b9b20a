//! A case is a model x weight type x mode x options; on a device of a build it is a cell. Both have one id,
//! the same string on the command line, in captures and in reports:
//!
//! ```text
//! model/weights/mode?attn=flash&kv=f16&ub=7@BUILD:DEVICE
//! ```
//!
//! Defaults are left out and the order of options is fixed, so equal cells have equal ids.

use super::{DeviceSelector, IdError, Options, check_name};
use crate::named::named_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named_enum! {
    /// What is run: how the model is driven and which cache is in use.
    pub enum Mode as "mode" {
        /// One forward over the whole sequence, no cache.
        Full = "full",
        /// One forward over the whole sequence that also fills the K/V cache.
        FullCache = "full-cache",
        /// Masked generation in which only the active set is computed, against cached K/V.
        Sparse = "sparse",
        /// n tokens into an empty cache.
        Prefill = "prefill",
        /// One token at a time on a filled cache.
        Decode = "decode",
        /// n tokens on a filled cache.
        Batch = "batch",
        /// Decoding without the layers that matter least to the prompt.
        Profile = "profile",
        /// Block diffusion: a prompt and a canvas in one forward, no cache.
        Unified = "unified",
        /// Block diffusion: the prompt encoded into the cache, then the canvas.
        PromptKv = "prompt-kv",
        /// Generation, compared on the reference's own trajectory and free running.
        Generate = "generate",
        /// A draft model proposes tokens, the model checks them in one batch.
        Speculative = "speculative",
        /// A cache that is saved and restored, reused, and shifted.
        Lifecycle = "lifecycle",
        /// The dense sampler of a canvas on the device, compared with the host's.
        Sampler = "sampler",
    }
}

/// A case: what is computed, apart from where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Case {
    /// The model's name (see [`super::safe_name`] for names made from files).
    pub model: String,
    /// The type of its weights: `f32`, `q4_k_m`, ….
    pub weights: String,
    /// How it is driven.
    pub mode: Mode,
    /// The options.
    pub options: Options,
}

impl Case {
    /// Checks that every option means something in this mode.
    ///
    /// # Errors
    /// The first option that does not.
    pub fn check(&self) -> Result<(), IdError> {
        self.options.causal.check(self.mode)?;
        self.options.masked.check(self.mode)?;
        self.options.sampler.check(self.mode)?;
        if self.mode == Mode::Sampler {
            self.options.check_sampler()?;
        }
        self.options.draws.check(self.mode)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.model, self.weights, self.mode)?;
        if self.options == Options::default() { Ok(()) } else { write!(f, "?{}", self.options) }
    }
}

impl FromStr for Case {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (path, options) = text.split_once('?').unwrap_or((text, ""));
        let parts: Vec<&str> = path.split('/').collect();
        let [model, weights, mode] = parts[..] else {
            return Err(IdError::new("case", text, "`model/weights/mode` is wanted"));
        };
        check_name("model", model)?;
        check_name("weights", weights)?;
        let mode = mode.parse().map_err(|e: crate::named::UnknownName| {
            IdError::new("mode", mode, format!("known: {}", e.known))
        })?;
        Ok(Self { model: model.to_owned(), weights: weights.to_owned(), mode, options: options.parse()? })
    }
}

impl TryFrom<String> for Case {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Case> for String {
    fn from(case: Case) -> Self {
        case.to_string()
    }
}

/// A cell: a case on a device of a build.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct CellId {
    /// What is computed.
    pub case: Case,
    /// The name of the ggml build.
    pub build: String,
    /// The device, its own `build` empty.
    pub device: DeviceSelector,
}

impl CellId {
    /// The cell of `case` on `device`; `build` is used where the selector names none.
    pub fn new(case: Case, build: &str, device: &DeviceSelector) -> Self {
        let build = device.build.as_deref().unwrap_or(build).to_owned();
        Self { case, build, device: device.without_build() }
    }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", self.case, self.build, self.device)
    }
}

impl FromStr for CellId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let Some((case, place)) = text.split_once('@') else {
            return Err(IdError::new("cell", text, "`case@BUILD:DEVICE` is wanted"));
        };
        let mut device: DeviceSelector = place.parse()?;
        let Some(build) = device.build.take() else {
            return Err(IdError::new("build", place, "`BUILD:DEVICE` is wanted"));
        };
        Ok(Self { case: case.parse()?, build, device })
    }
}

impl TryFrom<String> for CellId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<CellId> for String {
    fn from(id: CellId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::masked::{Remask, Schedule, StepCache};
    use crate::plan::sampler::{Dist, Uniform};
    use crate::plan::{Attention, CausalOptions, Draws, KvType, MaskedOptions, SamplerOptions};
    use proptest::prelude::*;

    fn names() -> impl Strategy<Value = String> {
        "[A-Za-z0-9._-]{1,12}"
    }

    fn one_of<T: Copy + fmt::Debug>(all: &'static [T]) -> impl Strategy<Value = T> {
        proptest::sample::select(all)
    }

    fn causal() -> impl Strategy<Value = CausalOptions> {
        let count = || proptest::option::of(1u32..);
        let decimal = || proptest::option::of("0\\.[1-9]{1,6}".prop_map(|text| text.parse().unwrap()));
        (count(), count(), count(), decimal(), count(), decimal()).prop_map(
            |(window, skip, ahead, penalty, top_k, top_p)| CausalOptions {
                window,
                hidden: ahead.map(|n| n - 1),
                store: skip.map(|_| crate::plan::causal::Store::Cpy),
                skip,
                ahead,
                penalty,
                top_k,
                top_p,
            },
        )
    }

    fn draws() -> impl Strategy<Value = Draws> {
        let temp = proptest::option::of("0\\.[1-9]{1,6}".prop_map(|text| text.parse().unwrap()));
        (temp, proptest::option::of(1u32..)).prop_map(|(temp, seed)| Draws { temp, seed })
    }

    fn masked() -> impl Strategy<Value = MaskedOptions> {
        let decimal = || "[0-9]{1,3}(\\.[0-9]{1,6})?".prop_map(|text| text.parse().unwrap());
        let maybe_decimal = move || proptest::option::of(decimal());
        let names =
            (one_of(StepCache::ALL), one_of(Remask::ALL), proptest::option::of(one_of(Schedule::ALL)));
        let counts = (any::<u32>(), any::<u32>(), proptest::option::of(any::<u32>()));
        (names, counts, (maybe_decimal(), maybe_decimal())).prop_map(
            |((cache, remask, schedule), (keep, refresh, block), (entropy, eps))| MaskedOptions {
                cache,
                keep,
                refresh,
                remask,
                entropy,
                schedule,
                eps,
                block,
            },
        )
    }

    fn sampler() -> impl Strategy<Value = SamplerOptions> {
        let count = || proptest::option::of(2u32..);
        (one_of(Dist::ALL), one_of(Uniform::ALL), count(), count(), count())
            .prop_map(|(dist, u, vocab, canvas, steps)| SamplerOptions { dist, vocab, canvas, steps, u })
    }

    fn options() -> impl Strategy<Value = Options> {
        let count = || proptest::option::of(1u32..);
        let counts = (count(), count(), count(), count());
        let rest = (causal(), masked(), draws(), sampler());
        (one_of(Attention::ALL), one_of(KvType::ALL), counts, rest).prop_map(
            |(attn, kv, (ub, n, threads, layers), (causal, masked, draws, sampler))| Options {
                attn,
                kv,
                ub,
                n,
                threads,
                layers,
                causal,
                masked,
                draws,
                sampler,
            },
        )
    }

    fn cells() -> impl Strategy<Value = CellId> {
        let maybe = || proptest::option::of(names());
        let device = (names(), maybe(), maybe()).prop_map(|(base, variant, buft)| DeviceSelector {
            build: None,
            base,
            variant,
            buft,
        });
        (names(), names(), one_of(Mode::ALL), options(), names(), device).prop_map(
            |(model, weights, mode, options, build, device)| CellId {
                case: Case { model, weights, mode, options },
                build,
                device,
            },
        )
    }

    proptest! {
        #[test]
        fn ids_round_trip(id in cells()) {
            let text = id.to_string();
            prop_assert_eq!(text.parse::<CellId>().unwrap(), id.clone());
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(json.clone(), format!("{text:?}"));
            prop_assert_eq!(serde_json::from_str::<CellId>(&json).unwrap(), id);
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = text.parse::<CellId>();
            let _ = text.parse::<DeviceSelector>();
        }
    }

    #[test]
    fn the_id_of_the_design() {
        let text = "dream/q4_k_m/prefill?attn=flash&kv=f16&ub=7@npm-3.21.1:CPU@x64";
        let id: CellId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(id.device.variant.as_deref(), Some("x64"));
        assert_eq!((id.case.options.attn, id.case.options.ub), (Attention::Flash, Some(7)));
    }

    #[test]
    fn defaults_and_order_do_not_make_another_id() {
        let written: Case = "m/f32/decode?ub=none&kv=q8_0&attn=explicit".parse().unwrap();
        assert_eq!(written.to_string(), "m/f32/decode?kv=q8_0");
    }

    #[test]
    fn selectors_of_the_design_parse() {
        for text in
            ["CPU", "CPU@x64", "CPU+repack", "CPU+amx", "BLAS", "Vulkan0", "CUDA0", "MTL0", "old:CUDA0"]
        {
            assert_eq!(text.parse::<DeviceSelector>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_name_the_field_and_the_value() {
        for (text, field, value) in [
            ("m/f32/prefil@b:CPU", "mode", "prefil"),
            ("m/f32/full?attn=fast@b:CPU", "attn", "fast"),
            ("m/f32/full?ub=0@b:CPU", "ub", "0"),
            ("m/f32/full?ub=+1@b:CPU", "ub", "+1"),
            ("m/f32/full?n=4294967296@b:CPU", "n", "4294967296"),
            ("m/f32/full?kv=f16&kv=f16@b:CPU", "option", "kv"),
            ("m/f32/full?colour=red@b:CPU", "option", "colour"),
            ("m/f32/full?@b:CPU@", "device variant", ""),
            ("m//full@b:CPU", "weights", ""),
            ("m/f32@b:CPU", "case", "m/f32"),
            ("m/f32/full@CPU", "build", "CPU"),
            ("m/f32/full", "cell", "m/f32/full"),
            ("m/f32/full@b:", "device", ""),
        ] {
            let error = text.parse::<CellId>().unwrap_err();
            assert_eq!((error.field, error.value.as_str()), (field, value), "{text}");
            assert!(error.to_string().contains(field) && error.to_string().contains(value));
        }
    }
}
