//! What a node may be off, from data.

use crate::verdict::{Bound, DeviceClass, WeightClass};
use serde::Deserialize;

/// The table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLimits {
    limit: Vec<Row>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    op: Option<String>,
    weights: Option<WeightClass>,
    device: Option<DeviceClass>,
    limit: f64,
    reason: String,
}

impl NodeLimits {
    /// The table that the harness comes with.
    ///
    /// # Panics
    /// Never: a test reads the embedded table.
    #[must_use]
    pub fn embedded() -> Self {
        toml::from_str(include_str!("limits.toml")).expect("the embedded limits are valid")
    }

    /// The limit of a node of this op, whose first source has the type `source`, on such a device. Without a row
    /// nothing is allowed.
    #[must_use]
    pub fn of(&self, op: &str, source: &str, device: DeviceClass) -> Bound {
        let weights = WeightClass::of(source).ok();
        let fits = |row: &&Row| {
            row.op.as_ref().is_none_or(|of| of == op)
                && row.weights.is_none_or(|of| Some(of) == weights)
                && row.device.is_none_or(|of| of == device)
        };
        self.limit
            .iter()
            .find(fits)
            .map_or_else(|| Bound::new(0.0, "no row"), |row| Bound::new(row.limit, row.reason.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_reached_and_has_a_reason() {
        let table = NodeLimits::embedded();
        let of = |op: &str, ty: &str, device| table.of(op, ty, device).limit;
        let (cpu, gpu) = (DeviceClass::Cpu, DeviceClass::Gpu);
        assert!(of("MUL_MAT", "q4_k", cpu) > of("MUL_MAT", "f16", cpu));
        assert!(of("MUL_MAT", "f16", gpu) > of("MUL_MAT", "f32", gpu));
        assert!(of("MUL_MAT", "f32", gpu) > of("MUL_MAT", "f32", cpu));
        assert_eq!(of("MUL_MAT", "f32", cpu), of("ADD", "f32", cpu));
        assert!(of("ROPE", "f32", gpu) > of("ROPE", "f32", cpu));
        for (i, row) in table.limit.iter().enumerate() {
            assert!(row.limit > 0.0 && row.limit < 1e-2 && !row.reason.is_empty(), "row {i}");
            let hides = |earlier: &Row| {
                (earlier.op.is_none() || earlier.op == row.op)
                    && (earlier.weights.is_none() || earlier.weights == row.weights)
                    && (earlier.device.is_none() || earlier.device == row.device)
            };
            assert!(!table.limit[..i].iter().any(hides), "row {i} is never reached");
        }
    }
}
