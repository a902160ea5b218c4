//! What a decode step costs the host: no allocation for tokens, and nothing for each page of a long context.
#![cfg(feature = "fault-injection")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use engine_kernels::{
    KvKind, KvStoreError, PAGE_TOKENS, PageBytes, PageFault, PageRef, ReadSetRule, ReadSums, Span, TransferError,
};
use engine_model::ForwardError;
use engine_runtime::{Compute, EngineConfig, PlainStore, Sampling, Split, StepExecutor, Steps};
use policies_domain::{Binding, ConnectionId, Label, Layer, RequestId, SealKey, TenantId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Of this thread: it makes the steps, and the test's runner has others.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends counts no more.
        let _ended = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SEQUENCES: usize = 4;
const CONFIG: EngineConfig = EngineConfig {
    threads: 1,
    pages: 1_024,
    sequences_max: SEQUENCES,
    queue_max: SEQUENCES,
    // Each prompt is one chunk, so that the lists of its pages have room for all that follow.
    prefill_chunk_tokens: 8192,
    step_target_ms: 60_000,
    queue_wait_max_ms: 600_000,
    prefix_cache: false,
    speculation: false,
    swap_mib: 0,
    context_tokens_max: None,
    kv: KvKind::F32,
    split: Split::Off,
    decode_threads: None,
    preallocate: false,
};

/// A model without numbers: it writes tags, reads the pages that it is given, and says what it read. Its tokens have no text,
/// so that a step has nothing to bring along. It allocates nothing once it is warm.
struct Reader {
    store: PlainStore,
    reads: ReadSetRule,
    loaded: Vec<PageRef>,
    read_sets: Vec<(u64, Result<u64, PageFault>)>,
    logits: [f32; 2],
}

impl Reader {
    fn new() -> Self {
        Self {
            store: PlainStore::new(CONFIG.pages, 1, 4),
            reads: ReadSetRule::new(1, [None]),
            loaded: Vec::new(),
            read_sets: Vec::new(),
            logits: [0.0, 1.0],
        }
    }

    fn read(&mut self, span: &Span<'_>) -> Result<u64, PageFault> {
        let end = span.position + span.tokens.len();
        for position in span.position..end {
            self.store.append(span.pages[position / PAGE_TOKENS], position % PAGE_TOKENS, |_| &[0; 4])?;
        }
        self.loaded.clear();
        for page in &span.pages[..end.div_ceil(PAGE_TOKENS)] {
            self.store.check(*page)?;
            self.loaded.push(PageRef { page: page.page, tag: self.store.carried(page.page) });
        }
        Ok(self.reads.expected(span.position, span.tokens.len(), &self.loaded))
    }
}

impl Compute for Reader {
    fn run(&mut self, spans: &[Span<'_>], _: &(dyn Fn() -> bool + Sync)) -> Result<(), ForwardError> {
        self.read_sets.clear();
        for span in spans {
            let read = self.read(span);
            self.read_sets.push((span.ticket, read));
        }
        Ok(())
    }

    fn fault(&self, span: usize) -> Option<PageFault> {
        self.read_sets.get(span)?.1.err()
    }

    fn read_set(&self, span: usize) -> Option<u64> {
        self.read_sets.get(span)?.1.ok()
    }

    fn expected_read_set(&self, position: usize, tokens: usize, sums: &ReadSums, last: PageRef) -> u64 {
        self.reads.expected_by_sums(position, tokens, sums, last)
    }

    fn logits(&self, span: usize, ticket: u64) -> Option<&[f32]> {
        (self.read_sets.get(span)?.0 == ticket).then_some(&self.logits)
    }

    fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
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
        self.store.land(page, bytes)
    }

    fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        self.store.relabel(page, carried, tag)
    }

    fn content_bytes(&self) -> usize {
        self.store.content_bytes()
    }

    fn vocabulary(&self) -> u32 {
        self.logits.len() as u32
    }

    fn is_end(&self, _: u32) -> bool {
        false
    }

    fn text(&self, _: u32) -> Option<&[u8]> {
        None
    }
}

/// So many sequences, each of which has this context and decodes.
fn decoding(context: usize, config: EngineConfig) -> (StepExecutor<Reader>, Vec<Steps>) {
    let mut executor = StepExecutor::new(Reader::new(), config, [1; 32]);
    let mut all = Vec::new();
    for number in 1..=SEQUENCES {
        let label = Label::of(TenantId::new(number as u32).unwrap());
        let request = RequestId::from_bytes([number as u8; 16]);
        let binding = Binding { request, label, connection: ConnectionId(1) };
        let sealer = SealKey::from_bytes([number as u8; 32]).sealer(Layer::Text, binding);
        let sampling = Sampling { max_tokens: Some(1_000), temperature: 0.0, ..Sampling::default() };
        all.push(executor.submit(label, request, vec![0; context], sampling, sealer).unwrap());
    }
    while all.iter().any(|steps| steps.usage().completion_tokens == 0) {
        assert!(executor.step());
        for steps in &mut all {
            while let Some(step) = steps.try_next() {
                step.unwrap();
            }
        }
    }
    (executor, all)
}

/// Allocations of one step, and how many sequences it gave a new page to. It brings so many tokens, where that is said.
fn step(executor: &mut StepExecutor<Reader>, all: &mut [Steps], tokens: Option<u32>) -> (usize, usize) {
    let before = ALLOCATIONS.get();
    assert!(executor.step());
    let after = ALLOCATIONS.get();
    let mut new_pages = 0;
    for steps in all {
        let step = steps.try_next().expect("every sequence decodes").unwrap();
        assert!(step.text.reveal().is_empty());
        assert_eq!(step.tokens, tokens.unwrap_or(step.tokens));
        new_pages += step.trace.pages.len();
    }
    (after - before, new_pages)
}

fn check(config: EngineConfig, tokens: u32) {
    let (mut executor, mut all) = decoding(2_000, config);
    // Every list has grown to where it stays for the pages that follow, and it is known how often guesses are right.
    for _ in 0..100 {
        step(&mut executor, &mut all, None);
    }
    let mut pages = 0;
    for number in 0..320 {
        let (allocations, new_pages) = step(&mut executor, &mut all, Some(tokens));
        assert_eq!(allocations, new_pages, "step {number}");
        pages += new_pages;
    }
    assert_eq!(pages, SEQUENCES * 320 * tokens as usize / PAGE_TOKENS, "each was named once");
}

#[test]
fn a_decode_step_allocates_nothing_but_the_names_of_new_pages() {
    check(CONFIG, 1);
}

#[test]
fn a_step_with_a_guess_for_everybody_allocates_no_more() {
    // Every guess is right: there is one token that the model says.
    check(EngineConfig { speculation: true, ..CONFIG }, 2);
}
