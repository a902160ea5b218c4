//! Rotary position embedding, and the append of K and V to their pages.

use std::ops::Range;

use crate::kv_store::{KvStore, KvWriter, PAGE_TOKENS, SlabMut};
use crate::shared_slice::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, dispatch};
use crate::span::{PageFaults, Span};
use crate::team::{PIECES_PER_THREAD, Team};

/// Largest head that the kernels have scratch for.
pub const HEAD_DIM_MAX: usize = 512;

/// Heads of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Values of one head; a multiple of 16, at most [`HEAD_DIM_MAX`].
    pub head_dim: usize,
}

impl HeadShape {
    /// Values of a token's queries.
    #[must_use]
    pub fn query_width(self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of a token's keys, and of its values.
    #[must_use]
    pub fn kv_width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Values of a token's queries, keys and values side by side.
    #[must_use]
    pub fn qkv_width(self) -> usize {
        self.query_width() + 2 * self.kv_width()
    }
}

/// Cosines and sines of the positions of a run.
///
/// Source: RoFormer, arXiv:2104.09864; pairs are neighbours (`2i`, `2i + 1`), as GGUF files of `llama` have them.
#[derive(Debug)]
pub struct Rope {
    /// Radians a position, for each pair.
    frequencies: Vec<f64>,
    /// `[tokens][pairs]` of (cosine, sine).
    rotations: Vec<(f32, f32)>,
}

impl Rope {
    /// `dims` values of each head are rotated; `factors`, if not empty, divide the frequencies of the pairs.
    #[must_use]
    pub fn new(base: f32, dims: usize, factors: &[f32]) -> Self {
        let frequencies = (0..dims / 2).map(|pair| {
            let frequency = f64::from(base).powf(-2.0 * pair as f64 / dims as f64);
            frequency / factors.get(pair).map_or(1.0, |factor| f64::from(*factor))
        });
        Self { frequencies: frequencies.collect(), rotations: Vec::new() }
    }

    /// Computes the rotations of all tokens of a run.
    pub fn prepare(&mut self, spans: &[Span<'_>]) {
        self.rotations.clear();
        for span in spans {
            for position in span.position..span.position + span.tokens.len() {
                self.rotations.extend(self.frequencies.iter().map(|frequency| {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    (cosine as f32, sine as f32)
                }));
            }
        }
    }

    #[inline(always)]
    fn rotate(&self, token: usize, head: &mut [f32]) {
        let pairs = self.frequencies.len();
        let rotations = &self.rotations[token * pairs..][..pairs];
        for (pair, (cosine, sine)) in std::iter::zip(head.as_chunks_mut::<2>().0, rotations) {
            *pair = [pair[0] * cosine - pair[1] * sine, pair[0] * sine + pair[1] * cosine];
        }
    }
}

/// Rotates queries in place (and scales them by `1/sqrt(head_dim)`); rotates keys and appends K and V to the pages.
///
/// Shapes: `qkv` [tokens, `qkv_width`], tokens of all spans in order. A span whose page is not its own (by the store's
/// tag or by the tag in the slab) gets a fault and writes nothing more; spans with a fault already write nothing.
///
/// # Panics
/// When `qkv` is too short, a span is not covered by its pages, or the store has other heads or fewer layers.
#[expect(clippy::too_many_arguments, reason = "one kernel call; grouping them would only rename them")]
pub fn rotate_and_append(
    team: &mut Team,
    store: &mut KvStore,
    layer: usize,
    shape: HeadShape,
    rope: &Rope,
    spans: &[Span<'_>],
    qkv: &mut [f32],
    faults: &PageFaults,
) {
    let tokens: usize = spans.iter().map(|span| span.tokens.len()).sum();
    assert!(qkv.len() >= tokens * shape.qkv_width(), "queries, keys and values of all tokens");
    assert!(spans.iter().all(Span::is_covered), "pages of all tokens");
    let held = store.shape();
    assert!(layer < held.layers && held.kv_heads == shape.kv_heads && held.head_dim == shape.head_dim, "the store");
    assert!(shape.head_dim <= HEAD_DIM_MAX, "room for a head");

    let pieces = if tokens <= TOKENS_ALONE { 1 } else { PIECES_PER_THREAD * team.threads() };
    let family = team.family();
    let store = store.writer();
    let qkv = SharedSlice::new(qkv);
    team.run(pieces, &|_, piece| {
        let rows = tokens * piece / pieces..tokens * (piece + 1) / pieces;
        dispatch(family, RotateQueries { shape, rope, rows, qkv: &qkv });
        let mut first = 0;
        for (number, span) in spans.iter().enumerate() {
            if faults.of(number).is_none() {
                let is_mine = |page| page as usize % pieces == piece;
                dispatch(family, Append { store: &store, layer, shape, rope, span, first, qkv: &qkv, is_mine })
                    .unwrap_or_else(|page| faults.record(number, layer, page));
            }
            first += span.tokens.len();
        }
    });
}

/// Up to this many tokens the caller alone is faster: a token takes well under a microsecond.
const TOKENS_ALONE: usize = 2;

struct RotateQueries<'a> {
    shape: HeadShape,
    rope: &'a Rope,
    rows: Range<usize>,
    qkv: &'a SharedSlice<'a, f32>,
}

impl Kernel for RotateQueries<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { shape, rope, rows, qkv } = self;
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        for token in rows {
            let start = token * shape.qkv_width();
            // SAFETY: each token's queries are one piece's, and keys and values are not written by anybody.
            let queries = unsafe { qkv.part(start..start + shape.query_width()) };
            for head in queries.chunks_exact_mut(shape.head_dim) {
                rope.rotate(token, head);
                head.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }
}

/// Appends those tokens of a span whose page is this piece's; the error is the page that is not the span's.
struct Append<'a, F: Fn(u32) -> bool> {
    store: &'a KvWriter<'a>,
    layer: usize,
    shape: HeadShape,
    rope: &'a Rope,
    span: &'a Span<'a>,
    /// Row of the span's first token in `qkv`.
    first: usize,
    qkv: &'a SharedSlice<'a, f32>,
    is_mine: F,
}

impl<F: Fn(u32) -> bool> Kernel for Append<'_, F> {
    type Output = Result<(), u32>;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Result<(), u32> {
        let Self { store, layer, shape, rope, span, first, qkv, is_mine } = self;
        let end = span.position + span.tokens.len();
        for index in span.position / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
            let page = span.pages[index];
            if !is_mine(page.page) {
                continue;
            }
            let positions = span.position.max(index * PAGE_TOKENS)..end.min((index + 1) * PAGE_TOKENS);
            let is_first = positions.start == index * PAGE_TOKENS;
            // SAFETY: all spans' tokens of one page belong to one piece of work, which does them one after the other.
            let mut slab = unsafe { store.slab(layer, page, is_first) }.ok_or(page.page)?;
            for position in positions {
                let token = first + position - span.position;
                let keys = token * shape.qkv_width() + shape.query_width();
                let values = keys + shape.kv_width();
                // SAFETY: nobody writes keys and values now, and this piece alone reads this token's.
                let (keys, values) = unsafe { (qkv.part(keys..values), qkv.part(values..values + shape.kv_width())) };
                append_token(simd, &mut slab, shape, rope, token, position % PAGE_TOKENS, keys, values);
            }
        }
        Ok(())
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the inner loop of one kernel")]
fn append_token<S: Simd>(
    simd: S,
    slab: &mut SlabMut<'_>,
    shape: HeadShape,
    rope: &Rope,
    token: usize,
    slot: usize,
    keys: &[f32],
    values: &[f32],
) {
    let mut rotated = [0.0; HEAD_DIM_MAX];
    let rotated = &mut rotated[..shape.head_dim];
    for kv_head in 0..shape.kv_heads {
        let head = kv_head * shape.head_dim..(kv_head + 1) * shape.head_dim;
        rotated.copy_from_slice(&keys[head.clone()]);
        rope.rotate(token, rotated);
        for (index, lanes) in rotated.as_chunks::<LANES>().0.iter().enumerate() {
            slab.set_keys(kv_head, slot, index, &simd.to_f16(simd.load(lanes)));
        }
        for (index, lanes) in values[head].as_chunks::<LANES>().0.iter().enumerate() {
            slab.set_values(kv_head, slot, index, &simd.to_f16(simd.load(lanes)));
        }
    }
}
