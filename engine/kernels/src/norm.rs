//! RMS norm, and quantisation of what a matrix product is to read.

use crate::activations::{Activations, ActivationsWriter, BLOCK};
use crate::simd::{Kernel, LANES, Simd, dispatch};
use crate::team::Team;

/// Below this many values a second thread costs more than it saves (waking it is about a third of a microsecond).
const VALUES_ALONE: usize = 4_096;

/// Root-mean-square norm of rows of `x`, quantised.
///
/// Shapes: `x` `[.., width]`, `weight` `[width]`; row `i` of `out` is the norm of row `rows[i]` of `x`.
/// Source: RMSNorm, arXiv:1910.07467: `x / sqrt(mean(x^2) + eps) * weight`.
///
/// # Panics
/// When a row lies outside `x` or `out` has no room.
pub fn rms_norm(team: &mut Team, x: &[f32], rows: &[u32], weight: &[f32], eps: f32, out: &mut Activations) {
    let width = weight.len();
    each_token(team, rows.len(), width, out, &|family, token, out| {
        let x = &x[rows[token] as usize * width..][..width];
        dispatch(family, RmsNorm { x, weight, eps, token, out });
    });
}

/// Quantises rows of `x` [tokens, width].
///
/// # Panics
/// When `x` is not whole rows or `out` has no room.
pub fn quantise(team: &mut Team, x: &[f32], width: usize, out: &mut Activations) {
    assert!(x.len().is_multiple_of(width), "whole rows");
    each_token(team, x.len() / width, width, out, &|family, token, out| {
        dispatch(family, Quantise { x: &x[token * width..][..width], token, out });
    });
}

fn each_token(
    team: &mut Team,
    tokens: usize,
    width: usize,
    out: &mut Activations,
    work: &(dyn Fn(crate::KernelFamily, usize, &ActivationsWriter<'_>) + Sync),
) {
    let family = team.family();
    let out = out.reshape(tokens, width);
    if tokens * width <= VALUES_ALONE {
        return (0..tokens).for_each(|token| work(family, token, &out));
    }
    team.split(tokens, &|range| range.for_each(|token| work(family, token, &out)));
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    token: usize,
    out: &'a ActivationsWriter<'a>,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut squares = simd.splat(0.0);
        for x in self.x.as_chunks::<LANES>().0 {
            let x = simd.load(x);
            squares = simd.fma(x, x, squares);
        }
        let mean = simd.sum(squares) / self.x.len() as f32;
        let scale = simd.splat(1.0 / (mean + self.eps).sqrt());
        let blocks = std::iter::zip(self.x.as_chunks::<BLOCK>().0, self.weight.as_chunks::<BLOCK>().0);
        for (block, (x, weight)) in blocks.enumerate() {
            let low = simd.mul(simd.mul(load_half(simd, x, 0), scale), load_half(simd, weight, 0));
            let high = simd.mul(simd.mul(load_half(simd, x, LANES), scale), load_half(simd, weight, LANES));
            // SAFETY: one thread works on a token, and each of its blocks is written once.
            unsafe { self.out.quantise(simd, self.token, block, low, high) };
        }
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    token: usize,
    out: &'a ActivationsWriter<'a>,
}

impl Kernel for Quantise<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (block, x) in self.x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let (low, high) = (load_half(simd, x, 0), load_half(simd, x, LANES));
            // SAFETY: one thread works on a token, and each of its blocks is written once.
            unsafe { self.out.quantise(simd, self.token, block, low, high) };
        }
    }
}

/// 16 of a block's values, from value `from` (0 or 16) on.
#[inline(always)]
pub(crate) fn load_half<S: Simd>(simd: S, block: &[f32; BLOCK], from: usize) -> S::F {
    simd.load(&block.as_chunks::<LANES>().0[from / LANES])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelFamily;

    #[test]
    fn the_norm_is_the_definition_on_the_rows_asked_for() {
        let width = 96;
        let x: Vec<f32> = (0..100 * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 13.0).collect();
        let weight: Vec<f32> = (0..width).map(|i| 0.5 + i as f32 / 96.0).collect();
        // Few rows are the caller's alone, many are shared.
        let many: Vec<u32> = (0..100).rev().collect();
        for rows in [&[99u32, 3][..], &many] {
            let mut bits = Vec::new();
            for (family, threads) in KernelFamily::ALL.into_iter().flat_map(|family| [(family, 1), (family, 3)]) {
                let Some(mut team) = Team::with_family(threads, family) else { continue };
                let mut out = Activations::new(rows.len(), width);
                rms_norm(&mut team, &x, rows, &weight, 1e-5, &mut out);
                for (token, row) in rows.iter().enumerate() {
                    let x = &x[*row as usize * width..][..width];
                    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                    for (index, (x, weight)) in std::iter::zip(x, &weight).enumerate() {
                        let wanted = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*weight);
                        let block = &out.row(token)[index / BLOCK];
                        let value = f64::from(block.quads[index % BLOCK / 4].to_le_bytes()[index % 4] as i8);
                        let step = f64::from(block.scale);
                        assert!((value * step - wanted).abs() <= 0.501 * step);
                    }
                }
                bits.push(
                    (0..rows.len())
                        .flat_map(|t| out.row(t).to_vec())
                        .map(|b| (b.quads, b.scale.to_bits()))
                        .collect::<Vec<_>>(),
                );
            }
            assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}
