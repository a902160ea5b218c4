//! The commit slot: two copies of 4 KiB; writing the older one is the moment at which entries are committed.
//!
//! Copy: magic (8), counter (u64), size (u64), root (32), time of signing in microseconds (u64), length of the
//! checkpoint (u16), checkpoint, zeros, and CRC-32C of all that in the last four bytes. Big-endian.

use crate::fault::{LogFault, OpenLogError, storage};
use crate::storage::{Storage, StoredFile};
use audit_tlog::{Checkpoint, Hash, VerifierKey};

const SLOT: &str = "slot";
const MAGIC: &[u8; 8] = b"bh-slot1";
const COPY_BYTES: usize = 4_096;

/// A committed state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Commitment {
    pub(crate) counter: u64,
    pub(crate) size: u64,
    pub(crate) root: Hash,
    pub(crate) signed_us: u64,
    /// The signed checkpoint of size and root.
    pub(crate) note: String,
}

/// The slot's file.
pub(crate) struct Slot {
    file: Box<dyn StoredFile>,
    /// What this writer knows to be committed.
    current: Option<Commitment>,
}

impl Slot {
    /// Opens the slot and finds the newest whole copy.
    pub(crate) fn open(store: &dyn Storage, key: &VerifierKey) -> Result<Self, OpenLogError> {
        let file = store.open(SLOT).map_err(storage("open", SLOT))?;
        store.sync_folder("").map_err(storage("sync", ""))?;
        let current = newest(&read_copies(&*file)?)?;
        if let Some(commitment) = &current {
            let checkpoint = Checkpoint::open(commitment.note.as_bytes(), key);
            let checkpoint = checkpoint.map_err(|source| OpenLogError::Checkpoint { path: SLOT, source })?;
            if checkpoint.size != commitment.size || checkpoint.root != commitment.root {
                return Err(OpenLogError::Slot);
            }
        }
        let slot = Self { file, current };
        // What was read may never have reached the device: after a sync that failed, its pages count as clean, and a loss of power
        // takes them. So it is written again, the same bytes, and synced before anything is built on it.
        if let Some(current) = &slot.current {
            slot.write(current)?;
        }
        Ok(slot)
    }

    pub(crate) fn current(&self) -> Option<&Commitment> {
        self.current.as_ref()
    }

    /// Commits: compares what is on disk with what this writer left there, and writes the older copy.
    pub(crate) fn commit(&mut self, size: u64, root: Hash, signed_us: u64, note: String) -> Result<(), LogFault> {
        let copies = read_copies(&*self.file).map_err(|_| LogFault::SlotMoved)?;
        if newest(&copies).map_err(|_| LogFault::SlotMoved)? != self.current {
            return Err(LogFault::SlotMoved);
        }
        let counter = self.current.as_ref().map_or(1, |current| current.counter + 1);
        let next = Commitment { counter, size, root, signed_us, note };
        self.write(&next)?;
        self.current = Some(next);
        Ok(())
    }

    fn write(&self, commitment: &Commitment) -> Result<(), LogFault> {
        let copy = encode(commitment).ok_or(LogFault::EntryTooLong { length: commitment.note.len() })?;
        // Odd counters lie in the first copy, even ones in the second: the one overwritten is the older.
        let offset = (commitment.counter + 1) % 2 * COPY_BYTES as u64;
        self.file.write_at(offset, &copy).map_err(storage("write", SLOT))?;
        self.file.sync().map_err(storage("sync", SLOT))
    }
}

fn read_copies(file: &dyn StoredFile) -> Result<[Vec<u8>; 2], LogFault> {
    let length = file.length().map_err(storage("measure", SLOT))?.min(2 * COPY_BYTES as u64);
    let mut bytes = file.read_at(0, usize::try_from(length).unwrap_or_default()).map_err(storage("read", SLOT))?;
    bytes.resize(2 * COPY_BYTES, 0);
    let second = bytes.split_off(COPY_BYTES);
    Ok([bytes, second])
}

/// The newest whole copy. No whole copy is right only while nothing was ever committed: then one is still empty.
fn newest(copies: &[Vec<u8>; 2]) -> Result<Option<Commitment>, OpenLogError> {
    let whole = copies.iter().filter_map(|copy| decode(copy)).max_by_key(|commitment| commitment.counter);
    let untouched = copies.iter().any(|copy| copy.iter().all(|byte| *byte == 0));
    if whole.is_none() && !untouched { Err(OpenLogError::Slot) } else { Ok(whole) }
}

fn encode(commitment: &Commitment) -> Option<Vec<u8>> {
    let mut copy = Vec::with_capacity(COPY_BYTES);
    copy.extend_from_slice(MAGIC);
    copy.extend_from_slice(&commitment.counter.to_be_bytes());
    copy.extend_from_slice(&commitment.size.to_be_bytes());
    copy.extend_from_slice(&commitment.root.0);
    copy.extend_from_slice(&commitment.signed_us.to_be_bytes());
    copy.extend_from_slice(&u16::try_from(commitment.note.len()).ok()?.to_be_bytes());
    copy.extend_from_slice(commitment.note.as_bytes());
    if copy.len() > COPY_BYTES - 4 {
        return None;
    }
    copy.resize(COPY_BYTES - 4, 0);
    copy.extend_from_slice(&crc32c::crc32c(&copy).to_be_bytes());
    Some(copy)
}

fn decode(copy: &[u8]) -> Option<Commitment> {
    let (content, sum) = copy.split_last_chunk::<4>()?;
    if crc32c::crc32c(content).to_be_bytes() != *sum {
        return None;
    }
    let (magic, rest) = content.split_first_chunk::<8>()?;
    let (counter, rest) = rest.split_first_chunk::<8>()?;
    let (size, rest) = rest.split_first_chunk::<8>()?;
    let (root, rest) = rest.split_first_chunk::<32>()?;
    let (signed_us, rest) = rest.split_first_chunk::<8>()?;
    let (note_length, rest) = rest.split_first_chunk::<2>()?;
    let (note, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*note_length)))?;
    if magic != MAGIC || rest.iter().any(|byte| *byte != 0) {
        return None;
    }
    Some(Commitment {
        counter: u64::from_be_bytes(*counter),
        size: u64::from_be_bytes(*size),
        root: Hash(*root),
        signed_us: u64::from_be_bytes(*signed_us),
        note: String::from_utf8(note.to_vec()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_with_any_flipped_bit_is_not_whole() {
        let commitment =
            Commitment { counter: 7, size: 3, root: Hash([4; 32]), signed_us: 5, note: "a checkpoint".into() };
        let copy = encode(&commitment).unwrap();
        assert_eq!(copy.len(), COPY_BYTES);
        assert_eq!(decode(&copy), Some(commitment.clone()));
        for bit in 0..COPY_BYTES * 8 {
            let mut changed = copy.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&changed), None, "bit {bit}");
        }
        let long = Commitment { note: "n".repeat(COPY_BYTES - 4 - 66), ..commitment };
        assert!(encode(&long).is_some());
        assert!(encode(&Commitment { note: format!("{}n", long.note), ..long }).is_none());
    }

    #[test]
    fn only_a_slot_that_was_never_used_may_have_no_whole_copy() {
        let empty = vec![0; COPY_BYTES];
        let torn = vec![9; COPY_BYTES];
        assert!(matches!(newest(&[empty.clone(), empty.clone()]), Ok(None)));
        assert!(matches!(newest(&[empty, torn.clone()]), Ok(None)));
        assert!(matches!(newest(&[torn.clone(), torn]), Err(OpenLogError::Slot)));
    }
}
