//! Decimal numbers in ids: one spelling for one value, and a total order, which binary fractions lack.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number from 0 on with at most six decimal places.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct Decimal {
    millionths: u32,
}

/// The places after the point.
const PLACES: usize = 6;

impl Decimal {
    /// The nearest binary number.
    #[must_use]
    pub fn value(self) -> f64 {
        f64::from(self.millionths) / 1e6
    }
}

impl fmt::Display for Decimal {
    /// Without zeros at the end: `0.7`, `2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.millionths / 1_000_000, self.millionths % 1_000_000);
        f.pad(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// What a decimal number looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a number from 0 to 4294 with at most {PLACES} decimal places is wanted")]
pub struct NotDecimal;

impl FromStr for Decimal {
    type Err = NotDecimal;

    fn from_str(text: &str) -> Result<Self, NotDecimal> {
        let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(places) || places.len() > PLACES {
            return Err(NotDecimal);
        }
        let millionths: u64 = format!("{whole}{places:0<PLACES$}").parse().map_err(|_| NotDecimal)?;
        Ok(Self { millionths: u32::try_from(millionths).map_err(|_| NotDecimal)? })
    }
}

impl TryFrom<String> for Decimal {
    type Error = NotDecimal;

    fn try_from(text: String) -> Result<Self, NotDecimal> {
        text.parse()
    }
}

impl From<Decimal> for String {
    fn from(decimal: Decimal) -> Self {
        decimal.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_has_one_spelling() {
        for (text, written, value) in [
            ("0.70", "0.7", 0.7),
            ("2", "2", 2.0),
            ("1.5", "1.5", 1.5),
            ("0.001", "0.001", 0.001),
            ("0", "0", 0.0),
        ] {
            let decimal: Decimal = text.parse().unwrap();
            assert_eq!((decimal.to_string().as_str(), decimal.value()), (written, value));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "0.0000001",
            "4295",
            "nan",
            "1.2.3",
            "99999999999999999999",
        ] {
            assert_eq!(text.parse::<Decimal>(), Err(NotDecimal), "{text}");
        }
    }
}
