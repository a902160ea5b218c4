//! Many tokens times a tile whose weights are packed: they are unpacked once, into the first-level cache, and not again
//! for every few tokens.
//!
//! The columns are cut into segments whose unpacked weights fit that cache beside the tokens' activations; the sums are
//! kept between segments, so that the order of operations is that of [`super::minima::direct`], and the bits are.

use std::ops::Range;

use super::minima::{MinimaTile, add_block};
use crate::activations::{Activations, Rows};
use crate::simd::{LANES, Simd};

/// Tokens of a panel at most.
pub(super) const PANEL_TOKENS: usize = 48;
/// With fewer tokens unpacking once is not worth its detour through memory.
pub(super) const PANEL_TOKENS_MIN: usize = 16;
/// Blocks of a segment: 10 KB of unpacked weights, and 700 bytes of activations for each token.
const SEGMENT_BLOCKS: usize = 16;

/// Memory for unpacked weights and for sums.
pub(super) struct Panel {
    blocks: [Unpacked; SEGMENT_BLOCKS],
    /// Of each token.
    sums: [[f32; LANES]; PANEL_TOKENS],
}

/// A block of 32 columns: weights as bytes, in the order in which they are multiplied.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Unpacked {
    /// The quads' lower and upper columns in turn.
    weights: [[u8; 4 * LANES]; 8],
    scales: [f32; LANES],
    minima: [f32; LANES],
}

impl Panel {
    pub(super) const fn new() -> Self {
        let block = Unpacked { weights: [[0; 4 * LANES]; 8], scales: [0.0; LANES], minima: [0.0; LANES] };
        Self { blocks: [block; SEGMENT_BLOCKS], sums: [[0.0; LANES]; PANEL_TOKENS] }
    }

    /// The sums of the last product, in the order of its tokens; others behind them.
    #[inline(always)]
    pub(super) fn sums(&self) -> &[[f32; LANES]; PANEL_TOKENS] {
        &self.sums
    }

    #[inline(always)]
    pub(super) fn sums_mut(&mut self) -> &mut [[f32; LANES]; PANEL_TOKENS] {
        &mut self.sums
    }

    /// A tile times each of `tokens`, at most [`PANEL_TOKENS`], into the sums.
    #[inline(always)]
    pub(super) fn product<S: Simd, T: MinimaTile>(
        &mut self,
        simd: S,
        tile: T,
        input: &Activations,
        tokens: Range<usize>,
    ) {
        let Self { blocks, sums } = self;
        let sums = &mut sums[..tokens.len()];
        // As even as possible: a short one would cost as much around its edges as a long one.
        let segments = tile.blocks().div_ceil(SEGMENT_BLOCKS);
        for number in 0..segments {
            let segment = tile.blocks() * number / segments..tile.blocks() * (number + 1) / segments;
            let blocks = &mut blocks[..segment.len()];
            for (index, block) in segment.clone().zip(&mut *blocks) {
                if tokens.start == 0 {
                    tile.prefetch(simd, index);
                }
                unpack(simd, tile, index, block);
            }
            let mut token = 0;
            macro_rules! at_once {
                ($count:literal) => {
                    while S::TOKENS_MAX >= $count && tokens.len() - token >= $count {
                        let sums = sums[token..].first_chunk_mut::<$count>();
                        if let Some(sums) = sums {
                            add_segment(simd, blocks, input, tokens.start + token, segment.clone(), sums);
                        }
                        token += $count;
                    }
                };
            }
            at_once!(8);
            at_once!(4);
            at_once!(2);
            at_once!(1);
        }
    }
}

#[inline(always)]
fn unpack<S: Simd, T: MinimaTile>(simd: S, tile: T, index: usize, to: &mut Unpacked) {
    for (quad, weights) in to.weights.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let (low, high) = tile.quads(simd, index, quad);
        simd.store_bytes(low, &mut weights[0]);
        simd.store_bytes(high, &mut weights[1]);
    }
    let (scales, minima) = tile.scales(simd, index);
    simd.store(scales, &mut to.scales);
    simd.store(minima, &mut to.minima);
}

/// Adds a segment to the sums of `N` tokens from `first` on; the first segment begins them.
#[inline(always)]
fn add_segment<S: Simd, const N: usize>(
    simd: S,
    blocks: &[Unpacked],
    input: &Activations,
    first: usize,
    segment: Range<usize>,
    sums: &mut [[f32; LANES]; N],
) {
    assert!(blocks.len() == segment.len(), "the blocks of the segment");
    let rows = Rows::<N>::new(input, first, segment.clone());
    let mut lanes = [simd.splat(0.0); N];
    if segment.start > 0 {
        for token in 0..N {
            lanes[token] = simd.load(&sums[token]);
        }
    }
    for (index, block) in blocks.iter().enumerate() {
        // SAFETY: the rows have as many blocks as the segment.
        let inputs = unsafe { rows.blocks(index) };
        let mut dots = [simd.splat_i32(0); N];
        for quad in 0..4 {
            let low = simd.load_bytes(&block.weights[2 * quad]);
            let high = simd.load_bytes(&block.weights[2 * quad + 1]);
            for token in 0..N {
                let quads = &inputs[token].quads;
                dots[token] = simd.dot_unsigned(dots[token], low, quads[quad]);
                dots[token] = simd.dot_unsigned(dots[token], high, quads[quad + 4]);
            }
        }
        let (scales, minima) = (simd.load(&block.scales), simd.load(&block.minima));
        for token in 0..N {
            lanes[token] = add_block(simd, lanes[token], dots[token], scales, minima, inputs[token]);
        }
    }
    for token in 0..N {
        simd.store(lanes[token], &mut sums[token]);
    }
}
