//! Matrix products of quantised activations, with what follows them fused: storing, adding to the residual, SwiGLU.
//!
//! Bits: inside a block of 32 columns the sum is of integers and therefore exact; over blocks it is f32 in ascending
//! order, the same for any number of tokens at a time and any division over threads.
//!
//! Whatever touches a vector must be inlined into the function that enables its instructions, so closures that do are
//! marked, and none is passed to the standard library.

mod bytes;
mod floats;
mod minima;
mod panel;
mod six;
mod swiglu;

use std::cell::RefCell;
use std::ops::Range;

use crate::activations::{Activations, BLOCK};
use crate::matrix::{Layout, Matrix, TILE};
use crate::shared_slice::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, dispatch};
use crate::team::Team;
use minima::{FIVE_BITS, FOUR_BITS, Five, Grouped, MinimaTile, Nibbles};
use panel::{PANEL_TOKENS, PANEL_TOKENS_MIN, Panel};
pub use swiglu::{Activation, product_swiglu};

/// Calls a function of `N` tokens for all of `tokens`, as many at a time as the family can, and keeps what it gives in the
/// panel's sums.
macro_rules! at_once {
    ($simd:expr, $panel:expr, $tokens:expr, $token:ident, $sums:expr) => {{
        let mut $token = $tokens.start;
        at_once!(8, $simd, $panel, $tokens, $token, $sums);
        at_once!(4, $simd, $panel, $tokens, $token, $sums);
        at_once!(2, $simd, $panel, $tokens, $token, $sums);
        at_once!(1, $simd, $panel, $tokens, $token, $sums);
    }};
    ($count:literal, $simd:expr, $panel:expr, $tokens:expr, $token:ident, $sums:expr) => {
        while S::TOKENS_MAX >= $count && $tokens.end - $token >= $count {
            let sums: [S::F; $count] = $sums;
            for (to, sum) in std::iter::zip(&mut $panel.sums_mut()[$token - $tokens.start..], sums) {
                $simd.store(sum, to);
            }
            $token += $count;
        }
    };
}

thread_local! {
    /// Each thread's, so that nobody clears or allocates one for every piece of work.
    static PANEL: RefCell<Panel> = const { RefCell::new(Panel::new()) };
}

/// Tokens computed at a time at most, by any family.
const TOKENS_AT_ONCE: usize = 8;
/// Bytes of activations that stay in the first-level cache while a thread's tiles pass by.
const PANEL_BYTES: usize = 24 << 10;
/// How far ahead of its use a tile's data is asked for: by the first tokens of a run, which find it in no cache, and by
/// all that are too few to be worth a comparison.
const PREFETCH_BYTES: usize = 4_096;

/// `out = input x matrices^T`, the matrices' outputs side by side.
///
/// Shapes: `input` [tokens, width], `out` [tokens, sum of `rows_padded`].
///
/// # Panics
/// When the shapes do not fit together.
pub fn product(team: &mut Team, matrices: &[&Matrix], input: &Activations, out: &mut [f32]) {
    let stride: usize = matrices.iter().map(|matrix| matrix.rows_padded()).sum();
    assert!(matrices.iter().all(|matrix| matrix.width() == input.width()), "inputs of the matrices");
    assert!(out.len() >= input.tokens() * stride, "room for the outputs");
    let family = team.family();
    let out = SharedSlice::new(out);
    team.split(stride / TILE, &|range| {
        let mut first = 0;
        for matrix in matrices {
            let tiles = range.start.clamp(first, first + matrix.tiles()) - first
                ..range.end.clamp(first, first + matrix.tiles()) - first;
            let column = first * TILE;
            PANEL.with_borrow_mut(|panel| {
                dispatch(family, Store { panel, matrix, tiles, input, out: &out, column, stride });
            });
            first += matrix.tiles();
        }
    });
}

/// `residual += input x matrix^T`.
///
/// Shapes: `input` [tokens, width], `residual` [tokens, rows], rows a multiple of 16.
///
/// # Panics
/// When the shapes do not fit together.
pub fn product_add(team: &mut Team, matrix: &Matrix, input: &Activations, residual: &mut [f32]) {
    let stride = matrix.rows_padded();
    assert!(matrix.width() == input.width() && stride == matrix.rows(), "shape of the matrix");
    assert!(residual.len() >= input.tokens() * stride, "shape of the residual");
    let family = team.family();
    let residual = SharedSlice::new(residual);
    team.split(matrix.tiles(), &|tiles| {
        PANEL.with_borrow_mut(|panel| {
            dispatch(family, Add { panel, matrix, tiles, input, residual: &residual, stride })
        });
    });
}

struct Store<'a> {
    panel: &'a mut Panel,
    matrix: &'a Matrix,
    tiles: Range<usize>,
    input: &'a Activations,
    out: &'a SharedSlice<'a, f32>,
    column: usize,
    stride: usize,
}

impl Kernel for Store<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        each_panel(
            self.matrix,
            self.input,
            #[inline(always)]
            |tokens| {
                for tile in self.tiles.clone() {
                    each_product(
                        simd,
                        self.panel,
                        self.matrix,
                        tile,
                        self.input,
                        tokens.clone(),
                        #[inline(always)]
                        |token, lanes| {
                            let start = token * self.stride + self.column + tile * TILE;
                            // SAFETY: one piece of work has a tile, and its columns are written by nobody else.
                            store(simd, lanes, unsafe { self.out.part(start..start + TILE) });
                        },
                    );
                }
            },
        );
    }
}

struct Add<'a> {
    panel: &'a mut Panel,
    matrix: &'a Matrix,
    tiles: Range<usize>,
    input: &'a Activations,
    residual: &'a SharedSlice<'a, f32>,
    stride: usize,
}

impl Kernel for Add<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        each_panel(
            self.matrix,
            self.input,
            #[inline(always)]
            |tokens| {
                for tile in self.tiles.clone() {
                    each_product(
                        simd,
                        self.panel,
                        self.matrix,
                        tile,
                        self.input,
                        tokens.clone(),
                        #[inline(always)]
                        |token, lanes| {
                            let start = token * self.stride + tile * TILE;
                            // SAFETY: one piece of work has a tile, and its columns are touched by nobody else.
                            let residual = unsafe { self.residual.part(start..start + TILE) };
                            let sum = simd.add(load(simd, residual), lanes);
                            store(simd, sum, residual);
                        },
                    );
                }
            },
        );
    }
}

/// Calls `work` for panels of tokens, at most [`PANEL_TOKENS`]. Where weights are not unpacked ahead, a whole row of
/// activations is wanted at a time: the panel's fit the first-level cache together.
#[inline(always)]
fn each_panel(matrix: &Matrix, input: &Activations, mut work: impl FnMut(Range<usize>)) {
    let panel = match matrix.layout() {
        Layout::Nibbles | Layout::Five | Layout::FourGrouped | Layout::FiveGrouped => PANEL_TOKENS,
        Layout::Bytes | Layout::F32 | Layout::F16 | Layout::BF16 | Layout::SixGrouped => {
            (PANEL_BYTES / input.width()).next_multiple_of(TOKENS_AT_ONCE).clamp(TOKENS_AT_ONCE, PANEL_TOKENS)
        }
    };
    for first in (0..input.tokens()).step_by(panel) {
        work(first..input.tokens().min(first + panel));
    }
}

/// One tile times each of a panel's `tokens`, with the matrix's bias if it has one; `sink` gets the token and its 16
/// outputs.
#[inline(always)]
fn each_product<S: Simd>(
    simd: S,
    panel: &mut Panel,
    matrix: &Matrix,
    tile: usize,
    input: &Activations,
    tokens: Range<usize>,
    mut sink: impl FnMut(usize, S::F),
) {
    simd.call(TileProduct { panel, matrix, tile, input, tokens: tokens.clone() });
    for (token, sum) in tokens.zip(panel.sums()) {
        sink(token, simd.load(sum));
    }
}

/// One tile times each of a panel's tokens, into the panel's sums. The only place where weights are multiplied.
struct TileProduct<'a> {
    panel: &'a mut Panel,
    matrix: &'a Matrix,
    tile: usize,
    input: &'a Activations,
    tokens: Range<usize>,
}

impl Kernel for TileProduct<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { panel, matrix, tile, input, tokens } = self;
        let (weights, blocks) = (matrix.tile(tile), matrix.width() / BLOCK);
        match matrix.layout() {
            Layout::Nibbles => minima(simd, panel, Nibbles::new(weights, blocks), input, tokens.clone()),
            Layout::Five => minima(simd, panel, Five::new(weights, blocks), input, tokens.clone()),
            Layout::FourGrouped => {
                minima(simd, panel, Grouped::<FOUR_BITS>::new(weights, blocks), input, tokens.clone());
            }
            Layout::FiveGrouped => {
                minima(simd, panel, Grouped::<FIVE_BITS>::new(weights, blocks), input, tokens.clone());
            }
            Layout::Bytes => at_once!(simd, panel, tokens, token, bytes::bytes(simd, weights, input, token)),
            Layout::F32 => at_once!(simd, panel, tokens, token, floats::f32(simd, weights, input, token)),
            Layout::F16 => at_once!(simd, panel, tokens, token, floats::f16(simd, weights, input, token)),
            Layout::BF16 => at_once!(simd, panel, tokens, token, floats::bf16(simd, weights, input, token)),
            Layout::SixGrouped => at_once!(simd, panel, tokens, token, six::six(simd, weights, input, token)),
        }
        if let Some(bias) = matrix.bias(tile) {
            let bias = simd.load(bias);
            for sum in &mut panel.sums_mut()[..tokens.len()] {
                simd.store(simd.add(simd.load(sum), bias), sum);
            }
        }
    }
}

/// Few tokens unpack the weights where they multiply them, many do it once.
#[inline(always)]
fn minima<S: Simd, T: MinimaTile>(simd: S, panel: &mut Panel, tile: T, input: &Activations, tokens: Range<usize>) {
    if tokens.len() >= PANEL_TOKENS_MIN {
        panel.product(simd, tile, input, tokens);
    } else {
        at_once!(simd, panel, tokens, token, minima::direct(simd, tile, input, token));
    }
}

/// Asks for what lies [`PREFETCH_BYTES`] behind a block's share of its tile, in the next tiles more often than in this one.
/// `lines` cache lines are at least a block's share: of its weights and of the scales that may lie behind all of them.
#[inline(always)]
fn prefetch<S: Simd>(simd: S, tile: &[u8], blocks: usize, index: usize, lines: usize) {
    let start = tile.as_ptr().wrapping_add(PREFETCH_BYTES + tile.len() / blocks * index);
    for line in 0..lines {
        simd.prefetch(start.wrapping_add(64 * line));
    }
}

#[inline(always)]
fn load<S: Simd>(simd: S, from: &[f32]) -> S::F {
    simd.load(&from.as_chunks::<LANES>().0[0])
}

#[inline(always)]
fn store<S: Simd>(simd: S, value: S::F, to: &mut [f32]) {
    simd.store(value, &mut to.as_chunks_mut::<LANES>().0[0]);
}

#[cfg(test)]
mod tests;
