//! One segment of attention for a tile of queries: scores, softmax, weighted values, and the joining of segments.

use std::ops::Range;

use super::{Partial, Reader, SEGMENT_PAGES, SEGMENT_TOKENS, Tile};
use crate::kv_store::{PAGE_TOKENS, Slab};
use crate::simd::{LANES, Simd, exp};

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
pub(super) fn gather_queries<S: Simd>(reader: &Reader<'_>, tile: &Tile, kv_head: usize, to: &mut [f32]) {
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

/// One segment for all rows of a tile. `slabs` are its pages', `next` those of the segment that the caller does next, if
/// it knows.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the inner loop of one kernel")]
pub(super) fn one_segment<S: Simd>(
    simd: S,
    reader: &Reader<'_>,
    tile: &Tile,
    kv_head: usize,
    segment: usize,
    slabs: &[Slab<'_>],
    next: &[Slab<'_>],
    queries: &[f32],
    page: &mut [[f32; LANES]],
    scores: &mut [f32],
    partials: &mut [Partial],
    outputs: &mut [f32],
) {
    // Pages are counted from the segment's first, which its window may hide.
    let first_page = reader.pages(tile, segment).start - segment * SEGMENT_PAGES;
    let head_dim = reader.shape.head_dim;
    let rows = tile.tokens * reader.group();
    let visible = Visible { first_end: tile.position + 1, group: reader.group(), window: reader.window, segment };
    let rows_of_scores = scores.as_chunks_mut::<SEGMENT_TOKENS>().0;
    for (number, slab) in (first_page..).zip(slabs) {
        if let Some(later) = slabs.get(number - first_page + PREFETCH_PAGES) {
            prefetch(simd, later.keys(kv_head));
        }
        prefetch(simd, slab.values(kv_head));
        slab.widen_keys(simd, kv_head, page);
        each_chunk!(rows, row, page_scores(simd, page, &queries[row * head_dim..], number, &mut rows_of_scores[row..]));
        if let Some(scales) = slab.key_scales(kv_head) {
            scale_page(simd, scales, number, &mut rows_of_scores[..rows]);
        }
    }
    for (row, (scores, partial)) in std::iter::zip(&mut *rows_of_scores, partials).take(rows).enumerate() {
        *partial = softmax(simd, scores, visible.in_segment(row));
    }
    outputs[..rows * head_dim].fill(0.0);
    for (number, slab) in (first_page..).zip(slabs) {
        if let Some(next) = next.get(number - first_page) {
            prefetch(simd, next.keys(kv_head));
        }
        if let Some(scales) = slab.value_scales(kv_head) {
            scale_page(simd, scales, number, &mut rows_of_scores[..rows]);
        }
        slab.widen_values(simd, kv_head, page);
        each_chunk!(
            rows,
            row,
            add_values(simd, page, number, &rows_of_scores[row..], visible, row, &mut outputs[row * head_dim..])
        );
    }
}

/// Pages between the one whose keys are read and the one whose keys are asked for.
const PREFETCH_PAGES: usize = 2;

/// A page's work is too short to hide the way to memory.
#[inline(always)]
fn prefetch<S: Simd>(simd: S, bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        simd.prefetch_l2(bytes.as_ptr().wrapping_add(line));
    }
}

/// Which positions the rows of a tile see: up to their own, from where their window begins.
#[derive(Clone, Copy)]
struct Visible {
    /// One past the position of the first row's token.
    first_end: usize,
    /// Rows of one token.
    group: usize,
    window: Option<usize>,
    segment: usize,
}

impl Visible {
    /// Counted from the segment's first.
    #[inline(always)]
    fn in_segment(&self, row: usize) -> Range<usize> {
        let end = self.first_end + row / self.group;
        let start = self.window.map_or(0, |window| end.saturating_sub(window));
        let past = |position: usize| position.saturating_sub(self.segment * SEGMENT_TOKENS).min(SEGMENT_TOKENS);
        past(start)..past(end)
    }

    /// Counted from the first of the segment's page `number`.
    #[inline(always)]
    fn in_page(&self, row: usize, number: usize) -> Range<usize> {
        let Range { start, end } = self.in_segment(row);
        let past = |position: usize| position.saturating_sub(number * PAGE_TOKENS).min(PAGE_TOKENS);
        past(start)..past(end)
    }
}

/// Scores of `R` queries with the 16 tokens of a page: even and odd dimensions are summed apart, in ascending order.
#[inline(always)]
fn page_scores<S: Simd, const R: usize>(
    simd: S,
    keys: &[[f32; LANES]],
    queries: &[f32],
    number: usize,
    scores: &mut [[f32; SEGMENT_TOKENS]],
) {
    let mut even = [simd.splat(0.0); R];
    let mut odd = [simd.splat(0.0); R];
    for (keys, queries) in std::iter::zip(keys.as_chunks::<2>().0, queries.as_chunks::<R>().0.as_chunks::<2>().0) {
        let (keys_even, keys_odd) = (simd.load(&keys[0]), simd.load(&keys[1]));
        for row in 0..R {
            even[row] = simd.fma(simd.splat(queries[0][row]), keys_even, even[row]);
            odd[row] = simd.fma(simd.splat(queries[1][row]), keys_odd, odd[row]);
        }
    }
    for (row, scores) in scores.iter_mut().take(R).enumerate() {
        simd.store(simd.add(even[row], odd[row]), &mut scores.as_chunks_mut::<LANES>().0[number]);
    }
}

/// Multiplies a page's scores, or weights, with the scales of its tokens.
#[inline(always)]
fn scale_page<S: Simd>(simd: S, scales: &[u8; 4 * LANES], number: usize, rows: &mut [[f32; SEGMENT_TOKENS]]) {
    let scales = simd.load_f32_bytes(scales);
    for row in rows {
        let lanes = &mut row.as_chunks_mut::<LANES>().0[number];
        simd.store(simd.mul(simd.load(lanes), scales), lanes);
    }
}

/// Turns the `visible` scores into `e^(score - largest)`, and the others of their pages into zeros. Pages that it sees
/// nothing of are not looked at. One score that is not finite makes the sum NaN, and with it the whole row.
#[inline(always)]
fn softmax<S: Simd>(simd: S, scores: &mut [f32; SEGMENT_TOKENS], visible: Range<usize>) -> Partial {
    let lowest = simd.splat(f32::NEG_INFINITY);
    let first = visible.start / LANES;
    let pages = &mut scores.as_chunks_mut::<LANES>().0[..visible.end.div_ceil(LANES)];
    let pages = pages.get_mut(first..).unwrap_or_default();
    let mut largest = lowest;
    for (page, scores) in pages.iter().enumerate() {
        largest = simd.max(clip(simd, (first + page) * LANES, &visible, simd.load(scores), lowest), largest);
    }
    let largest = simd.largest(largest);
    let mut sum = simd.splat(0.0);
    for (page, scores) in pages.iter_mut().enumerate() {
        let scores_here = simd.load(scores);
        let weights = exp(simd, simd.sub(scores_here, simd.splat(largest)));
        // Adds 0, or NaN: a score of minus infinity would count for nothing otherwise, and unnoticed.
        let weights = simd.fma(scores_here, simd.splat(0.0), weights);
        let weights = clip(simd, (first + page) * LANES, &visible, weights, simd.splat(0.0));
        sum = simd.add(sum, weights);
        simd.store(weights, scores);
    }
    Partial { largest, sum: simd.sum(sum) }
}

/// The lanes whose positions, from `start` on, are visible; the others are `hidden`.
#[inline(always)]
fn clip<S: Simd>(simd: S, start: usize, visible: &Range<usize>, lanes: S::F, hidden: S::F) -> S::F {
    if visible.start <= start && start + LANES <= visible.end {
        return lanes;
    }
    let lanes = simd.first(visible.end - start, lanes, hidden);
    simd.first(visible.start.saturating_sub(start), hidden, lanes)
}

/// Adds the weighted values of a page's positions that each row sees, in ascending order.
///
/// Shapes: `values` `[16][head_dim]`, `weights` `[R]` rows of the segment, `outputs` `[R][head_dim]`.
#[inline(always)]
fn add_values<S: Simd, const R: usize>(
    simd: S,
    values: &[[f32; LANES]],
    number: usize,
    weights: &[[f32; SEGMENT_TOKENS]],
    visible: Visible,
    first_row: usize,
    outputs: &mut [f32],
) {
    let chunks = values.len() / PAGE_TOKENS;
    let head_dim = chunks * LANES;
    let weights: [&[f32; PAGE_TOKENS]; R] =
        std::array::from_fn(|row| &weights[row].as_chunks::<PAGE_TOKENS>().0[number]);
    // Rows of a chunk may belong to different tokens, later ones see more: what all of them see is computed together,
    // what lies before and after it for each row that sees it.
    let start = visible.in_page(first_row + R - 1, number).start;
    let common = start..visible.in_page(first_row, number).end.max(start);
    let is_partial = common != (0..PAGE_TOKENS);
    if is_partial {
        for row in 0..R {
            let Range { start, end } = visible.in_page(first_row + row, number);
            let before = start..end.min(common.start);
            add_row(simd, values, weights[row], before, &mut outputs[row * head_dim..][..head_dim]);
        }
    }
    let mut chunk = 0;
    while R * 4 <= S::SUMS_MAX && chunks - chunk >= 4 {
        add_panel::<S, R, 4>(simd, values, chunks, chunk, weights, common.clone(), outputs);
        chunk += 4;
    }
    while R * 2 <= S::SUMS_MAX && chunks - chunk >= 2 {
        add_panel::<S, R, 2>(simd, values, chunks, chunk, weights, common.clone(), outputs);
        chunk += 2;
    }
    while chunk < chunks {
        add_panel::<S, R, 1>(simd, values, chunks, chunk, weights, common.clone(), outputs);
        chunk += 1;
    }
    if is_partial {
        for row in 0..R {
            let Range { start, end } = visible.in_page(first_row + row, number);
            let after = start.max(common.end)..end;
            add_row(simd, values, weights[row], after, &mut outputs[row * head_dim..][..head_dim]);
        }
    }
}

/// One row's share of a range of positions that other rows of its chunk do not see.
#[inline(always)]
fn add_row<S: Simd>(
    simd: S,
    values: &[[f32; LANES]],
    weights: &[f32; PAGE_TOKENS],
    positions: Range<usize>,
    outputs: &mut [f32],
) {
    if !positions.is_empty() {
        let chunks = outputs.len() / LANES;
        for chunk in 0..chunks {
            add_panel::<S, 1, 1>(simd, values, chunks, chunk, [weights], positions.clone(), outputs);
        }
    }
}

/// `R` rows by `C` vectors of dimensions from vector `chunk` of `chunks` on, over a range of a page's positions.
#[inline(always)]
fn add_panel<S: Simd, const R: usize, const C: usize>(
    simd: S,
    values: &[[f32; LANES]],
    chunks: usize,
    chunk: usize,
    weights: [&[f32; PAGE_TOKENS]; R],
    positions: Range<usize>,
    outputs: &mut [f32],
) {
    let outputs = outputs.as_chunks_mut::<LANES>().0;
    let mut sums = [[simd.splat(0.0); C]; R];
    for (row, sums) in sums.iter_mut().enumerate() {
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum = simd.load(&outputs[row * chunks + chunk + column]);
        }
    }
    for position in positions.start..positions.end.min(PAGE_TOKENS) {
        let token = &values[position * chunks + chunk..][..C];
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
        for (column, sum) in sums.iter().enumerate() {
            simd.store(*sum, &mut outputs[row * chunks + chunk + column]);
        }
    }
}

/// Joins one more segment to those before it; a row that sees nothing of it stays as it is.
#[inline(always)]
pub(super) fn join<S: Simd>(
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
