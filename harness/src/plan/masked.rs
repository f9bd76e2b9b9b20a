//! Options of the masked-diffusion modes `sparse` and `generate`, and what they mean to the runtime.
//!
//! | key | values, the default first | what |
//! |---|---|---|
//! | `cache` | `none`, `full`, `sparse` | `generate`: what steps take from the K/V cache |
//! | `keep` | 0, … | sparse: steps for which a changed position stays active after the first |
//! | `refresh` | 0, … | sparse: a full forward every so many steps; 0 is never after the first |
//! | `remask` | `low-confidence`, `entropy-exit`, `maskgit-plus`, `top-k-margin`, `random` | which positions go first |
//! | `entropy` | 1.5 | `entropy-exit`: the threshold in nats |
//! | `schedule` | the model's own; `linear`, `cosine`, `timestep`, `block` | how many go at each step |
//! | `eps` | 0.001 | `timestep`: the last time |
//! | `block` | 8 | `block`: positions of a block |
//!
//! They stand in this order after the other options of an id.

use super::IdError;
use super::case::Mode;
use super::decimal::Decimal;
use super::options::{parse_name, parse_whole};
use crate::named::named_enum;
use runtime::generate::masked::{self, CacheUse, Sparse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

named_enum! {
    /// What the steps of a generation take from the K/V cache.
    pub enum StepCache as "cache" {
        /// Nothing: every step is a forward without a cache.
        None = "none",
        /// Every step is a full forward through the cache.
        Full = "full",
        /// Only the active set is computed anew.
        Sparse = "sparse",
    }
}

named_enum! {
    /// Which masked positions go first.
    pub enum Remask as "remask" {
        /// Those whose candidate has the highest probability.
        LowConfidence = "low-confidence",
        /// All whose entropy is under a threshold.
        EntropyExit = "entropy-exit",
        /// Another name for `low-confidence`.
        MaskgitPlus = "maskgit-plus",
        /// Those whose best token leads the second the most.
        TopKMargin = "top-k-margin",
        /// Any, by seed.
        Random = "random",
    }
}

named_enum! {
    /// How many masks go at each step.
    pub enum Schedule as "schedule" {
        /// Equal counts.
        Linear = "linear",
        /// Few at first.
        Cosine = "cosine",
        /// Dream's own.
        Timestep = "timestep",
        /// LLaDA's blocks from left to right.
        Block = "block",
    }
}

/// Positions of a block where none are named.
const DEFAULT_BLOCK: usize = 8;

/// Options of the masked-diffusion modes. `Default` is what an id leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MaskedOptions {
    /// What the steps of `generate` take from the cache.
    pub cache: StepCache,
    /// Steps for which a changed position stays active after the first.
    pub keep: u32,
    /// A full forward every so many steps; 0 is never after the first.
    pub refresh: u32,
    /// Which positions go first.
    pub remask: Remask,
    /// The threshold of `entropy-exit` in nats; `None` is the usual one.
    pub entropy: Option<Decimal>,
    /// How many go at each step; `None` is the model's own.
    pub schedule: Option<Schedule>,
    /// The last time of `timestep`; `None` is the usual one.
    pub eps: Option<Decimal>,
    /// Positions of a block of `block`; `None` is eight.
    pub block: Option<u32>,
}

impl Default for MaskedOptions {
    fn default() -> Self {
        Self {
            cache: StepCache::None,
            keep: 0,
            refresh: 0,
            remask: Remask::LowConfidence,
            entropy: None,
            schedule: None,
            eps: None,
            block: None,
        }
    }
}

impl MaskedOptions {
    /// Whether all are left at their defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// `key=value` of those that are not at their defaults, in the order of ids.
    pub fn written(&self) -> Vec<String> {
        let default = Self::default();
        let changed = |key: &str, changed: bool, value: &dyn std::fmt::Display| {
            changed.then(|| format!("{key}={value}"))
        };
        fn given<T: std::fmt::Display>(key: &str, value: Option<T>) -> Option<String> {
            value.map(|value| format!("{key}={value}"))
        }
        let written = [
            changed("cache", self.cache != default.cache, &self.cache),
            changed("keep", self.keep != default.keep, &self.keep),
            changed("refresh", self.refresh != default.refresh, &self.refresh),
            changed("remask", self.remask != default.remask, &self.remask),
            given("entropy", self.entropy),
            given("schedule", self.schedule),
            given("eps", self.eps),
            given("block", self.block),
        ];
        written.into_iter().flatten().collect()
    }

    /// The names of all these options, as error messages list them.
    pub const KEYS: &str = "cache, keep, refresh, remask, entropy, schedule, eps, block";

    /// Sets one option by its name in an id; false where the name is none of these.
    ///
    /// # Errors
    /// A value that the option does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, IdError> {
        match key {
            "cache" => self.cache = parse_name("cache", value)?,
            "keep" => self.keep = parse_whole("keep", value, 0)?,
            "refresh" => self.refresh = parse_whole("refresh", value, 0)?,
            "remask" => self.remask = parse_name("remask", value)?,
            "entropy" => self.entropy = Some(parse_decimal("entropy", value)?),
            "schedule" => self.schedule = Some(parse_name("schedule", value)?),
            "eps" => self.eps = Some(parse_decimal("eps", value)?),
            "block" => self.block = Some(parse_whole("block", value, 0)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that every option that is set means something in `mode` and beside the others, so that cells with
    /// different ids do different things.
    ///
    /// # Errors
    /// The first option that means nothing.
    pub fn check(&self, mode: Mode) -> Result<(), IdError> {
        let generates = matches!(mode, Mode::Generate | Mode::Sparse);
        let sparse = mode == Mode::Sparse || self.cache == StepCache::Sparse;
        let means = |key: &str| match key {
            "cache" => mode == Mode::Generate,
            "keep" | "refresh" => generates && sparse,
            "entropy" => generates && self.remask == Remask::EntropyExit,
            "eps" => generates && self.schedule == Some(Schedule::Timestep),
            "block" => generates && self.schedule == Some(Schedule::Block) && self.block != Some(0),
            _ => generates,
        };
        for written in self.written() {
            let (key, value) = written.split_once('=').unwrap_or((&written, ""));
            if !means(key) {
                let beside = match key {
                    "entropy" => "it wants remask=entropy-exit",
                    "eps" => "it wants schedule=timestep",
                    "block" => "it wants schedule=block, and at least 1",
                    "keep" | "refresh" => "it wants mode sparse, or generate with cache=sparse",
                    _ => "it belongs to masked generation",
                };
                let wanted = format!("means nothing in mode {mode} as it stands here: {beside}");
                return Err(IdError::new("option", &format!("{key}={value}"), wanted));
            }
        }
        if self.eps() >= 1.0 {
            return Err(IdError::new("eps", &self.eps().to_string(), "a number under 1 is wanted"));
        }
        Ok(())
    }

    fn eps(&self) -> f64 {
        self.eps.map_or(masked::Schedule::EPS, Decimal::value)
    }

    /// The schedule; `own` is the model's.
    #[must_use]
    pub fn schedule(&self, own: masked::Schedule) -> masked::Schedule {
        match self.schedule {
            None => own,
            Some(Schedule::Linear) => masked::Schedule::Linear,
            Some(Schedule::Cosine) => masked::Schedule::Cosine,
            Some(Schedule::Timestep) => masked::Schedule::Timestep { eps: self.eps() },
            Some(Schedule::Block) => {
                masked::Schedule::Block { length: self.block.map_or(DEFAULT_BLOCK, |n| n as usize) }
            }
        }
    }

    /// The remasking rule.
    #[must_use]
    pub fn remasking(&self) -> masked::Remasking {
        match self.remask {
            Remask::LowConfidence => masked::Remasking::LowConfidence,
            Remask::EntropyExit => masked::Remasking::EntropyExit {
                threshold: self.entropy.map_or(masked::Remasking::THRESHOLD, Decimal::value),
            },
            Remask::MaskgitPlus => masked::Remasking::MaskgitPlus,
            Remask::TopKMargin => masked::Remasking::TopKMargin,
            Remask::Random => masked::Remasking::Random,
        }
    }

    /// What steps take from the cache in `mode`.
    #[must_use]
    pub fn cache_use(&self, mode: Mode) -> CacheUse {
        let sparse =
            Sparse { keep_active: self.keep as usize, refresh: self.refresh as usize, ..Sparse::default() };
        match (mode, self.cache) {
            (Mode::Sparse, _) | (_, StepCache::Sparse) => CacheUse::Sparse(sparse),
            (_, StepCache::Full) => CacheUse::Full,
            (_, StepCache::None) => CacheUse::None,
        }
    }
}

fn parse_decimal(field: &'static str, value: &str) -> Result<Decimal, IdError> {
    value.parse().map_err(|error: super::decimal::NotDecimal| IdError::new(field, value, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Case;

    fn options(text: &str) -> MaskedOptions {
        format!("m/f32/generate?{text}").parse::<Case>().unwrap().options.masked
    }

    #[test]
    fn ids_hold_them_in_a_fixed_order_after_the_others() {
        let text = "m/f16/generate?kv=f16&cache=sparse&keep=1&refresh=4&remask=entropy-exit&entropy=0.5\
                    &schedule=block&block=16&temp=0.7&seed=3";
        let turned: Vec<&str> = text.split_once('?').unwrap().1.split('&').rev().collect();
        let case: Case = format!("m/f16/generate?{}", turned.join("&")).parse().unwrap();
        assert_eq!(case.to_string(), text);
        let defaults = "m/f16/sparse?keep=0&cache=none&temp=0.0&remask=low-confidence&seed=0";
        assert_eq!(defaults.parse::<Case>().unwrap().to_string(), "m/f16/sparse");
    }

    #[test]
    fn they_become_what_the_runtime_takes() {
        let found = options("remask=entropy-exit&schedule=timestep&eps=0.01");
        assert_eq!(found.remasking(), masked::Remasking::EntropyExit { threshold: 1.5 });
        assert_eq!(found.schedule(masked::Schedule::Cosine), masked::Schedule::Timestep { eps: 0.01 });
        assert_eq!(found.cache_use(Mode::Generate), CacheUse::None);
        assert_eq!(options("").schedule(masked::Schedule::Cosine), masked::Schedule::Cosine);
        let sparse = CacheUse::Sparse(Sparse { keep_active: 2, refresh: 4, predecessors: true });
        assert_eq!(options("keep=2&refresh=4").cache_use(Mode::Sparse), sparse);
        assert_eq!(options("cache=sparse&keep=2&refresh=4").cache_use(Mode::Generate), sparse);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (mode, text) in [
            (Mode::Full, "keep=1"),
            (Mode::Generate, "keep=1"),
            (Mode::Generate, "cache=full&refresh=4"),
            (Mode::Sparse, "cache=sparse"),
            (Mode::Generate, "entropy=1"),
            (Mode::Generate, "eps=0.1"),
            (Mode::Generate, "schedule=block&block=0"),
            (Mode::Generate, "schedule=timestep&eps=1"),
        ] {
            assert!(options(text).check(mode).is_err(), "{mode} {text}");
        }
        for (mode, text) in [
            (Mode::Sparse, "keep=1&refresh=4&remask=random"),
            (Mode::Generate, "cache=sparse&keep=1&schedule=timestep&eps=0"),
            (Mode::Full, ""),
        ] {
            assert_eq!(options(text).check(mode), Ok(()), "{mode} {text}");
        }
    }

    #[test]
    fn wrong_values_are_named() {
        for (text, field) in [
            ("keep=-1", "keep"),
            ("temp=warm", "temp"),
            ("remask=none", "remask"),
            ("schedule=fast", "schedule"),
            ("cache=yes", "cache"),
        ] {
            let error = format!("m/f32/generate?{text}").parse::<Case>().unwrap_err();
            assert_eq!(error.field, field);
        }
    }
}
