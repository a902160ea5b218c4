//! A model for tests: a token's K and V say what it was, and the next token is a function of every byte that was read.

use super::{Compute, PlainStore};
use engine_kernels::{
    KvStoreError, PAGE_TOKENS, PageBytes, PageFault, PageRef, ReadSetRule, ReadSums, Span, TransferError,
};
use engine_model::ForwardError;

const LAYERS: usize = 2;
/// K and V of one token in one layer.
const TOKEN_BYTES: usize = 8;
const VOCABULARY: usize = 26;

/// Ticket, read set, and logits where they were asked for.
type Computed = (u64, u64, Option<Vec<f32>>);

pub(crate) struct Tracer {
    store: PlainStore,
    reads: ReadSetRule,
    results: Vec<Result<Computed, PageFault>>,
    /// Says the same again and again, until something that it read long ago makes it say something else.
    has_habits: bool,
    /// After so many tokens it says nothing that is a number.
    breaks_at: Option<usize>,
    /// Every token that was computed, with its row's ticket and its position.
    pub(crate) computed: Vec<(u64, usize, u32)>,
    /// The tickets of each run's spans.
    pub(crate) passes: Vec<Vec<u64>>,
    /// Pages that were assigned so far.
    pub(crate) assigned: usize,
    /// Pages that were copied in so far.
    pub(crate) landed: usize,
}

impl Tracer {
    pub(crate) fn new(pages: usize) -> Self {
        let store = PlainStore::new(pages, LAYERS, TOKEN_BYTES);
        let reads = ReadSetRule::new(1, [None; LAYERS]);
        let (results, computed, passes) = (Vec::new(), Vec::new(), Vec::new());
        Self { store, reads, results, has_habits: false, breaks_at: None, computed, passes, assigned: 0, landed: 0 }
    }

    /// What it says can be guessed, mostly; it breaks after so many tokens, if it does.
    pub(crate) fn with_habits(pages: usize, breaks_at: Option<usize>) -> Self {
        Self { has_habits: true, breaks_at, ..Self::new(pages) }
    }

    /// All bytes of a page, to be damaged.
    pub(crate) fn page(&mut self, page: u32) -> &mut [u8] {
        self.store.page_mut(page)
    }

    /// Nobody compares tags from now on.
    pub(crate) fn believe_block_tables(&mut self) {
        self.store.believe_block_tables();
    }

    pub(crate) fn is_scrubbed(&self) -> bool {
        self.store.is_scrubbed()
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
        for (position, token) in (span.position..).zip(span.tokens) {
            let content = [0, 1].map(|layer| written(*token, layer));
            self.store.append(pages[position / PAGE_TOKENS], position % PAGE_TOKENS, |layer| &content[layer])?;
            self.computed.push((span.ticket, position, *token));
        }
        pages.iter().try_for_each(|page| self.store.check(*page))?;
        let loaded = pages.iter().map(|page| PageRef { page: page.page, tag: self.store.carried(page.page) });
        let read_set = self.reads.expected(span.position, span.tokens.len(), &loaded.collect::<Vec<_>>());
        let store = &self.store;
        let read = (0..end).flat_map(|position| {
            let page = pages[position / PAGE_TOKENS].page;
            (0..LAYERS).flat_map(move |layer| store.slot(page, layer, position % PAGE_TOKENS)).copied()
        });
        let logits = span.logits.then(|| {
            let mut logits = vec![0.0; VOCABULARY];
            match self.has_habits {
                true => logits[habit(&read.collect::<Vec<u8>>()) as usize] = 8.0,
                false => logits[next(read) as usize] = 1.0,
            }
            if self.breaks_at == Some(end) {
                logits[0] = f32::NAN;
            }
            logits
        });
        Ok((span.ticket, read_set, logits))
    }
}

fn written(token: u32, layer: usize) -> [u8; TOKEN_BYTES] {
    ((u64::from(token) << 8) | (layer as u64 + 1)).to_le_bytes()
}

fn next(read: impl Iterator<Item = u8>) -> u32 {
    let hash = read.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    ((hash >> 32) % VOCABULARY as u64) as u32
}

/// Follows from the last two tokens; from everything else, too, once in a while.
fn habit(read: &[u8]) -> u32 {
    let all = next(read.iter().copied());
    if all < 2 { all } else { next(read.iter().rev().take(2 * LAYERS * TOKEN_BYTES).copied()) % 4 }
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
        self.passes.push(spans.iter().map(|span| span.ticket).collect());
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
        logits.as_deref().filter(|_| *held == ticket)
    }

    fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
        self.assigned += 1;
        self.store.assign(page)
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
        self.landed += 1;
        self.store.land(page, bytes)
    }

    fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        self.store.relabel(page, carried, tag)
    }

    fn content_bytes(&self) -> usize {
        self.store.content_bytes()
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
