//! Options of the mode `sampler`: which logits a canvas holds, and how they are sampled.
//!
//! | key | values, the default first | what |
//! |---|---|---|
//! | `dist` | `steps`, `peaked`, `flat`, `uniform`, `plateau`, `one-hot`, `ties`, `inf`, `nan` | where the logits are from |
//! | `vocab` | the model's own; a number | columns of logits that are made |
//! | `canvas` | 8; a number | rows of logits that are made |
//! | `steps` | 1; a number | canvases that are made, one after the other |
//! | `u` | `draw`, `zero`, `last` | what each row is drawn by |
//!
//! `temp`, an option of [drawing](super::draws), is 1 where it is not given, and `seed` is that of all that is made.

use super::case::Mode;
use super::options::{parse_count, parse_name};
use super::{Draws, IdError};
use crate::named::named_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

named_enum! {
    /// Where the logits of a canvas are from.
    pub enum Dist as "dist" {
        /// The model's own, of the masked rows at each step of a generation.
        Steps = "steps",
        /// Made like those of a trained model: a few likely tokens before a background, sharper with every step.
        Peaked = "peaked",
        /// Noise without a peak: the entropy is high.
        Flat = "flat",
        /// All the same.
        Uniform = "uniform",
        /// Two equal maxima, and all others equal below them: a running sum in one level drifts.
        Plateau = "plateau",
        /// One token has all.
        OneHot = "one-hot",
        /// Several equal maxima among noise, and others below them by the last bit.
        Ties = "ties",
        /// Impossible tokens: most are minus infinity, and in every fourth row all.
        Inf = "inf",
        /// Rows with a NaN, or nothing but NaN, or a plus infinity, beside sound ones.
        Nan = "nan",
    }
}

named_enum! {
    /// What each row is drawn by.
    pub enum Uniform as "u" {
        /// A number from 0 up to 1, by seed, step and row.
        Draw = "draw",
        /// 0.
        Zero = "zero",
        /// The largest number of 32 bits below 1.
        Last = "last",
    }
}

/// Rows of a canvas where no number is given.
const DEFAULT_CANVAS: usize = 8;

/// The most logits of one canvas: what an accelerator's buffer holds in 4 GiB.
const MOST: u64 = 1 << 30;

/// Options of the mode `sampler`. `Default` is what an id leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerOptions {
    /// Where the logits are from.
    pub dist: Dist,
    /// Columns; `None` is the model's vocabulary.
    pub vocab: Option<u32>,
    /// Rows; `None` is eight.
    pub canvas: Option<u32>,
    /// Canvases; `None` is one.
    pub steps: Option<u32>,
    /// What each row is drawn by.
    pub u: Uniform,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self { dist: Dist::Steps, vocab: None, canvas: None, steps: None, u: Uniform::Draw }
    }
}

impl SamplerOptions {
    /// The names of these options, as error messages list them.
    pub const KEYS: &str = "dist, vocab, canvas, steps, u";

    /// Whether all are left at their defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// `key=value` of those that are not at their defaults, in the order of ids.
    #[must_use]
    pub fn written(&self) -> Vec<String> {
        let given = |key: &str, value: Option<u32>| value.map(|value| format!("{key}={value}"));
        let written = [
            (self.dist != Dist::Steps).then(|| format!("dist={}", self.dist)),
            given("vocab", self.vocab),
            given("canvas", self.canvas),
            given("steps", self.steps),
            (self.u != Uniform::Draw).then(|| format!("u={}", self.u)),
        ];
        written.into_iter().flatten().collect()
    }

    /// Sets one option by its name in an id; false where the name is none of these.
    ///
    /// # Errors
    /// A value that the option does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, IdError> {
        match key {
            "dist" => self.dist = parse_name("dist", value)?,
            "vocab" => self.vocab = parse_count("vocab", value, 2)?,
            "canvas" => self.canvas = parse_count("canvas", value, 1)?,
            "steps" => self.steps = parse_count("steps", value, 1)?,
            "u" => self.u = parse_name("u", value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that every option that is set means something in `mode` and beside the others.
    ///
    /// # Errors
    /// The first option that means nothing.
    pub fn check(&self, mode: Mode) -> Result<(), IdError> {
        let made = self.dist != Dist::Steps;
        for written in self.written() {
            let key = written.split('=').next().unwrap_or_default();
            let why = match key {
                _ if mode != Mode::Sampler => "it belongs to mode sampler",
                "vocab" | "canvas" | "steps" if !made => "the model's own steps say it",
                _ => continue,
            };
            return Err(IdError::new("option", &written, format!("means nothing in mode {mode}: {why}")));
        }
        let logits = u64::from(self.vocab.unwrap_or(0)) * self.rows() as u64;
        if logits > MOST {
            let wanted = format!("at most {MOST} logits are sampled at once");
            return Err(IdError::new("vocab x canvas", &logits.to_string(), wanted));
        }
        Ok(())
    }

    /// Rows of a canvas that is made.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.canvas.map_or(DEFAULT_CANVAS, |n| n as usize)
    }

    /// Canvases that are made.
    #[must_use]
    pub fn canvases(&self) -> usize {
        self.steps.map_or(1, |n| n as usize)
    }
}

/// What logits are multiplied by before the soft-max, as every arm is told it.
#[must_use]
pub fn inv_temp(draws: &Draws) -> f32 {
    draws.temp.map_or(1.0, |temp| (1.0 / temp.value()) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Case;

    fn checked(case: &str) -> Result<(), String> {
        case.parse::<Case>().unwrap().check().map_err(|error| error.to_string())
    }

    #[test]
    fn options_that_mean_nothing_are_refused() {
        for (case, named) in [
            ("m/f32/full?dist=ties", "dist=ties"),
            ("m/f32/sampler?vocab=64", "vocab=64"),
            ("m/f32/sampler?steps=2", "steps=2"),
            ("m/f32/sampler?dist=flat&vocab=4294967295&canvas=256", "vocab x canvas"),
            ("m/f32/generate?u=zero", "u=zero"),
            ("m/f32/sampler?attn=flash&temp=0.8", "attn=flash"),
            ("m/f32/sampler?dist=flat&n=9", "n=9"),
        ] {
            let error = checked(case).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        for case in [
            "m/f32/sampler",
            "m/f32/sampler?n=17&threads=2",
            "m/f32/sampler?temp=0.8&seed=3&u=last",
            "m/f32/sampler?dist=peaked&vocab=262144&canvas=256&steps=15",
        ] {
            assert_eq!(checked(case), Ok(()), "{case}");
        }
    }

    #[test]
    fn the_temperature_is_one_where_none_is_given() {
        let of = |options: &str| inv_temp(&options.parse::<crate::plan::Options>().unwrap().draws);
        assert_eq!([of(""), of("temp=0.5"), of("temp=0.000001"), of("temp=1000")], [1.0, 2.0, 1e6, 1e-3]);
    }
}
