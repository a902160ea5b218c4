//! Grouped-query attention over paged K and V, the same routine for prefill and decode.
//!
//! Bits: a query's result is a function of its own position and pages alone. The context is cut at fixed positions
//! into segments; inside a segment, scores are sums over the head's dimensions in one order, the softmax uses the
//! segment's largest score, and values are added position by position; segments are then joined in order. Whether one
//! thread does all segments of a query or several share them changes who computes, not what.
//!
//! Source: PagedAttention, arXiv:2309.06180 section 4.1; segments as in Flash-Decoding; labels are compared for each
//! page, layer and group of heads at the moment of the read ([`KvStore`]'s tag and the slab's own).

use std::sync::Mutex;
use std::sync::PoisonError;

use crate::kv_store::{KvStore, PAGE_TOKENS, Slab};
use crate::rope::HeadShape;
use crate::shared_slice::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, dispatch, exp};
use crate::span::{PageFaults, Span};
use crate::team::{PIECES_PER_THREAD, Team};

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
    /// Segments that its last token sees.
    fn segments(&self) -> usize {
        (self.position + self.tokens).div_ceil(SEGMENT_TOKENS)
    }
}

/// How a run is divided, and memory for the threads. Reused from layer to layer and from run to run.
#[derive(Debug, Default)]
pub struct AttentionPlan {
    tiles: Vec<Tile>,
    /// Most segments of a tile.
    segments: usize,
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
    page: Vec<f32>,
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

        let rows = TILE_TOKENS * shape.heads / shape.kv_heads;
        self.threads.resize_with(threads, Mutex::default);
        for scratch in &mut self.threads {
            let scratch = scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
            scratch.queries.resize(rows * shape.head_dim, 0.0);
            scratch.page.resize(PAGE_TOKENS * shape.head_dim, 0.0);
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
/// run's tokens are appended already. `plan` was prepared for these spans. The rows of a span that gets a fault, or
/// has one, are zeros and mean nothing.
///
/// # Panics
/// When shapes do not fit together or a span is not covered by its pages.
#[expect(clippy::too_many_arguments, reason = "one kernel call; grouping them would only rename them")]
pub fn attention(
    team: &mut Team,
    store: &KvStore,
    layer: usize,
    shape: HeadShape,
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
    let AttentionPlan { tiles, segments, threads, partials, partial_outputs } = plan;
    let (tiles, threads, segments) = (&*tiles, &*threads, *segments);
    let group_rows = TILE_TOKENS * shape.heads / shape.kv_heads;
    let out = SharedSlice::new(out);
    let reader = Reader { store, layer, shape, spans, qkv, faults };

    let scratch = |thread: usize| threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
    if !shares_segments {
        team.run(tiles.len() * shape.kv_heads, &|thread, piece| {
            // The last tokens of a prompt see the most and come first, so that threads end together.
            let tile = &tiles[tiles.len() - 1 - piece / shape.kv_heads];
            let kv_head = piece % shape.kv_heads;
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
            if segment < tile.segments() {
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
            let first = (number * shape.kv_heads + kv_head) * segments * group_rows;
            let rows = first..first + tile.segments() * group_rows;
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
    spans: &'a [Span<'a>],
    qkv: &'a [f32],
    faults: &'a PageFaults,
}

impl<'a> Reader<'a> {
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// The slabs of a segment, after their labels were compared; `None` after a fault was recorded.
    fn slabs(&self, tile: &Tile, segment: usize) -> Option<([Slab<'a>; SEGMENT_PAGES], usize)> {
        if self.faults.of(tile.span).is_some() {
            return None;
        }
        let last = (tile.position + tile.tokens).div_ceil(PAGE_TOKENS);
        let pages = &self.spans[tile.span].pages[segment * SEGMENT_PAGES..last.min((segment + 1) * SEGMENT_PAGES)];
        let mut slabs: Option<[Slab<'a>; SEGMENT_PAGES]> = None;
        for (index, page) in pages.iter().enumerate() {
            let Some(slab) = self.store.slab(self.layer, *page) else {
                self.faults.record(tile.span, self.layer, page.page);
                return None;
            };
            slabs.get_or_insert([slab; SEGMENT_PAGES])[index] = slab;
        }
        Some((slabs?, pages.len()))
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
        for segment in 0..tile.segments() {
            let Scratch { queries, page, scores, outputs, partials, joined_outputs, joined } = &mut *scratch;
            if !one_segment(simd, reader, tile, kv_head, segment, queries, page, scores, partials, outputs) {
                return write_zeros(reader, tile, kv_head, out);
            }
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
        // A fault is on record then, and `Join` sees it there.
        let _ = one_segment(simd, reader, tile, kv_head, segment, queries, page, scores, partials, outputs);
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

/// Calls a function for chunks of rows, of the sizes that [`chunk_of`] gives.
macro_rules! each_chunk {
    ($rows:expr, $row:ident, $function:ident($($argument:expr),*)) => {
        let mut $row = 0;
        while $row < $rows {
            let chunk = chunk_of::<S>($rows - $row);
            match chunk {
                6 if S::QUERIES_MAX >= 6 => $function::<S, 6>($($argument),*),
                3 if S::QUERIES_MAX >= 3 => $function::<S, 3>($($argument),*),
                2 if S::QUERIES_MAX >= 2 => $function::<S, 2>($($argument),*),
                _ => $function::<S, 1>($($argument),*),
            }
            $row += chunk;
        }
    };
}

/// How many rows are computed at a time when `rows` are left: as many as the registers hold.
#[inline(always)]
fn chunk_of<S: Simd>(rows: usize) -> usize {
    match rows.min(S::QUERIES_MAX) {
        6.. => 6,
        3..6 => 3,
        rows => rows,
    }
}

/// Copies the tile's queries of one group of heads: rows are (token, head), chunk by chunk `[head_dim][chunk]`.
#[inline(always)]
fn gather_queries<S: Simd>(reader: &Reader<'_>, tile: &Tile, kv_head: usize, to: &mut [f32]) {
    let (group, head_dim) = (reader.group(), reader.shape.head_dim);
    let rows = tile.tokens * group;
    let mut row = 0;
    while row < rows {
        let chunk = chunk_of::<S>(rows - row);
        for lane in 0..chunk {
            let (token, head) = ((row + lane) / group, kv_head * group + (row + lane) % group);
            let from = (tile.row + token) * reader.shape.qkv_width() + head * head_dim;
            for (dim, value) in reader.qkv[from..from + head_dim].iter().enumerate() {
                to[row * head_dim + dim * chunk + lane] = *value;
            }
        }
        row += chunk;
    }
}

/// One segment for all rows of a tile; false after a fault.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the inner loop of one kernel")]
fn one_segment<S: Simd>(
    simd: S,
    reader: &Reader<'_>,
    tile: &Tile,
    kv_head: usize,
    segment: usize,
    queries: &[f32],
    page: &mut [f32],
    scores: &mut [f32],
    partials: &mut [Partial],
    outputs: &mut [f32],
) -> bool {
    let Some((slabs, pages)) = reader.slabs(tile, segment) else { return false };
    let head_dim = reader.shape.head_dim;
    let rows = tile.tokens * reader.group();
    // Positions of this segment that a row sees: up to its own.
    let visible = |row: usize| {
        (tile.position + row / reader.group() + 1).saturating_sub(segment * SEGMENT_TOKENS).min(SEGMENT_TOKENS)
    };
    for (number, slab) in slabs[..pages].iter().enumerate() {
        if tile.tokens == 1 {
            prefetch(simd, slabs[(number + PREFETCH_PAGES).min(pages - 1)].keys(kv_head));
            prefetch(simd, slab.values(kv_head));
        }
        widen(simd, slab.keys(kv_head), page);
        each_chunk!(
            rows,
            row,
            page_scores(simd, page, &queries[row * head_dim..], number, &mut scores[row * SEGMENT_TOKENS..])
        );
    }
    let rows_of_scores = scores.as_chunks_mut::<SEGMENT_TOKENS>().0;
    for (row, (scores, partial)) in std::iter::zip(rows_of_scores, partials).take(rows).enumerate() {
        *partial = softmax(simd, scores, visible(row));
    }
    outputs[..rows * head_dim].fill(0.0);
    for (number, slab) in slabs[..pages].iter().enumerate() {
        widen(simd, slab.values(kv_head), page);
        let first = number * PAGE_TOKENS;
        each_chunk!(
            rows,
            row,
            add_values(
                simd,
                page,
                head_dim,
                &scores[row * SEGMENT_TOKENS + first..],
                |lane| visible(row + lane).saturating_sub(first).min(PAGE_TOKENS),
                &mut outputs[row * head_dim..]
            )
        );
    }
    true
}

/// Pages between the one being read and the one being asked for.
const PREFETCH_PAGES: usize = 2;

/// With one token there is too little work on a page to hide the way to memory.
#[inline(always)]
fn prefetch<S: Simd>(simd: S, bytes: &[u8]) {
    bytes.chunks(64).for_each(
        #[inline(always)]
        |line| simd.prefetch(line.as_ptr()),
    );
}

/// f16 to f32, once for all rows of a tile.
#[inline(always)]
fn widen<S: Simd>(simd: S, halves: &[u8], to: &mut [f32]) {
    let halves = halves.as_chunks::<{ 2 * LANES }>().0;
    for (to, halves) in std::iter::zip(to.as_chunks_mut::<LANES>().0, halves) {
        simd.store(simd.load_f16(halves), to);
    }
}

/// Scores of `R` queries with the 16 tokens of a page: even and odd dimensions are summed apart, in ascending order.
#[inline(always)]
fn page_scores<S: Simd, const R: usize>(simd: S, keys: &[f32], queries: &[f32], number: usize, scores: &mut [f32]) {
    let mut even = [simd.splat(0.0); R];
    let mut odd = [simd.splat(0.0); R];
    let keys = keys.as_chunks::<LANES>().0.as_chunks::<2>().0;
    for (keys, queries) in std::iter::zip(keys, queries.as_chunks::<R>().0.as_chunks::<2>().0) {
        let (keys_even, keys_odd) = (simd.load(&keys[0]), simd.load(&keys[1]));
        for row in 0..R {
            even[row] = simd.fma(simd.splat(queries[0][row]), keys_even, even[row]);
            odd[row] = simd.fma(simd.splat(queries[1][row]), keys_odd, odd[row]);
        }
    }
    for (row, scores) in scores.as_chunks_mut::<SEGMENT_TOKENS>().0.iter_mut().take(R).enumerate() {
        simd.store(simd.add(even[row], odd[row]), &mut scores.as_chunks_mut::<LANES>().0[number]);
    }
}

/// Turns the first `visible` scores into `e^(score - largest)`. What lies behind them is not looked at.
#[inline(always)]
fn softmax<S: Simd>(simd: S, scores: &mut [f32; SEGMENT_TOKENS], visible: usize) -> Partial {
    let lowest = simd.splat(f32::NEG_INFINITY);
    let pages = &mut scores.as_chunks_mut::<LANES>().0[..visible.div_ceil(LANES)];
    let mut largest = lowest;
    for (page, scores) in pages.iter().enumerate() {
        largest = simd.max(simd.first(visible - page * LANES, simd.load(scores), lowest), largest);
    }
    let largest = simd.largest(largest);
    let mut sum = simd.splat(0.0);
    for (page, scores) in pages.iter_mut().enumerate() {
        let weights = exp(simd, simd.sub(simd.load(scores), simd.splat(largest)));
        let weights = simd.first(visible - page * LANES, weights, simd.splat(0.0));
        sum = simd.add(sum, weights);
        simd.store(weights, scores);
    }
    Partial { largest, sum: simd.sum(sum) }
}

/// Adds the weighted values of a page's positions that each row sees, in ascending order.
///
/// Shapes: `values` [16, head_dim], `weights` [R, segment's positions] from the page's first on, `outputs` [R, head_dim].
#[inline(always)]
fn add_values<S: Simd, const R: usize>(
    simd: S,
    values: &[f32],
    head_dim: usize,
    weights: &[f32],
    visible: impl Fn(usize) -> usize,
    outputs: &mut [f32],
) {
    let weights: [&[f32; PAGE_TOKENS]; R] =
        std::array::from_fn(|row| &weights[row * SEGMENT_TOKENS..].as_chunks::<PAGE_TOKENS>().0[0]);
    // Rows of a chunk may belong to different tokens: what all of them see first, then each its own rest.
    let common = (0..R).map(&visible).min().unwrap_or(0);
    let mut dim = 0;
    while head_dim - dim >= 4 * LANES {
        add_panel::<S, R, 4>(simd, values, head_dim, dim, weights, 0..common, outputs);
        dim += 4 * LANES;
    }
    while head_dim - dim >= LANES {
        add_panel::<S, R, 1>(simd, values, head_dim, dim, weights, 0..common, outputs);
        dim += LANES;
    }
    for row in 0..R {
        let rest = common..visible(row);
        if !rest.is_empty() {
            let outputs = &mut outputs[row * head_dim..];
            for dim in (0..head_dim).step_by(LANES) {
                add_panel::<S, 1, 1>(simd, values, head_dim, dim, [weights[row]], rest.clone(), outputs);
            }
        }
    }
}

/// `R` rows by `C` vectors of dimensions from `dim` on, over a range of a page's positions.
#[inline(always)]
fn add_panel<S: Simd, const R: usize, const C: usize>(
    simd: S,
    values: &[f32],
    head_dim: usize,
    dim: usize,
    weights: [&[f32; PAGE_TOKENS]; R],
    positions: std::ops::Range<usize>,
    outputs: &mut [f32],
) {
    let mut sums = [[simd.splat(0.0); C]; R];
    for (row, sums) in sums.iter_mut().enumerate() {
        let outputs = outputs[row * head_dim + dim..].as_chunks::<LANES>().0;
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum = simd.load(&outputs[column]);
        }
    }
    for position in positions.start..positions.end.min(PAGE_TOKENS) {
        let token = values[position * head_dim + dim..].as_chunks::<LANES>().0;
        let mut lanes = [simd.splat(0.0); C];
        for column in 0..C {
            lanes[column] = simd.load(&token[column]);
        }
        for row in 0..R {
            let weight = simd.splat(weights[row][position]);
            for column in 0..C {
                sums[row][column] = simd.fma(weight, lanes[column], sums[row][column]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        let outputs = outputs[row * head_dim + dim..].as_chunks_mut::<LANES>().0;
        for (column, sum) in sums.iter().enumerate() {
            simd.store(*sum, &mut outputs[column]);
        }
    }
}

/// Joins one more segment to those before it; a row that sees nothing of it stays as it is.
#[inline(always)]
fn join<S: Simd>(
    simd: S,
    head_dim: usize,
    rows: usize,
    joined: &mut [Partial],
    joined_outputs: &mut [f32],
    partials: &[Partial],
    outputs: &[f32],
) {
    for row in 0..rows {
        let (before, segment) = (joined[row], partials[row]);
        let dims = row * head_dim..(row + 1) * head_dim;
        let (to, from) = (&mut joined_outputs[dims.clone()], &outputs[dims]);
        if before.sum == 0.0 {
            joined[row] = segment;
            to.copy_from_slice(from);
            continue;
        }
        if segment.sum == 0.0 {
            continue;
        }
        let largest = if segment.largest > before.largest { segment.largest } else { before.largest };
        let a = simd.largest(exp(simd, simd.splat(before.largest - largest)));
        let b = simd.largest(exp(simd, simd.splat(segment.largest - largest)));
        joined[row] = Partial { largest, sum: before.sum * a + segment.sum * b };
        for (to, from) in std::iter::zip(to.as_chunks_mut::<LANES>().0, from.as_chunks::<LANES>().0) {
            let scaled = simd.mul(simd.load(to), simd.splat(a));
            simd.store(simd.fma(simd.load(from), simd.splat(b), scaled), to);
        }
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
mod tests {
    use super::*;
    use crate::kv_store::{KvShape, PageRef};
    use crate::rope::{Rope, rotate_and_append};
    use crate::{KernelFamily, PageFault};

    const SHAPE: HeadShape = HeadShape { heads: 6, kv_heads: 2, head_dim: 80 };
    const ROPE_BASE: f32 = 1e4;
    const ROPE_DIMS: usize = 64;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) % 2_001) as f32 / 500.0 - 2.0)
            .collect()
    }

    fn pages(count: usize, first: u32, tag: u32) -> Vec<PageRef> {
        // Backwards, so that the order in the store is not the order in the sequence.
        (0..count as u32).map(|index| PageRef { page: first + count as u32 - 1 - index, tag }).collect()
    }

    fn store(count: usize, tables: &[&[PageRef]]) -> KvStore {
        let shape = KvShape { layers: 2, kv_heads: SHAPE.kv_heads, head_dim: SHAPE.head_dim, pages: count };
        let mut store = KvStore::new(shape).unwrap();
        tables.iter().flat_map(|table| table.iter()).for_each(|page| store.assign(*page).unwrap());
        store
    }

    /// One layer over a run: rotation, append, attention.
    fn run(team: &mut Team, store: &mut KvStore, spans: &[Span<'_>], qkv: &[f32], faults: &mut PageFaults) -> Vec<f32> {
        let mut qkv = qkv.to_vec();
        let tokens: usize = spans.iter().map(|span| span.tokens.len()).sum();
        let mut rope = Rope::new(ROPE_BASE, ROPE_DIMS, &[]);
        let mut plan = AttentionPlan::default();
        let mut out = vec![f32::NAN; tokens * SHAPE.query_width()];
        rope.prepare(spans);
        plan.prepare(spans, SHAPE, team.threads());
        faults.reset(spans.len());
        rotate_and_append(team, store, 1, SHAPE, &rope, spans, &mut qkv, faults);
        attention(team, store, 1, SHAPE, &mut plan, spans, &qkv, faults, &mut out);
        out
    }

    /// The definition, in f64.
    fn definition(qkv: &[f32], tokens: usize) -> Vec<f64> {
        let head_dim = SHAPE.head_dim;
        let rotated = |token: usize, start: usize| -> Vec<f64> {
            let x = &qkv[token * SHAPE.qkv_width() + start..][..head_dim];
            let mut out: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for pair in 0..ROPE_DIMS / 2 {
                let angle = token as f64 * f64::from(ROPE_BASE).powf(-2.0 * pair as f64 / ROPE_DIMS as f64);
                let (a, b) = (out[2 * pair], out[2 * pair + 1]);
                out[2 * pair] = a * angle.cos() - b * angle.sin();
                out[2 * pair + 1] = a * angle.sin() + b * angle.cos();
            }
            out
        };
        let mut out = Vec::new();
        for token in 0..tokens {
            for head in 0..SHAPE.heads {
                let kv_head = head / (SHAPE.heads / SHAPE.kv_heads);
                let query = rotated(token, head * head_dim);
                let scores: Vec<f64> = (0..=token)
                    .map(|other| {
                        let key = rotated(other, SHAPE.query_width() + kv_head * head_dim);
                        std::iter::zip(&query, &key).map(|(q, k)| q * k).sum::<f64>() / (head_dim as f64).sqrt()
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                for dim in 0..head_dim {
                    let at = SHAPE.query_width() + SHAPE.kv_width() + kv_head * head_dim + dim;
                    let value = |other: usize| f64::from(qkv[other * SHAPE.qkv_width() + at]);
                    let weighted: f64 =
                        scores.iter().enumerate().map(|(other, score)| (score - largest).exp() * value(other)).sum();
                    out.push(weighted / sum);
                }
            }
        }
        out
    }

    #[test]
    fn attention_is_near_the_definition() {
        // Three segments; K and V are stored as f16, hence the tolerance.
        let tokens = 530;
        let qkv = values(tokens * SHAPE.qkv_width(), 1);
        let table = pages(tokens.div_ceil(PAGE_TOKENS), 3, 5);
        let span = Span { tokens: &vec![0; tokens], position: 0, pages: &table, logits: false };
        let mut store = store(40, &[&table]);
        let out = run(&mut Team::new(2), &mut store, &[span], &qkv, &mut PageFaults::default());
        for (index, (value, wanted)) in std::iter::zip(&out, definition(&qkv, tokens)).enumerate() {
            assert!((f64::from(*value) - wanted).abs() < 4e-3, "value {index}: {value} for {wanted}");
        }
    }

    #[test]
    fn the_bits_do_not_depend_on_division_threads_pages_or_family() {
        let tokens = 300;
        let width = SHAPE.qkv_width();
        let qkv = values(tokens * width, 2);
        let ids = vec![0; tokens];
        // One token at a time, one thread, plain Rust.
        let table = pages(19, 0, 1);
        let mut team = Team::with_family(1, KernelFamily::Scalar).unwrap();
        let mut serial_store = store(19, &[&table]);
        let mut reference = Vec::new();
        for position in 0..tokens {
            let span = Span { tokens: &ids[..1], position, pages: &table, logits: false };
            let qkv = &qkv[position * width..][..width];
            reference.extend(run(&mut team, &mut serial_store, &[span], qkv, &mut PageFaults::default()));
        }
        for family in KernelFamily::ALL {
            for (threads, chunk) in [(1, 300), (2, 300), (3, 37), (2, 1), (8, 7), (4, 256)] {
                let Some(mut team) = Team::with_family(threads, family) else { continue };
                let table = pages(19, 2, 4_000_000_000);
                let mut store = store(30, &[&table]);
                let mut out = Vec::new();
                for first in (0..tokens).step_by(chunk) {
                    let tokens = &ids[first..(first + chunk).min(tokens)];
                    let span = Span { tokens, position: first, pages: &table, logits: false };
                    let qkv = &qkv[first * width..][..tokens.len() * width];
                    out.extend(run(&mut team, &mut store, &[span], qkv, &mut PageFaults::default()));
                }
                assert!(
                    out.iter().map(|x| x.to_bits()).eq(reference.iter().map(|x| x.to_bits())),
                    "{family} {threads} {chunk}"
                );
            }
        }
    }

    #[test]
    fn a_foreign_page_hurts_its_own_span_only() {
        let (mine, theirs) = (pages(3, 0, 11), pages(3, 3, 22));
        let width = SHAPE.qkv_width();
        let (prompts, next) = (values(80 * width, 3), values(2 * width, 4));
        let ids = [0; 40];
        for threads in [1, 2, 4] {
            let mut team = Team::new(threads);
            let mut faults = PageFaults::default();
            let mut store = store(8, &[&mine, &theirs]);
            let prompt = |pages| Span { tokens: &ids, position: 0, pages, logits: false };
            run(&mut team, &mut store, &[prompt(&mine), prompt(&theirs)], &prompts, &mut faults);
            fn step(pages: &[PageRef]) -> Span<'_> {
                Span { tokens: &[0], position: 40, pages, logits: false }
            }
            let clean = run(&mut team, &mut store, &[step(&mine), step(&theirs)], &next, &mut faults);
            assert_eq!((faults.of(0), faults.of(1)), (None, None));

            for (index, planted, page) in [
                (0, PageRef { tag: 11, ..theirs[0] }, 5), // theirs, in my table
                (0, PageRef { tag: 12, ..mine[0] }, 2),   // an old tag of my page
                (1, PageRef { page: 8, tag: 11 }, 8),     // outside
                (1, PageRef { page: u32::MAX, tag: 11 }, u32::MAX),
                (1, PageRef { page: 6, tag: 11 }, 6),  // free
                (2, PageRef { tag: 0, ..mine[2] }, 0), // nobody's, at the append
                (2, PageRef { tag: 22, ..mine[2] }, 0),
            ] {
                let mut table = mine.clone();
                table[index] = planted;
                let out = run(&mut team, &mut store, &[step(&table), step(&theirs)], &next, &mut faults);
                assert_eq!(faults.of(0), Some(PageFault { layer: 1, page }), "{planted:?}");
                assert_eq!(faults.of(1), None);
                let half = SHAPE.query_width();
                assert_eq!(out[half..], clean[half..], "the other span is as before");
                assert!(out[..half].iter().all(|x| *x == 0.0), "nothing of the page is seen");
            }
            // Nothing was harmed.
            let again = run(&mut team, &mut store, &[step(&mine), step(&theirs)], &next, &mut faults);
            assert_eq!(again, clean);
        }
    }

    #[test]
    fn a_page_that_was_freed_and_given_away_is_no_longer_read() {
        let table = pages(2, 0, 11);
        let width = SHAPE.qkv_width();
        let ids = [0; 20];
        let mut team = Team::new(2);
        let mut faults = PageFaults::default();
        let mut store = store(2, &[&table]);
        let prompt = Span { tokens: &ids, position: 0, pages: &table, logits: false };
        run(&mut team, &mut store, &[prompt], &values(20 * width, 5), &mut faults);
        // Freed and reassigned behind the reader's back, then also written by the new holder.
        store.scrub(table[0].page).unwrap();
        let step = Span { tokens: &ids[..1], position: 20, pages: &table, logits: false };
        run(&mut team, &mut store, &[step], &values(width, 6), &mut faults);
        assert_eq!(faults.of(0), Some(PageFault { layer: 1, page: table[0].page }));
        let other = [PageRef { tag: 99, ..table[0] }];
        store.assign(other[0]).unwrap();
        let new = Span { tokens: &ids[..3], position: 0, pages: &other, logits: false };
        run(&mut team, &mut store, &[new, step], &values(4 * width, 7), &mut faults);
        assert_eq!((faults.of(0), faults.of(1)), (None, Some(PageFault { layer: 1, page: table[0].page })));
    }
}
