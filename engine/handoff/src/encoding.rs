//! Bytes of numbers and lists: fixed widths, little endian, lengths first. One value has one encoding.

/// Why bytes are no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end in the middle of a field.
    #[error("{missing} bytes are missing")]
    Truncated {
        /// Bytes that the field still needs.
        missing: usize,
    },
    /// They go on after the last field.
    #[error("{bytes} bytes follow the end")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A list is longer than it may be. Nothing was allocated for it.
    #[error("a list of {length} {of}, at most {length_max} are allowed")]
    TooMany {
        /// What it lists.
        of: &'static str,
        /// Its length as it was said to be.
        length: u32,
        /// The longest allowed.
        length_max: u32,
    },
    /// A field has a value that it cannot have.
    #[error("the field `{field}` has a value that it cannot have")]
    Field {
        /// Which field.
        field: &'static str,
    },
}

/// Writes fields one after the other.
#[derive(Debug, Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, number: u8) {
        self.bytes(&[number]);
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// The length of a list whose elements follow. A list that no decoder would take is not made by this crate; it would
    /// be cut in the length and refused by the reader, never misread.
    pub(crate) fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads fields one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((array, rest)) = self.0.split_first_chunk::<N>() else {
            return Err(DecodeError::Truncated { missing: N - self.0.len() });
        };
        self.0 = rest;
        Ok(*array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A list of elements with `element_bytes` bytes each. Its length is compared with the bound and with the bytes that
    /// are there before memory is taken for it.
    pub(crate) fn list<T>(
        &mut self,
        of: &'static str,
        length_max: u32,
        element_bytes: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let length = self.u32()?;
        if length > length_max {
            return Err(DecodeError::TooMany { of, length, length_max });
        }
        let needed = length as usize * element_bytes;
        if needed > self.0.len() {
            return Err(DecodeError::Truncated { missing: needed - self.0.len() });
        }
        (0..length).map(|_| element(self)).collect()
    }

    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { bytes: self.0.len() }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_s_length_is_checked_before_memory_is_taken() {
        let length = |length: u32| length.to_le_bytes();
        let list = |bytes: &[u8]| Decoder::new(bytes).list("numbers", 1000, 8, Decoder::u64);
        assert_eq!(list(&length(1001)), Err(DecodeError::TooMany { of: "numbers", length: 1001, length_max: 1000 }));
        assert_eq!(list(&length(1000)), Err(DecodeError::Truncated { missing: 8000 }));
        assert_eq!(list(&length(0)), Ok(vec![]));
    }

    #[test]
    fn what_is_missing_and_what_is_left_over_is_counted() {
        assert_eq!(Decoder::new(&[1, 2]).u32(), Err(DecodeError::Truncated { missing: 2 }));
        let mut decoder = Decoder::new(&[1, 2, 3]);
        assert_eq!(decoder.u8(), Ok(1));
        assert_eq!(decoder.finish(), Err(DecodeError::Trailing { bytes: 2 }));
    }
}
