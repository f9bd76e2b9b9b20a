//! Options of drawing tokens, which masked generation and autoregressive generation share.
//!
//! | key | values, the default first | what |
//! |---|---|---|
//! | `temp` | 0 | temperature; 0 takes the most likely token |
//! | `seed` | 0 | the seed of all draws |

use super::IdError;
use super::case::Mode;
use super::decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How tokens are drawn. `None` is what an id leaves out.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(default, deny_unknown_fields)]
pub struct Draws {
    /// Temperature; `None` is 0 and takes the most likely token.
    pub temp: Option<Decimal>,
    /// The seed of all draws; `None` is 0.
    pub seed: Option<u32>,
}

impl Draws {
    /// The names of these options, as error messages list them.
    pub const KEYS: &str = "temp, seed";

    /// Whether both are left at their defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// `key=value` of those that are given, in the order of ids.
    #[must_use]
    pub fn written(&self) -> Vec<String> {
        let temp = self.temp.map(|temp| format!("temp={temp}"));
        let seed = self.seed.map(|seed| format!("seed={seed}"));
        temp.into_iter().chain(seed).collect()
    }

    /// Sets one option by its name in an id; false where the name is none of these.
    ///
    /// # Errors
    /// A value that the option does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, IdError> {
        match key {
            "temp" => {
                let temp: Decimal = value.parse().map_err(|error: super::decimal::NotDecimal| {
                    IdError::new("temp", value, error.to_string())
                })?;
                self.temp = Some(temp).filter(|temp| *temp != Decimal::default());
            }
            "seed" => self.seed = super::options::parse_count("seed", value, 0)?.filter(|&seed| seed != 0),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that tokens are drawn in `mode`.
    ///
    /// # Errors
    /// The first option that means nothing.
    pub fn check(&self, mode: Mode) -> Result<(), IdError> {
        match self.written().first() {
            Some(written) if !matches!(mode, Mode::Generate | Mode::Sparse | Mode::Sampler) => {
                Err(IdError::new("option", written, format!("means nothing in mode {mode}")))
            }
            _ => Ok(()),
        }
    }

    /// Temperature, 0 where none is given.
    #[must_use]
    pub fn temperature(&self) -> f64 {
        self.temp.map_or(0.0, Decimal::value)
    }

    /// The seed, 0 where none is given.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed.map_or(0, u64::from)
    }
}
