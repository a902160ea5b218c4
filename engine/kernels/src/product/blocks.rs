//! Tiles of weights in nibbles (Q4_0, Q4_1) and in bytes (Q8_0, Q5_0).

use crate::activations::{Activations, Block};
use crate::matrix::{BYTE_BLOCK_BYTES, NIBBLE_BLOCK_BYTES};
use crate::product::prefetch;
use crate::simd::{LANES, Simd};

#[inline(always)]
pub(super) fn nibbles<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    let rows: [&[Block]; N] = std::array::from_fn(|token| input.row(first + token));
    let mut sums = [simd.splat(0.0); N];
    for (index, block) in tile.as_chunks::<NIBBLE_BLOCK_BYTES>().0[..rows[0].len()].iter().enumerate() {
        if N <= 2 || first == 0 {
            prefetch(simd, tile, rows[0].len(), index, NIBBLE_BLOCK_BYTES / 64);
        }
        let quads = block.as_chunks::<64>().0;
        let mut dots = [simd.splat_i32(0); N];
        for quad in 0..4 {
            let bytes = simd.load_bytes(&quads[quad]);
            let (low, high) = (simd.low_nibbles(bytes), simd.high_nibbles(bytes));
            for token in 0..N {
                let quads = &rows[token][index].quads;
                dots[token] = simd.dot_unsigned(dots[token], low, quads[quad]);
                dots[token] = simd.dot_unsigned(dots[token], high, quads[quad + 4]);
            }
        }
        let (scales, minima) = scales_of(block);
        let (scales, minima) = (simd.load_f16(scales), simd.load_f16(minima));
        for token in 0..N {
            let input = &rows[token][index];
            let scales = simd.mul(scales, simd.splat(input.scale));
            sums[token] = simd.fma(simd.to_f32(dots[token]), scales, sums[token]);
            sums[token] = simd.fma(minima, simd.splat(input.scaled_sum), sums[token]);
        }
    }
    sums
}

#[inline(always)]
pub(super) fn bytes<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    let rows: [&[Block]; N] = std::array::from_fn(|token| input.row(first + token));
    let mut sums = [simd.splat(0.0); N];
    let (blocks, scales) = tile.split_at(rows[0].len() * BYTE_BLOCK_BYTES);
    let scales = &scales.as_chunks::<{ 2 * LANES }>().0[..rows[0].len()];
    for (index, block) in blocks.as_chunks::<BYTE_BLOCK_BYTES>().0[..rows[0].len()].iter().enumerate() {
        if N <= 2 || first == 0 {
            prefetch(simd, tile, rows[0].len(), index, BYTE_BLOCK_BYTES / 64 + 1);
        }
        let mut dots = [simd.splat_i32(0); N];
        for token in 0..N {
            dots[token] = simd.dot_offset_start(rows[token][index].correction);
        }
        for (quad, bytes) in block.as_chunks::<64>().0.iter().enumerate() {
            let bytes = simd.load_bytes(bytes);
            for token in 0..N {
                dots[token] = simd.dot_offset(dots[token], bytes, rows[token][index].quads[quad]);
            }
        }
        let scales = simd.load_f16(&scales[index]);
        for token in 0..N {
            let scales = simd.mul(scales, simd.splat(rows[token][index].scale));
            sums[token] = simd.fma(simd.to_f32(dots[token]), scales, sums[token]);
        }
    }
    sums
}

/// The scales and minima at the end of a nibble block.
#[inline(always)]
fn scales_of(block: &[u8; NIBBLE_BLOCK_BYTES]) -> (&[u8; 2 * LANES], &[u8; 2 * LANES]) {
    let halves = block.as_chunks::<{ 2 * LANES }>().0;
    (&halves[8], &halves[9])
}
