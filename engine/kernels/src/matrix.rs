//! Weight matrices, repacked once at load so that sixteen rows are computed at a time.
//!
//! A tile is 16 rows. For each block of 32 columns it holds the rows' bytes transposed in groups of four, so that one
//! 64-byte read gives every row its next four (or eight, as nibbles) weights, and the rows' scales. The numbers are
//! those of the file, not requantised: a matrix takes the file's size, up to 3 % more for Q4_K and Q5_K, 1.5 times for
//! Q5_0, and that of f32 for the types of floats.

mod kind;
mod layout;

use std::sync::Arc;

use crate::activations::BLOCK;
use crate::memory::AnonymousMemory;
use crate::shared_slice::SharedSlice;
use crate::simd::LANES;
use crate::team::Team;
pub use kind::MatrixKind;
use layout::pack_tile;
pub(crate) use layout::{BYTE_BLOCK_BYTES, GROUP_BLOCKS, Layout, NIBBLE_BLOCK_BYTES, NIBBLES_BYTES, PLANE_BYTES};

/// Rows of a tile.
pub(crate) const TILE: usize = LANES;
/// Tiles that a thread repacks at a time: enough to hide the counter, few enough to end together.
const TILES_PER_PIECE: usize = 16;

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

/// Why matrices could not be repacked. `matrix` is the position in the list that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The width is not a positive multiple of the type's block.
    #[error("matrix {matrix} has {width} columns, not a multiple of {multiple_of}")]
    Width {
        /// Which one.
        matrix: usize,
        /// Its columns.
        width: usize,
        /// Weights of a block.
        multiple_of: usize,
    },
    /// Rows, width and type do not give this many bytes.
    #[error("matrix {matrix} has {bytes} bytes, its shape needs {bytes_needed}")]
    Bytes {
        /// Which one.
        matrix: usize,
        /// Bytes given.
        bytes: usize,
        /// Bytes of that shape.
        bytes_needed: usize,
    },
    /// The system refused the memory.
    #[error("{bytes} bytes of memory for the weights are not to be had")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// A repacked matrix. All matrices of one [`Matrix::pack`] share one block of memory, in the order given.
#[derive(Clone, Debug)]
pub struct Matrix {
    kind: MatrixKind,
    layout: Layout,
    rows: usize,
    width: usize,
    memory: Arc<AnonymousMemory>,
    offset: usize,
}

impl Matrix {
    /// Repacks matrices, in parallel. Rows that a last tile lacks are zeros.
    ///
    /// # Errors
    /// [`PackError`] when a shape is impossible or the memory is refused.
    pub fn pack(sources: &[MatrixSource<'_>], threads: usize) -> Result<Vec<Self>, PackError> {
        let mut offsets = Vec::with_capacity(sources.len());
        let mut bytes_total = 0usize;
        for (matrix, source) in sources.iter().enumerate() {
            let MatrixSource { kind, rows, width, bytes } = *source;
            let multiple_of = kind.block_weights();
            if width == 0 || !width.is_multiple_of(multiple_of) {
                return Err(PackError::Width { matrix, width, multiple_of });
            }
            let bytes_needed = (width / multiple_of).saturating_mul(kind.block_bytes()).saturating_mul(rows);
            if bytes.len() != bytes_needed {
                return Err(PackError::Bytes { matrix, bytes: bytes.len(), bytes_needed });
            }
            offsets.push(bytes_total);
            // Cannot overflow: the source lies in memory, and no layout is more than a few times larger.
            bytes_total += rows.div_ceil(TILE) * Layout::of(kind).tile_bytes(width / BLOCK);
        }
        let mut memory = AnonymousMemory::new(bytes_total).ok_or(PackError::Memory { bytes: bytes_total })?;

        // Pieces of about equal size over all matrices, taken by whichever thread is free.
        let pieces: Vec<(usize, usize)> = sources
            .iter()
            .enumerate()
            .flat_map(|(matrix, source)| {
                (0..source.rows.div_ceil(TILE)).step_by(TILES_PER_PIECE).map(move |tile| (matrix, tile))
            })
            .collect();
        let target = SharedSlice::new(memory.bytes_mut());
        Team::new(threads).run(pieces.len(), &|_, piece| {
            let (matrix, first) = pieces[piece];
            let source = &sources[matrix];
            let tile_bytes = Layout::of(source.kind).tile_bytes(source.width / BLOCK);
            for tile in first..source.rows.div_ceil(TILE).min(first + TILES_PER_PIECE) {
                let start = offsets[matrix] + tile * tile_bytes;
                // SAFETY: each piece is done once and tiles do not overlap.
                pack_tile(source, tile, unsafe { target.part(start..start + tile_bytes) });
            }
        });

        let memory = Arc::new(memory);
        Ok(std::iter::zip(sources, offsets)
            .map(|(source, offset)| Self {
                kind: source.kind,
                layout: Layout::of(source.kind),
                rows: source.rows,
                width: source.width,
                memory: Arc::clone(&memory),
                offset,
            })
            .collect())
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
    fn impossible_shapes_are_refused() {
        let bytes = [0; 40];
        let pack = |width, rows, bytes| {
            let good = MatrixSource { kind: MatrixKind::Q4_1, rows: 2, width: 32, bytes: &[0; 40] };
            Matrix::pack(&[good, MatrixSource { kind: MatrixKind::Q4_1, rows, width, bytes }], 1).unwrap_err()
        };
        assert_eq!(pack(33, 2, &bytes[..]), PackError::Width { matrix: 1, width: 33, multiple_of: 32 });
        assert_eq!(pack(0, 2, &bytes[..]), PackError::Width { matrix: 1, width: 0, multiple_of: 32 });
        assert_eq!(pack(32, 3, &bytes[..]), PackError::Bytes { matrix: 1, bytes: 40, bytes_needed: 60 });
        let bytes_needed = usize::MAX;
        assert_eq!(pack(32, usize::MAX / 2, &bytes[..]), PackError::Bytes { matrix: 1, bytes: 40, bytes_needed });
        let grouped = MatrixSource { kind: MatrixKind::Q6_K, rows: 8, width: 32, bytes: &[0; 210] };
        let error = Matrix::pack(&[grouped], 1).unwrap_err();
        assert_eq!(error, PackError::Width { matrix: 0, width: 32, multiple_of: 256 });
        assert_eq!(error.to_string(), "matrix 0 has 32 columns, not a multiple of 256");
    }

    #[test]
    fn repacked_matrices_stay_near_the_size_of_the_file() {
        for (kind, percent) in [
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
