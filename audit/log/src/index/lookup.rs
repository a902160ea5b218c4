//! Questions and their answers. Whatever the store says is compared with the entries; whatever it denies, with the outline.
//! Where they differ the store is made anew, and the answer is read from the segments.

use super::BLOCK;
use super::pages::{TagKey, page_range, readers_in, unknown_in, unknown_range};
use super::record::{Kind, decode_place, incident_key, request_key, tenant_key};
use super::service::{Answer, IndexHealth, IndexStore, Question, Service, StoreKeeper};
use super::source::{Known, Read, SegmentTraces, Source, is_of};
use super::store::RECORDS_MAX;
use crate::fault::LogFault;
use crate::log::lock;
use crate::retention::drop_traces;
use crate::segment::TracePlace;
use crate::sequence::Commit;
use crate::storage::Storage;
use audit_provenance::{Body, Entry, TenantRef, Trace};
use policies_domain::{Digest, Generation, PageId, RequestId};
use std::sync::{Arc, Mutex};

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// A segment is not what it was when the log was opened, or cannot be read.
    #[error("the stored log is damaged: {reason}")]
    Damaged {
        /// What is wrong.
        reason: Arc<str>,
    },
}

/// Who read a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageReaders {
    /// Indices of the sealed entries whose traces name it, in order.
    pub readers: Vec<u64>,
    /// Indices of sealed entries whose trace is not there, or never was: whether they read it is not known.
    pub unknown: Vec<u64>,
}

/// A request's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestRecord {
    pub(crate) tenant: TenantRef,
    pub(crate) opened: u64,
    pub(crate) sealed: Option<u64>,
    pub(crate) trace: TraceAt,
}

/// What is known of where a trace lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TraceAt {
    /// There, if the store did not lie.
    Place(TracePlace),
    /// It was not stored.
    Nowhere,
    /// Nobody said.
    Unknown,
}

/// The index, as the rest of the log asks it.
pub(crate) struct Lookup {
    pub(super) source: Arc<Source>,
    service: Service,
    tag_key: TagKey,
}

/// An entry that was found, and what was said of its trace.
struct Found {
    read: Read,
    trace: TraceAt,
}

impl Lookup {
    pub(crate) fn start(
        storage: Arc<dyn Storage>,
        known: Known,
        kind: &IndexStore,
        origin: String,
        tag_key: TagKey,
    ) -> std::io::Result<Self> {
        Self::start_on(storage, known, StoreKeeper::new(kind), origin, tag_key)
    }

    pub(crate) fn start_on(
        storage: Arc<dyn Storage>,
        known: Known,
        keeper: StoreKeeper,
        origin: String,
        tag_key: TagKey,
    ) -> std::io::Result<Self> {
        let source = Arc::new(Source { storage, known: Mutex::new(known) });
        let service = Service::start(Arc::clone(&source), keeper, origin, tag_key.clone())?;
        Ok(Self { source, service, tag_key })
    }

    /// Notes a committed batch. Nothing here waits for the store.
    pub(crate) fn note_batch(&self, commit: &Commit) {
        let grown = {
            let mut known = lock(&self.source.known);
            let before = known.outline.complete_blocks();
            known.note_batch(commit);
            known.outline.complete_blocks() > before
        };
        if grown {
            self.service.grown();
        }
    }

    pub(crate) fn health(&self) -> IndexHealth {
        self.service.health()
    }

    pub(crate) fn end(&self) {
        self.service.end();
    }

    /// Whether the log has an opened entry of the tenant under its key of the epoch.
    pub(crate) fn has_epoch(&self, tenant: TenantRef, epoch: u64) -> bool {
        lock(&self.source.known).outline.has_epoch(tenant, epoch)
    }

    /// How many entries a tenant has.
    pub(crate) fn entries_of(&self, tenant: TenantRef) -> u64 {
        lock(&self.source.known).outline.entries_of(tenant)
    }

    /// Whole segments from the beginning on, none of whose entries is newer than that: the entry behind them, and the time of
    /// their newest.
    pub(crate) fn older_than(&self, newest_us: u64) -> Option<(u64, u64)> {
        lock(&self.source.known).outline.older_than(newest_us)
    }

    /// From here on the traces of the entries before this one are not looked for, and their files go.
    pub(crate) fn drop_traces(&self, before: u64) -> Result<(), LogFault> {
        let mut known = lock(&self.source.known);
        known.pruned = before;
        drop_traces(&*self.source.storage, &known)
    }

    /// One entry, as it was committed; `None` when there is none with that index.
    pub(crate) fn entry(&self, index: u64) -> Result<Option<Entry>, LookupError> {
        Ok(self.source.entry(index)?.map(|read| read.entry))
    }

    /// A request's entries; `None` when the log has no such request.
    pub(crate) fn request(&self, request: RequestId) -> Result<Option<RequestRecord>, LookupError> {
        let Some(opened) = self.find(Kind::Opened, request)? else { return Ok(None) };
        // INVARIANT: an opened entry without a tenant is of no kind, so it is not found.
        let Some(link) = opened.read.entry.head.tenant else { return Ok(None) };
        let sealed = self.find(Kind::Sealed, request)?;
        Ok(Some(RequestRecord {
            tenant: link.tenant,
            opened: opened.read.index,
            sealed: sealed.as_ref().map(|sealed| sealed.read.index),
            trace: sealed.map_or(TraceAt::Nowhere, |sealed| sealed.trace),
        }))
    }

    fn find(&self, kind: Kind, request: RequestId) -> Result<Option<Found>, LookupError> {
        let (in_tail, blocks) = {
            let known = lock(&self.source.known);
            let in_tail = known.tail.find(kind, request).map(|placed| placed.index);
            (in_tail, if in_tail.is_some() { Vec::new() } else { known.outline.blocks_of(kind, request) })
        };
        if let Some(index) = in_tail
            && let Some(read) = self.source.entry(index)?.filter(|read| is_of(read, kind, request))
        {
            return Ok(Some(Found { trace: read.trace, read }));
        }
        if blocks.is_empty() {
            return Ok(None);
        }
        let answer = self.service.ask(Question::Value(request_key(kind, request)));
        if let Some(answer) = &answer
            && let Some((_, value)) = answer.records.first()
        {
            if let Some((index, trace)) = decode_place(value)
                && let Some(read) = self.source.entry(index)?
                && is_of(&read, kind, request)
            {
                return Ok(Some(Found { read, trace: trace.map_or(TraceAt::Unknown, TraceAt::Place) }));
            }
            self.service.distrust(answer.life, "it gave the place of another entry");
        }
        for block in blocks {
            let found = self.source.block(block)?.into_iter().find(|read| is_of(read, kind, request));
            if let Some(read) = found {
                self.missed(answer.as_ref(), read.index, "it had lost a request");
                return Ok(Some(Found { trace: read.trace, read }));
            }
        }
        Ok(None)
    }

    /// What the store did not have although it has the block.
    fn missed(&self, answer: Option<&Answer>, index: u64, reason: &str) {
        if let Some(answer) = answer
            && index < answer.indexed
        {
            self.service.distrust(answer.life, reason);
        }
    }

    /// The trace of a sealed entry, if it is still there and has that digest.
    pub(crate) fn trace(&self, sealed: u64, digest: Digest, at: TraceAt) -> Option<Vec<u8>> {
        let read = self.source.entry(sealed).ok().flatten()?;
        let right = |place| self.source.trace_at(place, &read).filter(|trace| Trace::root(trace) == digest);
        if let TraceAt::Place(place) = at
            && let Some(trace) = right(place)
        {
            return Some(trace);
        }
        let segment = self.source.segment_of(sealed)?;
        let offset = *self.source.traces_of(segment).get(&sealed)?;
        right(TracePlace { segment, offset })
    }

    /// A tenant's entries. Its numbers have no gap, so what is missing shows.
    pub(crate) fn tenant_entries(
        &self,
        tenant: TenantRef,
        first: u64,
        entries_max: u64,
    ) -> Result<Vec<u64>, LookupError> {
        let end = lock(&self.source.known).outline.entries_of(tenant).min(first.saturating_add(entries_max));
        let mut entries: Vec<u64> = Vec::new();
        let mut number = first;
        while number < end {
            let step = (end - number).min(RECORDS_MAX as u64);
            let range = Question::Range(tenant_key(tenant, number), tenant_key(tenant, number + step));
            let answer = self.service.ask(range);
            let said = answer.as_ref().map(|answer| answer.records.as_slice()).unwrap_or_default();
            let mut said = said.iter().peekable();
            let mut reader = Reader::new(&self.source);
            for wanted in number..number + step {
                let key = tenant_key(tenant, wanted);
                while said.next_if(|(said, _)| *said < key).is_some() {}
                let place = said.next_if(|(said, _)| *said == key).and_then(|(_, value)| decode_place(value));
                let is = |read: &Read| {
                    read.entry.head.tenant.is_some_and(|link| (link.tenant, link.number) == (tenant, wanted))
                };
                let found = match place {
                    Some((index, _)) => reader.entry(index)?.filter(|read| is(read)),
                    None => None,
                };
                let index = match found {
                    Some(read) => read.index,
                    None => {
                        let index = self.numbered(tenant, wanted, &mut reader)?;
                        self.missed(answer.as_ref(), index, "it had a wrong place for a tenant's entry, or none");
                        index
                    }
                };
                entries.push(index);
            }
            number += step;
        }
        Ok(entries)
    }

    /// Reads the block that the tenant's entry must lie in.
    fn numbered(&self, tenant: TenantRef, number: u64, reader: &mut Reader<'_>) -> Result<u64, LookupError> {
        let missing = || LookupError::Damaged { reason: Arc::from(format!("entry {number} of a tenant is missing")) };
        let block = lock(&self.source.known).outline.block_of_number(tenant, number).ok_or_else(missing)?;
        let is =
            |read: &&Read| read.entry.head.tenant.is_some_and(|link| (link.tenant, link.number) == (tenant, number));
        reader.block(block)?.iter().find(is).map(|read| read.index).ok_or_else(missing)
    }

    /// All incidents. The outline says how many each block has.
    pub(crate) fn incidents(&self) -> Result<Vec<u64>, LookupError> {
        let (blocks, size) = self.blocks();
        let mut incidents = Vec::new();
        for block in 0..blocks {
            let wanted = lock(&self.source.known).outline.block(block).map_or(0, |block| block.incidents);
            if wanted == 0 {
                continue;
            }
            let range = Question::Range(incident_key(block * BLOCK), incident_key((block + 1) * BLOCK));
            let answer = self.service.ask(range);
            let mut reader = Reader::new(&self.source);
            let mut found = Vec::new();
            for (_, value) in answer.as_ref().map(|answer| answer.records.as_slice()).unwrap_or_default() {
                let Some((index, _)) = decode_place(value).filter(|(index, _)| index / BLOCK == block) else {
                    continue;
                };
                if reader.entry(index)?.is_some_and(|read| matches!(read.entry.body, Body::Incident(_))) {
                    found.push(index);
                }
            }
            found.sort_unstable();
            found.dedup();
            if found.len() as u64 != wanted {
                self.missed(answer.as_ref(), block * BLOCK, "it had lost an incident");
                found = self.in_block(block, |read| matches!(read.entry.body, Body::Incident(_)))?;
            }
            incidents.append(&mut found);
        }
        if size > blocks * BLOCK {
            incidents.append(&mut self.in_block(blocks, |read| matches!(read.entry.body, Body::Incident(_)))?);
        }
        Ok(incidents)
    }

    /// Complete blocks, and entries.
    fn blocks(&self) -> (u64, u64) {
        let known = lock(&self.source.known);
        (known.outline.complete_blocks(), known.outline.size())
    }

    fn in_block(&self, block: u64, wanted: impl Fn(&Read) -> bool) -> Result<Vec<u64>, LookupError> {
        let entries = self.source.block(block)?;
        Ok(entries.iter().filter(|read| wanted(read)).map(|read| read.index).collect())
    }

    /// Entries by wall time. The outline says which times a block has, so that at most the blocks at both ends are read, and
    /// those around a moment at which the clock went back.
    pub(crate) fn entries_between(&self, first_us: u64, last_us: u64) -> Result<Vec<u64>, LookupError> {
        let (blocks, size) = self.blocks();
        let wanted = first_us..=last_us;
        let mut entries = Vec::new();
        for block in 0..blocks {
            let times = lock(&self.source.known).outline.block(block).map(|block| (block.first_us, block.last_us));
            let Some((first, last)) = times.filter(|(first, last)| *first <= last_us && *last >= first_us) else {
                continue;
            };
            if wanted.contains(&first) && wanted.contains(&last) {
                entries.extend(block * BLOCK..(block + 1) * BLOCK);
            } else {
                entries.append(&mut self.in_block(block, |read| wanted.contains(&read.entry.head.wall_us))?);
            }
        }
        if size > blocks * BLOCK {
            entries.append(&mut self.in_block(blocks, |read| wanted.contains(&read.entry.head.wall_us))?);
        }
        Ok(entries)
    }

    /// Who read a page. What the store says of a block is whole or is not used.
    pub(crate) fn page_readers(&self, page: PageId, generation: Generation) -> Result<PageReaders, LookupError> {
        let (blocks, size) = self.blocks();
        // Of dropped traces a store may still have something, which is not told.
        let pruned = lock(&self.source.known).pruned;
        let mut all = PageReaders::default();
        let mut traces = SegmentTraces::default();
        for block in 0..size.div_ceil(BLOCK) {
            let is_asked = block < blocks && block * BLOCK >= pruned;
            let said = if is_asked { self.said_of_page(page, generation, block) } else { None };
            let mut of_block = match said {
                Some(said) => said,
                None => {
                    let mut entries = self.source.block(block)?;
                    let readers = self.source.readers(&mut entries, &mut traces);
                    PageReaders { readers: readers.readers(page.0, generation.0), unknown: readers.unknown_readers() }
                }
            };
            all.readers.append(&mut of_block.readers);
            all.unknown.append(&mut of_block.unknown);
        }
        Ok(all)
    }

    fn said_of_page(&self, page: PageId, generation: Generation, block: u64) -> Option<PageReaders> {
        let ask = |(from, to)| {
            let answer = self.service.ask(Question::Range(from, to))?;
            (answer.indexed > block * BLOCK).then_some(answer)
        };
        let (of_page, of_unknown) = (ask(page_range(page.0, block))?, ask(unknown_range(block))?);
        let readers = readers_in(&self.tag_key, block, page.0, generation.0, &of_page.records);
        let unknown = unknown_in(&self.tag_key, block, &of_unknown.records);
        match (readers, unknown) {
            (Some(readers), Some(unknown)) => Some(PageReaders { readers, unknown }),
            _ => {
                self.missed(Some(&of_page), block * BLOCK, "what it said of a page was not whole");
                None
            }
        }
    }
}

/// Reads entries one after the other, and keeps what it read last.
struct Reader<'a> {
    source: &'a Source,
    group: Option<(u64, Vec<Read>)>,
    block: Option<(u64, Vec<Read>)>,
}

impl<'a> Reader<'a> {
    fn new(source: &'a Source) -> Self {
        Self { source, group: None, block: None }
    }

    fn entry(&mut self, index: u64) -> Result<Option<Read>, LookupError> {
        let number = index / super::outline::GROUP;
        let in_tail = {
            let known = lock(&self.source.known);
            index >= known.tail.first() || index >= known.outline.size()
        };
        if in_tail {
            return self.source.entry(index);
        }
        if self.group.as_ref().is_none_or(|(held, _)| *held != number) {
            self.group = Some((number, self.source.group(number)?));
        }
        let entries = self.group.as_ref().map(|(_, entries)| entries.as_slice()).unwrap_or_default();
        Ok(entries.iter().find(|read| read.index == index).cloned())
    }

    fn block(&mut self, number: u64) -> Result<&[Read], LookupError> {
        if self.block.as_ref().is_none_or(|(held, _)| *held != number) {
            self.block = Some((number, self.source.block(number)?));
        }
        Ok(self.block.as_ref().map(|(_, entries)| entries.as_slice()).unwrap_or_default())
    }
}
