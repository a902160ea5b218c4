//! The entries of a bundle, each with its inclusion proof under the one checkpoint.
//!
//! One record after the other: index (u64), length of the entry (u16), entry, number of hashes (u8), hashes of 32 bytes from
//! the leaf's sibling upwards. Big-endian. An entry that names another tenant is withheld: its length is 0, and its leaf hash
//! stands in its place.

use audit_provenance::ENTRY_BYTES_MAX;
use audit_tlog::{Hash, PROOF_HASHES_MAX, leaf_hash};

/// Entries in one bundle.
pub const ENTRIES_MAX: usize = 200_000;

/// An entry, and where it stands in the log.
#[derive(Clone, PartialEq, Eq)]
pub struct ProvenEntry {
    /// Its index.
    pub index: u64,
    /// Its bytes, or what is shown of it.
    pub content: Content,
    /// The inclusion proof.
    pub proof: Vec<[u8; 32]>,
}

/// What is shown of an entry.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    /// All of it.
    Entry(Vec<u8>),
    /// Its leaf hash alone.
    Withheld([u8; 32]),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Entry(entry) => write!(f, "{} bytes", entry.len()),
            Self::Withheld(_) => f.write_str("withheld"),
        }
    }
}

impl std::fmt::Debug for ProvenEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProvenEntry({}, {:?})", self.index, self.content)
    }
}

impl ProvenEntry {
    /// The entry's leaf hash.
    #[must_use]
    pub fn leaf(&self) -> Hash {
        match &self.content {
            Content::Entry(entry) => leaf_hash(entry),
            Content::Withheld(leaf) => Hash(*leaf),
        }
    }

    /// The proof as the tree's mathematics takes it.
    #[must_use]
    pub fn hashes(&self) -> Vec<Hash> {
        self.proof.iter().map(|hash| Hash(*hash)).collect()
    }
}

/// The file is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntriesError {
    /// It ends within a record, or a record is longer than any.
    #[error("record {record} is cut off or too long")]
    Record {
        /// Counted from 0.
        record: usize,
    },
    /// More than [`ENTRIES_MAX`].
    #[error("there are more than {ENTRIES_MAX} entries: make the time shorter")]
    TooMany,
}

/// Writes the file.
///
/// # Errors
/// [`EntriesError`].
pub fn encode_entries(entries: &[ProvenEntry]) -> Result<Vec<u8>, EntriesError> {
    if entries.len() > ENTRIES_MAX {
        return Err(EntriesError::TooMany);
    }
    let mut bytes = Vec::new();
    for (record, ProvenEntry { index, content, proof }) in entries.iter().enumerate() {
        let error = EntriesError::Record { record };
        let (length, shown) = match content {
            Content::Entry(entry) => (entry.len(), entry.as_slice()),
            Content::Withheld(leaf) => (0, leaf.as_slice()),
        };
        // No entry is empty: that says that there is none.
        let none = length == 0 && !matches!(content, Content::Withheld(_));
        let length = u16::try_from(length).ok().filter(|_| length <= ENTRY_BYTES_MAX && !none).ok_or(error)?;
        let hashes = u8::try_from(proof.len()).ok().filter(|_| proof.len() <= PROOF_HASHES_MAX).ok_or(error)?;
        bytes.extend_from_slice(&index.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(shown);
        bytes.push(hashes);
        bytes.extend(proof.iter().flatten());
    }
    Ok(bytes)
}

/// Reads the file.
///
/// # Errors
/// [`EntriesError`].
pub fn decode_entries(mut rest: &[u8]) -> Result<Vec<ProvenEntry>, EntriesError> {
    let mut entries = Vec::new();
    while !rest.is_empty() {
        if entries.len() == ENTRIES_MAX {
            return Err(EntriesError::TooMany);
        }
        entries.push(next(&mut rest).ok_or(EntriesError::Record { record: entries.len() })?);
    }
    Ok(entries)
}

fn next(rest: &mut &[u8]) -> Option<ProvenEntry> {
    let (index, after) = rest.split_first_chunk::<8>()?;
    let (length, after) = after.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let (content, after) = if length == 0 {
        let (leaf, after) = after.split_first_chunk::<32>()?;
        (Content::Withheld(*leaf), after)
    } else {
        let (entry, after) = after.split_at_checked(length).filter(|_| length <= ENTRY_BYTES_MAX)?;
        (Content::Entry(entry.to_vec()), after)
    };
    let (hashes, after) = after.split_first()?;
    let hashes = usize::from(*hashes);
    let (proof, after) = after.split_at_checked(hashes * 32).filter(|_| hashes <= PROOF_HASHES_MAX)?;
    *rest = after;
    let proof = proof.as_chunks::<32>().0.to_vec();
    Some(ProvenEntry { index: u64::from_be_bytes(*index), content, proof })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries() -> Vec<ProvenEntry> {
        let proof = vec![[2; 32]; 3];
        let entry = |index: u64, content| ProvenEntry { index, content, proof: proof.clone() };
        vec![entry(4, Content::Entry(vec![1; 32])), entry(9, Content::Withheld([3; 32]))]
    }

    #[test]
    fn entries_are_read_back_and_nothing_is_cut_off() {
        let bytes = encode_entries(&entries()).unwrap();
        assert_eq!(decode_entries(&bytes), Ok(entries()));
        assert_eq!(decode_entries(&[]), Ok(vec![]));
        let record = bytes.len() / 2;
        for length in 1..bytes.len() {
            let refused = decode_entries(&bytes[..length]);
            assert_eq!(refused.is_ok(), length == record, "cut to {length}");
        }
        for length in [0, ENTRY_BYTES_MAX + 1] {
            let wrong = ProvenEntry { content: Content::Entry(vec![0; length]), ..entries()[0].clone() };
            assert_eq!(encode_entries(&[wrong]), Err(EntriesError::Record { record: 0 }));
        }
        let proof = ProvenEntry { proof: vec![[0; 32]; PROOF_HASHES_MAX + 1], ..entries()[0].clone() };
        assert_eq!(encode_entries(&[proof]), Err(EntriesError::Record { record: 0 }));
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_back_the_same(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(entries) = decode_entries(&bytes) {
                prop_assert_eq!(encode_entries(&entries).unwrap(), bytes);
            }
        }
    }
}
