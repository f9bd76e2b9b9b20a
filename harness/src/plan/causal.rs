//! Options of the autoregressive modes, and what they mean to the runtime.
//!
//! | key | values, the default first | what |
//! |---|---|---|
//! | `window` | `none`, 1, … | a token sees itself and the `window - 1` tokens before it |
//! | `hidden` | `none`, 0, … | `prefill`: the token at this position sees nothing in the last layer, see below |
//! | `store` | `set-rows`, `cpy` | how new rows get into the cache, where the build has both |
//! | `skip` | 2, 1, … | `profile`: how many layers decoding leaves out |
//! | `ahead` | 5, 1, … | `speculative`: tokens that the draft proposes |
//! | `penalty` | 1 | `generate`: repeat penalty |
//! | `top_k` | 0 | `generate`: how many tokens are drawn from; 0 is all |
//! | `top_p` | 1 | `generate`: the probability of the tokens drawn from |
//!
//! A softmax over nothing has no value: backends give NaN, zeros or the mean of all rows there, and llama.cpp never reads
//! such rows, which pad its masks. So the hidden row is not among those that are compared, and only what it must not
//! do is: change another. A check tells what the device gave in it. It is hidden in the last layer alone, since a NaN
//! among the keys and values of a layer reaches every row by `0 x NaN`, whatever the kernel.
//!
//! `store=cpy` copies rows into a view of the cache, as runtimes did before `set_rows`; into a quantised cache that has
//! been wrong on Vulkan where the view does not begin at a multiple of 16 bytes.
//!
//! They stand in this order after the other options of an id.

use super::IdError;
use super::case::Mode;
use super::decimal::Decimal;
use super::draws::Draws;
use super::options::parse_name;
use crate::named::named_enum;
use runtime::generate::sampler::Sampling;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Display;

named_enum! {
    /// How new rows get into the cache.
    pub enum Store as "store" {
        /// `ggml_set_rows`, where the build has it.
        SetRows = "set-rows",
        /// `ggml_cpy` into a view of the cache.
        Cpy = "cpy",
    }
}

/// Options of the autoregressive modes. `None` is what an id leaves out.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(default, deny_unknown_fields)]
pub struct CausalOptions {
    /// How many tokens one token sees, itself included; `None` is all before it.
    pub window: Option<u32>,
    /// The position whose token sees nothing in the last layer.
    pub hidden: Option<u32>,
    /// How new rows get into the cache; `None` is `set-rows`.
    pub store: Option<Store>,
    /// How many layers decoding leaves out; `None` is two.
    pub skip: Option<u32>,
    /// How many tokens the draft proposes; `None` is five.
    pub ahead: Option<u32>,
    /// Repeat penalty; `None` is 1.
    pub penalty: Option<Decimal>,
    /// How many tokens are drawn from; `None` is all.
    pub top_k: Option<u32>,
    /// The probability of the tokens drawn from; `None` is 1.
    pub top_p: Option<Decimal>,
}

/// Layers that `profile` leaves out where the id does not say.
const DEFAULT_SKIP: usize = 2;
/// Tokens that a draft proposes where the id does not say.
const DEFAULT_AHEAD: usize = 5;

impl CausalOptions {
    /// The names of all these options, as error messages list them.
    pub const KEYS: &str = "window, hidden, store, skip, ahead, penalty, top_k, top_p";

    /// Whether all are left at their defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// `key=value` of those that are given, in the order of ids.
    #[must_use]
    pub fn written(&self) -> Vec<String> {
        fn given<T: Display>(key: &str, value: Option<T>) -> Option<String> {
            value.map(|value| format!("{key}={value}"))
        }
        let written = [
            given("window", self.window),
            given("hidden", self.hidden),
            given("store", self.store),
            given("skip", self.skip),
            given("ahead", self.ahead),
            given("penalty", self.penalty),
            given("top_k", self.top_k),
            given("top_p", self.top_p),
        ];
        written.into_iter().flatten().collect()
    }

    /// Sets one option by its name in an id; false where the name is none of these.
    ///
    /// # Errors
    /// A value that the option does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, IdError> {
        match key {
            "window" => self.window = super::options::parse_count("window", value, 1)?,
            "hidden" => self.hidden = super::options::parse_count("hidden", value, 0)?,
            "store" => {
                self.store = Some(parse_name("store", value)?).filter(|store| *store != Store::SetRows)
            }
            "skip" => self.skip = super::options::parse_count("skip", value, 0)?,
            "ahead" => self.ahead = super::options::parse_count("ahead", value, 1)?,
            "penalty" => self.penalty = decimal("penalty", value, 0.01, 100.0)?,
            "top_k" => self.top_k = super::options::parse_count("top_k", value, 1)?,
            "top_p" => self.top_p = decimal("top_p", value, 0.000_001, 1.0)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that every option that is given means something in `mode`, so that cells with different ids do
    /// different things.
    ///
    /// # Errors
    /// The first option that means nothing.
    pub fn check(&self, mode: Mode) -> Result<(), IdError> {
        let means = |key: &str| match key {
            "window" => {
                !matches!(mode, Mode::Full | Mode::FullCache | Mode::Sparse | Mode::Unified | Mode::PromptKv)
            }
            "hidden" => mode == Mode::Prefill,
            // Positions that do not follow each other, as in masked generation, are no copy.
            "store" => {
                !matches!(mode, Mode::Full | Mode::FullCache | Mode::Sparse | Mode::Generate | Mode::Unified)
            }
            "skip" => mode == Mode::Profile,
            "ahead" => mode == Mode::Speculative,
            _ => mode == Mode::Generate,
        };
        match self.written().iter().find(|written| !means(written.split('=').next().unwrap_or_default())) {
            None => Ok(()),
            Some(written) => Err(IdError::new("option", written, format!("means nothing in mode {mode}"))),
        }
    }

    /// How many layers decoding leaves out.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skip.map_or(DEFAULT_SKIP, |n| n as usize)
    }

    /// How many tokens the draft proposes.
    #[must_use]
    pub fn proposals(&self) -> usize {
        self.ahead.map_or(DEFAULT_AHEAD, |n| n as usize)
    }

    /// How `generate` draws.
    #[must_use]
    pub fn sampling(&self, draws: &Draws) -> Sampling {
        let default = Sampling::default();
        Sampling {
            temperature: draws.temperature(),
            top_k: self.top_k.map_or(default.top_k, |n| n as usize),
            top_p: self.top_p.map_or(default.top_p, Decimal::value),
            penalty: self.penalty.map_or(default.penalty, Decimal::value),
            seed: draws.seed(),
            ..default
        }
    }
}

/// Reads a decimal number between two others.
fn decimal(field: &'static str, value: &str, least: f64, most: f64) -> Result<Option<Decimal>, IdError> {
    match value.parse::<Decimal>() {
        Ok(number) if (least..=most).contains(&number.value()) => Ok(Some(number)),
        _ => Err(IdError::new(field, value, format!("a decimal number from {least} to {most} is wanted"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> CausalOptions {
        let mut options = CausalOptions::default();
        for pair in text.split('&') {
            let (key, value) = pair.split_once('=').unwrap();
            assert!(options.set(key, value).unwrap(), "{key}");
        }
        options
    }

    #[test]
    fn options_are_written_as_they_are_read() {
        let text = "window=16&hidden=3&store=cpy&skip=1&ahead=3&penalty=1.1&top_k=40&top_p=0.95";
        let read = options(text);
        assert_eq!(read.written().join("&"), text);
        let draws = Draws { temp: Some("0.8".parse().unwrap()), seed: Some(7) };
        let sampling = read.sampling(&draws);
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.8, 40, 0.95));
        assert_eq!((sampling.penalty, sampling.seed, read.skipped(), read.proposals()), (1.1, 7, 1, 3));
        assert!(CausalOptions::default().is_default() && CausalOptions::default().written().is_empty());
        assert!(!CausalOptions::default().set("colour", "red").unwrap());
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (key, value) in
            [("window", "0"), ("ahead", "0"), ("penalty", "0"), ("top_p", "1.1"), ("top_p", "0")]
        {
            assert_eq!(CausalOptions::default().set(key, value).unwrap_err().field, key);
        }
    }

    #[test]
    fn an_option_that_means_nothing_is_refused() {
        for (text, mode, fits) in [
            ("window=8", Mode::Prefill, true),
            ("window=8", Mode::Full, false),
            ("hidden=0", Mode::Prefill, true),
            ("hidden=0", Mode::Decode, false),
            ("store=cpy", Mode::Decode, true),
            ("store=cpy", Mode::Generate, false),
            ("store=set-rows", Mode::Generate, true),
            ("skip=1", Mode::Profile, true),
            ("skip=1", Mode::Decode, false),
            ("ahead=2", Mode::Speculative, true),
            ("ahead=2", Mode::Generate, false),
            ("top_p=0.5&top_k=3", Mode::Generate, true),
            ("top_k=3", Mode::Decode, false),
        ] {
            assert_eq!(options(text).check(mode).is_ok(), fits, "{text} {mode}");
        }
    }
}
