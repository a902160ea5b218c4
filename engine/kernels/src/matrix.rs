//! Weight matrices, repacked once at load so that sixteen rows are computed at a time.
//!
//! A tile is 16 rows. For each block of 32 columns it holds the rows' bytes transposed in groups of four, so that one
//! 64-byte read gives every row its next four (or eight, as nibbles) weights, and the rows' scales. The numbers are
//! those of the file, not requantised: a matrix takes the file's size, up to 3 % more for Q4_K and Q5_K, 1.5 times for
//! Q5_0.

mod kind;
mod layout;
mod packing;

use std::sync::Arc;

use crate::activations::BLOCK;
use crate::memory::AnonymousMemory;
use crate::simd::LANES;
pub use kind::MatrixKind;
pub(crate) use layout::{BYTE_BLOCK_BYTES, GROUP_BLOCKS, Layout, NIBBLE_BLOCK_BYTES, NIBBLES_BYTES, PLANE_BYTES};
pub use packing::{PACKED_LAYOUT, PackError, PackedMatrices, Packing};

/// Rows of a tile.
pub(crate) const TILE: usize = LANES;

/// A matrix as it lies in a file: row-major, rows of whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// Element type.
    pub kind: MatrixKind,
    /// Outputs.
    pub rows: usize,
    /// Inputs; a multiple of [`MatrixKind::block_weights`].
    pub width: usize,
    /// Exactly the matrix.
    pub bytes: &'a [u8],
}

/// A repacked matrix. All matrices of one [`Packing`] share one block of memory.
#[derive(Clone, Debug)]
pub struct Matrix {
    kind: MatrixKind,
    layout: Layout,
    rows: usize,
    width: usize,
    memory: Arc<AnonymousMemory>,
    offset: usize,
    /// One value for each row, zeros up to whole tiles.
    bias: Option<Arc<[f32]>>,
}

impl Matrix {
    /// Repacks matrices, in parallel: [`Packing`] where nothing but they is wanted.
    ///
    /// # Errors
    /// [`PackError`] when a shape is impossible, a number is not finite or the memory is refused.
    pub fn pack(sources: &[MatrixSource<'_>], threads: usize) -> Result<Vec<Self>, PackError> {
        Ok(Packing::new(sources)?.repack(threads, &|_| ())?.matrices().to_vec())
    }

    /// A matrix of the source's type and shape that lies in `memory`.
    fn at(source: &MatrixSource<'_>, memory: Arc<AnonymousMemory>, offset: usize) -> Self {
        Self {
            kind: source.kind,
            layout: Layout::of(source.kind),
            rows: source.rows,
            width: source.width,
            memory,
            offset,
            bias: None,
        }
    }

    /// Element type in the file.
    #[must_use]
    pub fn kind(&self) -> MatrixKind {
        self.kind
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Outputs rounded up to whole tiles: the room that a product needs.
    #[must_use]
    pub fn rows_padded(&self) -> usize {
        self.rows.next_multiple_of(TILE)
    }

    /// Inputs.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The matrix with a bias: all products with it have `bias` added, one value for each row.
    ///
    /// # Panics
    /// When there is not one value for each row.
    #[must_use]
    pub fn with_bias(mut self, mut bias: Vec<f32>) -> Self {
        assert_eq!(bias.len(), self.rows, "a bias for each row");
        bias.resize(self.rows_padded(), 0.0);
        self.bias = Some(bias.into());
        self
    }

    /// The biases of a tile's rows.
    #[inline(always)]
    pub(crate) fn bias(&self, tile: usize) -> Option<&[f32; TILE]> {
        match &self.bias {
            None => None,
            Some(bias) => Some(&bias.as_chunks::<TILE>().0[tile]),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// # Panics
    /// When there is no such tile.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        let bytes = self.layout.tile_bytes(self.width / BLOCK);
        &self.memory.bytes()[self.offset + tile * bytes..][..bytes]
    }

    /// One row as f32: how token embeddings are looked up.
    ///
    /// # Panics
    /// When there is no such row or `out` is not as wide as the matrix.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.width, "a row of the matrix");
        let tile = self.tile(row / TILE);
        for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            *out = self.layout.read(tile, self.width / BLOCK, block, row % TILE);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    pub(crate) const KINDS: [MatrixKind; 11] = [
        MatrixKind::F32,
        MatrixKind::F16,
        MatrixKind::BF16,
        MatrixKind::Q4_0,
        MatrixKind::Q4_1,
        MatrixKind::Q5_0,
        MatrixKind::Q5_1,
        MatrixKind::Q8_0,
        MatrixKind::Q4_K,
        MatrixKind::Q5_K,
        MatrixKind::Q6_K,
    ];

    /// Random weights of a kind, with scales and floats of ordinary size.
    pub(crate) fn random_bytes(kind: MatrixKind, rows: usize, width: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut bytes = Vec::new();
        for _ in 0..rows * width / kind.block_weights() {
            let mut float = || next() as i32 as f32 / (1u64 << 34) as f32;
            let mut half = |divisor: f32| f16::from_f32(float() / divisor).to_le_bytes();
            match kind {
                MatrixKind::F32 => (0..BLOCK).for_each(|_| bytes.extend(float().to_le_bytes())),
                MatrixKind::F16 => (0..BLOCK).for_each(|_| bytes.extend(half(1.0))),
                MatrixKind::BF16 => (0..BLOCK).for_each(|_| bytes.extend(bf16::from_f32(float()).to_le_bytes())),
                MatrixKind::Q4_1 | MatrixKind::Q5_1 => bytes.extend([half(8.0), half(1.0)].concat()),
                MatrixKind::Q4_K | MatrixKind::Q5_K => bytes.extend([half(256.0), half(64.0)].concat()),
                MatrixKind::Q6_K => {
                    let scale = half(1_024.0);
                    bytes.extend((0..kind.block_bytes() - scale.len()).map(|_| next() as u8));
                    bytes.extend(scale);
                }
                MatrixKind::Q4_0 | MatrixKind::Q5_0 | MatrixKind::Q8_0 => bytes.extend(half(8.0)),
            }
            while !bytes.len().is_multiple_of(kind.block_bytes()) {
                bytes.push(next() as u8);
            }
        }
        bytes
    }

    /// A matrix whose numbers are whatever the bytes say.
    pub(crate) fn pack_unchecked(source: MatrixSource<'_>) -> Matrix {
        let sources = [source];
        let packed = Packing::new(&sources).unwrap().restore(|to| -> Result<(), PackError> {
            let tile_bytes = to.len() / source.rows.div_ceil(TILE);
            for (tile, to) in to.chunks_exact_mut(tile_bytes).enumerate() {
                layout::pack_tile(&source, tile, to);
            }
            Ok(())
        });
        packed.unwrap().matrices()[0].clone()
    }

    /// The weights of whole blocks, by the definition of the format.
    pub(crate) fn by_definition(kind: MatrixKind, bytes: &[u8]) -> Vec<f32> {
        let mut weights = vec![0.0; bytes.len() / kind.block_bytes() * kind.block_weights()];
        let blocks = bytes.chunks_exact(kind.block_bytes());
        for (block, out) in blocks.zip(weights.chunks_exact_mut(kind.block_weights())) {
            kind.dequantise(block, out);
        }
        weights
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rows_come_out_as_they_went_in(
            shapes in proptest::collection::vec((0..KINDS.len(), 1usize..70, 1usize..5), 1..4),
            threads in 1usize..4,
            seed in any::<u64>(),
        ) {
            let shapes: Vec<_> = shapes.into_iter().map(|(kind, rows, blocks)| (KINDS[kind], rows, blocks * KINDS[kind].block_weights())).collect();
            let bytes: Vec<_> = shapes.iter().map(|(kind, rows, width)| random_bytes(*kind, *rows, *width, seed)).collect();
            let sources: Vec<_> = std::iter::zip(&shapes, &bytes)
                .map(|(&(kind, rows, width), bytes)| MatrixSource { kind, rows, width, bytes })
                .collect();
            let matrices = Matrix::pack(&sources, threads).unwrap();
            for (source, matrix) in std::iter::zip(&sources, &matrices) {
                prop_assert_eq!((matrix.rows(), matrix.width()), (source.rows, source.width));
                let row_bytes = source.bytes.len() / source.rows;
                for (row, from) in source.bytes.chunks_exact(row_bytes).enumerate() {
                    let wanted = by_definition(source.kind, from);
                    let mut out = vec![0.0; source.width];
                    matrix.row(row, &mut out);
                    prop_assert_eq!(out, wanted, "row {} of {:?}", row, source.kind);
                }
            }
        }
    }

    #[test]
    fn repacked_matrices_stay_near_the_size_of_the_file() {
        for (kind, percent) in [
            (MatrixKind::F32, 100),
            (MatrixKind::F16, 100),
            (MatrixKind::BF16, 100),
            (MatrixKind::Q4_1, 100),
            (MatrixKind::Q5_1, 100),
            (MatrixKind::Q8_0, 100),
            (MatrixKind::Q4_K, 103),
            (MatrixKind::Q5_K, 103),
            (MatrixKind::Q6_K, 100),
        ] {
            let of_file = TILE * 1_024 / kind.block_weights() * kind.block_bytes();
            let repacked = Layout::of(kind).tile_bytes(1_024 / BLOCK);
            assert!(repacked >= of_file && repacked * 100 <= of_file * percent, "{kind:?}: {repacked} for {of_file}");
        }
    }
}
