//! RMS norm, and quantisation of what a matrix product is to read.

use crate::activations::{Activations, ActivationsWriter, BLOCK};
use crate::shared_slice::SharedSlice;
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

/// Adds the root-mean-square norm of each row of `y` to the same row of `x`; `y` holds the norms afterwards.
///
/// Shapes: `x` and `y` `[tokens, width]`, `weight` `[width]`, a multiple of 16.
///
/// # Panics
/// When the shapes do not fit together.
pub fn rms_norm_add(team: &mut Team, y: &mut [f32], weight: &[f32], eps: f32, x: &mut [f32]) {
    let width = weight.len();
    assert!(x.len() == y.len() && x.len().is_multiple_of(width) && width.is_multiple_of(LANES), "whole rows");
    let tokens = x.len() / width;
    let family = team.family();
    let (y, x) = (SharedSlice::new(y), SharedSlice::new(x));
    let work = |token: usize| {
        let row = token * width..(token + 1) * width;
        // SAFETY: each token is one piece's, and rows do not overlap.
        let (y, x) = unsafe { (y.part(row.clone()), x.part(row)) };
        dispatch(family, RmsNormAdd { y, weight, eps, x });
    };
    if tokens * width <= VALUES_ALONE {
        return (0..tokens).for_each(work);
    }
    team.split(tokens, &|range| range.for_each(work));
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
        let scale = simd.splat(inverse_rms(simd, self.x, self.eps));
        let blocks = std::iter::zip(self.x.as_chunks::<BLOCK>().0, self.weight.as_chunks::<BLOCK>().0);
        for (block, (x, weight)) in blocks.enumerate() {
            let low = simd.mul(simd.mul(load_half(simd, x, 0), scale), load_half(simd, weight, 0));
            let high = simd.mul(simd.mul(load_half(simd, x, LANES), scale), load_half(simd, weight, LANES));
            // SAFETY: one thread works on a token, and each of its blocks is written once.
            unsafe { self.out.quantise(simd, self.token, block, low, high) };
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd>(simd: S, x: &[f32], eps: f32) -> f32 {
    let mut squares = simd.splat(0.0);
    for x in x.as_chunks::<LANES>().0 {
        let x = simd.load(x);
        squares = simd.fma(x, x, squares);
    }
    let mean = simd.sum(squares) / x.len() as f32;
    // Squares beyond f32 would make zeros of a row that has grown out of all bounds.
    if mean.is_finite() { 1.0 / (mean + eps).sqrt() } else { f32::NAN }
}

/// `x[i] = x[i] * scale * weight[i]`.
#[inline(always)]
pub(crate) fn scale_by<S: Simd>(simd: S, x: &mut [f32], scale: f32, weight: &[f32]) {
    let scale = simd.splat(scale);
    for (x, weight) in std::iter::zip(x.as_chunks_mut::<LANES>().0, weight.as_chunks::<LANES>().0) {
        simd.store(simd.mul(simd.mul(simd.load(x), scale), simd.load(weight)), x);
    }
}

struct RmsNormAdd<'a> {
    y: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
    x: &'a mut [f32],
}

impl Kernel for RmsNormAdd<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = inverse_rms(simd, self.y, self.eps);
        scale_by(simd, self.y, scale, self.weight);
        for (x, y) in std::iter::zip(self.x.as_chunks_mut::<LANES>().0, self.y.as_chunks::<LANES>().0) {
            simd.store(simd.add(simd.load(x), simd.load(y)), x);
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
    fn a_norm_that_is_added_is_the_definition_for_every_row() {
        let width = 96;
        for tokens in [1, 100] {
            let mut bits = Vec::new();
            for (family, threads) in KernelFamily::ALL.into_iter().flat_map(|family| [(family, 1), (family, 3)]) {
                let Some(mut team) = Team::with_family(threads, family) else { continue };
                let mut y: Vec<f32> = (0..tokens * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 13.0).collect();
                let weight: Vec<f32> = (0..width).map(|i| 0.5 + i as f32 / 96.0).collect();
                let mut x: Vec<f32> = (0..tokens * width).map(|i| (i * 29 % 53) as f32 / 7.0).collect();
                let before = (x.clone(), y.clone());
                rms_norm_add(&mut team, &mut y, &weight, 1e-5, &mut x);
                for (index, x) in x.iter().enumerate() {
                    let row = &before.1[index / width * width..][..width];
                    let mean = row.iter().map(|y| f64::from(*y).powi(2)).sum::<f64>() / width as f64;
                    let norm = f64::from(before.1[index]) / (mean + 1e-5).sqrt() * f64::from(weight[index % width]);
                    let wanted = f64::from(before.0[index]) + norm;
                    assert!((f64::from(*x) - wanted).abs() <= 2e-6, "{index}: {x} for {wanted}");
                }
                bits.push(x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            }
            assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

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

    /// 1 where what a product would compute from the row is no number.
    fn is_tainted(out: &Activations, token: usize) -> bool {
        out.row(token).iter().any(|block| !(block.scale * block.quads[0] as f32 + block.scaled_sum).is_finite())
    }

    #[test]
    fn a_value_that_is_not_finite_is_never_lost_in_a_block() {
        for family in KernelFamily::ALL {
            let Some(mut team) = Team::with_family(1, family) else { continue };
            for (place, bad) in
                (0..64).flat_map(|place| [f32::NAN, -f32::NAN, f32::INFINITY, -f32::INFINITY].map(|bad| (place, bad)))
            {
                let mut x: Vec<f32> = (0..3 * 64).map(|i| (i % 7) as f32 - 3.0).collect();
                x[64 + place] = bad;
                let mut out = Activations::new(3, 64);
                quantise(&mut team, &x, 64, &mut out);
                assert_eq!(
                    [0, 1, 2].map(|token| is_tainted(&out, token)),
                    [false, true, false],
                    "{family} {place} {bad}"
                );
                rms_norm(&mut team, &x, &[0, 1, 2], &[1.0; 64], 1e-5, &mut out);
                assert_eq!(
                    [0, 1, 2].map(|token| is_tainted(&out, token)),
                    [false, true, false],
                    "{family} {place} {bad}"
                );
            }
        }
    }

    #[test]
    fn a_row_that_grew_out_of_all_bounds_is_no_row_of_zeros() {
        for family in KernelFamily::ALL {
            let Some(mut team) = Team::with_family(1, family) else { continue };
            let mut out = Activations::new(1, 32);
            rms_norm(&mut team, &[3e38; 32], &[0], &[1.0; 32], 1e-5, &mut out);
            assert!(is_tainted(&out, 0), "{family}");
        }
    }
}
