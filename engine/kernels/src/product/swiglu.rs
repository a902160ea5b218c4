//! The two products of a gated feed-forward part, with what follows them fused.

use std::cell::RefCell;
use std::ops::Range;

use super::panel::{PANEL_TOKENS, Panel};
use super::{PANEL, each_panel, each_product};
use crate::KernelFamily;
use crate::activations::{Activations, ActivationsWriter, BLOCK};
use crate::matrix::{Matrix, TILE};
use crate::simd::{Kernel, Simd, dispatch, exp};
use crate::team::Team;

/// The function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU by its approximation with tanh: `x / 2 (1 + tanh u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is
    /// `x / (1 + e^-2u)`. Source: arXiv:1606.08415.
    GeluTanh,
}

impl Activation {
    /// Both are `x / (1 + e^-v)`; they differ in `v`.
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::F) -> S::F {
        /// `-2 sqrt(2 / pi)`.
        const SLOPE: f32 = -1.595_769_2;
        let exponent = match self {
            Self::Silu => simd.sub(simd.splat(0.0), x),
            Self::GeluTanh => {
                let cubic = simd.fma(simd.mul(x, x), simd.splat(0.044_715), simd.splat(1.0));
                simd.mul(simd.mul(x, simd.splat(SLOPE)), cubic)
            }
        };
        simd.div(x, simd.add(simd.splat(1.0), exp(simd, exponent)))
    }
}

/// `out = quantised(activation(input x gate^T) * (input x up^T))`.
///
/// Shapes: `input` [tokens, width], `out` [tokens, rows], rows a multiple of 32.
/// Source: GLU variants, arXiv:2002.05202.
///
/// # Panics
/// When the shapes do not fit together.
pub fn product_swiglu(
    team: &mut Team,
    gate: &Matrix,
    up: &Matrix,
    activation: Activation,
    input: &Activations,
    out: &mut Activations,
) {
    assert!(gate.width() == input.width() && up.width() == input.width(), "inputs of the matrices");
    assert!(gate.rows() == up.rows() && gate.rows().is_multiple_of(BLOCK), "outputs of the matrices");
    let family: KernelFamily = team.family();
    let out = out.reshape(input.tokens(), gate.rows());
    team.split(gate.rows() / BLOCK, &|blocks| {
        PANEL.with_borrow_mut(|panel| {
            HIDDEN.with_borrow_mut(|hidden| {
                dispatch(family, SwiGlu { panel, hidden, gate, up, activation, blocks, input, out: &out });
            });
        });
    });
}

/// What a panel of tokens has of one block: the gate's outputs, then the hidden values.
type Hidden = [[[f32; TILE]; 2]; PANEL_TOKENS];

thread_local! {
    static HIDDEN: RefCell<Hidden> = const { RefCell::new([[[0.0; TILE]; 2]; PANEL_TOKENS]) };
}

struct SwiGlu<'a> {
    panel: &'a mut Panel,
    hidden: &'a mut Hidden,
    gate: &'a Matrix,
    up: &'a Matrix,
    activation: Activation,
    blocks: Range<usize>,
    input: &'a Activations,
    out: &'a ActivationsWriter<'a>,
}

impl Kernel for SwiGlu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let hidden = self.hidden;
        each_panel(
            self.gate,
            self.input,
            #[inline(always)]
            |tokens| {
                for block in self.blocks.clone() {
                    for half in 0..2 {
                        let tile = 2 * block + half;
                        each_product(
                            simd,
                            self.panel,
                            self.gate,
                            tile,
                            self.input,
                            tokens.clone(),
                            #[inline(always)]
                            |token, gate| {
                                simd.store(gate, &mut hidden[token - tokens.start][half]);
                            },
                        );
                        each_product(
                            simd,
                            self.panel,
                            self.up,
                            tile,
                            self.input,
                            tokens.clone(),
                            #[inline(always)]
                            |token, up| {
                                let hidden = &mut hidden[token - tokens.start][half];
                                let gate = self.activation.of(simd, simd.load(hidden));
                                simd.store(simd.mul(gate, up), hidden);
                            },
                        );
                    }
                    for token in tokens.clone() {
                        let [low, high] = &hidden[token - tokens.start];
                        // SAFETY: one piece of work has a block of columns.
                        unsafe { self.out.quantise(simd, token, block, simd.load(low), simd.load(high)) };
                    }
                }
            },
        );
    }
}
