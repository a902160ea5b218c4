//! What a running model costs: memory, and allocations once it is warm. Alone in its process, because it counts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../src/test_model.rs"]
mod test_model;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine_model::{Forward, KvShape, KvStore, Model, PageRef, Span};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

#[test]
fn a_warm_pass_allocates_nothing_and_stays_within_its_memory() {
    let path = test_model::path();
    let model = Arc::new(Model::load(&path, 2).unwrap());
    let config = model.config();
    let shape = KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, pages: 4_096 };
    let mut store = KvStore::new(shape).unwrap();
    let pages: Vec<PageRef> = (0..24).map(|page| PageRef { page, tag: 1 }).collect();
    pages.iter().for_each(|page| store.assign(*page).unwrap());
    let mut forward = Forward::new(Arc::clone(&model), 2, 256);

    // A prompt, then steps of two sequences that share nothing, over the border of a segment of attention (256).
    let prompt: Vec<u32> = (0..250).map(|i| i * 131 % 49_152).collect();
    forward
        .run(&mut store, &[Span { ticket: 0, tokens: &prompt, position: 0, pages: &pages, logits: false }], &|| false)
        .unwrap();
    let mut step = |position: usize| {
        let spans = [
            Span { ticket: 0, tokens: &prompt[..1], position, pages: &pages[..20], logits: true },
            Span { ticket: 0, tokens: &prompt[..60], position: 0, pages: &pages[20..], logits: true },
        ];
        forward.run(&mut store, &spans, &|| false).unwrap();
        assert!(forward.logits(0, 0).is_some() && forward.logits(1, 0).is_some());
    };
    (250..260).for_each(&mut step);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (260..266).for_each(&mut step);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);

    #[cfg(target_os = "linux")]
    {
        let file = std::fs::metadata(&path).unwrap().len();
        let resident = resident_bytes();
        // Pages of K and V in use among them.
        assert!(resident <= file + (60 << 20), "{resident} bytes are resident for a file of {file}");
    }
}
