//! RMS norm, and quantisation of what a matrix product is to read.

use crate::activations::{Activations, ActivationsWriter, BLOCK};
use crate::simd::{Kernel, LANES, Simd, dispatch};
use crate::team::Team;

/// Below this many values a second thread costs more than it saves (waking it is about a third of a microsecond).
const VALUES_ALONE: usize = 4_096;

/// Root-mean-square norm of rows of `x`, quantised.
///
/// Shapes: `x` [.., width], `weight` [width]; row `i` of `out` is the norm of row `rows[i]` of `x`.
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
