//! A model whose K and V name their author, and whose answers name whom it read.
//!
//! It does what the kernels do with pages (the tag compared where a page is read and written, the digest of what was read)
//! and keeps a shadow: who really wrote what it found, whatever labels and tags say. The shadow is the oracle of all runs; a
//! check is never compared with itself.

use crate::cast::Cast;
use engine_kernels::{KvStoreError, PAGE_TOKENS, PageBytes, PageFault, PageRef, ReadSetRule, Span, TransferError};
use engine_model::ForwardError;
use engine_runtime::Compute;
use std::collections::{BTreeMap, BTreeSet};

const LAYERS: usize = 2;
/// K and V of one token in one layer: the token, its position.
const TOKEN_BYTES: usize = 8;
const SLAB_BYTES: usize = PageBytes::HEADER_BYTES + PAGE_TOKENS * TOKEN_BYTES;
const PAGE_BYTES: usize = LAYERS * SLAB_BYTES;
/// What a scrubbed page is full of.
const POISON: u8 = 0xff;

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
    bytes: Vec<u8>,
    tags: Vec<u32>,
    reads: ReadSetRule,
    results: Vec<Result<Computed, PageFault>>,
    texts: Vec<[u8; 1]>,
    checks_tags: bool,
    reads_whole_pages: bool,
    foreign: BTreeSet<ForeignRead>,
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
        let mut tracer = Self {
            cast,
            bytes: vec![0; pages * PAGE_BYTES],
            tags: vec![0; pages],
            reads: ReadSetRule::new(1, [None; LAYERS]),
            results: Vec::new(),
            texts: (0..cast.tenants).map(|tenant| [Cast::letter(tenant) as u8]).collect(),
            checks_tags: true,
            reads_whole_pages: false,
            foreign: BTreeSet::new(),
            clock: 0,
            given_out: vec![0; pages],
            landed: vec![None; pages],
            stays: BTreeMap::new(),
        };
        (0..pages as u32).for_each(|page| tracer.poison(page));
        tracer
    }

    fn poison(&mut self, page: u32) {
        self.page(page).fill(POISON);
        for layer in 0..LAYERS {
            self.page(page)[layer * SLAB_BYTES..][..PageBytes::HEADER_BYTES].fill(0);
        }
    }

    /// Switches the comparison of tags off: a kernel that believes its block table.
    pub fn believe_block_tables(&mut self) {
        self.checks_tags = false;
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

    fn page(&mut self, page: u32) -> &mut [u8] {
        &mut self.bytes[page as usize * PAGE_BYTES..][..PAGE_BYTES]
    }

    /// The author of what lies in a slot of a page, and what it says it is; nothing where nobody wrote.
    fn found(&self, page: u32, slot: usize) -> Option<(u32, u32)> {
        let at = page as usize * PAGE_BYTES + PageBytes::HEADER_BYTES + slot * TOKEN_BYTES;
        let token = u32::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?);
        let position = u32::from_le_bytes(*self.bytes.get(at + 4..)?.first_chunk()?);
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
            let fault = self.check(*page);
            let foreign = self.see(reader, page.page, slots, fault.is_none());
            if let Some(fault) = fault {
                return Err(fault);
            }
            named = foreign.unwrap_or(named);
            is_number &= (0..slots).all(|slot| self.found(page.page, slot).is_some());
            loaded.push(PageRef { page: page.page, tag: self.carried(page.page) });
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
        let slot = position % PAGE_TOKENS;
        let is_wrong = self.tags.get(page.page as usize) != Some(&page.tag)
            || slot != 0 && (0..LAYERS).any(|layer| self.tag_of_layer(page.page, layer) != page.tag);
        if is_wrong && self.checks_tags {
            self.see(reader, page.page, PAGE_TOKENS, false);
            return Err(PageFault { layer: 0, page: page.page });
        }
        let mut content = [0; TOKEN_BYTES];
        content[..4].copy_from_slice(&token.to_le_bytes());
        content[4..].copy_from_slice(&(position as u32).to_le_bytes());
        for layer in 0..LAYERS {
            let slab = &mut self.page(page.page)[layer * SLAB_BYTES..][..SLAB_BYTES];
            if slot == 0 {
                slab[..4].copy_from_slice(&page.tag.to_le_bytes());
            }
            slab[PageBytes::HEADER_BYTES + slot * TOKEN_BYTES..][..TOKEN_BYTES].copy_from_slice(&content);
        }
        Ok(())
    }

    /// The label check of a read.
    fn check(&self, page: PageRef) -> Option<PageFault> {
        let fault = |layer: usize| PageFault { layer: layer as u32, page: page.page };
        if !self.checks_tags {
            return None;
        }
        if page.tag == 0 || self.tags.get(page.page as usize) != Some(&page.tag) {
            return Some(fault(0));
        }
        (0..LAYERS).find(|layer| self.tag_of_layer(page.page, *layer) != page.tag).map(fault)
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

    fn tag_of_layer(&self, page: u32, layer: usize) -> u32 {
        let header = self.bytes.get(page as usize * PAGE_BYTES + layer * SLAB_BYTES..);
        header.and_then(<[u8]>::first_chunk).map_or(0, |tag| u32::from_le_bytes(*tag))
    }

    /// The tag that the bytes of all layers carry.
    fn carried(&self, page: u32) -> u32 {
        let tag = self.tag_of_layer(page, 0);
        if (1..LAYERS).all(|layer| self.tag_of_layer(page, layer) == tag) { tag } else { 0 }
    }

    fn holder(&self, page: PageRef) -> Result<usize, TransferError> {
        let PageRef { page, tag } = page;
        match self.tags.get(page as usize) {
            Some(held) if tag != 0 && *held == tag => Ok(page as usize * PAGE_BYTES),
            Some(_) if !self.checks_tags => Ok(page as usize * PAGE_BYTES),
            Some(_) => Err(TransferError::OtherHolder { page }),
            None => Err(KvStoreError::PageOutside { page, pages: self.tags.len() }.into()),
        }
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

    fn expected_read_set(&self, position: usize, tokens: usize, pages: &[PageRef]) -> u64 {
        self.reads.expected(position, tokens, pages)
    }

    fn logits(&self, span: usize, ticket: u64) -> Option<&[f32]> {
        let (held, _, logits) = self.results.get(span)?.as_ref().ok()?;
        logits.as_deref().filter(|_| *held == ticket || !self.checks_tags)
    }

    fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
        let PageRef { page, tag } = page;
        let pages = self.tags.len();
        match self.tags.get_mut(page as usize) {
            Some(held) if (*held == 0 || !self.checks_tags) && tag != 0 => *held = tag,
            Some(_) => return Err(KvStoreError::Assigned { page }),
            None => return Err(KvStoreError::PageOutside { page, pages }),
        }
        self.clock += 1;
        self.given_out[page as usize] = self.clock;
        self.landed[page as usize] = None;
        Ok(())
    }

    fn scrub(&mut self, page: u32) -> Result<(), KvStoreError> {
        self.poison(page);
        self.tags[page as usize] = 0;
        Ok(())
    }

    fn read_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        let bytes = self.held_page(page)?;
        match (0..LAYERS).find(|layer| self.checks_tags && self.tag_of_layer(page.page, *layer) != page.tag) {
            Some(layer) => Err(TransferError::OtherLife { page: page.page, layer }),
            None => Ok(bytes),
        }
    }

    fn held_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        let start = self.holder(page)?;
        let pages = self.tags.len();
        PageBytes::new(&self.bytes[start..start + PAGE_BYTES], LAYERS, SLAB_BYTES)
            .ok_or_else(|| KvStoreError::PageOutside { page: page.page, pages }.into())
    }

    fn land(&mut self, page: PageRef, bytes: &[u8]) -> Result<(), TransferError> {
        let start = self.holder(page)?;
        if bytes.len() != PAGE_BYTES {
            return Err(TransferError::Size { bytes: bytes.len(), page_bytes: PAGE_BYTES });
        }
        self.bytes[start..start + PAGE_BYTES].copy_from_slice(bytes);
        self.clock += 1;
        self.landed[page.page as usize] = self.found(page.page, 0).map(|(author, _)| author);
        Ok(())
    }

    fn overwrite(&mut self, page: u32, bytes: &[u8]) {
        let start = page as usize * PAGE_BYTES;
        if let Some(to) = self.bytes.get_mut(start..start + PAGE_BYTES).filter(|to| to.len() == bytes.len()) {
            to.copy_from_slice(bytes);
            self.clock += 1;
        }
    }

    fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        let start = self.holder(page)?;
        for layer in 0..LAYERS {
            if self.checks_tags && self.tag_of_layer(page.page, layer) != carried {
                return Err(TransferError::OtherLife { page: page.page, layer });
            }
        }
        for layer in 0..LAYERS {
            self.bytes[start + layer * SLAB_BYTES..][..4].copy_from_slice(&tag.to_le_bytes());
        }
        self.tags[page.page as usize] = tag;
        self.clock += 1;
        if let Some(reader) = self.landed[page.page as usize].take() {
            self.stay(reader, page.page);
        }
        Ok(())
    }

    fn content_bytes(&self) -> usize {
        SLAB_BYTES - PageBytes::HEADER_BYTES
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
