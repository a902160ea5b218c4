//! The two products of a gated feed-forward part, with what follows them fused.

use std::ops::Range;

use super::{TOKENS_AT_ONCE, each_panel, each_product};
use crate::KernelFamily;
use crate::activations::{Activations, ActivationsWriter, BLOCK};
use crate::matrix::{Matrix, TILE};
use crate::simd::{Kernel, Simd, dispatch, exp};
use crate::team::Team;

/// `out = quantised(silu(input x gate^T) * (input x up^T))`.
///
/// Shapes: `input` [tokens, width], `out` [tokens, rows], rows a multiple of 32.
/// Source: GLU variants, arXiv:2002.05202, with `silu(x) = x / (1 + e^-x)`.
///
/// # Panics
/// When the shapes do not fit together.
pub fn product_swiglu(team: &mut Team, gate: &Matrix, up: &Matrix, input: &Activations, out: &mut Activations) {
    assert!(gate.width() == input.width() && up.width() == input.width(), "inputs of the matrices");
    assert!(gate.rows() == up.rows() && gate.rows().is_multiple_of(BLOCK), "outputs of the matrices");
    let family: KernelFamily = team.family();
    let out = out.reshape(input.tokens(), gate.rows());
    team.split(gate.rows() / BLOCK, &|blocks| {
        dispatch(family, SwiGlu { gate, up, blocks, input, out: &out });
    });
}

struct SwiGlu<'a> {
    gate: &'a Matrix,
    up: &'a Matrix,
    blocks: Range<usize>,
    input: &'a Activations,
    out: &'a ActivationsWriter<'a>,
}

impl Kernel for SwiGlu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        each_panel(
            self.input,
            #[inline(always)]
            |tokens| {
                for block in self.blocks.clone() {
                    for first in tokens.clone().step_by(TOKENS_AT_ONCE) {
                        let tokens = first..tokens.end.min(first + TOKENS_AT_ONCE);
                        let mut hidden = [[[0.0; TILE]; 2]; TOKENS_AT_ONCE];
                        for half in 0..2 {
                            let tile = 2 * block + half;
                            each_product(
                                simd,
                                self.gate,
                                tile,
                                self.input,
                                tokens.clone(),
                                #[inline(always)]
                                |token, gate| {
                                    simd.store(gate, &mut hidden[token - first][half]);
                                },
                            );
                            each_product(
                                simd,
                                self.up,
                                tile,
                                self.input,
                                tokens.clone(),
                                #[inline(always)]
                                |token, up| {
                                    let hidden = &mut hidden[token - first][half];
                                    let gate = simd.load(hidden);
                                    let one = simd.splat(1.0);
                                    let silu =
                                        simd.div(gate, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), gate))));
                                    simd.store(simd.mul(silu, up), hidden);
                                },
                            );
                        }
                        for token in tokens {
                            let [low, high] = hidden[token - first];
                            // SAFETY: one piece of work has a block of columns.
                            unsafe { self.out.quantise(simd, token, block, simd.load(&low), simd.load(&high)) };
                        }
                    }
                }
            },
        );
    }
}
