//! Metadata values. Integers of every width become 64-bit ones, floats become `f64`.

use super::GgufError;
use super::reader::Reader;

/// Most elements of one array; the largest known vocabulary has 262,144 tokens, merges under a million.
const ELEMENTS_MAX: u64 = 1 << 21;
/// Longest string value, bytes; chat templates have a few thousand.
const STRING_BYTES_MAX: u64 = 1 << 20;
/// Longest string in an array, bytes; tokens have under 1,000.
const ELEMENT_BYTES_MAX: u64 = 1 << 16;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Types 0, 2, 4 and 10.
    Unsigned(u64),
    /// Types 1, 3, 5 and 11.
    Signed(i64),
    /// Types 6 and 12.
    Float(f64),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    String(String),
    /// Type 9.
    Array(Array),
}

/// An array of one element type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned integers.
    Unsigned(Vec<u64>),
    /// Signed integers.
    Signed(Vec<i64>),
    /// Floats.
    Float(Vec<f64>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Strings.
    String(Vec<String>),
}

impl Array {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Unsigned(list) => list.is_empty(),
            Self::Signed(list) => list.is_empty(),
            Self::Float(list) => list.is_empty(),
            Self::Bool(list) => list.is_empty(),
            Self::String(list) => list.is_empty(),
        }
    }
}

const ARRAY: u32 = 9;

impl Value {
    pub(super) fn read(reader: &mut Reader<'_>, key: &str) -> Result<Self, GgufError> {
        let kind = reader.u32("a value's type")?;
        if kind != ARRAY {
            return Self::scalar(reader, key, kind, STRING_BYTES_MAX);
        }
        let kind = reader.u32("an array's element type")?;
        let bytes_each = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            _ => return Err(GgufError::ValueKind { key: key.to_owned(), kind }),
        };
        let count = reader.count("an array's length", bytes_each, ELEMENTS_MAX)?;
        Array::read(reader, key, kind, count).map(Self::Array)
    }

    fn scalar(reader: &mut Reader<'_>, key: &str, kind: u32, string_bytes_max: u64) -> Result<Self, GgufError> {
        let what = "a value";
        Ok(match kind {
            0 => Self::Unsigned(u8::from_le_bytes(reader.array(what)?).into()),
            1 => Self::Signed(i8::from_le_bytes(reader.array(what)?).into()),
            2 => Self::Unsigned(u16::from_le_bytes(reader.array(what)?).into()),
            3 => Self::Signed(i16::from_le_bytes(reader.array(what)?).into()),
            4 => Self::Unsigned(u32::from_le_bytes(reader.array(what)?).into()),
            5 => Self::Signed(i32::from_le_bytes(reader.array(what)?).into()),
            6 => Self::Float(f32::from_le_bytes(reader.array(what)?).into()),
            7 => Self::Bool(boolean(reader)?),
            8 => Self::String(reader.string(what, "a value's length", string_bytes_max)?),
            10 => Self::Unsigned(reader.u64(what)?),
            11 => Self::Signed(i64::from_le_bytes(reader.array(what)?)),
            12 => Self::Float(f64::from_le_bytes(reader.array(what)?)),
            _ => return Err(GgufError::ValueKind { key: key.to_owned(), kind }),
        })
    }

    /// The value as a non-negative integer.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The value as a float; integers are not converted.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The value as a truth value.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The value as text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The value as an array of strings.
    #[must_use]
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            Self::Array(Array::String(strings)) => Some(strings),
            _ => None,
        }
    }

    /// The value as an array of non-negative integers.
    #[must_use]
    pub fn as_unsigned(&self) -> Option<Vec<u64>> {
        match self {
            Self::Array(Array::Unsigned(values)) => Some(values.clone()),
            Self::Array(Array::Signed(values)) => values.iter().map(|&value| u64::try_from(value).ok()).collect(),
            _ => None,
        }
    }
}

impl Array {
    fn read(reader: &mut Reader<'_>, key: &str, kind: u32, count: usize) -> Result<Self, GgufError> {
        // INVARIANT: `count` elements fit in the rest of the file, so this allocates at most 24 times its size.
        let mut array = match kind {
            1 | 3 | 5 | 11 => Self::Signed(Vec::with_capacity(count)),
            6 | 12 => Self::Float(Vec::with_capacity(count)),
            7 => Self::Bool(Vec::with_capacity(count)),
            8 => Self::String(Vec::with_capacity(count)),
            _ => Self::Unsigned(Vec::with_capacity(count)),
        };
        for _ in 0..count {
            match (&mut array, Value::scalar(reader, key, kind, ELEMENT_BYTES_MAX)?) {
                (Self::Unsigned(values), Value::Unsigned(value)) => values.push(value),
                (Self::Signed(values), Value::Signed(value)) => values.push(value),
                (Self::Float(values), Value::Float(value)) => values.push(value),
                (Self::Bool(values), Value::Bool(value)) => values.push(value),
                (Self::String(values), Value::String(value)) => values.push(value),
                _ => return Err(GgufError::ValueKind { key: key.to_owned(), kind }),
            }
        }
        Ok(array)
    }
}

fn boolean(reader: &mut Reader<'_>) -> Result<bool, GgufError> {
    let offset = reader.offset();
    match reader.array("a truth value")? {
        [0] => Ok(false),
        [1] => Ok(true),
        [value] => Err(GgufError::Bool { offset, value }),
    }
}
