//! Tiles of weights with 6 bits (Q6_K), whose scales lie behind all weights.
//!
//! The scales are for 16 columns: a block's two sums times their `i8` scales are below 2^24 together, so that they too
//! are exact.

use crate::activations::{Activations, Block, Rows};
use crate::matrix::{GROUP_BLOCKS, NIBBLES_BYTES, PLANE_BYTES, TILE};
use crate::product::prefetch;
use crate::simd::{LANES, Simd};

/// Bytes of a block's weights.
const SIX_BITS: usize = NIBBLES_BYTES + 2 * PLANE_BYTES;

const _: () = assert!(PLANE_BYTES == 4 * LANES, "a plane is read at once");

/// Q6_K: 2 x 16 `i8` scales for each block, 16 f16 in each group.
#[inline(always)]
pub(super) fn six<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    let blocks = input.row(first).len();
    let rows = Rows::<N>::new(input, first, 0..blocks);
    let (weights, scales) = tile.split_at(blocks * SIX_BITS);
    let (of_blocks, of_groups) = scales.split_at(blocks * 2 * TILE);
    let of_blocks = &of_blocks.as_chunks::<{ 2 * TILE }>().0[..blocks];
    let of_groups = &of_groups.as_chunks::<{ 2 * TILE }>().0[..blocks / GROUP_BLOCKS];
    let mut sums = [simd.splat(0.0); N];
    let weights = &weights.as_chunks::<SIX_BITS>().0[..blocks];
    for index in 0..blocks {
        let block = &weights[index];
        if N <= 2 || first == 0 {
            prefetch(simd, tile, blocks, index, SIX_BITS / 64 + 1);
        }
        let (quads, planes) = quads_and_planes(block);
        // SAFETY: the rows have `blocks` blocks.
        let inputs = unsafe { rows.blocks(index) };
        // Weights are centred at 32: the dot products begin with what that takes off.
        let mut dots = [[simd.splat_i32(0); 2]; N];
        for token in 0..N {
            let Block { quads, correction, .. } = inputs[token];
            let low = simd.sum_i8([quads[0], quads[1], quads[2], quads[3]]);
            let high = -(correction >> 7) - low;
            dots[token] = [simd.splat_i32(-32 * low), simd.splat_i32(-32 * high)];
        }
        let planes = [simd.load_bytes(&planes[0]), simd.load_bytes(&planes[1])];
        for quad in 0..4 {
            let bytes = simd.load_bytes(&quads[quad]);
            let low = simd.with_bits(simd.low_nibbles(bytes), planes[0], 2 * quad as i32 - 4, 0x30);
            let high = simd.with_bits(simd.high_nibbles(bytes), planes[1], 2 * quad as i32 - 4, 0x30);
            for token in 0..N {
                let quads = &inputs[token].quads;
                dots[token][0] = simd.dot_unsigned(dots[token][0], low, quads[quad]);
                dots[token][1] = simd.dot_unsigned(dots[token][1], high, quads[quad + 4]);
            }
        }
        let bytes = of_blocks[index].as_chunks::<LANES>().0;
        let halves = [simd.load_i8(&bytes[0]), simd.load_i8(&bytes[1])];
        let scales = simd.load_f16(&of_groups[index / GROUP_BLOCKS]);
        for token in 0..N {
            let [low, high] = dots[token];
            let dot = simd.fma(simd.to_f32(high), halves[1], simd.mul(simd.to_f32(low), halves[0]));
            let scales = simd.mul(scales, simd.splat(inputs[token].scale));
            sums[token] = simd.fma(dot, scales, sums[token]);
        }
    }
    sums
}

/// The nibbles of a block and its planes of higher bits.
#[inline(always)]
fn quads_and_planes(block: &[u8]) -> (&[[u8; 4 * LANES]], &[[u8; 4 * LANES]]) {
    block.as_chunks::<{ 4 * LANES }>().0.split_at(NIBBLES_BYTES / (4 * LANES))
}
