//! A cursor over untrusted bytes.

use super::GgufError;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn take(&mut self, what: &'static str, needed: u64) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(needed)
            .ok()
            .and_then(|length| self.at.checked_add(length))
            .and_then(|end| self.bytes.get(self.at..end));
        match taken {
            Some(bytes) => {
                self.at += bytes.len();
                Ok(bytes)
            }
            None => Err(GgufError::Truncated { what, offset: self.offset(), needed, left: self.left() }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let bytes = self.take(what, N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A 64-bit count of things that take at least `bytes_each` of the rest of the file.
    pub(super) fn count(&mut self, what: &'static str, bytes_each: u64, limit: u64) -> Result<usize, GgufError> {
        let count = self.u64(what)?;
        let room = self.left() / bytes_each;
        match usize::try_from(count) {
            Ok(fits) if count <= room.min(limit) => Ok(fits),
            _ if count > room => Err(GgufError::NoRoom { what, count, count_max: room }),
            _ => Err(GgufError::Count { what, count, count_max: limit }),
        }
    }

    pub(super) fn string(
        &mut self,
        what: &'static str,
        length_of_it: &'static str,
        limit: u64,
    ) -> Result<String, GgufError> {
        let length = self.count(length_of_it, 1, limit)?;
        let offset = self.offset();
        let bytes = self.take(what, length as u64)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::NotUtf8 { what, offset }),
        }
    }
}
