//! A model whose K and V name their author, and whose answers name whom it read.
//!
//! It does what the kernels do with pages (the tag compared where a page is read and written, the digest of what was read)
//! and keeps a shadow: who really wrote what it found, whatever labels and tags say. The shadow is the oracle of all runs; a
//! check is never compared with itself.

use crate::cast::Cast;
use engine_kernels::{
    KvStoreError, PAGE_TOKENS, PageBytes, PageFault, PageRef, ReadSetRule, ReadSums, Span, TransferError,
};
use engine_model::ForwardError;
use engine_runtime::{Compute, PlainStore};
use std::collections::{BTreeMap, BTreeSet};

const LAYERS: usize = 2;
/// K and V of one token in one layer: the token, its position.
const TOKEN_BYTES: usize = 8;

/// Whose row it is, the read set, and the next token where it was asked for.
type Computed = (u64, u64, Option<Vec<f32>>);

/// One request found another's content under a place that it was told to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignRead {
    /// Who read.
    pub reader: u32,
    /// Who had written it.
    pub author: u32,
    /// Where.
    pub page: u32,
    /// The tag check let it pass: the answer is made of it. Else it was stopped before.
    pub was_read: bool,
}

/// A request that had a place in the store, and for how long; in the tracer's own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stay {
    /// Who read the page, or had it committed to it.
    pub reader: u32,
    /// Where.
    pub page: u32,
    /// When the page was given out for this.
    pub since: u64,
}

/// The tracer.
#[derive(Debug)]
pub struct Tracer {
    cast: Cast,
    store: PlainStore,
    reads: ReadSetRule,
    results: Vec<Result<Computed, PageFault>>,
    texts: Vec<[u8; 1]>,
    reads_whole_pages: bool,
    foreign: BTreeSet<ForeignRead>,
    /// Requests that found what is of their tenant and does not stand in their own sequence.
    misread: BTreeSet<u32>,
    /// Counts what is done to pages.
    clock: u64,
    given_out: Vec<u64>,
    /// Whose bytes landed in a page, as long as nobody has read it.
    landed: Vec<Option<u32>>,
    /// Until when each stay lasted, as far as is known.
    stays: BTreeMap<Stay, u64>,
}

impl Tracer {
    /// With as many pages.
    #[must_use]
    pub fn new(cast: Cast, pages: usize) -> Self {
        Self {
            cast,
            store: PlainStore::new(pages, LAYERS, TOKEN_BYTES),
            reads: ReadSetRule::new(1, [None; LAYERS]),
            results: Vec::new(),
            texts: (0..cast.tenants).map(|tenant| [Cast::letter(tenant) as u8]).collect(),
            reads_whole_pages: false,
            foreign: BTreeSet::new(),
            misread: BTreeSet::new(),
            clock: 0,
            given_out: vec![0; pages],
            landed: vec![None; pages],
            stays: BTreeMap::new(),
        }
    }

    /// Switches the comparison of tags off: a kernel that believes its block table.
    pub fn believe_block_tables(&mut self) {
        self.store.believe_block_tables();
    }

    /// A kernel that does not know where a page's tokens end.
    pub fn read_whole_pages(&mut self) {
        self.reads_whole_pages = true;
    }

    /// What the shadow saw.
    #[must_use]
    pub fn foreign_reads(&self) -> &BTreeSet<ForeignRead> {
        &self.foreign
    }

    /// Requests that read what other requests of their tenant wrote, behind other tokens than their own.
    #[must_use]
    pub fn misread(&self) -> &BTreeSet<u32> {
        &self.misread
    }

    /// The tracer's time: how much was done to pages.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Who was where, and when it was seen there last.
    #[must_use]
    pub fn stays(&self) -> &BTreeMap<Stay, u64> {
        &self.stays
    }

    fn stay(&mut self, reader: u32, page: u32) {
        if let Some(since) = self.given_out.get(page as usize) {
            self.stays.insert(Stay { reader, page, since: *since }, self.clock);
        }
    }

    /// The author of what lies in a slot of a page, and what it says it is; nothing where nobody wrote.
    fn found(&self, page: u32, slot: usize) -> Option<(u32, u32)> {
        let (token, position) = self.store.slot(page, 0, slot).split_first_chunk()?;
        let (token, position) = (u32::from_le_bytes(*token), u32::from_le_bytes(*position.first_chunk()?));
        Some((self.cast.author(token)?, position))
    }

    fn compute(&mut self, span: &Span<'_>) -> Result<Computed, PageFault> {
        let end = span.position + span.tokens.len();
        let pages = &span.pages[..end.div_ceil(PAGE_TOKENS)];
        let reader = span.tokens.last().and_then(|token| self.cast.author(*token)).unwrap_or_default();
        self.clock += 1;
        for page in pages {
            self.stay(reader, page.page);
        }
        for (position, token) in (span.position..).zip(span.tokens) {
            self.write(pages[position / PAGE_TOKENS], position, *token, reader)?;
        }
        let mut is_number = true;
        let (mut loaded, mut named) = (Vec::with_capacity(pages.len()), self.cast.tenant(reader));
        for (index, page) in pages.iter().enumerate() {
            let fill = (end - index * PAGE_TOKENS).min(PAGE_TOKENS);
            let slots = if self.reads_whole_pages { PAGE_TOKENS } else { fill };
            let checked = self.store.check(*page);
            let foreign = self.see(reader, page.page, slots, checked.is_ok());
            checked?;
            let found = (0..fill).filter_map(|slot| Some((index * PAGE_TOKENS + slot, self.found(page.page, slot)?.0)));
            let mut own = found.filter(|(_, author)| self.cast.tenant(*author) == self.cast.tenant(reader));
            if own.any(|(position, author)| !self.cast.says_the_same(reader, author, position)) {
                self.misread.insert(reader);
            }
            named = foreign.unwrap_or(named);
            is_number &= (0..slots).all(|slot| self.found(page.page, slot).is_some());
            loaded.push(PageRef { page: page.page, tag: self.store.carried(page.page) });
        }
        let read_set = self.reads.expected(span.position, span.tokens.len(), &loaded);
        let logits = span.logits.then(|| {
            let mut logits = vec![0.0; self.cast.vocabulary() as usize];
            // What was never written is no number, and neither is what is made of it.
            let largest = if is_number { 1.0 } else { f32::NAN };
            logits[self.cast.answer_token(reader, named) as usize] = largest;
            logits
        });
        Ok((span.ticket, read_set, logits))
    }

    fn write(&mut self, page: PageRef, position: usize, token: u32, reader: u32) -> Result<(), PageFault> {
        let mut content = [0; TOKEN_BYTES];
        content[..4].copy_from_slice(&token.to_le_bytes());
        content[4..].copy_from_slice(&(position as u32).to_le_bytes());
        let written = self.store.append(page, position % PAGE_TOKENS, |_| &content);
        if written.is_err() {
            self.see(reader, page.page, PAGE_TOKENS, false);
        }
        written
    }

    /// Notes whose content lies in the first slots of a page that a request was told to read; gives the tenant of the
    /// last foreign one.
    fn see(&mut self, reader: u32, page: u32, slots: usize, was_read: bool) -> Option<u32> {
        let own = self.cast.tenant(reader);
        let authors = (0..slots).filter_map(|slot| self.found(page, slot)).map(|(author, _)| author);
        let foreign: Vec<u32> = authors.filter(|author| self.cast.tenant(*author) != own).collect();
        self.foreign.extend(foreign.iter().map(|author| ForeignRead { reader, author: *author, page, was_read }));
        foreign.last().map(|author| self.cast.tenant(*author))
    }
}

impl Compute for Tracer {
    fn run(&mut self, spans: &[Span<'_>], stop: &(dyn Fn() -> bool + Sync)) -> Result<(), ForwardError> {
        if stop() {
            return Err(ForwardError::Stopped);
        }
        self.results = spans.iter().map(|span| self.compute(span)).collect();
        Ok(())
    }

    fn fault(&self, span: usize) -> Option<PageFault> {
        self.results.get(span)?.as_ref().err().copied()
    }

    fn read_set(&self, span: usize) -> Option<u64> {
        self.results.get(span)?.as_ref().ok().map(|(_, read_set, _)| *read_set)
    }

    fn expected_read_set(&self, position: usize, tokens: usize, sums: &ReadSums, last: PageRef) -> u64 {
        self.reads.expected_by_sums(position, tokens, sums, last)
    }

    fn logits(&self, span: usize, ticket: u64) -> Option<&[f32]> {
        let (held, _, logits) = self.results.get(span)?.as_ref().ok()?;
        logits.as_deref().filter(|_| *held == ticket || !self.store.is_checked())
    }

    fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
        self.store.assign(page)?;
        self.clock += 1;
        self.given_out[page.page as usize] = self.clock;
        self.landed[page.page as usize] = None;
        Ok(())
    }

    fn scrub(&mut self, page: u32) -> Result<(), KvStoreError> {
        self.store.scrub(page)
    }

    fn read_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        self.store.read_page(page)
    }

    fn held_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        self.store.held_page(page)
    }

    fn land(&mut self, page: PageRef, bytes: &[u8]) -> Result<(), TransferError> {
        self.store.land(page, bytes)?;
        self.clock += 1;
        self.landed[page.page as usize] = self.found(page.page, 0).map(|(author, _)| author);
        Ok(())
    }

    fn overwrite(&mut self, page: u32, bytes: &[u8]) {
        self.clock += u64::from(self.store.overwrite(page, bytes).is_ok());
    }

    fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        self.store.relabel(page, carried, tag)?;
        self.clock += 1;
        if let Some(reader) = self.landed[page.page as usize].take() {
            self.stay(reader, page.page);
        }
        Ok(())
    }

    fn content_bytes(&self) -> usize {
        self.store.content_bytes()
    }

    fn vocabulary(&self) -> u32 {
        self.cast.vocabulary()
    }

    fn is_end(&self, _: u32) -> bool {
        false
    }

    fn text(&self, token: u32) -> Option<&[u8]> {
        self.texts.get(self.cast.named(token)? as usize).map(<[u8; 1]>::as_slice)
    }
}
