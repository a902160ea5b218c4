//! Deterministic CBOR (RFC 8949 section 4.2.1) for what this crate writes: shortest lengths, definite arrays, unsigned
//! integers, byte and text strings, null. Any other form of the same value is refused, so that one value has one hash.

use minicbor::data::Type;
use minicbor::{Decoder, Encoder};
use std::convert::Infallible;

/// Bytes were not the deterministic encoding of what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than the item may have.
    #[error("{length} bytes, at most {length_max} are allowed")]
    TooLong {
        /// Bytes given.
        length: usize,
        /// Bytes allowed.
        length_max: usize,
    },
    /// Not CBOR, or not the type that belongs here, by byte position.
    #[error("not a {wanted} at byte {position}")]
    Type {
        /// What belongs here.
        wanted: &'static str,
        /// Offset in bytes.
        position: usize,
    },
    /// A length or number that is not written in its shortest form, or an indefinite length.
    #[error("not the deterministic form of a {wanted} at byte {position}")]
    NotDeterministic {
        /// What stands here.
        wanted: &'static str,
        /// Offset in bytes.
        position: usize,
    },
    /// A number outside what its field allows, or a list of another length.
    #[error("{field} is out of range")]
    Range {
        /// The field's name in the format description.
        field: &'static str,
    },
    /// A format version that this program does not know.
    #[error("version {version} is not known")]
    Version {
        /// The version found.
        version: u64,
    },
    /// A kind of entry that this program does not know.
    #[error("entry kind {kind} is not known")]
    Kind {
        /// The kind found.
        kind: u64,
    },
    /// Bytes after the end.
    #[error("{trailing} bytes after the end")]
    Trailing {
        /// How many.
        trailing: usize,
    },
}

/// Reads one item after the other; every form but the deterministic one is an error.
pub(crate) struct Reader<'b> {
    decoder: Decoder<'b>,
}

impl<'b> Reader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { decoder: Decoder::new(bytes) }
    }

    /// The header of `item_bytes` content bytes must be as short as `number` allows.
    fn shortest(&self, wanted: &'static str, start: usize, number: u64, item_bytes: usize) -> Result<(), DecodeError> {
        let header = self.decoder.position() - start - item_bytes;
        let shortest = match number {
            0..=23 => 1,
            24..=0xff => 2,
            0x100..=0xffff => 3,
            0x1_0000..=0xffff_ffff => 5,
            _ => 9,
        };
        if header == shortest { Ok(()) } else { Err(DecodeError::NotDeterministic { wanted, position: start }) }
    }

    pub(crate) fn uint(&mut self) -> Result<u64, DecodeError> {
        let (wanted, start) = ("unsigned integer", self.decoder.position());
        let number = self.decoder.u64().map_err(|_| DecodeError::Type { wanted, position: start })?;
        self.shortest(wanted, start, number, 0)?;
        Ok(number)
    }

    pub(crate) fn uint32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        u32::try_from(self.uint()?).map_err(|_| DecodeError::Range { field })
    }

    /// Borrows from the input, so a claimed length allocates nothing.
    pub(crate) fn bytes(&mut self) -> Result<&'b [u8], DecodeError> {
        let (wanted, start) = ("byte string", self.decoder.position());
        let bytes = self.decoder.bytes().map_err(|_| DecodeError::Type { wanted, position: start })?;
        self.shortest(wanted, start, bytes.len() as u64, bytes.len())?;
        Ok(bytes)
    }

    pub(crate) fn fixed<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        self.bytes()?.try_into().map_err(|_| DecodeError::Range { field })
    }

    pub(crate) fn text(&mut self) -> Result<&'b str, DecodeError> {
        let (wanted, start) = ("text string", self.decoder.position());
        let text = self.decoder.str().map_err(|_| DecodeError::Type { wanted, position: start })?;
        self.shortest(wanted, start, text.len() as u64, text.len())?;
        Ok(text)
    }

    pub(crate) fn array(&mut self) -> Result<u64, DecodeError> {
        let (wanted, start) = ("array", self.decoder.position());
        let length = self.decoder.array().map_err(|_| DecodeError::Type { wanted, position: start })?;
        let length = length.ok_or(DecodeError::NotDeterministic { wanted, position: start })?;
        self.shortest(wanted, start, length, 0)?;
        Ok(length)
    }

    pub(crate) fn array_of(&mut self, length: u64, field: &'static str) -> Result<(), DecodeError> {
        if self.array()? == length { Ok(()) } else { Err(DecodeError::Range { field }) }
    }

    /// Takes a null if one stands here.
    pub(crate) fn null(&mut self) -> bool {
        matches!(self.decoder.datatype(), Ok(Type::Null)) && self.decoder.null().is_ok()
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        let trailing = self.decoder.input().len() - self.decoder.position();
        if trailing == 0 { Ok(()) } else { Err(DecodeError::Trailing { trailing }) }
    }
}

/// Writes into memory, which cannot fail; minicbor always chooses the shortest form.
pub(crate) struct Writer(Encoder<Vec<u8>>);

/// Most entries are as long as this.
const ITEM_BYTES_USUAL: usize = 512;

impl Writer {
    pub(crate) fn new() -> Self {
        Self(Encoder::new(Vec::with_capacity(ITEM_BYTES_USUAL)))
    }

    pub(crate) fn array(&mut self, length: u64) -> &mut Self {
        written(self.0.array(length).map(|_| ()));
        self
    }

    pub(crate) fn uint(&mut self, number: u64) -> &mut Self {
        written(self.0.u64(number).map(|_| ()));
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        written(self.0.bytes(bytes).map(|_| ()));
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        written(self.0.str(text).map(|_| ()));
        self
    }

    pub(crate) fn null(&mut self) -> &mut Self {
        written(self.0.null().map(|_| ()));
        self
    }

    pub(crate) fn bytes_or_null(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.null(),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0.into_writer()
    }
}

fn written(result: Result<(), minicbor::encode::Error<Infallible>>) {
    debug_assert!(result.is_ok(), "writing to memory cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_forms_of_the_same_value_are_refused() {
        for (bytes, wanted) in [
            (&[0x18, 0x17][..], "unsigned integer"), // 23 in two bytes
            (&[0x19, 0x00, 0xff], "unsigned integer"),
            (&[0x1a, 0x00, 0x00, 0xff, 0xff], "unsigned integer"),
            (&[0x1b, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], "unsigned integer"),
        ] {
            let refused = Reader::new(bytes).uint();
            assert_eq!(refused, Err(DecodeError::NotDeterministic { wanted, position: 0 }), "{bytes:02x?}");
        }
        assert!(matches!(Reader::new(&[0x58, 0x01, 0xaa]).bytes(), Err(DecodeError::NotDeterministic { .. })));
        assert!(matches!(Reader::new(&[0x78, 0x01, b'a']).text(), Err(DecodeError::NotDeterministic { .. })));
        assert!(matches!(Reader::new(&[0x98, 0x01, 0x00]).array(), Err(DecodeError::NotDeterministic { .. })));
        assert!(matches!(Reader::new(&[0x9f, 0x00, 0xff]).array(), Err(DecodeError::NotDeterministic { .. })));
        assert!(Reader::new(&[0x5f, 0x41, 0xaa, 0xff]).bytes().is_err());
    }

    #[test]
    fn a_claimed_length_beyond_the_input_is_an_error_and_not_an_allocation() {
        assert!(Reader::new(&[0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).bytes().is_err());
        assert_eq!(Reader::new(&[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).array(), Ok(u64::MAX));
    }

    #[test]
    fn other_types_are_refused() {
        for bytes in [&[0x20][..], &[0xf5], &[0xfb, 0, 0, 0, 0, 0, 0, 0, 0], &[0xa0], &[0xc0, 0x00], &[]] {
            assert!(Reader::new(bytes).uint().is_err() && Reader::new(bytes).bytes().is_err(), "{bytes:02x?}");
            assert!(Reader::new(bytes).text().is_err() && Reader::new(bytes).array().is_err(), "{bytes:02x?}");
        }
    }
}
