//! Rotary position embedding, and the append of K and V to their pages.

use std::ops::Range;

use crate::elementary::sin_cos;
use crate::kv_store::{KvStore, KvWriter, PAGE_TOKENS, SlabMut};
use crate::norm::{inverse_rms, scale_by};
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

/// Which two values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `2i` and `2i + 1`: GGUF files of `llama` and `smollm3`, whose makers have reordered the rows of Q and K.
    Neighbours,
    /// `i` and `i + rotated values / 2`: every other GGUF file, and every model in Hugging Face's layout.
    Halves,
}

/// Cosines and sines of the positions of a run.
///
/// Source: RoFormer, arXiv:2104.09864. The functions are our own ([`crate::elementary`]): another machine's library would
/// give other bits.
#[derive(Debug)]
pub struct Rope {
    pairs: RopePairs,
    /// Radians a position, for each pair.
    frequencies: Vec<f64>,
    magnitude: f64,
    /// `[tokens][pairs]`.
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl Rope {
    /// The first `2 * frequencies` values of each head are rotated, and multiplied by `magnitude` (1 unless a model was
    /// stretched over a longer context).
    #[must_use]
    pub fn new(pairs: RopePairs, frequencies: Vec<f64>, magnitude: f64) -> Self {
        Self { pairs, frequencies, magnitude, cosines: Vec::new(), sines: Vec::new() }
    }

    /// Computes the rotations of all tokens of a run.
    pub fn prepare(&mut self, spans: &[Span<'_>]) {
        self.cosines.clear();
        self.sines.clear();
        for span in spans {
            for position in span.position..span.position + span.tokens.len() {
                for frequency in &self.frequencies {
                    let (sine, cosine) = sin_cos(position as f64 * frequency);
                    self.cosines.push((cosine * self.magnitude) as f32);
                    self.sines.push((sine * self.magnitude) as f32);
                }
            }
        }
    }

    #[inline(always)]
    fn rotate(&self, token: usize, head: &mut [f32]) {
        let pairs = self.frequencies.len();
        let cosines = &self.cosines[token * pairs..][..pairs];
        let sines = &self.sines[token * pairs..][..pairs];
        let head = &mut head[..2 * pairs];
        match self.pairs {
            RopePairs::Neighbours => {
                for (pair, [first, second]) in head.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    turn(first, second, cosines[pair], sines[pair]);
                }
            }
            RopePairs::Halves => {
                let (firsts, seconds) = head.split_at_mut(pairs);
                for (pair, (first, second)) in std::iter::zip(firsts, seconds).enumerate() {
                    turn(first, second, cosines[pair], sines[pair]);
                }
            }
        }
    }
}

#[inline(always)]
fn turn(first: &mut f32, second: &mut f32, cosine: f32, sine: f32) {
    (*first, *second) = (*first * cosine - *second * sine, *first * sine + *second * cosine);
}

/// What becomes of each head of queries and keys before attention, in the order of the fields.
#[derive(Clone, Copy, Debug)]
pub struct HeadTransform<'a> {
    /// An RMS norm (Qwen3, Gemma 3).
    pub norms: Option<HeadNorms<'a>>,
    /// The rotation; without one, positions are not seen.
    pub rope: Option<&'a Rope>,
    /// What queries are multiplied by.
    pub scale: f32,
}

/// RMS norms of queries and of keys, head by head.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// Weights for queries, `[head_dim]`.
    pub query: &'a [f32],
    /// Weights for keys, `[head_dim]`.
    pub key: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

impl HeadTransform<'_> {
    fn fits(&self, shape: HeadShape, tokens: usize) -> bool {
        let has_head = |weight: &[f32]| weight.len() == shape.head_dim;
        self.norms.is_none_or(|norms| has_head(norms.query) && has_head(norms.key))
            && self.rope.is_none_or(|rope| {
                2 * rope.frequencies.len() <= shape.head_dim && rope.cosines.len() == tokens * rope.frequencies.len()
            })
    }

    #[inline(always)]
    fn query<S: Simd>(&self, simd: S, token: usize, head: &mut [f32]) {
        if let Some(HeadNorms { query, eps, .. }) = self.norms {
            let scale = inverse_rms(simd, head, eps);
            scale_by(simd, head, scale, query);
        }
        if let Some(rope) = self.rope {
            rope.rotate(token, head);
        }
        for value in head {
            *value *= self.scale;
        }
    }

    #[inline(always)]
    fn key<S: Simd>(&self, simd: S, token: usize, head: &mut [f32]) {
        if let Some(HeadNorms { key, eps, .. }) = self.norms {
            let scale = inverse_rms(simd, head, eps);
            scale_by(simd, head, scale, key);
        }
        if let Some(rope) = self.rope {
            rope.rotate(token, head);
        }
    }
}

/// Transforms queries in place, and keys on their way to the pages, to which K and V are appended.
///
/// Shapes: `qkv` [tokens, `qkv_width`], tokens of all spans in order. A span whose page is not its own (by the store's
/// tag or by the tag in the slab) gets a fault and writes nothing more; spans with a fault already write nothing.
///
/// # Panics
/// When `qkv` is too short, a span is not covered by its pages, the store has other heads or fewer layers, or the
/// transform is for other heads or was not prepared for these spans.
#[expect(clippy::too_many_arguments, reason = "one kernel call; grouping them would only rename them")]
pub fn rotate_and_append(
    team: &mut Team,
    store: &mut KvStore,
    layer: usize,
    shape: HeadShape,
    transform: &HeadTransform<'_>,
    spans: &[Span<'_>],
    qkv: &mut [f32],
    faults: &PageFaults,
) {
    let tokens: usize = spans.iter().map(|span| span.tokens.len()).sum();
    assert!(qkv.len() >= tokens * shape.qkv_width(), "queries, keys and values of all tokens");
    assert!(spans.iter().all(Span::is_covered), "pages of all tokens");
    let held = store.shape();
    assert!(layer < held.layers && held.kv_heads == shape.kv_heads && held.head_dim == shape.head_dim, "the store");
    assert!(shape.head_dim <= HEAD_DIM_MAX && shape.head_dim.is_multiple_of(LANES), "room for a head");
    assert!(transform.fits(shape, tokens), "the transform");

    let pieces = if tokens <= TOKENS_ALONE { 1 } else { PIECES_PER_THREAD * team.threads() };
    let family = team.family();
    let store = store.writer();
    let qkv = SharedSlice::new(qkv);
    team.run(pieces, &|_, piece| {
        let rows = tokens * piece / pieces..tokens * (piece + 1) / pieces;
        dispatch(family, RotateQueries { shape, transform, rows, qkv: &qkv });
        let mut first = 0;
        for (number, span) in spans.iter().enumerate() {
            if faults.of(number).is_none() {
                let is_mine = |page| page as usize % pieces == piece;
                dispatch(family, Append { store: &store, layer, shape, transform, span, first, qkv: &qkv, is_mine })
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
    transform: &'a HeadTransform<'a>,
    rows: Range<usize>,
    qkv: &'a SharedSlice<'a, f32>,
}

impl Kernel for RotateQueries<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shape, transform, rows, qkv } = self;
        for token in rows {
            let start = token * shape.qkv_width();
            // SAFETY: each token's queries are one piece's, and keys and values are not written by anybody.
            let queries = unsafe { qkv.part(start..start + shape.query_width()) };
            for head in queries.chunks_exact_mut(shape.head_dim) {
                transform.query(simd, token, head);
            }
        }
    }
}

/// Appends those tokens of a span whose page is this piece's; the error is the page that is not the span's.
struct Append<'a, F: Fn(u32) -> bool> {
    store: &'a KvWriter<'a>,
    layer: usize,
    shape: HeadShape,
    transform: &'a HeadTransform<'a>,
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
        let Self { store, layer, shape, transform, span, first, qkv, is_mine } = self;
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
                append_token(simd, &mut slab, shape, transform, token, position % PAGE_TOKENS, keys, values);
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
    transform: &HeadTransform<'_>,
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
        transform.key(simd, token, rotated);
        slab.append(simd, kv_head, slot, rotated, &values[head]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelFamily;

    const POSITION: usize = 12_345;

    fn frequencies(pairs: usize) -> Vec<f64> {
        (0..pairs).map(|pair| 1e4f64.powf(-(pair as f64) / pairs as f64)).collect()
    }

    fn prepared(pairs: RopePairs, count: usize, magnitude: f64) -> Rope {
        let mut rope = Rope::new(pairs, frequencies(count), magnitude);
        rope.prepare(&[Span { ticket: 0, tokens: &[0], position: POSITION, pages: &[], logits: false }]);
        rope
    }

    struct Heads<'a> {
        transform: HeadTransform<'a>,
        head: &'a [f32],
    }

    impl Kernel for Heads<'_> {
        type Output = [Vec<f32>; 2];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [Vec<f32>; 2] {
            let (mut query, mut key) = (self.head.to_vec(), self.head.to_vec());
            self.transform.query(simd, 0, &mut query);
            self.transform.key(simd, 0, &mut key);
            [query, key]
        }
    }

    /// The definition, in f64: what becomes of a query (or a key, with a scale of 1).
    fn definition(head: &[f32], weight: Option<&[f32]>, rope: Option<&Rope>, scale: f64) -> Vec<f64> {
        let mut head: Vec<f64> = head.iter().map(|x| f64::from(*x)).collect();
        if let Some(weight) = weight {
            let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
            let normed = std::iter::zip(&head, weight).map(|(x, weight)| x / (mean + 1e-6).sqrt() * f64::from(*weight));
            head = normed.collect();
        }
        if let Some(rope) = rope {
            let count = rope.frequencies.len();
            for pair in 0..count {
                let (first, second) = match rope.pairs {
                    RopePairs::Neighbours => (2 * pair, 2 * pair + 1),
                    RopePairs::Halves => (pair, pair + count),
                };
                let (sine, cosine) = (POSITION as f64 * rope.frequencies[pair]).sin_cos();
                let (a, b) = (head[first], head[second]);
                head[first] = rope.magnitude * (a * cosine - b * sine);
                head[second] = rope.magnitude * (a * sine + b * cosine);
            }
        }
        head.into_iter().map(|x| x * scale).collect()
    }

    #[test]
    fn heads_become_what_the_definition_says() {
        let head: Vec<f32> = (0..48).map(|i| ((i * 37 % 101) as f32 - 50.0) / 13.0).collect();
        let query: Vec<f32> = (0..48).map(|i| 0.5 + i as f32 / 48.0).collect();
        let key: Vec<f32> = (0..48).map(|i| 1.5 - i as f32 / 48.0).collect();
        let all = [RopePairs::Neighbours, RopePairs::Halves]
            .map(|pairs| [prepared(pairs, 24, 1.0), prepared(pairs, 16, 1.0), prepared(pairs, 24, 1.25)]);
        let ropes = all.iter().flatten().map(Some).chain([None]);
        for (rope, has_norms) in ropes.flat_map(|rope| [(rope, true), (rope, false)]) {
            let norms = has_norms.then_some(HeadNorms { query: &query, key: &key, eps: 1e-6 });
            let transform = HeadTransform { norms, rope, scale: 0.125 };
            let [wanted_query, wanted_key] = [(&query, 0.125), (&key, 1.0)]
                .map(|(weight, scale)| definition(&head, has_norms.then_some(weight), rope, scale));
            let reference = dispatch(KernelFamily::Scalar, Heads { transform, head: &head });
            for (got, wanted) in reference.iter().flatten().zip(wanted_query.iter().chain(&wanted_key)) {
                assert!((f64::from(*got) - wanted).abs() <= 2e-6, "{got} for {wanted}, {rope:?}");
            }
            for family in KernelFamily::ALL.into_iter().filter(|family| family.is_available()) {
                let bits = |heads: &[Vec<f32>; 2]| heads.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&dispatch(family, Heads { transform, head: &head })), bits(&reference), "{family}");
            }
        }
    }

    fn append(transform: &HeadTransform<'_>) {
        let shape = HeadShape { heads: 2, kv_heads: 1, head_dim: 32 };
        let kv = crate::KvShape { layers: 1, kv_heads: 1, head_dim: 32, pages: 1 };
        let mut store = KvStore::new(kv).unwrap();
        let pages = [crate::PageRef { page: 0, tag: 1 }];
        let span = Span { ticket: 0, tokens: &[0], position: 0, pages: &pages, logits: false };
        let (mut team, faults) = (Team::new(1), PageFaults::default());
        rotate_and_append(&mut team, &mut store, 0, shape, transform, &[span], &mut [0.0; 128], &faults);
    }

    #[test]
    #[should_panic(expected = "the transform")]
    fn norms_of_other_heads_are_refused() {
        let norms = Some(HeadNorms { query: &[1.0; 32], key: &[1.0; 16], eps: 1e-6 });
        append(&HeadTransform { norms, rope: None, scale: 1.0 });
    }

    #[test]
    #[should_panic(expected = "the transform")]
    fn a_rotation_that_is_not_prepared_is_refused() {
        append(&HeadTransform {
            norms: None,
            rope: Some(&Rope::new(RopePairs::Halves, frequencies(16), 1.0)),
            scale: 1.0,
        });
    }

    #[test]
    #[should_panic(expected = "the transform")]
    fn a_rotation_of_larger_heads_is_refused() {
        append(&HeadTransform { norms: None, rope: Some(&prepared(RopePairs::Halves, 17, 1.0)), scale: 1.0 });
    }
}
