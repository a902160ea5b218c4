//! Grouped-query attention over paged K and V, the same routine for prefill and decode.
//!
//! Bits: a query's result is a function of its own position and pages alone. The context is cut at fixed positions
//! into segments; inside a segment, scores are sums over the head's dimensions in one order, the softmax uses the
//! segment's largest score, and values are added position by position; segments are then joined in order. Whether one
//! thread does all segments of a query or several share them changes who computes, not what.
//!
//! Source: PagedAttention, arXiv:2309.06180 section 4.1; segments as in Flash-Decoding; labels are compared for each
//! page, layer and group of heads at the moment of the read ([`KvStore`]'s tag and the slab's own), and what was
//! loaded goes into the read-set digest.

mod segment;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::kv_store::{KvStore, PAGE_TOKENS, PageRef, Slab};
use crate::read_set::{factor, first_page, page_term, place_factor, tokens_of_page};
use crate::rope::HeadShape;
use crate::shared_slice::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, dispatch};
use crate::span::{PageFaults, Span};
use crate::team::{PIECES_PER_THREAD, Team};
use segment::{gather_queries, join, one_segment};

/// Pages of a segment: 256 positions, whose scores stay in the first-level cache.
const SEGMENT_PAGES: usize = 16;
/// Positions of a segment.
const SEGMENT_TOKENS: usize = SEGMENT_PAGES * PAGE_TOKENS;
/// Consecutive tokens of a span whose queries share one pass over K and V.
const TILE_TOKENS: usize = 8;

/// Up to [`TILE_TOKENS`] consecutive tokens of one span.
#[derive(Clone, Copy, Debug)]
struct Tile {
    span: usize,
    /// Position of the first token in its sequence.
    position: usize,
    tokens: usize,
    /// Row of the first token in the run.
    row: usize,
}

impl Tile {
    /// One past its last token.
    fn end(&self) -> usize {
        self.position + self.tokens
    }

    /// Segments up to its last token.
    fn segments(&self) -> usize {
        self.end().div_ceil(SEGMENT_TOKENS)
    }

    /// The first segment that its first token sees.
    fn first_segment(&self, window: Option<usize>) -> usize {
        first_page(self.position, window) / SEGMENT_PAGES
    }
}

/// How a run is divided, and memory for the threads. Reused from layer to layer and from run to run.
#[derive(Debug, Default)]
pub struct AttentionPlan {
    tiles: Vec<Tile>,
    /// Most segments of a tile.
    segments: usize,
    /// The factors of as many places as any sequence has had pages.
    places: Vec<u64>,
    threads: Vec<Mutex<Scratch>>,
    /// Results of segments that are joined later.
    partials: Vec<Partial>,
    /// Dimensions of them, by `[tile, kv head, segment]`.
    partial_outputs: Vec<f32>,
}

/// Softmax denominators and maxima of one segment's rows are kept beside its output.
#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    largest: f32,
    sum: f32,
}

#[derive(Debug, Default)]
struct Scratch {
    /// `[rows][head_dim]`, chunk by chunk transposed.
    queries: Vec<f32>,
    /// K or V of one page and head as f32.
    page: Vec<[f32; LANES]>,
    /// `[rows][SEGMENT_TOKENS]`: scores, then weights.
    scores: Vec<f32>,
    /// `[rows][head_dim]` of the segment.
    outputs: Vec<f32>,
    partials: Vec<Partial>,
    /// `[rows][head_dim]` of the segments so far.
    joined_outputs: Vec<f32>,
    joined: Vec<Partial>,
}

impl AttentionPlan {
    /// Divides a run. Allocates only when a run is larger than all before it.
    pub fn prepare(&mut self, spans: &[Span<'_>], shape: HeadShape, threads: usize) {
        self.tiles.clear();
        let mut row = 0;
        for (span, Span { tokens, position, .. }) in spans.iter().enumerate() {
            for first in (0..tokens.len()).step_by(TILE_TOKENS) {
                let count = TILE_TOKENS.min(tokens.len() - first);
                self.tiles.push(Tile { span, position: position + first, tokens: count, row: row + first });
            }
            row += tokens.len();
        }
        self.segments = self.tiles.iter().map(Tile::segments).max().unwrap_or(0);
        self.places.extend((self.places.len()..self.segments * SEGMENT_PAGES).map(place_factor));

        let rows = TILE_TOKENS * shape.heads / shape.kv_heads;
        self.threads.resize_with(threads, Mutex::default);
        for scratch in &mut self.threads {
            let scratch = scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
            scratch.queries.resize(rows * shape.head_dim, 0.0);
            scratch.page.resize(shape.head_dim, [0.0; LANES]);
            scratch.scores.resize(rows * SEGMENT_TOKENS, 0.0);
            scratch.outputs.resize(rows * shape.head_dim, 0.0);
            scratch.partials.resize(rows, Partial::default());
            scratch.joined_outputs.resize(rows * shape.head_dim, 0.0);
            scratch.joined.resize(rows, Partial::default());
        }
        if self.shares_segments(shape, threads) {
            let rows = self.tiles.len() * shape.kv_heads * self.segments * rows;
            grow(&mut self.partials, rows, Partial::default());
            grow(&mut self.partial_outputs, rows * shape.head_dim, 0.0);
        }
    }

    /// Few queries over a long context: segments become pieces of their own.
    fn shares_segments(&self, shape: HeadShape, threads: usize) -> bool {
        threads > 1 && self.segments > 1 && self.tiles.len() * shape.kv_heads < PIECES_PER_THREAD * threads
    }
}

fn grow<T: Clone>(buffer: &mut Vec<T>, length: usize, value: T) {
    if buffer.len() < length {
        buffer.resize(length, value);
    }
}

/// Attention of all tokens of a run in one layer.
///
/// Shapes: `qkv` [tokens, `qkv_width`] with rotated and scaled queries, `out` [tokens, `query_width`]; K and V of the
/// run's tokens are appended already. `plan` was prepared for these spans. With a `window` a token sees that many
/// positions, its own included. The rows of a span that gets a fault, or has one, are zeros and mean nothing.
///
/// # Panics
/// When shapes do not fit together or a span is not covered by its pages.
#[expect(clippy::too_many_arguments, reason = "one kernel call; grouping them would only rename them")]
pub fn attention(
    team: &mut Team,
    store: &KvStore,
    layer: usize,
    shape: HeadShape,
    window: Option<usize>,
    plan: &mut AttentionPlan,
    spans: &[Span<'_>],
    qkv: &[f32],
    faults: &PageFaults,
    out: &mut [f32],
) {
    let tokens: usize = spans.iter().map(|span| span.tokens.len()).sum();
    assert!(tokens == plan.tiles.iter().map(|tile| tile.tokens).sum::<usize>(), "the plan of these spans");
    assert!(qkv.len() >= tokens * shape.qkv_width() && out.len() >= tokens * shape.query_width(), "rows");
    assert!(spans.iter().all(Span::is_covered), "pages of all tokens");
    let held = store.shape();
    assert!(layer < held.layers && held.kv_heads == shape.kv_heads && held.head_dim == shape.head_dim, "the store");
    assert!(plan.threads.len() >= team.threads(), "scratch for every thread");

    let family = team.family();
    let shares_segments = plan.shares_segments(shape, team.threads());
    let AttentionPlan { tiles, segments, places, threads, partials, partial_outputs } = plan;
    let (tiles, threads, segments, places) = (&*tiles, &*threads, *segments, &places[..]);
    let group_rows = TILE_TOKENS * shape.heads / shape.kv_heads;
    let out = SharedSlice::new(out);
    let reader = Reader { store, layer, shape, window, spans, places, qkv, faults };

    let scratch = |thread: usize| threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
    if !shares_segments {
        team.run(tiles.len() * shape.kv_heads, &|thread, piece| {
            // One group of heads after the other, so that a thread meets the same K and V again in its own cache. The last
            // tokens of a prompt see the most and come first, so that threads end together.
            let tile = &tiles[tiles.len() - 1 - piece % tiles.len()];
            let kv_head = piece / tiles.len();
            let scratch = &mut *scratch(thread);
            dispatch(family, WholeTile { reader: &reader, tile, kv_head, scratch, out: &out });
        });
        return;
    }

    {
        let partials = SharedSlice::new(partials);
        let outputs = SharedSlice::new(partial_outputs);
        team.run(tiles.len() * shape.kv_heads * segments, &|thread, piece| {
            let (tile, kv_head) = (&tiles[piece / segments / shape.kv_heads], piece / segments % shape.kv_heads);
            let segment = piece % segments;
            if (tile.first_segment(window)..tile.segments()).contains(&segment) {
                let rows = piece * group_rows..(piece + 1) * group_rows;
                let dims = rows.start * shape.head_dim..rows.end * shape.head_dim;
                // SAFETY: each piece is done once, and pieces do not overlap.
                let (partials, outputs) = unsafe { (partials.part(rows), outputs.part(dims)) };
                let scratch = &mut *scratch(thread);
                dispatch(family, OneSegment { reader: &reader, tile, kv_head, segment, scratch, partials, outputs });
            }
        });
    }
    let mut scratch = scratch(0);
    for (number, tile) in tiles.iter().enumerate() {
        for kv_head in 0..shape.kv_heads {
            let first = (number * shape.kv_heads + kv_head) * segments;
            let rows = (first + tile.first_segment(window)) * group_rows..(first + tile.segments()) * group_rows;
            let partials = &partials[rows.clone()];
            let outputs = &partial_outputs[rows.start * shape.head_dim..rows.end * shape.head_dim];
            let scratch = &mut *scratch;
            dispatch(family, Join { reader: &reader, tile, kv_head, scratch, partials, outputs, out: &out });
        }
    }
}

/// What is read, the same for every piece of work.
struct Reader<'a> {
    store: &'a KvStore,
    layer: usize,
    shape: HeadShape,
    window: Option<usize>,
    spans: &'a [Span<'a>],
    places: &'a [u64],
    qkv: &'a [f32],
    faults: &'a PageFaults,
}

impl<'a> Reader<'a> {
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// The pages of a segment that a tile sees, by their place in the sequence.
    fn pages(&self, tile: &Tile, segment: usize) -> Range<usize> {
        let first = first_page(tile.position, self.window).max(segment * SEGMENT_PAGES);
        first..tile.end().div_ceil(PAGE_TOKENS).min((segment + 1) * SEGMENT_PAGES)
    }

    /// The slabs of a segment, after their labels were compared and written down; `None` after a fault was recorded.
    fn slabs(&self, tile: &Tile, kv_head: usize, segment: usize) -> Option<SegmentSlabs<'a>> {
        if self.faults.of(tile.span).is_some() {
            return None;
        }
        let span = &self.spans[tile.span];
        // A page is written down by the last tile of the span that sees it: through a window, the next one sees less.
        let (end, next) = (span.position + span.tokens.len(), tile.position + TILE_TOKENS);
        let seen_later = if next < end { first_page(next, self.window) } else { usize::MAX };
        let mut terms = 0u64;
        let pages = self.pages(tile, segment);
        let mut slabs = SegmentSlabs { slabs: [self.store.no_slab(); SEGMENT_PAGES], count: pages.len() };
        let places = std::iter::zip(&span.pages[pages.clone()], &self.places[pages.clone()]);
        for ((held, index), (page, place)) in std::iter::zip(&mut slabs.slabs, pages).zip(places) {
            let Some(slab) = self.store.slab(self.layer, *page) else {
                self.faults.record(tile.span, self.layer, page.page);
                return None;
            };
            if index < seen_later {
                let loaded = PageRef { page: page.page, tag: slab.tag() };
                terms = terms.wrapping_add(page_term(loaded, *place, tokens_of_page(index, end)));
            }
            *held = slab;
        }
        if terms != 0 {
            self.faults.add_reads(tile.span, terms.wrapping_mul(factor(self.layer, kv_head)));
        }
        Some(slabs)
    }
}

/// The slabs of a segment that a tile sees.
struct SegmentSlabs<'a> {
    slabs: [Slab<'a>; SEGMENT_PAGES],
    count: usize,
}

impl<'a> SegmentSlabs<'a> {
    fn pages(&self) -> &[Slab<'a>] {
        &self.slabs[..self.count]
    }
}

struct WholeTile<'a> {
    reader: &'a Reader<'a>,
    tile: &'a Tile,
    kv_head: usize,
    scratch: &'a mut Scratch,
    out: &'a SharedSlice<'a, f32>,
}

impl Kernel for WholeTile<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { reader, tile, kv_head, scratch, out } = self;
        let rows = tile.tokens * reader.group();
        gather_queries::<S>(reader, tile, kv_head, &mut scratch.queries);
        scratch.joined[..rows].fill(Partial { largest: f32::NEG_INFINITY, sum: 0.0 });
        let segments = tile.first_segment(reader.window)..tile.segments();
        let mut next = reader.slabs(tile, kv_head, segments.start);
        for segment in segments.clone() {
            let Some(slabs) = next else { return write_zeros(reader, tile, kv_head, out) };
            // Compared before the segment in front of it is done, so that its keys can be asked for.
            next = if segment + 1 < segments.end { reader.slabs(tile, kv_head, segment + 1) } else { None };
            let ahead = next.as_ref().map_or(&[][..], |next| next.pages());
            let Scratch { queries, page, scores, outputs, partials, joined_outputs, joined } = &mut *scratch;
            let pages = slabs.pages();
            one_segment(simd, reader, tile, kv_head, segment, pages, ahead, queries, page, scores, partials, outputs);
            join(simd, reader.shape.head_dim, rows, joined, joined_outputs, partials, outputs);
        }
        write_outputs(simd, reader, tile, kv_head, &scratch.joined, &scratch.joined_outputs, out);
    }
}

struct OneSegment<'a> {
    reader: &'a Reader<'a>,
    tile: &'a Tile,
    kv_head: usize,
    segment: usize,
    scratch: &'a mut Scratch,
    partials: &'a mut [Partial],
    outputs: &'a mut [f32],
}

impl Kernel for OneSegment<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { reader, tile, kv_head, segment, scratch, partials, outputs } = self;
        let Scratch { queries, page, scores, .. } = scratch;
        gather_queries::<S>(reader, tile, kv_head, queries);
        // After a fault there is one on record, and `Join` sees it there.
        if let Some(slabs) = reader.slabs(tile, kv_head, segment) {
            let pages = slabs.pages();
            one_segment(simd, reader, tile, kv_head, segment, pages, &[], queries, page, scores, partials, outputs);
        }
    }
}

struct Join<'a> {
    reader: &'a Reader<'a>,
    tile: &'a Tile,
    kv_head: usize,
    scratch: &'a mut Scratch,
    partials: &'a [Partial],
    outputs: &'a [f32],
    out: &'a SharedSlice<'a, f32>,
}

impl Kernel for Join<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { reader, tile, kv_head, scratch, partials, outputs, out } = self;
        if reader.faults.of(tile.span).is_some() {
            return write_zeros(reader, tile, kv_head, out);
        }
        let head_dim = reader.shape.head_dim;
        let rows = tile.tokens * reader.group();
        let group_rows = TILE_TOKENS * reader.group();
        scratch.joined[..rows].fill(Partial { largest: f32::NEG_INFINITY, sum: 0.0 });
        for (partials, outputs) in
            std::iter::zip(partials.chunks_exact(group_rows), outputs.chunks_exact(group_rows * head_dim))
        {
            join(simd, head_dim, rows, &mut scratch.joined, &mut scratch.joined_outputs, partials, outputs);
        }
        write_outputs(simd, reader, tile, kv_head, &scratch.joined, &scratch.joined_outputs, out);
    }
}

#[inline(always)]
fn write_outputs<S: Simd>(
    simd: S,
    reader: &Reader<'_>,
    tile: &Tile,
    kv_head: usize,
    joined: &[Partial],
    outputs: &[f32],
    out: &SharedSlice<'_, f32>,
) {
    let (group, head_dim) = (reader.group(), reader.shape.head_dim);
    for row in 0..tile.tokens * group {
        let from = outputs[row * head_dim..][..head_dim].as_chunks::<LANES>().0;
        let to = (tile.row + row / group) * reader.shape.query_width() + (kv_head * group + row % group) * head_dim;
        // SAFETY: the outputs of one token and head come from one piece of work.
        let to = unsafe { out.part(to..to + head_dim) };
        for (to, from) in std::iter::zip(to.as_chunks_mut::<LANES>().0, from) {
            simd.store(simd.div(simd.load(from), simd.splat(joined[row].sum)), to);
        }
    }
}

fn write_zeros(reader: &Reader<'_>, tile: &Tile, kv_head: usize, out: &SharedSlice<'_, f32>) {
    let (group, head_dim) = (reader.group(), reader.shape.head_dim);
    for token in 0..tile.tokens {
        let to = (tile.row + token) * reader.shape.query_width() + kv_head * group * head_dim;
        // SAFETY: the outputs of one token and group of heads come from one piece of work.
        unsafe { out.part(to..to + group * head_dim) }.fill(0.0);
    }
}

#[cfg(test)]
mod tests;
