//! Tiles of weights that are floats (F32, F16, BF16).

use crate::activations::{Activations, BLOCK, Block};
use crate::matrix::TILE;
use crate::simd::Simd;

/// Weights are f32 here, activations are the same `i8`: a block's sum is rounded as well, in ascending order.
#[inline(always)]
pub(super) fn floats<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    let rows: [&[Block]; N] = std::array::from_fn(|token| input.row(first + token));
    let mut sums = [simd.splat(0.0); N];
    for (index, block) in tile.as_chunks::<{ 4 * BLOCK * TILE }>().0[..rows[0].len()].iter().enumerate() {
        let mut dots = [simd.splat(0.0); N];
        for (column, weights) in block.as_chunks::<{ 4 * TILE }>().0.iter().enumerate() {
            let weights = simd.load_f32_bytes(weights);
            for token in 0..N {
                let value = rows[token][index].quads[column / 4].to_le_bytes()[column % 4] as i8;
                dots[token] = simd.fma(weights, simd.splat(f32::from(value)), dots[token]);
            }
        }
        for token in 0..N {
            sums[token] = simd.fma(dots[token], simd.splat(rows[token][index].scale), sums[token]);
        }
    }
    sums
}
