//! Fields of a gate file that hold one value or a list of them.

use serde::de::value::{BoolDeserializer, F64Deserializer, I64Deserializer, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// One value or a list; none where the field is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Many<T>(pub(super) Vec<T>);

impl<T> Default for Many<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMore<T> {
            type Value = Many<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Many<T>, E> {
                let one: StrDeserializer<'_, E> = text.into_deserializer();
                Ok(Many(vec![T::deserialize(one)?]))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Many<T>, E> {
                let one: I64Deserializer<E> = value.into_deserializer();
                Ok(Many(vec![T::deserialize(one)?]))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Many<T>, E> {
                let one: F64Deserializer<E> = value.into_deserializer();
                Ok(Many(vec![T::deserialize(one)?]))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Many<T>, E> {
                let one: BoolDeserializer<E> = value.into_deserializer();
                Ok(Many(vec![T::deserialize(one)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Many<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    all.push(one);
                }
                if all.is_empty() {
                    return Err(A::Error::custom("an empty list; leave the field out instead"));
                }
                Ok(Many(all))
            }
        }

        deserializer.deserialize_any(OneOrMore(PhantomData))
    }
}

/// A value of an option, in the spelling of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scalar(pub(super) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
        }

        deserializer.deserialize_any(Any)
    }
}
