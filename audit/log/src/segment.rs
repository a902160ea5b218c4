//! Segments: the authoritative record, one frame after the other. Beside each lies a file of traces, which may be lost.
//!
//! Frame: length of the entry (u32), CRC-32C of what follows (u32), leaf hash (32), entry. Trace frame: length (u32),
//! CRC-32C (u32), index of the sealed entry (u64), trace. All big-endian. The sums find torn writes; the leaf hashes,
//! and the root over them, find everything else.

use crate::fault::{LogFault, storage};
use crate::storage::{Storage, StoredFile};
use crate::trace_file::{TRACE_BYTES_MAX, encode_trace};
use audit_provenance::ENTRY_BYTES_MAX;
use audit_tlog::{Hash, leaf_hash};
use std::sync::Arc;

/// A new segment begins when one is longer than this. A start reads a segment at a time into memory.
#[cfg(not(test))]
pub(crate) const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Small in tests, so that a few requests fill several.
#[cfg(test)]
pub(crate) const SEGMENT_BYTES: u64 = 40 * 1024;
/// Longest segment that is read: one batch goes over the limit at most.
pub(crate) const SEGMENT_BYTES_MAX: usize =
    SEGMENT_BYTES as usize + crate::sequence::BATCH_MAX * (FRAME_HEAD + ENTRY_BYTES_MAX);
/// Bytes of a frame before its entry.
pub(crate) const FRAME_HEAD: usize = 40;

pub(crate) const SEGMENTS: &str = "segments";
pub(crate) const TRACES: &str = "traces";

/// A segment's file, named by its first entry.
pub(crate) fn segment_path(first: u64) -> String {
    format!("{SEGMENTS}/{first:020}")
}

/// The file of a segment's traces.
pub(crate) fn traces_path(first: u64) -> String {
    format!("{TRACES}/{first:020}")
}

/// Adds a frame.
pub(crate) fn encode_frame(frames: &mut Vec<u8>, leaf: Hash, entry: &[u8]) -> Result<(), LogFault> {
    let too_long = LogFault::EntryTooLong { length: entry.len() };
    let length = u32::try_from(entry.len()).ok().filter(|_| entry.len() <= ENTRY_BYTES_MAX).ok_or(too_long)?;
    frames.extend_from_slice(&length.to_be_bytes());
    frames.extend_from_slice(&crc32c::crc32c_append(crc32c::crc32c(&leaf.0), entry).to_be_bytes());
    frames.extend_from_slice(&leaf.0);
    frames.extend_from_slice(entry);
    Ok(())
}

/// Takes the next whole frame off `rest`: the entry, whose leaf hash was computed anew. `None` for a torn or damaged frame.
pub(crate) fn next_frame<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Hash)> {
    let mut after = *rest;
    let (entry, leaf) = next_summed(&mut after)?;
    let computed = leaf_hash(entry);
    if computed.0 != *leaf {
        return None;
    }
    *rest = after;
    Some((entry, computed))
}

/// The same with the leaf hash as it is stored: for a first look, whose result is read again.
pub(crate) fn next_summed<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8; 32])> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok().filter(|&length| length <= ENTRY_BYTES_MAX)?;
    let (sum, after) = after.split_first_chunk::<4>()?;
    let (leaf, after) = after.split_first_chunk::<32>()?;
    let (entry, after) = after.split_at_checked(length)?;
    if crc32c::crc32c_append(crc32c::crc32c(leaf), entry).to_be_bytes() != *sum {
        return None;
    }
    *rest = after;
    Some((entry, leaf))
}

/// Where an entry's frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// First entry of the segment.
    pub(crate) segment: u64,
    /// Offset in bytes.
    pub(crate) offset: u64,
}

/// Where a trace lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TracePlace {
    /// First entry of the segment that it belongs to.
    pub(crate) segment: u64,
    /// Offset in bytes.
    pub(crate) offset: u64,
}

/// The segment that is written to, and its file of traces.
pub(crate) struct SegmentWriter {
    first: u64,
    length: u64,
    file: Box<dyn StoredFile>,
    traces_length: u64,
    traces: Arc<dyn StoredFile>,
    /// Traces of the batch, which go to their file at once.
    traces_waiting: Vec<u8>,
}

impl SegmentWriter {
    /// Continues or begins the segment whose first entry is `first`.
    pub(crate) fn open(store: &dyn Storage, first: u64) -> Result<Self, LogFault> {
        let (path, traces_path) = (segment_path(first), traces_path(first));
        let file = store.open(&path).map_err(storage("open", &path))?;
        let traces: Arc<dyn StoredFile> = store.open(&traces_path).map_err(storage("open", &traces_path))?.into();
        store.sync_folder(SEGMENTS).map_err(storage("sync", SEGMENTS))?;
        let length = file.length().map_err(storage("measure", &path))?;
        let traces_length = traces.length().map_err(storage("measure", &traces_path))?;
        Ok(Self { first, length, file, traces_length, traces, traces_waiting: Vec::new() })
    }

    /// Whether the next batch belongs into a new segment.
    pub(crate) fn is_full(&self) -> bool {
        self.length >= SEGMENT_BYTES
    }

    /// Where a frame will lie that is the next one after `before` bytes.
    pub(crate) fn place_after(&self, before: usize) -> Place {
        Place { segment: self.first, offset: self.length + before as u64 }
    }

    /// Appends frames, and the traces that belong to them, without syncing those; syncs, and gives back what can then be read
    /// at the frames' place.
    pub(crate) fn append(&mut self, frames: &[u8]) -> Result<Vec<u8>, LogFault> {
        if !self.traces_waiting.is_empty() {
            let traces = std::mem::take(&mut self.traces_waiting);
            let written = self.traces.write_at(self.traces_length, &traces);
            written.map_err(storage("append to", &traces_path(self.first)))?;
            self.traces_length += traces.len() as u64;
        }
        let path = segment_path(self.first);
        self.file.write_at(self.length, frames).map_err(storage("append to", &path))?;
        self.file.sync().map_err(storage("sync", &path))?;
        let read = self.file.read_at(self.length, frames.len()).map_err(storage("read back", &path))?;
        self.length += frames.len() as u64;
        Ok(read)
    }

    /// Takes a trace, which is appended together with its batch. `None`: it is too long, and is not kept.
    pub(crate) fn append_trace(&mut self, index: u64, trace: &[u8]) -> Option<TracePlace> {
        if trace.len() > TRACE_BYTES_MAX {
            return None;
        }
        let offset = self.traces_length + self.traces_waiting.len() as u64;
        encode_trace(&mut self.traces_waiting, index, trace);
        Some(TracePlace { segment: self.first, offset })
    }

    /// The file of traces, to be synced before what refers to it is published.
    pub(crate) fn traces(&self) -> Arc<dyn StoredFile> {
        Arc::clone(&self.traces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_with_any_flipped_bit_or_cut_is_refused() {
        let mut frames = Vec::new();
        encode_frame(&mut frames, leaf_hash(b"entry"), b"entry").unwrap();
        assert_eq!(next_frame(&mut frames.as_slice()).map(|(entry, _)| entry), Some(&b"entry"[..]));
        for bit in 0..frames.len() * 8 {
            let mut changed = frames.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(next_frame(&mut changed.as_slice()).is_none(), "bit {bit}");
        }
        for length in 0..frames.len() {
            assert!(next_frame(&mut &frames[..length]).is_none(), "cut to {length}");
        }
        let huge = encode_frame(&mut frames, leaf_hash(b""), &[0; ENTRY_BYTES_MAX + 1]);
        assert!(matches!(huge, Err(LogFault::EntryTooLong { length: 4_097 })));
    }

    #[test]
    fn a_right_sum_over_a_wrong_leaf_is_refused() {
        let mut frames = Vec::new();
        encode_frame(&mut frames, leaf_hash(b"other"), b"entry").unwrap();
        assert!(next_frame(&mut frames.as_slice()).is_none());
    }
}
