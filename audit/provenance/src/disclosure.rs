//! What a receipt discloses to its client beside the proof: the two entries, the salts that open their commitments,
//! and the trace. None of it is believed before the sealed entry's place in the log is proven.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::commitment::Salt;
use crate::entry::ENTRY_BYTES_MAX;

/// Longest tenant name that is read, in bytes.
const TENANT_NAME_BYTES_MAX: usize = 63;
/// Hashes of the second inclusion proof that are read.
const PROOF_HASHES_MAX: usize = 64;

/// The form of a receipt's `extra`. Both are read; only [`DisclosureVersion::CURRENT`] is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DisclosureVersion {
    /// Without the salt of the replay digest.
    V1 = 1,
    /// As `entry.cddl` has it.
    V2 = 2,
}

impl DisclosureVersion {
    /// The one that is written.
    pub const CURRENT: Self = Self::V2;

    /// Members of the openings, the name included.
    fn salts(self) -> u64 {
        match self {
            Self::V1 => 5,
            Self::V2 => 6,
        }
    }
}

/// The `extra` of a receipt.
#[derive(Clone, PartialEq, Eq)]
pub struct Disclosure {
    /// Its form.
    pub version: DisclosureVersion,
    /// Bytes of the sealed entry.
    pub sealed: Vec<u8>,
    /// Bytes of the opened entry.
    pub opened: Vec<u8>,
    /// Index of the opened entry.
    pub opened_index: u64,
    /// Its inclusion proof, from the leaf's sibling upwards.
    pub opened_proof: Vec<[u8; 32]>,
    /// Salts; `None` after the tenant's key was destroyed.
    pub openings: Option<Openings>,
    /// Bytes of the trace; `None` when it was dropped.
    pub trace: Option<Vec<u8>>,
}

impl std::fmt::Debug for Disclosure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disclosure").field("opened_index", &self.opened_index).finish_non_exhaustive()
    }
}

/// What opens the commitments of one request. With these, and the content, anyone can check them.
#[derive(Clone, PartialEq, Eq)]
pub struct Openings {
    /// The tenant's name.
    pub tenant_name: String,
    /// Salt of the request body.
    pub request: Salt,
    /// Salt of the tenant's name.
    pub tenant: Salt,
    /// Salt of the response.
    pub response: Salt,
    /// Salt of the chunk chain.
    pub chunks: Salt,
    /// Salt of the replay digest; none where none was sealed, and in disclosures of version 1.
    pub replay: Option<Salt>,
}

impl std::fmt::Debug for Openings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Openings").field("tenant_name", &self.tenant_name).finish_non_exhaustive()
    }
}

impl Disclosure {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.array(7).uint(self.version as u64).bytes(&self.sealed).bytes(&self.opened).uint(self.opened_index);
        writer.bytes(self.opened_proof.as_flattened());
        match &self.openings {
            Some(openings) => {
                writer.array(self.version.salts()).text(&openings.tenant_name);
                writer.bytes(&openings.request).bytes(&openings.tenant);
                writer.bytes(&openings.response).bytes(&openings.chunks);
                if self.version >= DisclosureVersion::V2 {
                    writer.bytes_or_null(openings.replay.as_ref().map(<[u8; 32]>::as_slice));
                }
            }
            None => {
                writer.null();
            }
        }
        writer.bytes_or_null(self.trace.as_deref());
        writer.finish()
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`DecodeError`] for anything that [`Disclosure::encode`] would not have written.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.array_of(7, "number of fields")?;
        let version = reader.uint()?;
        let version = match version {
            1 => DisclosureVersion::V1,
            2 => DisclosureVersion::V2,
            version => return Err(DecodeError::Version { version }),
        };
        let (sealed, opened) = (entry_bytes(&mut reader)?, entry_bytes(&mut reader)?);
        let opened_index = reader.uint()?;
        let (opened_proof, rest) = reader.bytes()?.as_chunks::<32>();
        if !rest.is_empty() || opened_proof.len() > PROOF_HASHES_MAX {
            return Err(DecodeError::Range { field: "opened proof" });
        }
        let openings = if reader.null() { None } else { Some(openings(&mut reader, version)?) };
        let trace = if reader.null() { None } else { Some(reader.bytes()?.to_vec()) };
        reader.end()?;
        Ok(Self { version, sealed, opened, opened_index, opened_proof: opened_proof.to_vec(), openings, trace })
    }
}

fn entry_bytes(reader: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    let bytes = reader.bytes()?;
    if bytes.len() > ENTRY_BYTES_MAX {
        return Err(DecodeError::TooLong { length: bytes.len(), length_max: ENTRY_BYTES_MAX });
    }
    Ok(bytes.to_vec())
}

fn openings(reader: &mut Reader<'_>, version: DisclosureVersion) -> Result<Openings, DecodeError> {
    reader.array_of(version.salts(), "openings")?;
    let tenant_name = reader.text()?;
    if tenant_name.len() > TENANT_NAME_BYTES_MAX {
        return Err(DecodeError::Range { field: "tenant name" });
    }
    Ok(Openings {
        tenant_name: tenant_name.to_owned(),
        request: reader.fixed("salt of the request")?,
        tenant: reader.fixed("salt of the tenant")?,
        response: reader.fixed("salt of the response")?,
        chunks: reader.fixed("salt of the chunks")?,
        replay: match version {
            DisclosureVersion::V1 => None,
            DisclosureVersion::V2 if reader.null() => None,
            DisclosureVersion::V2 => Some(reader.fixed("salt of the replay digest")?),
        },
    })
}
