//! What a forward pass works on: runs of tokens, and what went wrong with one of them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::kv_store::{PAGE_TOKENS, PageRef};

/// A run of consecutive tokens of one sequence.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    /// The caller's: whoever asks for the results of this span names it. Kernels do not look at it.
    pub ticket: u64,
    /// The tokens to compute.
    pub tokens: &'a [u32],
    /// Position of `tokens[0]` in the sequence; everything before it is in the pages already.
    pub position: usize,
    /// The sequence's pages in order; they cover `position + tokens.len()` tokens.
    pub pages: &'a [PageRef],
    /// Whether the logits of the last token are wanted.
    pub logits: bool,
}

impl std::fmt::Debug for Span<'_> {
    /// Token ids are a tenant's text: their number is shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Span")
            .field("tokens", &self.tokens.len())
            .field("position", &self.position)
            .field("pages", &self.pages.len())
            .field("logits", &self.logits)
            .finish()
    }
}

impl Span<'_> {
    /// Whether the pages cover the tokens. What the kernels rely on, without looking at tags.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        let end = self.position.checked_add(self.tokens.len());
        end.is_some_and(|end| end.div_ceil(PAGE_TOKENS) <= self.pages.len())
    }
}

/// A kernel found a page whose tag is not the one the reader holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// Decoder block.
    pub layer: u32,
    /// The page as the block table names it.
    pub page: u32,
}

/// What was found about the pages of the spans of a run: the fault of the lowest layer, then page, and the digest of
/// what attention read (see [`crate::ReadSetRule`]).
#[derive(Debug, Default)]
pub struct PageFaults {
    /// Layer in the upper half, page in the lower; all ones without a fault.
    spans: Vec<AtomicU64>,
    read_sets: Vec<AtomicU64>,
}

const NO_FAULT: u64 = u64::MAX;

impl PageFaults {
    /// Forgets everything; room for `spans`.
    pub fn reset(&mut self, spans: usize) {
        self.spans.clear();
        self.spans.resize_with(spans, || AtomicU64::new(NO_FAULT));
        self.read_sets.clear();
        self.read_sets.resize_with(spans, AtomicU64::default);
    }

    /// The fault of a span; `None` also for spans that there are not.
    #[must_use]
    pub fn of(&self, span: usize) -> Option<PageFault> {
        let bits = self.spans.get(span)?.load(Ordering::Relaxed);
        (bits != NO_FAULT).then_some(PageFault { layer: (bits >> 32) as u32, page: bits as u32 })
    }

    /// The digest of what attention read for a span; `None` for spans that there are not.
    #[must_use]
    pub fn read_set(&self, span: usize) -> Option<u64> {
        Some(self.read_sets.get(span)?.load(Ordering::Relaxed))
    }

    pub(crate) fn add_reads(&self, span: usize, terms: u64) {
        self.read_sets[span].fetch_add(terms, Ordering::Relaxed);
    }

    pub(crate) fn record(&self, span: usize, layer: usize, page: u32) {
        // Layers are fewer than 2^32 - 1, so no fault looks like `NO_FAULT`.
        self.spans[span].fetch_min((layer as u64) << 32 | u64::from(page), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_covered_by_enough_pages_only() {
        let pages = [PageRef { page: 0, tag: 1 }; 2];
        let span =
            |position, tokens| Span { ticket: 0, tokens: &[1; 64][..tokens], position, pages: &pages, logits: false };
        assert!(span(0, 32).is_covered() && span(31, 1).is_covered());
        assert!(!span(0, 33).is_covered() && !span(32, 1).is_covered() && !span(usize::MAX, 1).is_covered());
    }

    #[test]
    fn debug_shows_no_token() {
        let span = Span { ticket: 0, tokens: &[4_711], position: 0, pages: &[], logits: true };
        assert!(!format!("{span:?}").contains("4711"));
    }

    #[test]
    fn the_fault_of_the_lowest_layer_and_page_stays() {
        let mut faults = PageFaults::default();
        faults.reset(2);
        assert_eq!(faults.of(0), None);
        faults.record(0, 3, u32::MAX);
        faults.record(0, 2, 9);
        faults.record(0, 2, 8);
        faults.record(0, 4, 0);
        assert_eq!(faults.of(0), Some(PageFault { layer: 2, page: 8 }));
        assert_eq!((faults.of(1), faults.of(2)), (None, None));
        faults.reset(1);
        assert_eq!(faults.of(0), None);
    }
}
