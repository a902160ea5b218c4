//! Tiles of weights with 4 or 5 bits and with a scale and a minimum for each block: Q4_0, Q4_1, Q5_1, Q4_K and Q5_K.
//!
//! What is summed inside a block is integers; over blocks it is f32 in ascending order, the scaled sum first, then the
//! minimum's share. [`direct`] unpacks weights where it multiplies them; [`super::panel`] does it once for many tokens.

use super::prefetch;
use crate::activations::{Activations, BLOCK, Block, Rows};
use crate::matrix::{GROUP_BLOCKS, NIBBLE_BLOCK_BYTES, NIBBLES_BYTES, PLANE_BYTES, TILE};
use crate::simd::{LANES, Simd};

/// Bytes of a block's weights with 4 and with 5 bits.
pub(super) const FOUR_BITS: usize = NIBBLES_BYTES;
pub(super) const FIVE_BITS: usize = NIBBLES_BYTES + PLANE_BYTES;

const _: () = assert!(PLANE_BYTES == 4 * LANES, "a plane is read at once");

/// A tile whose blocks have a scale and a minimum for each row.
pub(super) trait MinimaTile: Copy {
    /// Blocks of 32 columns.
    fn blocks(&self) -> usize;
    /// The weights of columns `4 quad` to `4 quad + 3` of a block, and of those 16 behind them; quads are 0 to 3.
    fn quads<S: Simd>(&self, simd: S, block: usize, quad: usize) -> (S::B, S::B);
    /// The scales and minima of a block.
    fn scales<S: Simd>(&self, simd: S, block: usize) -> (S::F, S::F);
    /// Asks for what will be wanted after a block.
    fn prefetch<S: Simd>(&self, simd: S, block: usize);
}

/// The nibble layout: a block's scales lie behind its weights.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<'a> {
    tile: &'a [u8],
    blocks: &'a [[u8; NIBBLE_BLOCK_BYTES]],
}

impl<'a> Nibbles<'a> {
    #[inline(always)]
    pub(super) fn new(tile: &'a [u8], blocks: usize) -> Self {
        Self { tile, blocks: &tile.as_chunks().0[..blocks] }
    }
}

impl MinimaTile for Nibbles<'_> {
    #[inline(always)]
    fn blocks(&self) -> usize {
        self.blocks.len()
    }
    #[inline(always)]
    fn quads<S: Simd>(&self, simd: S, block: usize, quad: usize) -> (S::B, S::B) {
        let bytes = simd.load_bytes(&self.blocks[block].as_chunks().0[quad]);
        (simd.low_nibbles(bytes), simd.high_nibbles(bytes))
    }
    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S, block: usize) -> (S::F, S::F) {
        let halves = self.blocks[block].as_chunks::<{ 2 * LANES }>().0;
        (simd.load_f16(&halves[8]), simd.load_f16(&halves[9]))
    }
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S, block: usize) {
        prefetch(simd, self.tile, self.blocks.len(), block, NIBBLE_BLOCK_BYTES / 64);
    }
}

/// Q5_1: 16 f16 scales and 16 f16 minima for each block, behind all weights.
#[derive(Clone, Copy)]
pub(super) struct Five<'a> {
    tile: &'a [u8],
    weights: &'a [[u8; FIVE_BITS]],
    scales: &'a [[u8; 4 * TILE]],
}

impl<'a> Five<'a> {
    #[inline(always)]
    pub(super) fn new(tile: &'a [u8], blocks: usize) -> Self {
        let (weights, scales) = tile.split_at(blocks * FIVE_BITS);
        Self { tile, weights: &weights.as_chunks().0[..blocks], scales: &scales.as_chunks().0[..blocks] }
    }
}

impl MinimaTile for Five<'_> {
    #[inline(always)]
    fn blocks(&self) -> usize {
        self.weights.len()
    }
    #[inline(always)]
    fn quads<S: Simd>(&self, simd: S, block: usize, quad: usize) -> (S::B, S::B) {
        quads_with_planes(simd, &self.weights[block], quad)
    }
    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S, block: usize) -> (S::F, S::F) {
        let halves = self.scales[block].as_chunks::<{ 2 * LANES }>().0;
        (simd.load_f16(&halves[0]), simd.load_f16(&halves[1]))
    }
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S, block: usize) {
        prefetch(simd, self.tile, self.weights.len(), block, FIVE_BITS / 64 + 1);
    }
}

/// Q4_K and Q5_K: 16 bytes of scales and of minima for each block, 16 f16 for either in each group.
#[derive(Clone, Copy)]
pub(super) struct Grouped<'a, const WEIGHTS: usize> {
    tile: &'a [u8],
    weights: &'a [[u8; WEIGHTS]],
    of_blocks: &'a [[u8; 2 * TILE]],
    of_groups: &'a [[u8; 4 * TILE]],
}

impl<'a, const WEIGHTS: usize> Grouped<'a, WEIGHTS> {
    #[inline(always)]
    pub(super) fn new(tile: &'a [u8], blocks: usize) -> Self {
        let (weights, scales) = tile.split_at(blocks * WEIGHTS);
        let (of_blocks, of_groups) = scales.split_at(blocks * 2 * TILE);
        Self {
            tile,
            weights: &weights.as_chunks().0[..blocks],
            of_blocks: &of_blocks.as_chunks().0[..blocks],
            of_groups: &of_groups.as_chunks().0[..blocks / GROUP_BLOCKS],
        }
    }
}

impl<const WEIGHTS: usize> MinimaTile for Grouped<'_, WEIGHTS> {
    #[inline(always)]
    fn blocks(&self) -> usize {
        self.weights.len()
    }
    #[inline(always)]
    fn quads<S: Simd>(&self, simd: S, block: usize, quad: usize) -> (S::B, S::B) {
        quads_with_planes(simd, &self.weights[block], quad)
    }
    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S, block: usize) -> (S::F, S::F) {
        let bytes = self.of_blocks[block].as_chunks::<LANES>().0;
        let halves = self.of_groups[block / GROUP_BLOCKS].as_chunks::<{ 2 * LANES }>().0;
        // 11 bits times 6: exact.
        let scales = simd.mul(simd.load_f16(&halves[0]), simd.load_u8(&bytes[0]));
        let minima = simd.mul(simd.load_f16(&halves[1]), simd.load_u8(&bytes[1]));
        (scales, minima)
    }
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S, block: usize) {
        prefetch(simd, self.tile, self.weights.len(), block, WEIGHTS / 64 + 1);
    }
}

/// Nibbles with their fifth bits, if there is a plane of them behind the nibbles.
#[inline(always)]
fn quads_with_planes<S: Simd>(simd: S, block: &[u8], quad: usize) -> (S::B, S::B) {
    let (quads, planes) = block.as_chunks::<{ 4 * LANES }>().0.split_at(NIBBLES_BYTES / (4 * LANES));
    let bytes = simd.load_bytes(&quads[quad]);
    let (low, high) = (simd.low_nibbles(bytes), simd.high_nibbles(bytes));
    match planes.first() {
        None => (low, high),
        Some(plane) => {
            let plane = simd.load_bytes(plane);
            (simd.with_bits(low, plane, quad as i32 - 4, 0x10), simd.with_bits(high, plane, quad as i32, 0x10))
        }
    }
}

/// A tile times `N` tokens from `first` on.
#[inline(always)]
pub(super) fn direct<S: Simd, T: MinimaTile, const N: usize>(
    simd: S,
    tile: T,
    input: &Activations,
    first: usize,
) -> [S::F; N] {
    let rows = Rows::<N>::new(input, first, 0..tile.blocks());
    let mut sums = [simd.splat(0.0); N];
    for index in 0..tile.blocks() {
        if N <= 2 || first == 0 {
            tile.prefetch(simd, index);
        }
        // SAFETY: the rows have as many blocks as the tile.
        let inputs = unsafe { rows.blocks(index) };
        let mut dots = [simd.splat_i32(0); N];
        for quad in 0..4 {
            let (low, high) = tile.quads(simd, index, quad);
            for token in 0..N {
                let quads = &inputs[token].quads;
                dots[token] = simd.dot_unsigned(dots[token], low, quads[quad]);
                dots[token] = simd.dot_unsigned(dots[token], high, quads[quad + 4]);
            }
        }
        let (scales, minima) = tile.scales(simd, index);
        for token in 0..N {
            sums[token] = add_block(simd, sums[token], dots[token], scales, minima, inputs[token]);
        }
    }
    sums
}

/// What a block adds to a token's sums: the one order in which it is rounded.
#[inline(always)]
pub(super) fn add_block<S: Simd>(simd: S, sum: S::F, dots: S::I, scales: S::F, minima: S::F, input: &Block) -> S::F {
    let scales = simd.mul(scales, simd.splat(input.scale));
    let sum = simd.fma(simd.to_f32(dots), scales, sum);
    simd.fma(minima, simd.splat(input.scaled_sum), sum)
}

const _: () = assert!(BLOCK == 32, "a block is eight quads");
