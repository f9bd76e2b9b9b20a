//! Enums whose values have one spelling everywhere: ids, command line, JSON, reports.

/// Defines an enum together with its table of names, and derives `Display`, `FromStr`, `Serialize`,
/// `Deserialize` and `JsonSchema` from that one table. `$what` names the field in errors.
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident as $what:literal { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The one spelling of this value.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::named::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|value| value.name() == text).ok_or_else(|| {
                    $crate::named::UnknownName {
                        field: $what,
                        value: text.to_owned(),
                        known: Self::ALL.iter().map(|value| value.name()).collect::<Vec<_>>().join(", "),
                    }
                })
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let names: Vec<&str> = Self::ALL.iter().map(|value| value.name()).collect();
                schemars::json_schema!({ "type": "string", "enum": names })
            }
        }
    };
}

pub(crate) use named_enum;

/// A name that is none of the known ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} `{value}` is unknown; known: {known}")]
pub struct UnknownName {
    /// The field that was read.
    pub field: &'static str,
    /// The text that was found.
    pub value: String,
    /// The names there are, joined by commas.
    pub known: String,
}
