//! Quantised inputs of matrix products: `i8` in blocks of 32 with a scale each.

use crate::shared_slice::SharedSlice;
use crate::simd::{LANES, Simd};

/// Values that share a scale, in activations and in every quantised weight type.
pub(crate) const BLOCK: usize = 32;
/// Quads (four `i8` in one `i32`) of a block.
pub(crate) const BLOCK_QUADS: usize = BLOCK / 4;

/// Rows of activations, one for each token of a run. Reused from layer to layer; holds no more than it was made for.
pub struct Activations {
    tokens: usize,
    width: usize,
    /// `[tokens][width / 4]`: four `i8` each, none of them -128, the first in the lowest byte.
    quads: Vec<i32>,
    /// `[tokens][width / 32]`: what an `i8` of the block stands for.
    scales: Vec<f32>,
    /// `[tokens][width / 32]`: the block's scale times the sum of its `i8`; multiplies a weight block's minimum.
    scaled_sums: Vec<f32>,
    /// `[tokens][width / 32]`: -128 times the sum of the block's `i8`; undoes the offset of byte weights.
    corrections: Vec<i32>,
}

impl Activations {
    /// Room for `tokens_max` rows of `width_max` values (rounded up to whole blocks).
    #[must_use]
    pub fn new(tokens_max: usize, width_max: usize) -> Self {
        let blocks = tokens_max * width_max.div_ceil(BLOCK);
        Self {
            tokens: 0,
            width: 0,
            quads: vec![0; blocks * BLOCK_QUADS],
            scales: vec![0.0; blocks],
            scaled_sums: vec![0.0; blocks],
            corrections: vec![0; blocks],
        }
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
        assert!(tokens * width / BLOCK <= self.scales.len(), "more activations than there is room for");
        self.tokens = tokens;
        self.width = width;
        ActivationsWriter {
            blocks: width / BLOCK,
            quads: SharedSlice::new(&mut self.quads),
            scales: SharedSlice::new(&mut self.scales),
            scaled_sums: SharedSlice::new(&mut self.scaled_sums),
            corrections: SharedSlice::new(&mut self.corrections),
        }
    }

    /// One block of a row.
    #[inline(always)]
    pub(crate) fn block(&self, token: usize, block: usize) -> Block<'_> {
        let index = token * (self.width / BLOCK) + block;
        // Rows are written whole before they are read; `as_chunks` cannot split unevenly here.
        let quads = &self.quads.as_chunks::<BLOCK_QUADS>().0[index];
        Block {
            quads,
            scale: self.scales[index],
            scaled_sum: self.scaled_sums[index],
            correction: self.corrections[index],
        }
    }
}

impl std::fmt::Debug for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Activations({} x {})", self.tokens, self.width)
    }
}

/// 32 values: `scale` times the `i8`s in `quads`.
pub(crate) struct Block<'a> {
    pub(crate) quads: &'a [i32; BLOCK_QUADS],
    pub(crate) scale: f32,
    pub(crate) scaled_sum: f32,
    pub(crate) correction: i32,
}

/// Writes blocks from several threads.
pub(crate) struct ActivationsWriter<'a> {
    blocks: usize,
    quads: SharedSlice<'a, i32>,
    scales: SharedSlice<'a, f32>,
    scaled_sums: SharedSlice<'a, f32>,
    corrections: SharedSlice<'a, i32>,
}

impl ActivationsWriter<'_> {
    /// Quantises 32 values into a block: the scale is their largest magnitude / 127, each rounds to nearest, ties to
    /// even. A block of zeros, or of values too small for a scale, becomes zeros.
    ///
    /// # Safety
    /// No other thread writes the same block.
    #[inline(always)]
    pub(crate) unsafe fn quantise<S: Simd>(&self, simd: S, token: usize, block: usize, low: S::F, high: S::F) {
        let scale = simd.largest(simd.max(simd.abs(low), simd.abs(high))) / 127.0;
        let inverse = if scale > 0.0 && (1.0 / scale).is_finite() { 1.0 / scale } else { 0.0 };
        let low = simd.to_i32(simd.mul(low, simd.splat(inverse)));
        let high = simd.to_i32(simd.mul(high, simd.splat(inverse)));
        let sum = simd.sum_i32(simd.add_i32(low, high));
        let index = token * self.blocks + block;
        // SAFETY: the block is this thread's by the caller's promise, and blocks do not overlap.
        unsafe {
            let quads = self.quads.part(index * BLOCK_QUADS..(index + 1) * BLOCK_QUADS);
            quads[..LANES / 4].copy_from_slice(&simd.low_bytes(low));
            quads[LANES / 4..].copy_from_slice(&simd.low_bytes(high));
            self.scales.write(index, scale);
            self.scaled_sums.write(index, scale * sum as f32);
            self.corrections.write(index, sum.wrapping_mul(-128));
        }
    }
}
