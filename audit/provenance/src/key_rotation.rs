//! The log's own key is followed by another one, as entries. Who verifies the two signatures knows keys; this is how they stand.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::{numbered, short_text};
use policies_domain::Digest;

/// The log's key is followed by another one: the beginning of the window in which both sign, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRotation {
    /// Beginning or end.
    pub stage: KeyRotationStage,
    /// Verifier key line of the former key.
    pub previous: String,
    /// Verifier key line of the next one.
    pub next: String,
    /// Entries before this one: its own index.
    pub size: u64,
    /// Root hash of the tree of these.
    pub root: Digest,
    /// Signature of the former key over all that, as `audit_tlog::SignedRotation` makes it.
    pub by_previous: [u8; 64],
    /// Signature of the next key over the same.
    pub by_next: [u8; 64],
}

/// Which end of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRotationStage {
    /// From this entry on the next key must sign, and the former one signs, too.
    Begin = 0,
    /// From this entry on the next key signs alone.
    Finish = 1,
}

impl KeyRotationStage {
    const ALL: [Self; 2] = [Self::Begin, Self::Finish];
}

impl KeyRotation {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.uint(self.stage as u64).text(&self.previous).text(&self.next).uint(self.size);
        writer.bytes(&self.root.0).bytes(&self.by_previous).bytes(&self.by_next);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            stage: numbered(&KeyRotationStage::ALL, reader.uint()?, "stage")?,
            previous: short_text(reader, "previous key")?,
            next: short_text(reader, "next key")?,
            size: reader.uint()?,
            root: Digest(reader.fixed("root")?),
            by_previous: reader.fixed("signature of the previous key")?,
            by_next: reader.fixed("signature of the next key")?,
        })
    }
}
