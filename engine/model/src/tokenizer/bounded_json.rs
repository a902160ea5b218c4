//! Parts of a JSON file that are no larger than any real one: what is more is refused while it is read, before it
//! takes memory, of which a value needs many times what its text does.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Largest normalizer, pre-tokenizer or post-processor: values and bytes of text. Real ones have a few hundred.
const COMPONENT_SIZE_MAX: usize = 64 << 10;

/// Any value, with at most [`COMPONENT_SIZE_MAX`] values and bytes of text in it.
pub(super) struct Component(pub(super) Value);

impl<'de> Deserialize<'de> for Component {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(COMPONENT_SIZE_MAX);
        Counted(&left).deserialize(deserializer).map(Self)
    }
}

/// Reads a value, and takes its size off what is left.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl Counted<'_> {
    fn take<E: Error>(self, size: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(size);
        self.0.set(left.ok_or_else(|| {
            E::custom(format_args!("a part of more than {COMPONENT_SIZE_MAX} values and bytes of text"))
        })?);
        Ok(())
    }

    fn text<E: Error>(self, text: &str) -> Result<String, E> {
        self.take(text.len())?;
        Ok(text.to_owned())
    }
}

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.take(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.text(text).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let key = self.text(&key)?;
            values.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Object(values))
    }
}

/// A list of at most `MAX` items.
pub(super) struct List<T, const MAX: usize>(pub(super) Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    items.push(item);
                }
                Ok(List(items))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// Numbers by their texts, at most `MAX`.
pub(super) struct Numbers<const MAX: usize>(pub(super) HashMap<String, u64>);

impl<'de, const MAX: usize> Deserialize<'de> for Numbers<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<const MAX: usize>;
        impl<'de, const MAX: usize> Visitor<'de> for Entries<MAX> {
            type Value = Numbers<MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX} numbers by their texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut numbers = HashMap::new();
                while let Some((text, number)) = map.next_entry()? {
                    if numbers.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    numbers.insert(text, number);
                }
                Ok(Numbers(numbers))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_what_it_was_and_not_more_than_that() {
        let text = r#"{"a":[1,-2,1.5,null,true,"x\n"],"b":{"c":{}}}"#;
        let Component(value) = serde_json::from_str(text).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        let size = |text: &str| serde_json::from_str::<Component>(text).is_ok();
        for (one, most) in
            [("0,", COMPONENT_SIZE_MAX - 2), ("[],", COMPONENT_SIZE_MAX - 2), ("\"xyz\",", COMPONENT_SIZE_MAX / 4 - 1)]
        {
            assert!(size(&format!("[{}0]", one.repeat(most))), "{one}");
            assert!(!size(&format!("[{}0]", one.repeat(most + 2))), "{one}");
        }
        assert!(!size(&format!("{{\"{}\":0}}", "k".repeat(COMPONENT_SIZE_MAX))));
    }

    #[test]
    fn lists_and_maps_have_no_more_than_they_may() {
        let list = |text| serde_json::from_str::<List<u8, 2>>(text).map(|List(list)| list).map_err(|e| e.to_string());
        assert_eq!(list("[1,2]"), Ok(vec![1, 2]));
        assert!(list("[1,2,3]").unwrap_err().contains("a list of at most 2 items"));
        let map = |text| serde_json::from_str::<Numbers<1>>(text).map(|Numbers(map)| map.len());
        assert_eq!(map(r#"{"a":1}"#).unwrap(), 1);
        assert!(map(r#"{"a":1,"b":2}"#).unwrap_err().to_string().contains("at most 1 numbers"));
    }
}
