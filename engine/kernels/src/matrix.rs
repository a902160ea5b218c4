//! Weight matrices, repacked once at load so that sixteen rows are computed at a time.
//!
//! A tile is 16 rows. For each block of 32 columns it holds the rows' bytes transposed in groups of four, so that one
//! 64-byte read gives every row its next four (or eight, as nibbles) weights, then the rows' scales. The numbers are
//! those of the file, not requantised. Layouts by what the file has:
//!
//! * nibbles (Q4_0, Q4_1): block = 4 x 64 bytes (low nibbles: columns 4j to 4j+3, high: 16 more), 16 f16 scales,
//!   16 f16 minima; Q4_0 is Q4_1 with a minimum of -8 scales.
//! * bytes (Q8_0, Q5_0): all blocks' 8 x 64 bytes, each weight plus 128, then all blocks' 16 f16 scales.
//! * floats (F16, BF16, F32): column by column 16 f32. The simple path: twice the file's size for 16-bit types.

use std::sync::Arc;

use half::{bf16, f16};

use crate::activations::BLOCK;
use crate::memory::AnonymousMemory;
use crate::shared_slice::SharedSlice;
use crate::simd::LANES;
use crate::team::Team;

/// Rows of a tile.
pub(crate) const TILE: usize = LANES;
/// Bytes of a block of the nibble layout.
pub(crate) const NIBBLE_BLOCK_BYTES: usize = BLOCK / 2 * TILE + 2 * 2 * TILE;
/// Bytes of a block's weights in the byte layout; its scales lie behind all of them.
pub(crate) const BYTE_BLOCK_BYTES: usize = BLOCK * TILE;
/// Bytes of 16 scales.
const SCALES_BYTES: usize = 2 * TILE;
/// Every tile begins at a cache line.
const TILE_ALIGNMENT: usize = 64;
/// Tiles that a thread repacks at a time: enough to hide the counter, few enough to end together.
const TILES_PER_PIECE: usize = 16;

/// Element types that can be repacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixKind {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// 32 times 4 bits, f16 scale, centred at 8.
    Q4_0,
    /// 32 times 4 bits, f16 scale and minimum.
    Q4_1,
    /// 32 times 5 bits, f16 scale, centred at 16.
    Q5_0,
    /// 32 times `i8`, f16 scale.
    Q8_0,
}

impl MatrixKind {
    /// Bytes of 32 weights.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 128,
            Self::F16 | Self::BF16 => 64,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q8_0 => 34,
        }
    }

    fn layout(self) -> Layout {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => Layout::Floats,
            Self::Q4_0 | Self::Q4_1 => Layout::Nibbles,
            Self::Q5_0 | Self::Q8_0 => Layout::Bytes,
        }
    }

    /// The weights of one block, as f32. The definition that the repacked layouts are tested against.
    ///
    /// # Panics
    /// When `block` does not have [`MatrixKind::block_bytes`] bytes.
    #[must_use]
    pub fn dequantise(self, block: &[u8]) -> [f32; BLOCK] {
        assert_eq!(block.len(), self.block_bytes(), "a block has a fixed size");
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let nibble =
            |from: usize, i: usize| f32::from(if i < 16 { block[from + i] & 15 } else { block[from + i - 16] >> 4 });
        std::array::from_fn(|i| match self {
            Self::F32 => f32::from_le_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]]),
            Self::F16 => half(2 * i),
            Self::BF16 => bf16::from_le_bytes([block[2 * i], block[2 * i + 1]]).to_f32(),
            Self::Q4_0 => half(0) * (nibble(2, i) - 8.0),
            Self::Q4_1 => half(0) * nibble(4, i) + half(2),
            Self::Q5_0 => half(0) * f32::from(five_bits(block, i)),
            Self::Q8_0 => half(0) * f32::from(block[2 + i] as i8),
        })
    }
}

/// Weight `i` of a Q5_0 block, centred.
fn five_bits(block: &[u8], i: usize) -> i8 {
    let low = if i < 16 { block[6 + i] & 15 } else { block[6 + i - 16] >> 4 };
    let high = block[2 + i / 8] >> (i % 8) & 1;
    (low | high << 4) as i8 - 16
}

/// A matrix as it lies in a file: row-major, rows of whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// Element type.
    pub kind: MatrixKind,
    /// Outputs.
    pub rows: usize,
    /// Inputs; a multiple of 32.
    pub width: usize,
    /// Exactly the matrix.
    pub bytes: &'a [u8],
}

/// Why matrices could not be repacked. `matrix` is the position in the list that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The width is not a positive multiple of 32.
    #[error("matrix {matrix} has {width} columns, not a multiple of 32")]
    Width {
        /// Which one.
        matrix: usize,
        /// Its columns.
        width: usize,
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

/// How a tile is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Nibbles,
    Bytes,
    Floats,
}

impl Layout {
    /// Bytes of a tile of this many blocks.
    fn tile_bytes(self, blocks: usize) -> usize {
        match self {
            Self::Nibbles => blocks * NIBBLE_BLOCK_BYTES,
            Self::Bytes => blocks * BYTE_BLOCK_BYTES + (blocks * SCALES_BYTES).next_multiple_of(TILE_ALIGNMENT),
            Self::Floats => blocks * BLOCK * TILE * 4,
        }
    }
}

/// A repacked matrix. All matrices of one [`Matrix::pack`] share one block of memory, in the order given.
#[derive(Clone, Debug)]
pub struct Matrix {
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
            if width == 0 || !width.is_multiple_of(BLOCK) {
                return Err(PackError::Width { matrix, width });
            }
            let bytes_needed = (width / BLOCK).saturating_mul(kind.block_bytes()).saturating_mul(rows);
            if bytes.len() != bytes_needed {
                return Err(PackError::Bytes { matrix, bytes: bytes.len(), bytes_needed });
            }
            offsets.push(bytes_total);
            // Cannot overflow: the source lies in memory, and no layout is more than a few times larger.
            bytes_total += rows.div_ceil(TILE) * kind.layout().tile_bytes(width / BLOCK);
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
            let tile_bytes = source.kind.layout().tile_bytes(source.width / BLOCK);
            for tile in first..source.rows.div_ceil(TILE).min(first + TILES_PER_PIECE) {
                let start = offsets[matrix] + tile * tile_bytes;
                // SAFETY: each piece is done once and tiles do not overlap.
                pack_tile(source, tile, unsafe { target.part(start..start + tile_bytes) });
            }
        });

        let memory = Arc::new(memory);
        Ok(std::iter::zip(sources, offsets)
            .map(|(source, offset)| Self {
                layout: source.kind.layout(),
                rows: source.rows,
                width: source.width,
                memory: Arc::clone(&memory),
                offset,
            })
            .collect())
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
        let lane = row % TILE;
        let half = |at: usize| f16::from_le_bytes([tile[at], tile[at + 1]]).to_f32();
        for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            *out = match self.layout {
                Layout::Nibbles => {
                    let start = block * NIBBLE_BLOCK_BYTES;
                    let scales = start + BLOCK / 2 * TILE;
                    let (scale, minimum) = (half(scales + 2 * lane), half(scales + SCALES_BYTES + 2 * lane));
                    std::array::from_fn(|i| {
                        let byte = tile[start + i % 16 / 4 * 64 + 4 * lane + i % 4];
                        scale * f32::from(if i < 16 { byte & 15 } else { byte >> 4 }) + minimum
                    })
                }
                Layout::Bytes => {
                    let start = block * BYTE_BLOCK_BYTES;
                    let scale = half(self.width / BLOCK * BYTE_BLOCK_BYTES + block * SCALES_BYTES + 2 * lane);
                    std::array::from_fn(|i| {
                        let byte = tile[start + i / 4 * 64 + 4 * lane + i % 4];
                        scale * f32::from((byte ^ 0x80) as i8)
                    })
                }
                Layout::Floats => std::array::from_fn(|i| {
                    let at = 4 * ((block * BLOCK + i) * TILE + lane);
                    f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]])
                }),
            };
        }
    }
}

/// Writes one tile; `to` is zeroed.
fn pack_tile(source: &MatrixSource<'_>, tile: usize, to: &mut [u8]) {
    let blocks = source.width / BLOCK;
    let row_bytes = blocks * source.kind.block_bytes();
    for lane in 0..TILE.min(source.rows - tile * TILE) {
        let row = &source.bytes[(tile * TILE + lane) * row_bytes..][..row_bytes];
        for (block, from) in row.chunks_exact(source.kind.block_bytes()).enumerate() {
            match source.kind {
                MatrixKind::Q4_0 | MatrixKind::Q4_1 => {
                    let to = &mut to[block * NIBBLE_BLOCK_BYTES..][..NIBBLE_BLOCK_BYTES];
                    let (weights, scales) = to.split_at_mut(BLOCK / 2 * TILE);
                    let (scales, minima) = scales.split_at_mut(SCALES_BYTES);
                    let (head, nibbles) = from.split_at(from.len() - BLOCK / 2);
                    for (quad, to) in std::iter::zip(nibbles.as_chunks::<4>().0, weights.chunks_exact_mut(64)) {
                        to[4 * lane..][..4].copy_from_slice(quad);
                    }
                    scales[2 * lane..][..2].copy_from_slice(&head[..2]);
                    let minimum = match source.kind {
                        MatrixKind::Q4_1 => [head[2], head[3]],
                        // Times a power of two: exact, but for scales above 8,188, which no weights have.
                        _ => f16::from_f32(-8.0 * f16::from_le_bytes([head[0], head[1]]).to_f32()).to_le_bytes(),
                    };
                    minima[2 * lane..][..2].copy_from_slice(&minimum);
                }
                MatrixKind::Q8_0 | MatrixKind::Q5_0 => {
                    let (weights, scales) = to.split_at_mut(blocks * BYTE_BLOCK_BYTES);
                    let weights = &mut weights[block * BYTE_BLOCK_BYTES..][..BYTE_BLOCK_BYTES];
                    let bytes: [u8; BLOCK] = std::array::from_fn(|i| match source.kind {
                        MatrixKind::Q5_0 => five_bits(from, i) as u8 ^ 0x80,
                        _ => from[2 + i] ^ 0x80,
                    });
                    for (quad, to) in std::iter::zip(bytes.as_chunks::<4>().0, weights.chunks_exact_mut(64)) {
                        to[4 * lane..][..4].copy_from_slice(quad);
                    }
                    scales[block * SCALES_BYTES + 2 * lane..][..2].copy_from_slice(&from[..2]);
                }
                MatrixKind::F32 | MatrixKind::F16 | MatrixKind::BF16 => {
                    for (i, weight) in source.kind.dequantise(from).into_iter().enumerate() {
                        to[4 * ((block * BLOCK + i) * TILE + lane)..][..4].copy_from_slice(&weight.to_le_bytes());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) const KINDS: [MatrixKind; 7] = [
        MatrixKind::F32,
        MatrixKind::F16,
        MatrixKind::BF16,
        MatrixKind::Q4_0,
        MatrixKind::Q4_1,
        MatrixKind::Q5_0,
        MatrixKind::Q8_0,
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
        for _ in 0..rows * width / BLOCK {
            let mut float = || next() as i32 as f32 / (1u64 << 34) as f32;
            match kind {
                MatrixKind::F32 => (0..BLOCK).for_each(|_| bytes.extend(float().to_le_bytes())),
                MatrixKind::F16 => (0..BLOCK).for_each(|_| bytes.extend(f16::from_f32(float()).to_le_bytes())),
                MatrixKind::BF16 => (0..BLOCK).for_each(|_| bytes.extend(bf16::from_f32(float()).to_le_bytes())),
                _ => {
                    bytes.extend(f16::from_f32(float() / 8.0).to_le_bytes());
                    if kind == MatrixKind::Q4_1 {
                        bytes.extend(f16::from_f32(float()).to_le_bytes());
                    }
                    while !bytes.len().is_multiple_of(kind.block_bytes()) {
                        bytes.push(next() as u8);
                    }
                }
            }
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rows_come_out_as_they_went_in(
            shapes in proptest::collection::vec((0..KINDS.len(), 1usize..70, 1usize..5), 1..4),
            threads in 1usize..4,
            seed in any::<u64>(),
        ) {
            let shapes: Vec<_> = shapes.into_iter().map(|(kind, rows, blocks)| (KINDS[kind], rows, blocks * BLOCK)).collect();
            let bytes: Vec<_> = shapes.iter().map(|(kind, rows, width)| random_bytes(*kind, *rows, *width, seed)).collect();
            let sources: Vec<_> = std::iter::zip(&shapes, &bytes)
                .map(|(&(kind, rows, width), bytes)| MatrixSource { kind, rows, width, bytes })
                .collect();
            let matrices = Matrix::pack(&sources, threads).unwrap();
            for (source, matrix) in std::iter::zip(&sources, &matrices) {
                prop_assert_eq!((matrix.rows(), matrix.width()), (source.rows, source.width));
                let row_bytes = source.bytes.len() / source.rows;
                for (row, from) in source.bytes.chunks_exact(row_bytes).enumerate() {
                    let wanted: Vec<f32> =
                        from.chunks_exact(source.kind.block_bytes()).flat_map(|block| source.kind.dequantise(block)).collect();
                    let mut out = vec![0.0; source.width];
                    matrix.row(row, &mut out);
                    prop_assert_eq!(out, wanted, "row {} of {:?}", row, source.kind);
                }
            }
        }
    }

    #[test]
    fn blocks_mean_what_the_format_says() {
        let half = f16::from_f32(0.5).to_le_bytes();
        let block = |head: &[u8], tail: &[u8]| [&half, head, tail].concat();
        let q4_0 = MatrixKind::Q4_0.dequantise(&block(&[], &[0x9f; 16]));
        assert_eq!((q4_0[0], q4_0[16]), (3.5, 0.5));
        let q4_1 = MatrixKind::Q4_1.dequantise(&block(&f16::from_f32(-2.0).to_le_bytes(), &[0x4f; 16]));
        assert_eq!((q4_1[15], q4_1[31]), (5.5, 0.0));
        let q5_0 = MatrixKind::Q5_0.dequantise(&block(&[1, 0, 0, 0x80], &[0x21; 16]));
        assert_eq!((q5_0[0], q5_0[1], q5_0[31], q5_0[30]), (0.5, -7.5, 1.0, -7.0));
        let q8_0 = MatrixKind::Q8_0.dequantise(&block(&[], &[0x80; 32]));
        assert_eq!(q8_0[7], -64.0);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let bytes = [0; 40];
        let pack = |width, rows, bytes| {
            let good = MatrixSource { kind: MatrixKind::Q4_1, rows: 2, width: 32, bytes: &[0; 40] };
            Matrix::pack(&[good, MatrixSource { kind: MatrixKind::Q4_1, rows, width, bytes }], 1).unwrap_err()
        };
        assert_eq!(pack(33, 2, &bytes[..]), PackError::Width { matrix: 1, width: 33 });
        assert_eq!(pack(0, 2, &bytes[..]), PackError::Width { matrix: 1, width: 0 });
        assert_eq!(pack(32, 3, &bytes[..]), PackError::Bytes { matrix: 1, bytes: 40, bytes_needed: 60 });
        let bytes_needed = usize::MAX;
        assert_eq!(pack(32, usize::MAX / 2, &bytes[..]), PackError::Bytes { matrix: 1, bytes: 40, bytes_needed });
    }
}
