//! Strict JSON: one value, bounded in depth and size, no key twice. And a reader of objects that names the field when
//! something is wrong with it.
//!
//! `serde_json` alone keeps the last of two equal keys, so two readers of one body could see different requests; and
//! a body of a few megabytes of `[[],[],…]` would become hundreds of megabytes of values.

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::RangeInclusive;

/// The API nests six levels deep; no request needs more than this.
const DEPTH_MAX: usize = 32;
/// Values in one body. A conversation of 10,000 messages has 40,000; one value takes about 80 bytes.
const VALUES_MAX: usize = 65_536;
/// Bytes of a field's name that an error repeats.
const NAME_SHOWN_MAX: usize = 64;

/// Why a body is not a request. `param` is the path of the field, as the OpenAI API writes it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ParseRequestError {
    #[error("the request body is not valid UTF-8 (byte {position})")]
    Utf8 { position: usize },
    #[error("the request body is empty")]
    NoBody,
    #[error("the request body is not valid JSON (line {line}, column {column})")]
    Json { line: usize, column: usize },
    #[error("the request body nests deeper than {depth_max} levels", depth_max = DEPTH_MAX)]
    TooDeep,
    #[error("the request body holds more than {values_max} values", values_max = VALUES_MAX)]
    TooManyValues,
    #[error("the request body must be a JSON object")]
    NotAnObject,
    #[error("`{param}` is given twice")]
    Duplicate { param: String },
    #[error("`{param}` is missing")]
    Missing { param: String },
    #[error("`{param}` must be {wanted}")]
    Type { param: String, wanted: &'static str },
    #[error("`{param}` is not known")]
    Unknown { param: String },
    #[error("`{param}` is not supported: {reason}")]
    Unsupported { param: String, reason: &'static str },
    #[error("`{param}` must be at least {least}")]
    TooSmall { param: String, least: Bound },
    #[error("`{param}` must be at most {most}")]
    TooLarge { param: String, most: Bound },
    #[error("`{param}` must have at most {bytes_max} bytes")]
    TooLong { param: String, bytes_max: usize },
    #[error("`{param}` must have at most {entries_max} entries")]
    TooMany { param: String, entries_max: usize },
    #[error("`{param}` must not be empty")]
    Empty { param: String },
    #[error("`{param}` must be one of {allowed}")]
    NotOneOf { param: String, allowed: &'static str },
    #[error("`{param}` contradicts `{other}`")]
    Contradiction { param: String, other: &'static str },
}

/// An end of a range, written as it is: a 64-bit integer has digits that a float has not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    Integer(i64),
    Number(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(bound) => write!(f, "{bound}"),
            Self::Number(bound) => write!(f, "{bound}"),
        }
    }
}

/// Reads one JSON object.
pub(crate) fn read_object(body: &[u8]) -> Result<Fields, ParseRequestError> {
    let text = std::str::from_utf8(body).map_err(|error| ParseRequestError::Utf8 { position: error.valid_up_to() })?;
    if text.trim_ascii().is_empty() {
        return Err(ParseRequestError::NoBody);
    }
    let budget = Budget { values_left: Cell::new(VALUES_MAX), fault: RefCell::new(None) };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = Seed { budget: &budget, depth_left: DEPTH_MAX }.deserialize(&mut deserializer);
    match read.and_then(|value| deserializer.end().map(|()| value)) {
        Ok(Value::Object(map)) => Ok(Fields { path: String::new(), map }),
        Ok(_) => Err(ParseRequestError::NotAnObject),
        Err(error) => Err(budget.fault.take().unwrap_or_else(|| {
            // The library's text can hold parts of the body; its position cannot.
            ParseRequestError::Json { line: error.line(), column: error.column() }
        })),
    }
}

struct Budget {
    values_left: Cell<usize>,
    fault: RefCell<Option<ParseRequestError>>,
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    budget: &'a Budget,
    depth_left: usize,
}

impl Seed<'_> {
    fn fail<E: de::Error>(self, fault: ParseRequestError) -> E {
        self.budget.fault.replace(Some(fault));
        E::custom("refused")
    }

    /// A key given twice is named with its path: each level on the way out puts its own part in front.
    fn name_level<E>(self, level: &str, error: E) -> E {
        if let Some(ParseRequestError::Duplicate { param }) = &mut *self.budget.fault.borrow_mut() {
            let dot = if param.starts_with('[') { "" } else { "." };
            *param = format!("{level}{dot}{param}");
        }
        error
    }

    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        match self.depth_left.checked_sub(1) {
            Some(depth_left) => Ok(Self { depth_left, ..self }),
            None => Err(self.fail(ParseRequestError::TooDeep)),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.budget.values_left.get().checked_sub(1) {
            Some(left) => self.budget.values_left.set(left),
            None => return Err(self.fail(ParseRequestError::TooManyValues)),
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut values = Vec::new();
        loop {
            let read = access.next_element_seed(inner);
            match read.map_err(|error| self.name_level(&format!("[{}]", values.len()), error))? {
                Some(value) => values.push(value),
                None => break,
            }
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if map.contains_key(&name) {
                return Err(self.fail(ParseRequestError::Duplicate { param: shown(&name) }));
            }
            let read = access.next_value_seed(inner);
            let value = read.map_err(|error| self.name_level(&shown(&name), error))?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// A field's name as an error may repeat it.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control() && *c != '`').take(NAME_SHOWN_MAX).collect()
}

/// An object whose fields are taken one by one. `null` counts as absent, as in the OpenAI API.
pub(crate) struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The object at `path`, or an error that names the path.
    pub(crate) fn of(value: Value, path: String) -> Result<Self, ParseRequestError> {
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            _ => Err(ParseRequestError::Type { param: path, wanted: "an object" }),
        }
    }

    /// The full path of one of this object's fields.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { shown(name) } else { format!("{}.{}", self.path, shown(name)) }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn require(&mut self, name: &str) -> Result<Value, ParseRequestError> {
        self.take(name).ok_or_else(|| ParseRequestError::Missing { param: self.path(name) })
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ParseRequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(ParseRequestError::Type { param: self.path(name), wanted: "a boolean" }),
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ParseRequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(ParseRequestError::Type { param: self.path(name), wanted: "a string" }),
        }
    }

    /// A whole number within `range`. `5.0` is one: some languages write every number so.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ParseRequestError> {
        const BEYOND: f64 = 9_223_372_036_854_775_808.0; // 2^63: what is not below is whole, and too large.
        let Some(value) = self.take(name) else { return Ok(None) };
        let whole = match (value.as_i64(), value.as_f64()) {
            (Some(number), _) => number,
            (None, Some(number)) if number >= BEYOND => i64::MAX,
            (None, Some(number)) if number < -BEYOND => i64::MIN,
            (None, Some(number)) if number.fract() == 0.0 => number as i64,
            (None, _) => return Err(ParseRequestError::Type { param: self.path(name), wanted: "an integer" }),
        };
        let (least, most) = (*range.start(), *range.end());
        // A number beyond 64 bits is outside of every range, though its nearest integer may not be.
        let beyond = value.as_i64().is_none() && value.as_f64().is_some_and(|number| number.abs() >= BEYOND);
        if whole < least || (beyond && whole == i64::MIN) {
            Err(self.too_small(name, Bound::Integer(least)))
        } else if whole > most || (beyond && whole == i64::MAX) {
            Err(self.too_large(name, Bound::Integer(most)))
        } else {
            Ok(Some(whole))
        }
    }

    /// A number within `range`.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ParseRequestError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number < *range.start() => Err(self.too_small(name, Bound::Number(*range.start()))),
            Some(number) if number > *range.end() => Err(self.too_large(name, Bound::Number(*range.end()))),
            Some(number) => Ok(Some(number)),
            None => Err(ParseRequestError::Type { param: self.path(name), wanted: "a number" }),
        }
    }

    fn too_small(&self, name: &str, least: Bound) -> ParseRequestError {
        ParseRequestError::TooSmall { param: self.path(name), least }
    }

    fn too_large(&self, name: &str, most: Bound) -> ParseRequestError {
        ParseRequestError::TooLarge { param: self.path(name), most }
    }

    /// Nothing may be left: a field that nobody looked at would be a promise that nobody keeps. `null` promises nothing.
    pub(crate) fn finish(self) -> Result<(), ParseRequestError> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => Err(ParseRequestError::Unknown { param: self.path(name) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(body: &[u8]) -> ParseRequestError {
        read_object(body).map(|_| ()).unwrap_err()
    }

    #[test]
    fn what_is_not_one_json_object_is_refused() {
        for body in [&b""[..], b" ", b"\r\n"] {
            assert_eq!(fault(body), ParseRequestError::NoBody);
        }
        for body in [&b"{"[..], b"{}x", b"{} {}", b"{\"a\":}", b"{\"a\":NaN}", b"{\"a\":1e999}", b"{'a':1}"] {
            assert!(matches!(fault(body), ParseRequestError::Json { .. }), "{}", String::from_utf8_lossy(body));
        }
        assert!(matches!(fault(b"{\"a\":\"\\ud800\"}"), ParseRequestError::Json { .. }), "half a surrogate pair");
        assert_eq!(fault(b"{\"a\":\"\xff\"}"), ParseRequestError::Utf8 { position: 6 });
        for body in [&b"[]"[..], b"1", b"null", b"\"text\""] {
            assert_eq!(fault(body), ParseRequestError::NotAnObject);
        }
    }

    #[test]
    fn a_key_given_twice_is_refused_at_every_level() {
        assert_eq!(fault(br#"{"a":1,"a":1}"#), ParseRequestError::Duplicate { param: "a".into() });
        assert_eq!(fault(br#"{"a":[{"b":1,"\u0062":2}]}"#), ParseRequestError::Duplicate { param: "a[0].b".into() });
        let deep = br#"{"messages":[{"role":"user"},{"content":[{"text":"x","text":"y"}]}]}"#;
        assert_eq!(fault(deep), ParseRequestError::Duplicate { param: "messages[1].content[0].text".into() });
        assert_eq!(fault(br#"{"a":[[{"b":1,"b":1}]]}"#), ParseRequestError::Duplicate { param: "a[0][0].b".into() });
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(read_object(nested(DEPTH_MAX - 1).as_bytes()).is_ok());
        assert_eq!(fault(nested(DEPTH_MAX).as_bytes()), ParseRequestError::TooDeep);
        assert_eq!(fault(nested(500_000).as_bytes()), ParseRequestError::TooDeep);
        let many = |count: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(count - 1));
        assert!(read_object(many(VALUES_MAX - 2).as_bytes()).is_ok());
        assert_eq!(fault(many(VALUES_MAX - 1).as_bytes()), ParseRequestError::TooManyValues);
    }

    #[test]
    fn numbers_outside_their_range_are_named() {
        let integer = |text: &str| {
            read_object(format!("{{\"n\":{text}}}").as_bytes()).and_then(|mut fields| fields.integer("n", 1..=10))
        };
        let too_small = Err(ParseRequestError::TooSmall { param: "n".into(), least: Bound::Integer(1) });
        let too_large = Err(ParseRequestError::TooLarge { param: "n".into(), most: Bound::Integer(10) });
        let wrong_type = Err(ParseRequestError::Type { param: "n".into(), wanted: "an integer" });
        for text in ["10", "10.0", "1e1"] {
            assert_eq!(integer(text), Ok(Some(10)), "{text}");
        }
        assert_eq!(integer("null"), Ok(None));
        for text in ["0", "-1", "-9223372036854775808", "-92233720368547758080", "-1e300"] {
            assert_eq!(integer(text), too_small, "{text}");
        }
        for text in ["11", "18446744073709551615", "18446744073709551616", "1e300"] {
            assert_eq!(integer(text), too_large, "{text}");
        }
        for text in ["1.5", "1e-9", "\"1\"", "true", "[1]", "{}"] {
            assert_eq!(integer(text), wrong_type, "{text}");
        }
    }

    #[test]
    fn the_ends_of_64_bits_are_kept_and_named_digit_by_digit() {
        let seed = |text: &str| {
            let body = format!("{{\"seed\":{text}}}");
            read_object(body.as_bytes()).and_then(|mut fields| fields.integer("seed", i64::MIN..=i64::MAX))
        };
        assert_eq!(seed("9223372036854775807"), Ok(Some(i64::MAX)));
        assert_eq!(seed("-9223372036854775808"), Ok(Some(i64::MIN)));
        for text in ["9223372036854775808", "18446744073709551615", "1e19", "9.3e18"] {
            assert_eq!(seed(text).unwrap_err().to_string(), "`seed` must be at most 9223372036854775807", "{text}");
        }
        assert_eq!(seed("-1e19").unwrap_err().to_string(), "`seed` must be at least -9223372036854775808");
    }

    #[test]
    fn what_nobody_took_is_unknown() {
        let mut fields = read_object(br#"{"a":true,"b":null,"c":1}"#).unwrap();
        assert_eq!(fields.boolean("a"), Ok(Some(true)));
        assert_eq!(fields.finish(), Err(ParseRequestError::Unknown { param: "c".into() }));
        assert_eq!(read_object(br#"{"b":null}"#).unwrap().finish(), Ok(()), "null counts as absent");
        let long = format!("{{\"{}\":1}}", "x`\\u0000".repeat(1000));
        let error = read_object(long.as_bytes()).unwrap().finish().unwrap_err();
        assert_eq!(error, ParseRequestError::Unknown { param: "x".repeat(NAME_SHOWN_MAX) });
    }
}
