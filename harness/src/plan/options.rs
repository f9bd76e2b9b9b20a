//! The options of a case, and their place in its id. Those of masked generation are in [`super::masked`].

use super::{CausalOptions, Draws, IdError, MaskedOptions, SamplerOptions};
use crate::named::named_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named_enum! {
    /// How attention is computed.
    pub enum Attention as "attn" {
        /// Products, mask and softmax as separate nodes.
        Explicit = "explicit",
        /// One fused node.
        Flash = "flash",
    }
}

named_enum! {
    /// The type in which the K/V cache is kept.
    pub enum KvType as "kv" {
        /// 32-bit floats: nothing is lost in storing.
        F32 = "f32",
        /// 16-bit floats.
        F16 = "f16",
        /// Blocks of 32 with 8-bit values.
        Q8_0 = "q8_0",
        /// Blocks of 32 with 4-bit values.
        Q4_0 = "q4_0",
    }
}

/// The options of a case. `Default` is what an id leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// How attention is computed.
    pub attn: Attention,
    /// The type of the K/V cache.
    pub kv: KvType,
    /// Micro-batch: at most so many columns a graph; `None` does not split. Causal modes only.
    pub ub: Option<u32>,
    /// Sequence length in tokens; `None` is the model's own default.
    pub n: Option<u32>,
    /// Threads of the CPU backend; `None` is physical cores less one, at least one.
    pub threads: Option<u32>,
    /// Layers on the device, from the first; `None` is all of them.
    pub layers: Option<u32>,
    /// Autoregressive modes.
    #[serde(skip_serializing_if = "CausalOptions::is_default")]
    pub causal: CausalOptions,
    /// Masked generation.
    #[serde(skip_serializing_if = "MaskedOptions::is_default")]
    pub masked: MaskedOptions,
    /// Drawing of tokens, in either.
    #[serde(skip_serializing_if = "Draws::is_default")]
    pub draws: Draws,
    /// The dense sampler.
    #[serde(skip_serializing_if = "SamplerOptions::is_default")]
    pub sampler: SamplerOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            attn: Attention::Explicit,
            kv: KvType::F32,
            ub: None,
            n: None,
            threads: None,
            layers: None,
            causal: CausalOptions::default(),
            masked: MaskedOptions::default(),
            draws: Draws::default(),
            sampler: SamplerOptions::default(),
        }
    }
}

impl fmt::Display for Options {
    /// `attn=flash&kv=f16&ub=7&n=64&threads=4&layers=1` in this order, then those of the autoregressive modes,
    /// of masked generation, of drawing and of the dense sampler; defaults are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let number = |name, value: Option<u32>| value.map(|v| format!("{name}={v}"));
        let written = [
            (self.attn != default.attn).then(|| format!("attn={}", self.attn)),
            (self.kv != default.kv).then(|| format!("kv={}", self.kv)),
            number("ub", self.ub),
            number("n", self.n),
            number("threads", self.threads),
            number("layers", self.layers),
        ];
        let written = written.into_iter().flatten().chain(self.causal.written());
        let written = written.chain(self.masked.written()).chain(self.draws.written());
        let written = written.chain(self.sampler.written());
        f.write_str(&written.collect::<Vec<_>>().join("&"))
    }
}

impl FromStr for Options {
    type Err = IdError;

    /// Reads options in any order; an unknown or repeated one is an error. Empty text is the defaults.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut options = Self::default();
        let mut seen = Vec::new();
        for pair in text.split('&').filter(|_| !text.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(IdError::new("option", pair, "`name=value` is wanted"));
            };
            if seen.contains(&key) {
                return Err(IdError::new("option", key, "is given twice"));
            }
            seen.push(key);
            options.set(key, value)?;
        }
        Ok(options)
    }
}

impl Options {
    /// Sets one option by its name in an id.
    ///
    /// # Errors
    /// An unknown name, or a value that the option does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), IdError> {
        match key {
            "attn" => self.attn = parse_name("attn", value)?,
            "kv" => self.kv = parse_name("kv", value)?,
            "ub" => self.ub = parse_count("ub", value, 1)?,
            "n" => self.n = parse_count("n", value, 1)?,
            "threads" => self.threads = parse_count("threads", value, 1)?,
            "layers" => self.layers = parse_count("layers", value, 0)?,
            _ if self.causal.set(key, value)?
                || self.masked.set(key, value)?
                || self.draws.set(key, value)?
                || self.sampler.set(key, value)? => {}
            _ => {
                let (causal, masked, draws) = (CausalOptions::KEYS, MaskedOptions::KEYS, Draws::KEYS);
                let sampler = SamplerOptions::KEYS;
                let known = format!(
                    "known: attn, kv, ub, n, threads, layers, {causal}, {masked}, {draws}, {sampler}"
                );
                return Err(IdError::new("option", key, known));
            }
        }
        Ok(())
    }
}

impl Options {
    /// Checks that what is set means something to a sampler, which has no attention, no cache and no layers; a length
    /// is that of the model's own steps.
    pub(super) fn check_sampler(&self) -> Result<(), IdError> {
        let sampled =
            Self { sampler: self.sampler, draws: self.draws, threads: self.threads, ..Self::default() };
        let own = self.sampler.dist == super::sampler::Dist::Steps;
        let plain = Self { n: self.n.filter(|_| own), ..sampled };
        if *self == plain {
            return Ok(());
        }
        let means = plain.to_string();
        let other = self.to_string();
        let other = other.split('&').find(|written| !means.split('&').any(|kept| kept == *written));
        Err(IdError::new("option", other.unwrap_or_default(), "means nothing in mode sampler"))
    }
}

/// Reads a value that is one of a list of names.
pub(super) fn parse_name<T: FromStr<Err = crate::named::UnknownName>>(
    field: &'static str,
    value: &str,
) -> Result<T, IdError> {
    value.parse().map_err(|error: crate::named::UnknownName| {
        IdError::new(field, value, format!("known: {}", error.known))
    })
}

/// Reads a whole number of at least `least`; `none` is the default written out.
pub(super) fn parse_count(field: &'static str, value: &str, least: u32) -> Result<Option<u32>, IdError> {
    if value == "none" {
        return Ok(None);
    }
    let wanted = || format!("`none` or a whole number from {least} on is wanted");
    whole(value, least).map(Some).ok_or_else(|| IdError::new(field, value, wanted()))
}

/// Reads a whole number of at least `least`.
pub(super) fn parse_whole(field: &'static str, value: &str, least: u32) -> Result<u32, IdError> {
    let wanted = || format!("a whole number from {least} on is wanted");
    whole(value, least).ok_or_else(|| IdError::new(field, value, wanted()))
}

/// Digits alone: no sign, no space.
fn whole(value: &str, least: u32) -> Option<u32> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    value.parse().ok().filter(|&number| digits && number >= least)
}
