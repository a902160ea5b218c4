//! Tiles of weights that are floats (F32, F16, BF16).

use crate::activations::{Activations, BLOCK, Rows};
use crate::matrix::TILE;
use crate::product::prefetch;
use crate::simd::Simd;

#[inline(always)]
pub(super) fn f32<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    floats::<S, N, { 4 * TILE }>(
        simd,
        tile,
        input,
        first,
        #[inline(always)]
        |weights| simd.load_f32_bytes(weights),
    )
}

#[inline(always)]
pub(super) fn f16<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    floats::<S, N, { 2 * TILE }>(
        simd,
        tile,
        input,
        first,
        #[inline(always)]
        |weights| simd.load_f16(weights),
    )
}

#[inline(always)]
pub(super) fn bf16<S: Simd, const N: usize>(simd: S, tile: &[u8], input: &Activations, first: usize) -> [S::F; N] {
    floats::<S, N, { 2 * TILE }>(
        simd,
        tile,
        input,
        first,
        #[inline(always)]
        |weights| simd.load_bf16(weights),
    )
}

/// Activations are the same `i8` as everywhere, weights become f32 on the way in, exactly: a block's sum is rounded as
/// well, in ascending order. `load` takes 16 weights of one column.
#[inline(always)]
fn floats<S: Simd, const N: usize, const COLUMN: usize>(
    simd: S,
    tile: &[u8],
    input: &Activations,
    first: usize,
    load: impl Fn(&[u8; COLUMN]) -> S::F,
) -> [S::F; N] {
    let blocks = input.row(first).len();
    let rows = Rows::<N>::new(input, first, 0..blocks);
    let mut sums = [simd.splat(0.0); N];
    let columns = tile.as_chunks::<COLUMN>().0;
    for (index, block) in columns.as_chunks::<BLOCK>().0[..blocks].iter().enumerate() {
        if N <= 2 || first == 0 {
            prefetch(simd, tile, blocks, index, BLOCK * COLUMN / 64);
        }
        // SAFETY: the rows have `blocks` blocks.
        let inputs = unsafe { rows.blocks(index) };
        let mut dots = [simd.splat(0.0); N];
        for (column, weights) in block.iter().enumerate() {
            let weights = load(weights);
            for token in 0..N {
                let value = inputs[token].quads[column / 4].to_le_bytes()[column % 4] as i8;
                dots[token] = simd.fma(weights, simd.splat(f32::from(value)), dots[token]);
            }
        }
        for token in 0..N {
            sums[token] = simd.fma(dots[token], simd.splat(inputs[token].scale), sums[token]);
        }
    }
    sums
}
