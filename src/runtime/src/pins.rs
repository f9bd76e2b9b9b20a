//! Work that is to run on the CPU though the device could do it: what a bisect over placements tries.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The compute nodes of one op in one layer, written `MUL_MAT@3`. The embedding belongs to layer 0; the final norm
/// and the head are the layer after the last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub struct Unit {
    /// The layer.
    pub layer: usize,
    /// ggml's name of the op.
    pub op: String,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.op, self.layer)
    }
}

impl From<Unit> for String {
    fn from(unit: Unit) -> Self {
        unit.to_string()
    }
}

/// Text that names no unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no op and layer, as `MUL_MAT@3` is")]
pub struct UnitError(String);

impl FromStr for Unit {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (op, layer) = text.rsplit_once('@').filter(|(op, _)| !op.is_empty()).unwrap_or_default();
        let layer = layer.parse().map_err(|_| UnitError(text.to_owned()))?;
        Ok(Self { layer, op: op.to_owned() })
    }
}

impl TryFrom<String> for Unit {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

/// What is pinned to the CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pins {
    /// Every node that has a unit.
    All,
    /// The nodes of these units.
    These(BTreeSet<Unit>),
}

impl Pins {
    /// Whether the nodes of `unit` are pinned.
    #[must_use]
    pub fn contains(&self, unit: &Unit) -> bool {
        match self {
            Self::All => true,
            Self::These(units) => units.contains(unit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_written_and_read() {
        let unit = Unit { layer: 3, op: "MUL_MAT".to_owned() };
        assert_eq!(unit.to_string(), "MUL_MAT@3");
        assert_eq!("MUL_MAT@3".parse(), Ok(unit.clone()));
        let json = serde_json::to_string(&Pins::These([unit].into())).unwrap();
        assert_eq!(json, r#"{"these":["MUL_MAT@3"]}"#);
        for bad in ["", "MUL_MAT", "@3", "MUL_MAT@", "MUL_MAT@-1", "MUL_MAT@x"] {
            let error = bad.parse::<Unit>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")), "{error}");
        }
    }
}
