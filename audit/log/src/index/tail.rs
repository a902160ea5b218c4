//! The newest entries, in memory: those that no store says anything of yet. Bounded: what a store is too slow for is
//! dropped here and found by reading.

use super::BLOCK;
use super::record::Kind;
use crate::segment::TracePlace;
use crate::sequence::Placed;
use audit_provenance::Entry;
use policies_domain::RequestId;
use std::collections::{HashMap, VecDeque};

/// Complete blocks that are kept while they wait for the store.
pub(crate) const TAIL_BLOCKS_MAX: u64 = 16;

/// Entries from [`Tail::first`] on, without a gap.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    first: u64,
    entries: VecDeque<Placed>,
    requests: HashMap<(Kind, RequestId), u64>,
}

impl Tail {
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(crate) fn push(&mut self, placed: Placed, entry: &Entry, blocks_max: u64) {
        if let Some(key) = Kind::of(entry) {
            self.requests.insert(key, placed.index);
        }
        self.entries.push_back(placed);
        if self.end().is_multiple_of(BLOCK) {
            self.drop_before(self.end().saturating_sub(blocks_max * BLOCK));
        }
    }

    /// Forgets the entries before `index`.
    pub(crate) fn drop_before(&mut self, index: u64) {
        if index >= self.end() {
            self.first = self.end();
            self.entries.clear();
            self.requests.clear();
        }
        while self.first < index {
            let Some(placed) = self.entries.pop_front() else { break };
            self.first += 1;
            if let Some(key) = Entry::decode(&placed.bytes).ok().as_ref().and_then(Kind::of)
                && self.requests.get(&key) == Some(&placed.index)
            {
                self.requests.remove(&key);
            }
        }
    }

    pub(crate) fn entry(&self, index: u64) -> Option<&Placed> {
        self.entries.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    /// The request's entry of that kind, if it is one of these.
    pub(crate) fn find(&self, kind: Kind, request: RequestId) -> Option<&Placed> {
        self.entry(*self.requests.get(&(kind, request))?)
    }

    /// Notes where the trace of a sealed entry lies.
    pub(crate) fn note_trace(&mut self, index: u64, trace: TracePlace) {
        let place = index.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        if let Some(placed) = place.and_then(|place| self.entries.get_mut(place)) {
            placed.trace = Some(trace);
        }
    }
}
