//! The fields of one line, each with its value, so that an error can name both.

use super::CorpusError;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// Errors show so many characters of a value.
const SHOWN: usize = 80;

/// What is wrong with a line, before it is known where it stands.
#[derive(Debug)]
pub(super) struct Problem {
    field: String,
    value: String,
    why: String,
}

impl Problem {
    /// A problem of a field and its value.
    pub(super) fn new(field: impl Into<String>, value: impl fmt::Display, why: impl fmt::Display) -> Self {
        let value = value.to_string();
        let mut shown: String = value.chars().take(SHOWN).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        Self { field: field.into(), value: shown, why: why.to_string() }
    }

    /// The error, with its place.
    pub(super) fn at(self, file: &str, line: usize) -> CorpusError {
        CorpusError::Line { file: file.to_owned(), line, field: self.field, value: self.value, why: self.why }
    }
}

/// The fields of one JSON object in their order; a name that comes twice is an error.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, Value)>);

impl Fields {
    /// Reads a line that holds one object with no fields but those of `known`.
    pub(super) fn parse(line: &[u8], known: &[&str]) -> Result<Self, Problem> {
        let text = std::str::from_utf8(line)
            .map_err(|error| Problem::new("line", String::from_utf8_lossy(line), error))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let fields = json
            .deserialize_map(Object)
            .and_then(|fields| json.end().map(|()| fields))
            // Its line would be 1, whatever line of the file this is.
            .map_err(|error| {
                let why = error.to_string();
                let why = why.split(" at line ").next().unwrap_or_default();
                Problem::new("line", text.trim(), format!("{why}, at column {}", error.column()))
            })?;
        for (index, (name, value)) in fields.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let why = format!("there is no such field; known: {}", known.join(", "));
                return Err(Problem::new(name, value, why));
            }
            if fields.0[..index].iter().any(|(other, _)| other == name) {
                return Err(Problem::new(name, value, "the field is given twice"));
            }
        }
        Ok(fields)
    }

    /// Takes a field out, if it is there. `null` is a value, and of the wrong type.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Problem> {
        let Some(index) = self.0.iter().position(|(field, _)| field == name) else { return Ok(None) };
        let (_, value) = self.0.remove(index);
        let shown = value.to_string();
        T::deserialize(value).map(Some).map_err(|error| Problem::new(name, shown, error))
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object, one item a line")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some(entry) = map.next_entry()? {
            fields.0.push(entry);
        }
        Ok(fields)
    }
}
