//! Figures in JSON. JSON has no infinity and no NaN, and a parity report must hold both, so they are written
//! as the strings `"inf"`, `"-inf"` and `"nan"`; finite figures stay plain numbers.
//!
//! Use as `#[serde(with = "crate::figure::Figure")]`, `MaybeFigure` for an `Option<f64>`, `Figures` for a list. They are
//! types and not modules, so that the published schema knows them as well.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;
use std::borrow::Cow;

/// One figure as JSON holds it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Name(String),
}

impl From<f64> for Written {
    fn from(value: f64) -> Self {
        if value.is_finite() { Self::Number(value) } else { Self::Name(name(value).to_owned()) }
    }
}

impl Written {
    fn value<E: serde::de::Error>(self) -> Result<f64, E> {
        match self {
            Self::Number(value) => Ok(value),
            Self::Name(text) => match text.as_str() {
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                "nan" => Ok(f64::NAN),
                _ => Err(E::custom(format!("figure `{text}` is neither a number nor inf, -inf, nan"))),
            },
        }
    }
}

/// The name of a value that is not finite.
fn name(value: f64) -> &'static str {
    match (value.is_nan(), value > 0.0) {
        (true, _) => "nan",
        (false, true) => "inf",
        (false, false) => "-inf",
    }
}

/// What JSON holds of a figure, for schemas.
fn schema(absent: bool) -> Schema {
    let number = json!({ "type": "number" });
    let name = json!({ "type": "string", "enum": ["inf", "-inf", "nan"] });
    let absent = absent.then(|| json!({ "type": "null" }));
    let forms: Vec<_> = [number, name].into_iter().chain(absent).collect();
    json_schema!({ "anyOf": forms })
}

/// One figure.
pub struct Figure;

impl Figure {
    /// Writes a figure.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        Written::from(*value).serialize(serializer)
    }

    /// Reads a figure.
    ///
    /// # Errors
    /// A value that is neither a number nor one of the three names.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Written::deserialize(deserializer)?.value()
    }
}

impl JsonSchema for Figure {
    fn schema_name() -> Cow<'static, str> {
        "Figure".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schema(false)
    }
}

/// A figure that may be absent (`null`).
pub struct MaybeFigure;

impl MaybeFigure {
    /// Writes a figure or `null`.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(Written::from).serialize(serializer)
    }

    /// Reads a figure or `null`.
    ///
    /// # Errors
    /// A value that is neither a number, `null`, nor one of the three names.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<Written>::deserialize(deserializer)?.map(Written::value).transpose()
    }
}

impl JsonSchema for MaybeFigure {
    fn schema_name() -> Cow<'static, str> {
        "MaybeFigure".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schema(true)
    }
}

/// A list of figures.
pub struct Figures;

impl Figures {
    /// Writes a list of figures.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().copied().map(Written::from))
    }

    /// Reads a list of figures.
    ///
    /// # Errors
    /// An element that is neither a number nor one of the three names.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        Vec::<Written>::deserialize(deserializer)?.into_iter().map(Written::value).collect()
    }
}

impl JsonSchema for Figures {
    fn schema_name() -> Cow<'static, str> {
        "Figures".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "items": generator.subschema_for::<Figure>() })
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "crate::figure::Figure")]
        one: f64,
        #[serde(with = "crate::figure::MaybeFigure")]
        maybe: Option<f64>,
        #[serde(with = "crate::figure::Figures")]
        many: Vec<f64>,
    }

    #[test]
    fn values_json_lacks_are_written_as_names_and_read_back() {
        let holder =
            Holder { one: f64::NAN, maybe: Some(f64::INFINITY), many: vec![1e-9, f64::NEG_INFINITY] };
        let json = serde_json::to_string(&holder).unwrap();
        assert_eq!(json, r#"{"one":"nan","maybe":"inf","many":[1e-9,"-inf"]}"#);
        let back: Holder = serde_json::from_str(&json).unwrap();
        assert!(back.one.is_nan());
        assert_eq!(back.maybe, Some(f64::INFINITY));
        assert_eq!(back.many, [1e-9, f64::NEG_INFINITY]);
    }

    #[test]
    fn null_is_absent_and_other_names_are_refused() {
        let back: Holder = serde_json::from_str(r#"{"one":0,"maybe":null,"many":[]}"#).unwrap();
        assert_eq!((back.one, back.maybe), (0.0, None));
        assert!(serde_json::from_str::<Holder>(r#"{"one":"NaN?","maybe":null,"many":[]}"#).is_err());
    }
}
