//! The outline of the log: what is known of each block of entries without a store. It is made of the entries while they are
//! read or committed, so it does not lie, and it is small: four bytes for each entry of a request, and 56 for every 256
//! entries.

use super::BLOCK;
use super::record::Kind;
use crate::segment::Place;
use audit_provenance::{Body, Entry, TenantRef};
use audit_tlog::{Edge, Hash, TILE_WIDTH};
use policies_domain::RequestId;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

/// Entries that are read, and compared with their hash, together.
pub(crate) const GROUP: u64 = TILE_WIDTH as u64;
const _: () = assert!(BLOCK.is_multiple_of(GROUP), "a block has whole groups");

/// So many entries, where they begin and what they hash to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) at: Place,
    /// Root of the tree of these entries alone.
    pub(crate) hash: Hash,
}

/// What is known of [`BLOCK`] entries.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// Root of the log up to the block's end.
    pub(crate) root: Hash,
    /// Keyed hashes of what requests have here, sorted.
    marks: Box<[u32]>,
    pub(crate) incidents: u64,
    pub(crate) first_us: u64,
    pub(crate) last_us: u64,
}

/// A tenant's entries: where its chain passes from block to block.
#[derive(Debug, Default)]
struct Chain {
    entries: u64,
    /// Block, and the tenant's first number in it.
    blocks: Vec<(u64, u64)>,
}

/// The outline of all committed entries.
#[derive(Debug)]
pub(crate) struct Outline {
    /// Drawn anew in every process: nobody can choose ids that share a mark.
    keyed: RandomState,
    size: u64,
    segments: Vec<u64>,
    /// Of each segment, the newest time of its entries and of all before.
    newest_us: Vec<u64>,
    groups: Vec<Group>,
    /// The group that is not complete.
    group: Edge,
    group_at: Place,
    /// The tree whose leaves are the groups.
    rows: Edge,
    blocks: Vec<Block>,
    /// The block that is not complete.
    marks: HashSet<u32>,
    incidents: u64,
    times: Option<(u64, u64)>,
    tenants: HashMap<TenantRef, Chain>,
    /// Tenants and epochs of opened entries: those whose commitment key was used.
    epochs: HashSet<(TenantRef, u64)>,
}

impl Default for Outline {
    fn default() -> Self {
        Self {
            keyed: RandomState::new(),
            size: 0,
            segments: Vec::new(),
            newest_us: Vec::new(),
            groups: Vec::new(),
            group: Edge::new(),
            group_at: Place { segment: 0, offset: 0 },
            rows: Edge::new(),
            blocks: Vec::new(),
            marks: HashSet::new(),
            incidents: 0,
            times: None,
            tenants: HashMap::new(),
            epochs: HashSet::new(),
        }
    }
}

impl Outline {
    /// Notes the next entry.
    pub(crate) fn note(&mut self, at: Place, leaf: Hash, entry: &Entry) {
        if self.segments.last() != Some(&at.segment) {
            self.segments.push(at.segment);
            self.newest_us.push(self.newest_us.last().copied().unwrap_or_default());
        }
        if let Some(newest) = self.newest_us.last_mut() {
            *newest = entry.head.wall_us.max(*newest);
        }
        if self.group.size() == 0 {
            self.group_at = at;
        }
        self.group.push(leaf);
        self.body(entry);
        self.size += 1;
        if self.group.size() == GROUP {
            let hash = std::mem::take(&mut self.group).root();
            self.groups.push(Group { at: self.group_at, hash });
            self.rows.push(hash);
        }
        if self.size.is_multiple_of(BLOCK) {
            let mut marks: Vec<u32> = std::mem::take(&mut self.marks).into_iter().collect();
            marks.sort_unstable();
            let (first_us, last_us) = self.times.take().unwrap_or_default();
            let incidents = std::mem::take(&mut self.incidents);
            self.blocks.push(Block { root: self.rows.root(), marks: marks.into(), incidents, first_us, last_us });
        }
    }

    fn body(&mut self, entry: &Entry) {
        let now = entry.head.wall_us;
        let (first, last) = self.times.unwrap_or((now, now));
        self.times = Some((first.min(now), last.max(now)));
        let block = self.size / BLOCK;
        if let Some(link) = entry.head.tenant {
            let chain = self.tenants.entry(link.tenant).or_default();
            if chain.blocks.last().is_none_or(|(last, _)| *last != block) {
                chain.blocks.push((block, link.number));
            }
            chain.entries = link.number + 1;
        }
        match &entry.body {
            Body::Opened(opened) => {
                if let Some(link) = entry.head.tenant {
                    self.epochs.insert((link.tenant, opened.epoch));
                }
            }
            Body::Incident(_) => self.incidents += 1,
            _ => {}
        }
        if let Some((kind, request)) = Kind::of(entry) {
            let mark = self.mark(kind, request);
            self.marks.insert(mark);
        }
    }

    fn mark(&self, kind: Kind, request: RequestId) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a part of a hash is a hash")]
        let mark = self.keyed.hash_one((kind as u8, request.bytes())) as u32;
        mark
    }

    /// Blocks that may hold the request's entry. One that is not named does not.
    pub(crate) fn blocks_of(&self, kind: Kind, request: RequestId) -> Vec<u64> {
        let mark = self.mark(kind, request);
        let complete = (0..).zip(&self.blocks).filter(|(_, block)| block.marks.binary_search(&mark).is_ok());
        let open = self.marks.contains(&mark).then_some(self.complete_blocks());
        complete.map(|(number, _)| number).chain(open).collect()
    }

    /// The block of a tenant's entry with that number. `None` when there is no such entry.
    pub(crate) fn block_of_number(&self, tenant: TenantRef, number: u64) -> Option<u64> {
        let chain = self.tenants.get(&tenant).filter(|chain| number < chain.entries)?;
        let after = chain.blocks.partition_point(|(_, first)| *first <= number);
        chain.blocks.get(after.checked_sub(1)?).map(|(block, _)| *block)
    }

    /// How many entries a tenant has.
    pub(crate) fn entries_of(&self, tenant: TenantRef) -> u64 {
        self.tenants.get(&tenant).map_or(0, |chain| chain.entries)
    }

    /// Whether the log has an opened entry of the tenant under its key of the epoch.
    pub(crate) fn has_epoch(&self, tenant: TenantRef, epoch: u64) -> bool {
        self.epochs.contains(&(tenant, epoch))
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn complete_blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(crate) fn block(&self, number: u64) -> Option<&Block> {
        self.blocks.get(usize::try_from(number).ok()?)
    }

    pub(crate) fn group(&self, number: u64) -> Option<Group> {
        self.groups.get(usize::try_from(number).ok()?).copied()
    }

    /// Whole segments from the beginning on, none of whose entries is newer than that: the entry behind them, and the time of
    /// their newest. The last segment is not whole.
    pub(crate) fn older_than(&self, newest_us: u64) -> Option<(u64, u64)> {
        let old = self.newest_us.partition_point(|newest| *newest <= newest_us);
        let old = old.min(self.segments.len().saturating_sub(1));
        Some((*self.segments.get(old)?, *self.newest_us.get(old.checked_sub(1)?)?))
    }

    /// First entries of the segments that end at or before this entry.
    pub(crate) fn segments_before(&self, entry: u64) -> &[u64] {
        let begun = self.segments.partition_point(|first| *first <= entry);
        self.segments.get(..begun.saturating_sub(1)).unwrap_or_default()
    }

    /// First entry of the segment that an entry lies in.
    pub(crate) fn segment_of(&self, index: u64) -> Option<u64> {
        let after = self.segments.partition_point(|first| *first <= index);
        self.segments.get(after.checked_sub(1)?).copied()
    }
}
