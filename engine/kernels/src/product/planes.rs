//! Tiles of weights with 4 to 6 bits whose scales lie behind all weights: Q5_1 and the K types.
//!
//! As for the other types, what is summed inside a scale is integers. In Q6_K, whose scales are for 16 columns, a
//! block's two sums times their `i8` scales are below 2^24 together, so that they too are exact.

use crate::activations::{Activations, BLOCK, Block};
use crate::matrix::{GROUP_BLOCKS, NIBBLES_BYTES, PLANE_BYTES, TILE};
use crate::product::prefetch;
use crate::simd::{LANES, Simd};

/// Bytes of a block's weights, by their bits.
pub(super) const FOUR_BITS: usize = NIBBLES_BYTES;
pub(super) const FIVE_BITS: usize = NIBBLES_BYTES + PLANE_BYTES;
pub(super) const SIX_BITS: usize = NIBBLES_BYTES + 2 * PLANE_BYTES;

const _: () = assert!(PLANE_BYTES == 4 * LANES, "a plane is read at once");

/// Q5_1: 16 f16 scales and 16 f16 minima for each block.
#[inline(always)]
pub(super) fn five<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    let blocks = input.width() / BLOCK;
    let scales = &tile[blocks * FIVE_BITS..];
    let scales = &scales.as_chunks::<{ 4 * TILE }>().0[..blocks];
    with_minima::<S, N, FIVE_BITS>(
        simd,
        tile,
        input,
        first,
        #[inline(always)]
        |index| {
            let halves = scales[index].as_chunks::<{ 2 * LANES }>().0;
            (simd.load_f16(&halves[0]), simd.load_f16(&halves[1]))
        },
    )
}

/// Q4_K and Q5_K: 16 bytes of scales and of minima for each block, 16 f16 for either in each group.
#[inline(always)]
pub(super) fn grouped<S: Simd, const N: usize, const WEIGHTS: usize>(
    simd: S,
    tile: &[u8],
    input: &Activations,
    first: usize,
) -> [S::F; N] {
    let blocks = input.width() / BLOCK;
    let scales = &tile[blocks * WEIGHTS..];
    let (of_blocks, of_groups) = scales.split_at(blocks * 2 * TILE);
    let of_blocks = &of_blocks.as_chunks::<{ 2 * TILE }>().0[..blocks];
    let of_groups = &of_groups.as_chunks::<{ 4 * TILE }>().0[..blocks / GROUP_BLOCKS];
    with_minima::<S, N, WEIGHTS>(
        simd,
        tile,
        input,
        first,
        #[inline(always)]
        |index| {
            let bytes = of_blocks[index].as_chunks::<LANES>().0;
            let halves = of_groups[index / GROUP_BLOCKS].as_chunks::<{ 2 * LANES }>().0;
            // 11 bits times 6: exact.
            let scales = simd.mul(simd.load_f16(&halves[0]), simd.load_u8(&bytes[0]));
            let minima = simd.mul(simd.load_f16(&halves[1]), simd.load_u8(&bytes[1]));
            (scales, minima)
        },
    )
}

/// The order of operations is that of the nibble tiles; `scales_of` a block gives its scales and minima.
#[inline(always)]
fn with_minima<S: Simd, const N: usize, const WEIGHTS: usize>(
    simd: S,
    tile: &[u8],
    input: &Activations,
    first: usize,
    scales_of: impl Fn(usize) -> (S::F, S::F),
) -> [S::F; N] {
    let rows: [&[Block]; N] = std::array::from_fn(|token| input.row(first + token));
    let mut sums = [simd.splat(0.0); N];
    for (index, block) in tile.as_chunks::<WEIGHTS>().0[..rows[0].len()].iter().enumerate() {
        if N <= 2 || first == 0 {
            prefetch(simd, tile, rows[0].len(), index, WEIGHTS / 64 + 1);
        }
        let (quads, planes) = quads_and_planes(block);
        let mut dots = [simd.splat_i32(0); N];
        for quad in 0..4 {
            let bytes = simd.load_bytes(&quads[quad]);
            let (mut low, mut high) = (simd.low_nibbles(bytes), simd.high_nibbles(bytes));
            if let Some(plane) = planes.first() {
                let plane = simd.load_bytes(plane);
                low = simd.with_bits(low, plane, quad as i32 - 4, 0x10);
                high = simd.with_bits(high, plane, quad as i32, 0x10);
            }
            for token in 0..N {
                let quads = &rows[token][index].quads;
                dots[token] = simd.dot_unsigned(dots[token], low, quads[quad]);
                dots[token] = simd.dot_unsigned(dots[token], high, quads[quad + 4]);
            }
        }
        let (scales, minima) = scales_of(index);
        for token in 0..N {
            let input = &rows[token][index];
            let scales = simd.mul(scales, simd.splat(input.scale));
            sums[token] = simd.fma(simd.to_f32(dots[token]), scales, sums[token]);
            sums[token] = simd.fma(minima, simd.splat(input.scaled_sum), sums[token]);
        }
    }
    sums
}

/// Q6_K: 2 x 16 `i8` scales for each block, 16 f16 in each group.
#[inline(always)]
pub(super) fn six<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    let rows: [&[Block]; N] = std::array::from_fn(|token| input.row(first + token));
    let blocks = rows[0].len();
    let (weights, scales) = tile.split_at(blocks * SIX_BITS);
    let (of_blocks, of_groups) = scales.split_at(blocks * 2 * TILE);
    let of_blocks = &of_blocks.as_chunks::<{ 2 * TILE }>().0[..blocks];
    let of_groups = &of_groups.as_chunks::<{ 2 * TILE }>().0[..blocks / GROUP_BLOCKS];
    let mut sums = [simd.splat(0.0); N];
    for (index, block) in weights.as_chunks::<SIX_BITS>().0[..blocks].iter().enumerate() {
        if N <= 2 || first == 0 {
            prefetch(simd, tile, blocks, index, SIX_BITS / 64 + 1);
        }
        let (quads, planes) = quads_and_planes(block);
        // Weights are centred at 32: the dot products begin with what that takes off.
        let mut dots = [[simd.splat_i32(0); 2]; N];
        for token in 0..N {
            let Block { quads, correction, .. } = &rows[token][index];
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
                let quads = &rows[token][index].quads;
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
            let scales = simd.mul(scales, simd.splat(rows[token][index].scale));
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
