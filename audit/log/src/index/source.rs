//! What is read instead of a store, and what a store is made of: the segments, compared with the outline as they are read,
//! and the traces beside them.

use super::BLOCK;
use super::lookup::{LookupError, TraceAt};
use super::outline::{GROUP, Group, Outline};
use super::pages::BlockReaders;
use super::record::Kind;
use super::tail::{TAIL_BLOCKS_MAX, Tail};
use crate::log::lock;
use crate::segment::{Place, SEGMENT_BYTES_MAX, TracePlace, next_frame, segment_path, traces_path};
use crate::sequence::{Commit, Placed};
use crate::storage::Storage;
use crate::trace_file::{find_traces, trace_at};
use audit_provenance::{Body, Entry, Trace};
use audit_tlog::{Edge, leaf_hash};
use policies_domain::RequestId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Read at a time from a segment.
const READ_BYTES: usize = 256 * 1024;

/// What is known of the committed entries without a store.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) outline: Outline,
    pub(crate) tail: Tail,
    /// The traces of the entries before this one were dropped.
    pub(crate) pruned: u64,
}

impl Known {
    /// Notes an entry that was committed now.
    pub(crate) fn note(&mut self, placed: Placed, entry: &Entry) {
        self.outline.note(placed.at, placed.leaf, entry);
        self.tail.push(placed, entry, TAIL_BLOCKS_MAX);
    }

    /// Notes an entry that recovery read: a store has it, or will read it again.
    pub(crate) fn note_recovered(&mut self, placed: Placed, entry: &Entry) {
        self.outline.note(placed.at, placed.leaf, entry);
        self.tail.push(placed, entry, 0);
    }

    /// Notes a whole committed batch.
    pub(crate) fn note_batch(&mut self, commit: &Commit) {
        for (placed, entry) in commit.entries.iter().zip(&commit.said) {
            self.note(placed.clone(), entry);
        }
    }
}

/// An entry and what it says.
#[derive(Debug, Clone)]
pub(crate) struct Read {
    pub(crate) index: u64,
    pub(crate) entry: Entry,
    /// Where its trace lies.
    pub(crate) trace: TraceAt,
}

/// Where entries are read.
pub(crate) struct Source {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) known: Mutex<Known>,
}

impl Source {
    /// All entries of a block, in order; those that there are of the last one.
    pub(crate) fn block(&self, block: u64) -> Result<Vec<Read>, LookupError> {
        let range = block * BLOCK..(block + 1) * BLOCK;
        {
            let known = lock(&self.known);
            if range.start >= known.tail.first() {
                let placed = (range.start..range.end.min(known.tail.end())).filter_map(|at| known.tail.entry(at));
                return placed.map(read_placed).collect();
            }
        }
        let mut entries = Vec::new();
        for group in range.start / GROUP..range.end / GROUP {
            entries.append(&mut self.group(group)?);
        }
        Ok(entries)
    }

    /// One entry. `None` when there is none with that index.
    pub(crate) fn entry(&self, index: u64) -> Result<Option<Read>, LookupError> {
        {
            let known = lock(&self.known);
            if index >= known.outline.size() {
                return Ok(None);
            }
            if let Some(placed) = known.tail.entry(index) {
                return read_placed(placed).map(Some);
            }
        }
        Ok(self.group(index / GROUP)?.into_iter().find(|read| read.index == index))
    }

    /// The entries of a complete group, as the outline says that they must be.
    pub(crate) fn group(&self, number: u64) -> Result<Vec<Read>, LookupError> {
        let first = number * GROUP;
        let group = lock(&self.known).outline.group(number).ok_or_else(|| damaged(first, "is not there"))?;
        let frames = self.frames(first, group)?;
        let mut edge = Edge::new();
        frames.iter().for_each(|bytes| drop(edge.push(leaf_hash(bytes))));
        if edge.size() != GROUP || edge.root() != group.hash {
            return Err(damaged(first, "is not what was committed"));
        }
        let read = |(index, bytes): (u64, &Vec<u8>)| {
            let entry = Entry::decode(bytes).map_err(|_| damaged(index, "does not decode"))?;
            Ok(Read { index, entry, trace: TraceAt::Unknown })
        };
        (first..).zip(&frames).map(read).collect()
    }

    /// The bytes of a group's entries. They may go on in the next segment.
    fn frames(&self, first: u64, group: Group) -> Result<Vec<Vec<u8>>, LookupError> {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        let mut at = group.at;
        while frames.len() < TILE {
            let index = first + frames.len() as u64;
            let segment = lock(&self.known).outline.segment_of(index);
            if segment != Some(at.segment) {
                match segment {
                    // The next segment begins with the next entry.
                    Some(next) if next == index => at = Place { segment: next, offset: 0 },
                    _ => return Err(damaged(index, "is missing at the end of its segment")),
                }
            }
            let before = frames.len();
            let end = self.frames_in_segment(at, &mut frames, index)?;
            if frames.len() == before {
                return Err(damaged(index, "is damaged or missing in its segment"));
            }
            at.offset = end;
        }
        Ok(frames)
    }

    /// Takes frames until the group is complete or the segment ends; says where the next one would begin.
    fn frames_in_segment(&self, at: Place, frames: &mut Vec<Vec<u8>>, index: u64) -> Result<u64, LookupError> {
        let path = segment_path(at.segment);
        let unreadable = |error: std::io::Error| damaged(index, &format!("cannot be read in `{path}`: {error}"));
        let file = self.storage.open(&path).map_err(unreadable)?;
        let length = file.length().map_err(unreadable)?.min(SEGMENT_BYTES_MAX as u64);
        let mut offset = at.offset;
        while frames.len() < TILE && offset < length {
            let rest = usize::try_from(length - offset).unwrap_or(READ_BYTES);
            let bytes = file.read_at(offset, rest.min(READ_BYTES)).map_err(unreadable)?;
            let (mut left, before) = (bytes.as_slice(), frames.len());
            while frames.len() < TILE
                && let Some((entry, _)) = next_frame(&mut left)
            {
                frames.push(entry.to_vec());
            }
            if frames.len() == before {
                // Torn, or what was never committed behind the last entry of a segment.
                break;
            }
            offset += (bytes.len() - left.len()) as u64;
        }
        Ok(offset)
    }

    /// Where the traces of a segment lie, by the index of their sealed entry. Reads them all.
    pub(crate) fn traces_of(&self, segment: u64) -> HashMap<u64, u64> {
        let mut traces = HashMap::new();
        let size = {
            let known = lock(&self.known);
            if segment < known.pruned {
                return traces;
            }
            known.outline.size()
        };
        let found = find_traces(
            &*self.storage,
            segment,
            |entry| (segment..size).contains(&entry),
            |entry, offset| {
                traces.insert(entry, offset);
            },
        );
        if let Err(fault) = found {
            tracing::warn!(%fault, segment, "traces could not be read");
        }
        traces
    }

    /// The trace at that place, if it is the one that the sealed entry speaks of.
    pub(crate) fn trace_at(&self, place: TracePlace, read: &Read) -> Option<Vec<u8>> {
        let Body::Sealed(sealing) = &read.entry.body else { return None };
        if read.index < lock(&self.known).pruned {
            return None;
        }
        let file = self.storage.open(&traces_path(place.segment)).ok()?;
        let stored = trace_at(&*file, place.offset).ok().flatten();
        let right =
            stored.filter(|(index, trace, _)| *index == read.index && Some(Trace::root(trace)) == sealing.trace);
        right.map(|(_, trace, _)| trace)
    }

    /// First entry of the segment that an entry lies in.
    pub(crate) fn segment_of(&self, index: u64) -> Option<u64> {
        lock(&self.known).outline.segment_of(index)
    }

    /// What the requests of a block read, from their traces. Gives the entries the places of their traces.
    pub(crate) fn readers(&self, entries: &mut [Read], segments: &mut SegmentTraces) -> BlockReaders {
        let mut readers = BlockReaders::default();
        for read in entries {
            let Some((Kind::Sealed, _)) = Kind::of(&read.entry) else { continue };
            let place = self.trace_place(read, segments);
            read.trace = place.map_or(TraceAt::Nowhere, TraceAt::Place);
            let trace = place.and_then(|place| self.trace_at(place, read));
            match trace.as_deref().map(Trace::decode) {
                Some(Ok(trace)) => {
                    for run in trace.pages {
                        readers.read(run.page.0, run.generation.0, read.index);
                    }
                }
                _ => readers.unknown(read.index),
            }
        }
        readers
    }

    fn trace_place(&self, read: &Read, segments: &mut SegmentTraces) -> Option<TracePlace> {
        match read.trace {
            TraceAt::Place(place) => return Some(place),
            TraceAt::Nowhere => return None,
            TraceAt::Unknown => {}
        }
        let (segment, size) = {
            let known = lock(&self.known);
            (known.outline.segment_of(read.index)?, known.outline.size())
        };
        // A trace is written before its entry is committed, so what was looked at later has it.
        if segments.segment != Some(segment) || read.index >= segments.size {
            *segments = SegmentTraces { segment: Some(segment), size, places: self.traces_of(segment) };
        }
        segments.places.get(&read.index).map(|offset| TracePlace { segment, offset: *offset })
    }
}

const TILE: usize = audit_tlog::TILE_WIDTH;

/// Where the traces of the segment lie that was looked at last.
#[derive(Debug, Default)]
pub(crate) struct SegmentTraces {
    segment: Option<u64>,
    /// Entries that there were.
    size: u64,
    places: HashMap<u64, u64>,
}

fn read_placed(placed: &Placed) -> Result<Read, LookupError> {
    let entry = Entry::decode(&placed.bytes).map_err(|_| damaged(placed.index, "does not decode"))?;
    // This process wrote it, or recovery looked for its trace.
    let trace = placed.trace.map_or(TraceAt::Nowhere, TraceAt::Place);
    Ok(Read { index: placed.index, entry, trace })
}

fn damaged(index: u64, what: &str) -> LookupError {
    LookupError::Damaged { reason: Arc::from(format!("entry {index} {what}")) }
}

/// Whether that is the request's entry.
pub(crate) fn is_of(read: &Read, kind: Kind, request: RequestId) -> bool {
    Kind::of(&read.entry) == Some((kind, request))
}
