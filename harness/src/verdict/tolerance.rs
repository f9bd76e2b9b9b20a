//! The table of tolerances: which limits a cell gets, from data.

use super::{Bound, Limits};
use crate::capture::DeviceKind;
use crate::named::named_enum;
use crate::plan::{Attention, Case, KvType, Mode};
use serde::{Deserialize, Serialize};

named_enum! {
    /// Weight types that carry the same noise.
    pub enum WeightClass as "weights" {
        /// 32-bit floats.
        F32 = "f32",
        /// 16-bit floats, F16 and BF16.
        Half = "half",
        /// Block formats of 8 bits and fewer.
        Quantised = "quantised",
    }
}

named_enum! {
    /// Devices that carry the same noise.
    pub enum DeviceClass as "device" {
        /// The CPU backend, and accelerators that compute in its memory.
        Cpu = "cpu",
        /// GPUs, integrated ones included.
        Gpu = "gpu",
    }
}

/// A table of tolerances that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToleranceError {
    /// The TOML is malformed or has unknown fields.
    #[error("tolerances: {0}")]
    Malformed(String),
    /// A limit or factor is not a positive number.
    #[error("tolerances: {table} is {value}, expected a positive number")]
    NotPositive {
        /// The table of the row.
        table: &'static str,
        /// The value.
        value: String,
    },
    /// No row matches a cell.
    #[error("tolerances: no row of {table} matches {case}")]
    NoRow {
        /// The table.
        table: &'static str,
        /// The case.
        case: String,
    },
    /// The weight type of a case has no class.
    #[error("weights `{0}`: neither f32, f16, bf16 nor a block format")]
    UnknownWeights(String),
}

impl DeviceClass {
    /// The class of a kind of device.
    #[must_use]
    pub fn of(kind: DeviceKind) -> Self {
        if kind.is_gpu() { Self::Gpu } else { Self::Cpu }
    }
}

impl WeightClass {
    /// The class of a weight type as case ids name it, in either case.
    ///
    /// # Errors
    /// A name that is no float type and does not begin like a block format.
    pub fn of(weights: &str) -> Result<Self, ToleranceError> {
        let name = weights.to_ascii_lowercase();
        let block = ["q", "iq", "tq", "mxfp", "nvfp"].iter().any(|prefix| {
            name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        match name.as_str() {
            "f32" => Ok(Self::F32),
            "f16" | "bf16" => Ok(Self::Half),
            _ if block => Ok(Self::Quantised),
            _ => Err(ToleranceError::UnknownWeights(weights.to_owned())),
        }
    }
}

/// What the table is asked by.
#[derive(Clone, Debug)]
pub struct Key<'a> {
    case: &'a Case,
    weights: WeightClass,
    kind: DeviceKind,
}

impl<'a> Key<'a> {
    /// The key of a case on a device of some kind.
    ///
    /// # Errors
    /// A weight type that has no class.
    pub fn new(case: &'a Case, kind: DeviceKind) -> Result<Self, ToleranceError> {
        Ok(Self { case, weights: WeightClass::of(&case.weights)?, kind })
    }

    fn device(&self) -> DeviceClass {
        DeviceClass::of(self.kind)
    }

    /// Whether work is meant to stay on the CPU.
    fn leaves_work_on_cpu(&self) -> bool {
        self.kind == DeviceKind::Accelerator || self.case.options.layers.is_some()
    }
}

/// A table of tolerances.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerances {
    logits_nmse: Vec<LimitRow>,
    worst_row: Factor,
    kv_nmse: Vec<LimitRow>,
    kv_stored: Vec<FactorRow>,
    fallback: Count,
    real_mismatches: Count,
}

/// A limit for the cells that match.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitRow {
    /// The model's name, or what it contains between two `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    weights: Option<WeightClass>,
    kv: Option<KvType>,
    attn: Option<Attention>,
    mode: Option<Mode>,
    device: Option<DeviceClass>,
    limit: f64,
    reason: String,
}

/// A factor for the K/V types that match.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FactorRow {
    kv: Option<KvType>,
    factor: f64,
    reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Factor {
    factor: f64,
    reason: String,
}

/// A number of things; its reason is for whoever reads the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    limit: u64,
    #[serde(rename = "reason")]
    _reason: String,
}

/// A row's field against a cell's value: a field that is left out matches everything.
fn matches<T: PartialEq>(field: Option<T>, value: T) -> bool {
    field.is_none_or(|field| field == value)
}

/// Whether a model's name is `of`, or contains what `of` has between two `*`.
fn is_named(name: &str, of: &str) -> bool {
    match of.strip_prefix('*').and_then(|rest| rest.strip_suffix('*')) {
        Some(part) => name.contains(part),
        None => name == of,
    }
}

impl LimitRow {
    fn matches(&self, key: &Key<'_>) -> bool {
        let options = &key.case.options;
        let model = self.model.as_ref().is_none_or(|of| is_named(&key.case.model, of));
        model
            && matches(self.weights, key.weights)
            && matches(self.kv, options.kv)
            && matches(self.attn, options.attn)
            && matches(self.mode, key.case.mode)
            && matches(self.device, key.device())
    }
}

impl Tolerances {
    /// The table that the harness starts from.
    ///
    /// # Panics
    /// Never: a test reads the embedded table.
    pub fn embedded() -> Self {
        include_str!("tolerances.toml").parse().expect("the embedded tolerances are valid")
    }

    /// The limits of a cell.
    ///
    /// # Errors
    /// A table without a row for this cell.
    pub fn limits(&self, key: &Key<'_>) -> Result<Limits, ToleranceError> {
        let row = |rows: &[LimitRow], table| {
            let found = rows.iter().find(|row| row.matches(key)).cloned();
            found.ok_or_else(|| ToleranceError::NoRow { table, case: key.case.to_string() })
        };
        let logits = row(&self.logits_nmse, "logits_nmse")?;
        let kv = row(&self.kv_nmse, "kv_nmse")?;
        let stored = self
            .kv_stored
            .iter()
            .find(|row| matches(row.kv, key.case.options.kv))
            .ok_or_else(|| ToleranceError::NoRow { table: "kv_stored", case: key.case.to_string() })?;
        let row_reason = format!("{} x logits: {}", self.worst_row.factor, self.worst_row.reason);
        let quantised = matches!(key.case.options.kv, KvType::Q8_0 | KvType::Q4_0);
        let before = quantised.then(|| Bound::new(kv.limit, kv.reason.clone()));
        let kv_reason = match stored.factor {
            1.0 => kv.reason,
            factor => format!("{}; {factor} x: {}", kv.reason, stored.reason),
        };
        Ok(Limits {
            row_nmse: Bound::new(self.worst_row.factor * logits.limit, row_reason),
            logits_nmse: Bound::new(logits.limit, logits.reason),
            kv_nmse: Some(Bound::new(stored.factor * kv.limit, kv_reason)),
            kv_before_storing_nmse: before,
            kl_mean: None,
            max_real_mismatches: self.real_mismatches.limit,
            fallback_nodes: (!key.leaves_work_on_cpu()).then_some(self.fallback.limit),
        })
    }

    /// What storing in a cache of type `kv` does to the limit of K/V; 1 where the table does not say.
    #[must_use]
    pub fn stored_factor(&self, kv: KvType) -> f64 {
        self.kv_stored.iter().find(|row| matches(row.kv, kv)).map_or(1.0, |row| row.factor)
    }

    /// The table as TOML, without the comments it was read with.
    ///
    /// # Panics
    /// Never: it is plain data.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain data")
    }

    /// Checks that every limit and factor is a positive number.
    ///
    /// # Errors
    /// The first that is not.
    pub(crate) fn check(&self) -> Result<(), ToleranceError> {
        let limits = |table, rows: &[LimitRow]| rows.iter().map(|r| (table, r.limit)).collect::<Vec<_>>();
        let mut values = limits("logits_nmse", &self.logits_nmse);
        values.extend(limits("kv_nmse", &self.kv_nmse));
        values.extend(self.kv_stored.iter().map(|row| ("kv_stored", row.factor)));
        values.push(("worst_row", self.worst_row.factor));
        match values.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((table, value)) => Err(ToleranceError::NotPositive { table, value: value.to_string() }),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for Tolerances {
    type Err = ToleranceError;

    fn from_str(text: &str) -> Result<Self, ToleranceError> {
        let table: Self = toml::from_str(text).map_err(|e| ToleranceError::Malformed(e.to_string()))?;
        table.check()?;
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: &[DeviceKind] = DeviceKind::ALL;

    fn limits(case: &str, kind: DeviceKind) -> Limits {
        let case: Case = case.parse().unwrap();
        Tolerances::embedded().limits(&Key::new(&case, kind).unwrap()).unwrap()
    }

    /// Logits, worst row, K/V.
    fn figures(case: &str, kind: DeviceKind) -> [f64; 3] {
        let limits = limits(case, kind);
        [limits.logits_nmse.limit, limits.row_nmse.limit, limits.kv_nmse.unwrap().limit]
    }

    fn close(found: [f64; 3], wanted: [f64; 3]) {
        for (f, w) in found.iter().zip(wanted) {
            assert!((f - w).abs() <= 1e-12 * w, "{found:?} {wanted:?}");
        }
    }

    #[test]
    fn a_row_may_be_of_some_models_only() {
        assert!(is_named("gen-gemma3", "*gemma3*") && is_named("gen-gemma3", "gen-gemma3"));
        assert!(!is_named("gen-llama", "*gemma3*") && !is_named("gen-gemma3", "gemma3"));
        let limit = |case: &str| {
            let case: Case = case.parse().unwrap();
            let key = Key::new(&case, DeviceKind::Cpu).unwrap();
            Tolerances::embedded().limits(&key).unwrap().logits_nmse.limit
        };
        assert!(limit("gen-gemma3/f32/prefill") > limit("gen-llama/f32/prefill"));
        assert_eq!(limit("gen-gemma3/q8_0/prefill"), limit("gen-llama/q8_0/prefill"));
    }

    #[test]
    fn the_limits_that_ship() {
        use DeviceKind::{Cpu, Gpu, IntegratedGpu};
        close(figures("m/f32/full", Cpu), [1e-10, 1e-9, 1e-10]);
        close(figures("m/f32/full", Gpu), [3e-5, 3e-4, 3e-5]);
        close(figures("m/f32/full", IntegratedGpu), [3e-5, 3e-4, 3e-5]);
        close(figures("m/F16/decode", Cpu), [1e-4, 1e-3, 1e-4]);
        close(figures("m/bf16/decode", Gpu), [1e-4, 1e-3, 1e-4]);
        close(figures("m/q4_k_m/prefill", Gpu), [3e-3, 3e-2, 1e-2]);
        close(figures("m/q4_k_m/prefill?kv=q8_0", Gpu), [3e-3, 3e-2, 1e-1]);
        close(figures("m/Q4_1/prefill?kv=q4_0", Cpu), [3e-2, 3e-1, 1e-1]);
        close(figures("m/f32/prefill?kv=q8_0", Cpu), [1e-3, 1e-2, 1e-3]);
        close(figures("m/f16/prefill?kv=q4_0", Gpu), [1e-2, 1e-1, 2e-2]);
    }

    #[test]
    fn a_quantised_cache_is_held_to_limits_before_and_after_it_stores() {
        let before =
            |case: &str| limits(case, DeviceKind::Gpu).kv_before_storing_nmse.map(|bound| bound.limit);
        assert_eq!(before("m/f32/decode?kv=q8_0"), Some(1e-4));
        assert_eq!(before("m/q4_k_m/decode?kv=q4_0"), Some(1e-2));
        assert_eq!(before("m/f32/decode?kv=f16"), None);
    }

    #[test]
    fn every_cell_finds_its_limits_with_reasons() {
        for weights in ["f32", "f16", "bf16", "q8_0", "iq4_xs", "mxfp4", "tq1_0"] {
            for (mode, (kv, attn)) in Mode::ALL.iter().flat_map(|m| {
                KvType::ALL
                    .iter()
                    .flat_map(|k| Attention::ALL.iter().map(move |a| (k, a)))
                    .map(move |ka| (m, ka))
            }) {
                for &kind in KINDS {
                    let limits = limits(&format!("m/{weights}/{mode}?kv={kv}&attn={attn}"), kind);
                    assert!(limits.row_nmse.limit > limits.logits_nmse.limit);
                    assert!(!limits.logits_nmse.reason.is_empty() && !limits.row_nmse.reason.is_empty());
                }
            }
        }
    }

    #[test]
    fn work_meant_for_the_cpu_is_no_fallback() {
        assert_eq!(limits("m/f32/full", DeviceKind::Gpu).fallback_nodes, Some(0));
        assert_eq!(limits("m/f32/full?layers=1", DeviceKind::Gpu).fallback_nodes, None);
        assert_eq!(limits("m/f32/full", DeviceKind::Accelerator).fallback_nodes, None);
    }

    #[test]
    fn faulty_tables_are_refused() {
        let table = include_str!("tolerances.toml");
        let read = |from: &str, to: &str| {
            assert!(table.contains(from), "{from}");
            table.replacen(from, to, 1).parse::<Tolerances>().unwrap_err().to_string()
        };
        assert!(read("weights = \"half\"", "weight = \"half\"").contains("weight"));
        assert!(read("weights = \"half\"", "weights = \"f8\"").contains("f8"));
        assert!(read("limit = 1e-4", "limit = nan").contains("NaN"));
        assert!(read("limit = 1e-4", "limit = inf").contains("inf"));
        assert!(read("factor = 10", "factor = 0").contains("worst_row"));
        assert!(read("reason = \"products in 16 bits", "because = \"").contains("because"));
    }

    #[test]
    fn weights_without_a_class_are_refused() {
        for name in ["", "q", "quantised", "f64", "mixed"] {
            assert!(WeightClass::of(name).is_err(), "{name}");
        }
    }
}
