//! A model for tests: a token's K and V say what it was, and the next token is a function of every byte that was read.

use super::Compute;
use engine_kernels::{KvStoreError, PAGE_TOKENS, PageBytes, PageFault, PageRef, ReadSetRule, Span, TransferError};
use engine_model::ForwardError;

const LAYERS: usize = 2;
/// K and V of one token in one layer.
const TOKEN_BYTES: usize = 8;
const SLAB_BYTES: usize = PageBytes::HEADER_BYTES + PAGE_TOKENS * TOKEN_BYTES;
const PAGE_BYTES: usize = LAYERS * SLAB_BYTES;
const VOCABULARY: usize = 26;

/// Ticket, read set, and logits where they were asked for.
type Computed = (u64, u64, Option<Vec<f32>>);

pub(crate) struct Tracer {
    bytes: Vec<u8>,
    tags: Vec<u32>,
    reads: ReadSetRule,
    results: Vec<Result<Computed, PageFault>>,
}

impl Tracer {
    pub(crate) fn new(pages: usize) -> Self {
        let reads = ReadSetRule::new(1, [None; LAYERS]);
        Self { bytes: vec![0; pages * PAGE_BYTES], tags: vec![0; pages], reads, results: Vec::new() }
    }

    /// All bytes of a page, to be damaged.
    pub(crate) fn page(&mut self, page: u32) -> &mut [u8] {
        &mut self.bytes[page as usize * PAGE_BYTES..][..PAGE_BYTES]
    }

    pub(crate) fn is_scrubbed(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0) && self.tags.iter().all(|tag| *tag == 0)
    }

    /// What a model without pages would say after these tokens.
    pub(crate) fn answer(tokens: &[u32], count: usize) -> String {
        let mut tokens = tokens.to_vec();
        let prompt = tokens.len();
        for _ in 0..count {
            let read = tokens.iter().flat_map(|token| (0..LAYERS).flat_map(|layer| written(*token, layer)));
            tokens.push(next(read));
        }
        tokens[prompt..].iter().map(|token| letter(*token)).collect()
    }

    fn compute(&mut self, span: &Span<'_>) -> Result<Computed, PageFault> {
        let end = span.position + span.tokens.len();
        let pages = &span.pages[..end.div_ceil(PAGE_TOKENS)];
        for (offset, token) in span.tokens.iter().enumerate() {
            let (index, slot) = ((span.position + offset) / PAGE_TOKENS, (span.position + offset) % PAGE_TOKENS);
            let PageRef { page, tag } = pages[index];
            if self.tags.get(page as usize) != Some(&tag) {
                return Err(PageFault { layer: 0, page });
            }
            for layer in 0..LAYERS {
                let slab = &mut self.page(page)[layer * SLAB_BYTES..][..SLAB_BYTES];
                if slot == 0 {
                    slab[..4].copy_from_slice(&tag.to_le_bytes());
                }
                let at = PageBytes::HEADER_BYTES + slot * TOKEN_BYTES;
                slab[at..at + TOKEN_BYTES].copy_from_slice(&written(*token, layer));
            }
        }
        let mut loaded = Vec::new();
        for PageRef { page, tag } in pages {
            let held = self.read_page(PageRef { page: *page, tag: *tag });
            let fault = |layer| PageFault { layer, page: *page };
            loaded.push(match held {
                Ok(bytes) => PageRef { page: *page, tag: bytes.tag().unwrap_or_default() },
                Err(TransferError::OtherLife { layer, .. }) => return Err(fault(layer as u32)),
                Err(_) => return Err(fault(0)),
            });
        }
        let read_set = self.reads.expected(span.position, span.tokens.len(), &loaded);
        let read = (0..end).flat_map(|position| {
            let page = &self.bytes[pages[position / PAGE_TOKENS].page as usize * PAGE_BYTES..];
            let at = PageBytes::HEADER_BYTES + position % PAGE_TOKENS * TOKEN_BYTES;
            (0..LAYERS).flat_map(move |layer| page[layer * SLAB_BYTES + at..][..TOKEN_BYTES].iter().copied())
        });
        let logits = span.logits.then(|| {
            let mut logits = vec![0.0; VOCABULARY];
            logits[next(read) as usize] = 1.0;
            logits
        });
        Ok((span.ticket, read_set, logits))
    }

    fn holder(&self, page: PageRef) -> Result<usize, TransferError> {
        let PageRef { page, tag } = page;
        match self.tags.get(page as usize) {
            Some(held) if tag != 0 && *held == tag => Ok(page as usize * PAGE_BYTES),
            Some(_) => Err(TransferError::OtherHolder { page }),
            None => Err(KvStoreError::PageOutside { page, pages: self.tags.len() }.into()),
        }
    }
}

fn written(token: u32, layer: usize) -> [u8; TOKEN_BYTES] {
    ((u64::from(token) << 8) | (layer as u64 + 1)).to_le_bytes()
}

fn next(read: impl Iterator<Item = u8>) -> u32 {
    let hash = read.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    ((hash >> 32) % VOCABULARY as u64) as u32
}

fn letter(token: u32) -> char {
    char::from(LETTERS[token as usize % VOCABULARY])
}

const LETTERS: &[u8; VOCABULARY] = b"abcdefghijklmnopqrstuvwxyz";

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
        logits.as_deref().filter(|_| *held == ticket)
    }

    fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
        let PageRef { page, tag } = page;
        let pages = self.tags.len();
        match self.tags.get_mut(page as usize) {
            Some(held) if *held == 0 && tag != 0 => *held = tag,
            Some(_) => return Err(KvStoreError::Assigned { page }),
            None => return Err(KvStoreError::PageOutside { page, pages }),
        }
        Ok(())
    }

    fn scrub(&mut self, page: u32) -> Result<(), KvStoreError> {
        self.page(page).fill(0);
        self.tags[page as usize] = 0;
        Ok(())
    }

    fn read_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        let (bytes, tag) = (self.held_page(page)?, page.tag.to_le_bytes());
        match (0..LAYERS).find(|layer| bytes.all()[layer * SLAB_BYTES..][..4] != tag) {
            Some(layer) => Err(TransferError::OtherLife { page: page.page, layer }),
            None => Ok(bytes),
        }
    }

    fn held_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        let start = self.holder(page)?;
        let bytes = PageBytes::new(&self.bytes[start..start + PAGE_BYTES], LAYERS, SLAB_BYTES);
        Ok(bytes.expect("a page is made of slabs"))
    }

    fn land(&mut self, page: PageRef, bytes: &[u8]) -> Result<(), TransferError> {
        let start = self.holder(page)?;
        if bytes.len() != PAGE_BYTES {
            return Err(TransferError::Size { bytes: bytes.len(), page_bytes: PAGE_BYTES });
        }
        self.bytes[start..start + PAGE_BYTES].copy_from_slice(bytes);
        Ok(())
    }

    fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        let start = self.holder(page)?;
        for layer in 0..LAYERS {
            let header = &mut self.bytes[start + layer * SLAB_BYTES..][..4];
            if header != carried.to_le_bytes() {
                return Err(TransferError::OtherLife { page: page.page, layer });
            }
            header.copy_from_slice(&tag.to_le_bytes());
        }
        self.tags[page.page as usize] = tag;
        Ok(())
    }

    fn content_bytes(&self) -> usize {
        PAGE_TOKENS * TOKEN_BYTES
    }

    fn vocabulary(&self) -> u32 {
        VOCABULARY as u32
    }

    fn is_end(&self, _: u32) -> bool {
        false
    }

    fn text(&self, token: u32) -> Option<&[u8]> {
        LETTERS.get(token as usize % VOCABULARY..).map(|letters| &letters[..1])
    }
}
