//! Metadata values and the ordered table that holds them.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, quoted};

macro_rules! value_types {
    ($($(#[$doc:meta])* $variant:ident($rust:ty) = $id:literal, $name:literal;)*) => {
        /// One metadata value.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Value {
            $($(#[$doc])* $variant($rust),)*
            /// Several values of one type.
            Array(Array),
        }

        /// Several metadata values of one type. GGUF's nested arrays are not supported.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Array {
            $($(#[$doc])* $variant(Vec<$rust>),)*
        }

        impl Value {
            /// The number of the value's type in the file.
            pub const fn type_id(&self) -> u32 {
                match self { $(Self::$variant(_) => $id,)* Self::Array(_) => ARRAY_ID }
            }

            /// The value's type, as messages name it: `u32`, `string`, `array of i32`.
            pub const fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* Self::Array(a) => a.type_name() }
            }
        }

        impl Array {
            /// The number of the elements' type in the file.
            pub const fn type_id(&self) -> u32 {
                match self { $(Self::$variant(_) => $id,)* }
            }

            /// The array's type, as messages name it.
            pub const fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => concat!("array of ", $name),)* }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(v) => v.len(),)* }
            }
        }

        $(
            impl From<$rust> for Value {
                fn from(value: $rust) -> Self {
                    Self::$variant(value)
                }
            }

            impl From<Vec<$rust>> for Value {
                fn from(values: Vec<$rust>) -> Self {
                    Self::Array(Array::$variant(values))
                }
            }
        )*
    };
}

/// The number of the array type in the file.
pub(super) const ARRAY_ID: u32 = 9;

value_types! {
    /// Unsigned byte.
    U8(u8) = 0, "u8";
    /// Signed byte.
    I8(i8) = 1, "i8";
    /// Unsigned 16-bit integer.
    U16(u16) = 2, "u16";
    /// Signed 16-bit integer.
    I16(i16) = 3, "i16";
    /// Unsigned 32-bit integer.
    U32(u32) = 4, "u32";
    /// Signed 32-bit integer.
    I32(i32) = 5, "i32";
    /// Single-precision float.
    F32(f32) = 6, "f32";
    /// Truth value.
    Bool(bool) = 7, "bool";
    /// UTF-8 text.
    Str(String) = 8, "string";
    /// Unsigned 64-bit integer.
    U64(u64) = 10, "u64";
    /// Signed 64-bit integer.
    I64(i64) = 11, "i64";
    /// Double-precision float.
    F64(f64) = 12, "f64";
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Str(value.to_string())
    }
}

impl Array {
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => write!(f, "{v}"),
            Self::I8(v) => write!(f, "{v}"),
            Self::U16(v) => write!(f, "{v}"),
            Self::I16(v) => write!(f, "{v}"),
            Self::U32(v) => write!(f, "{v}"),
            Self::I32(v) => write!(f, "{v}"),
            Self::F32(v) => write!(f, "{v:?}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Str(v) => f.write_str(&quoted(v)),
            Self::U64(v) => write!(f, "{v}"),
            Self::I64(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v:?}"),
            Self::Array(a) => write!(f, "{} {}", a.len(), a.type_name()),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    key: String,
    value: Value,
    /// Where the value stands in the file; `None` when it was made here.
    offset: Option<u64>,
}

/// A file's metadata, in the file's order.
///
/// The typed getters ask for exactly one type, as ggml does: `u32("llama.block_count")` is an error
/// where the key is missing or holds anything else, and names the key, the value and the file. Those
/// with `opt_` give `None` for a missing key.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
    file: Option<Arc<Path>>,
}

/// Equal keys and values in equal order; where they were read from does not matter.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

macro_rules! getters {
    ($($get:ident, $opt:ident, $variant:ident => $out:ty, $name:literal, |$v:ident| $convert:expr;)*) => {
        $(
            #[doc = concat!("The ", $name, " under `key`. An error if it is missing or of another type.")]
            pub fn $get(&self, key: &str) -> Result<$out, Error> {
                self.$opt(key)?.ok_or_else(|| self.missing(key, $name))
            }

            #[doc = concat!("The ", $name, " under `key`, if there is one. An error if it is of another type.")]
            pub fn $opt(&self, key: &str) -> Result<Option<$out>, Error> {
                match self.get(key) {
                    None => Ok(None),
                    Some(Value::$variant($v)) => Ok(Some($convert)),
                    Some(other) => Err(self.wrong_type(key, other, $name)),
                }
            }
        )*
    };
}

macro_rules! array_getters {
    ($($get:ident, $opt:ident, $variant:ident => $out:ty, $name:literal;)*) => {
        $(
            #[doc = concat!("The array of ", $name, " under `key`. An error if it is missing or of another type.")]
            pub fn $get(&self, key: &str) -> Result<&[$out], Error> {
                self.$opt(key)?.ok_or_else(|| self.missing(key, concat!("array of ", $name)))
            }

            #[doc = concat!("The array of ", $name, " under `key`, if there is one. An error if it is of another type.")]
            pub fn $opt(&self, key: &str) -> Result<Option<&[$out]>, Error> {
                match self.get(key) {
                    None => Ok(None),
                    Some(Value::Array(Array::$variant(v))) => Ok(Some(v)),
                    Some(other) => Err(self.wrong_type(key, other, concat!("array of ", $name))),
                }
            }
        )*
    };
}

impl Metadata {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn for_file(file: Arc<Path>) -> Self {
        Self { file: Some(file), ..Self::default() }
    }

    /// Sets a key: a new one goes to the end, an old one keeps its place.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.put(key.into(), value.into(), None);
    }

    pub(super) fn put(&mut self, key: String, value: Value, offset: Option<u64>) {
        if let Some(&i) = self.index.get(&key) {
            self.entries[i].value = value;
            self.entries[i].offset = offset;
        } else {
            self.index.insert(key.clone(), self.entries.len());
            self.entries.push(Entry { key, value, offset });
        }
    }

    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].value)
    }

    /// Whether a key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Where in the file a key's value stands.
    pub fn offset(&self, key: &str) -> Option<u64> {
        self.index.get(key).and_then(|&i| self.entries[i].offset)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|e| (e.key.as_str(), &e.value))
    }

    getters! {
        u32, opt_u32, U32 => u32, "u32", |v| *v;
        u64, opt_u64, U64 => u64, "u64", |v| *v;
        i32, opt_i32, I32 => i32, "i32", |v| *v;
        f32, opt_f32, F32 => f32, "f32", |v| *v;
        bool, opt_bool, Bool => bool, "bool", |v| *v;
        str, opt_str, Str => &str, "string", |v| v.as_str();
    }

    array_getters! {
        array_str, opt_array_str, Str => String, "string";
        array_i32, opt_array_i32, I32 => i32, "i32";
        array_u32, opt_array_u32, U32 => u32, "u32";
        array_f32, opt_array_f32, F32 => f32, "f32";
    }

    fn missing(&self, key: &str, expected: &str) -> Error {
        self.at_file(Error::metadata(format!("missing, a {expected} is needed")).field(key))
    }

    fn wrong_type(&self, key: &str, value: &Value, expected: &str) -> Error {
        self.fault(key, format!("is of type {}, must be {expected}", value.type_name())).value(value)
    }

    /// An error about a key's value, with the file, the value and where it stands.
    pub(crate) fn fault(&self, key: &str, message: impl Into<String>) -> Error {
        self.locate(Error::metadata(message), key)
    }

    /// The same for an error of another kind.
    pub(crate) fn locate(&self, error: Error, key: &str) -> Error {
        let error = error.field(key).offset(self.offset(key));
        let error = match self.get(key) {
            Some(value) => error.value(value),
            None => error,
        };
        self.at_file(error)
    }

    fn at_file(&self, error: Error) -> Error {
        match &self.file {
            Some(file) => error.file(file),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_and_a_second_insert_replaces() {
        let mut m = Metadata::new();
        m.insert("b", 1u32);
        m.insert("a", "x");
        m.insert("b", 2u32);
        let keys: Vec<_> = m.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(keys, ["b=2", "a=\"x\""]);
    }

    #[test]
    fn getters_name_key_value_and_both_types() {
        let mut m = Metadata::new();
        m.insert("llama.block_count", 7u64);
        m.insert("tokens", vec!["a".to_string()]);
        let e = m.u32("llama.block_count").unwrap_err();
        assert_eq!(e.to_string(), "field llama.block_count: value 7: is of type u64, must be u32");
        let e = m.array_i32("tokens").unwrap_err();
        assert_eq!(
            e.to_string(),
            "field tokens: value 1 array of string: is of type array of string, must be array of i32"
        );
        assert_eq!(m.f32("x").unwrap_err().to_string(), "field x: missing, a f32 is needed");
        assert_eq!(m.opt_bool("x").unwrap(), None);
        assert_eq!(m.array_str("tokens").unwrap(), ["a"]);
    }
}
