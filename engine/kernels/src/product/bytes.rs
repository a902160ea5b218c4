//! Tiles of weights in bytes (Q8_0, Q5_0).

use crate::activations::{Activations, Rows};
use crate::matrix::BYTE_BLOCK_BYTES;
use crate::product::prefetch;
use crate::simd::{LANES, Simd};

#[inline(always)]
pub(super) fn bytes<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    let count = input.row(first).len();
    let rows = Rows::<N>::new(input, first, 0..count);
    let mut sums = [simd.splat(0.0); N];
    let (blocks, scales) = tile.split_at(count * BYTE_BLOCK_BYTES);
    let scales = &scales.as_chunks::<{ 2 * LANES }>().0[..count];
    let blocks = &blocks.as_chunks::<BYTE_BLOCK_BYTES>().0[..count];
    for index in 0..count {
        if N <= 2 || first == 0 {
            prefetch(simd, tile, count, index, BYTE_BLOCK_BYTES / 64 + 1);
        }
        // SAFETY: the rows have `count` blocks.
        let inputs = unsafe { rows.blocks(index) };
        let mut dots = [simd.splat_i32(0); N];
        for token in 0..N {
            dots[token] = simd.dot_offset_start(inputs[token].correction);
        }
        for (quad, bytes) in blocks[index].as_chunks::<64>().0.iter().enumerate() {
            let bytes = simd.load_bytes(bytes);
            for token in 0..N {
                dots[token] = simd.dot_offset(dots[token], bytes, inputs[token].quads[quad]);
            }
        }
        let scales = simd.load_f16(&scales[index]);
        for token in 0..N {
            let scales = simd.mul(scales, simd.splat(inputs[token].scale));
            sums[token] = simd.fma(simd.to_f32(dots[token]), scales, sums[token]);
        }
    }
    sums
}
