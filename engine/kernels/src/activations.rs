//! Quantised inputs of matrix products: `i8` in blocks of 32 with a scale each.

use std::ops::Range;

use crate::shared_slice::SharedSlice;
use crate::simd::{LANES, Simd};

/// Values of activations that share a scale, and columns of weights that are multiplied with them at a time.
pub const BLOCK: usize = 32;
/// Quads (four `i8` in one `i32`) of a block.
pub(crate) const BLOCK_QUADS: usize = BLOCK / 4;

/// 32 values: `scale` times the `i8`s in `quads`, with what the products want to know about them, side by side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    /// Four `i8` each, none of them -128, the first in the lowest byte.
    pub(crate) quads: [i32; BLOCK_QUADS],
    /// What an `i8` of the block stands for.
    pub(crate) scale: f32,
    /// The scale times the sum of all `i8`; multiplies a weight block's minimum.
    pub(crate) scaled_sum: f32,
    /// -128 times the sum of all `i8`; undoes the offset of byte weights.
    pub(crate) correction: i32,
}

/// Rows of activations, one for each token of a run. Reused from layer to layer; holds no more than it was made for.
pub struct Activations {
    tokens: usize,
    width: usize,
    /// `[tokens][width / 32]`.
    blocks: Vec<Block>,
}

impl Activations {
    /// Room for `tokens_max` rows of `width_max` values (rounded up to whole blocks).
    #[must_use]
    pub fn new(tokens_max: usize, width_max: usize) -> Self {
        Self { tokens: 0, width: 0, blocks: vec![Block::default(); tokens_max * width_max.div_ceil(BLOCK)] }
    }

    /// Rows in use.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Sets the shape; the content is to be written anew.
    ///
    /// # Panics
    /// When the width is not whole blocks or there is no room.
    pub(crate) fn reshape(&mut self, tokens: usize, width: usize) -> ActivationsWriter<'_> {
        assert!(width.is_multiple_of(BLOCK), "activations come in whole blocks");
        assert!(tokens * width / BLOCK <= self.blocks.len(), "more activations than there is room for");
        self.tokens = tokens;
        self.width = width;
        ActivationsWriter { row_blocks: width / BLOCK, blocks: SharedSlice::new(&mut self.blocks) }
    }

    /// The blocks of a row.
    #[inline(always)]
    pub(crate) fn row(&self, token: usize) -> &[Block] {
        let row_blocks = self.width / BLOCK;
        &self.blocks[token * row_blocks..][..row_blocks]
    }
}

/// The same blocks of `N` tokens, to be gone through together.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, const N: usize> {
    /// All of one length.
    rows: [&'a [Block]; N],
}

impl<'a, const N: usize> Rows<'a, N> {
    /// Blocks `blocks` of the tokens from `first` on.
    #[inline(always)]
    pub(crate) fn new(input: &'a Activations, first: usize, blocks: Range<usize>) -> Self {
        let mut rows: [&[Block]; N] = [&[]; N];
        for (token, row) in rows.iter_mut().enumerate() {
            *row = &input.row(first + token)[blocks.clone()];
        }
        Self { rows }
    }

    /// The `index`-th block of the range of each token. In the innermost loops a comparison for each of them costs as much
    /// as the multiplications.
    ///
    /// # Safety
    /// The range has such a block.
    #[inline(always)]
    pub(crate) unsafe fn blocks(&self, index: usize) -> [&'a Block; N] {
        debug_assert!(self.rows.iter().all(|row| index < row.len()), "a block of the range");
        // SAFETY: all rows are as long as the range, which has the block by the caller's promise.
        let mut blocks = [unsafe { self.rows[0].get_unchecked(index) }; N];
        for (block, row) in std::iter::zip(&mut blocks, &self.rows) {
            // SAFETY: as above.
            *block = unsafe { row.get_unchecked(index) };
        }
        blocks
    }
}

impl std::fmt::Debug for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Activations({} x {})", self.tokens, self.width)
    }
}

/// Writes blocks from several threads.
pub(crate) struct ActivationsWriter<'a> {
    row_blocks: usize,
    blocks: SharedSlice<'a, Block>,
}

impl ActivationsWriter<'_> {
    /// Quantises 32 values into a block: the scale is their largest magnitude / 127, each rounds to nearest, ties to
    /// even. A block of zeros, or of values too small for a scale, becomes zeros. A block with a value that is not finite
    /// gets the scale NaN: what is computed from it is not a number either, instead of a number without that value.
    ///
    /// # Safety
    /// No other thread writes the same block.
    #[inline(always)]
    pub(crate) unsafe fn quantise<S: Simd>(&self, simd: S, token: usize, block: usize, low: S::F, high: S::F) {
        let zero = simd.splat(0.0);
        let taint = simd.sum(simd.fma(low, zero, simd.mul(high, zero)));
        let scale = simd.largest(simd.max(simd.abs(low), simd.abs(high))) / 127.0 + taint;
        let inverse = if scale > 0.0 && (1.0 / scale).is_finite() { 1.0 / scale } else { 0.0 };
        let low = simd.to_i32(simd.mul(low, simd.splat(inverse)));
        let high = simd.to_i32(simd.mul(high, simd.splat(inverse)));
        let sum = simd.sum_i32(simd.add_i32(low, high));
        let mut quads = [0; BLOCK_QUADS];
        quads[..LANES / 4].copy_from_slice(&simd.low_bytes(low));
        quads[LANES / 4..].copy_from_slice(&simd.low_bytes(high));
        let value = Block { quads, scale, scaled_sum: scale * sum as f32, correction: sum.wrapping_mul(-128) };
        // SAFETY: the block is this thread's by the caller's promise.
        unsafe { self.blocks.write(token * self.row_blocks + block, value) };
    }
}
