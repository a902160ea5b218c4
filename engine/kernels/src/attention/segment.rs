//! One segment of attention for a tile of queries: scores, softmax, weighted values, and the joining of segments.

use super::{Partial, Reader, SEGMENT_TOKENS, Tile};
use crate::kv_store::PAGE_TOKENS;
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

/// One segment for all rows of a tile; false after a fault.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the inner loop of one kernel")]
pub(super) fn one_segment<S: Simd>(
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

/// Turns the first `visible` scores into `e^(score - largest)`. What lies behind them is not looked at. One score that is
/// not finite makes the sum NaN, and with it the whole row.
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
        let scores_here = simd.load(scores);
        let weights = exp(simd, simd.sub(scores_here, simd.splat(largest)));
        // Adds 0, or NaN: a score of minus infinity would count for nothing otherwise, and unnoticed.
        let weights = simd.fma(scores_here, simd.splat(0.0), weights);
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
    while S::COLUMNS_MAX >= 4 && head_dim - dim >= 4 * LANES {
        add_panel::<S, R, 4>(simd, values, head_dim, dim, weights, 0..common, outputs);
        dim += 4 * LANES;
    }
    while S::COLUMNS_MAX >= 2 && head_dim - dim >= 2 * LANES {
        add_panel::<S, R, 2>(simd, values, head_dim, dim, weights, 0..common, outputs);
        dim += 2 * LANES;
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
