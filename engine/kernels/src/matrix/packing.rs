//! Many matrices in one block of memory: planned from their shapes, then repacked from a file's rows, or restored from
//! the bytes that an earlier packing gave.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::layout::{Layout, pack_tile};
use super::{Matrix, MatrixSource, TILE};
use crate::activations::BLOCK;
use crate::memory::AnonymousMemory;
use crate::shared_slice::SharedSlice;
use crate::team::Team;

/// Names how packed matrices lie in memory, for all families of kernels: bytes that were packed under another name are
/// not to be restored. To be raised with every change of a layout, which `packed_bytes_are_those_of_this_version` notices.
pub const PACKED_LAYOUT: &str = "rows16.1";
/// Tiles that a thread repacks at a time: enough to hide the counter, few enough to end together.
const TILES_PER_PIECE: usize = 16;

/// Why matrices could not be packed. `matrix` is the position in the list that was given.
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
    /// A weight, or the scale or minimum of a block, is infinite or not a number.
    #[error("matrix {matrix} has a weight that is infinite or not a number")]
    NotFinite {
        /// The first such one.
        matrix: usize,
    },
    /// The system refused the memory.
    #[error("{bytes} bytes of memory for the weights are not to be had")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// Where each of a list of matrices lies once it is packed, in the order given.
#[derive(Debug)]
pub struct Packing<'a> {
    sources: &'a [MatrixSource<'a>],
    offsets: Vec<usize>,
    bytes: usize,
}

/// Packed matrices and the one block of memory that they lie in. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct PackedMatrices {
    memory: Arc<AnonymousMemory>,
    matrices: Vec<Matrix>,
}

impl<'a> Packing<'a> {
    /// Plans; nothing is allocated for the weights yet.
    ///
    /// # Errors
    /// [`PackError`] when a shape is impossible.
    pub fn new(sources: &'a [MatrixSource<'a>]) -> Result<Self, PackError> {
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
        Ok(Self { sources, offsets, bytes: bytes_total })
    }

    /// Bytes of all packed matrices.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Repacks, in parallel. Rows that a last tile lacks are zeros. `release` is told of each part of the sources that
    /// is no longer needed, by whichever thread is done with it.
    ///
    /// # Errors
    /// [`PackError`] when a number is not finite or the memory is refused.
    pub fn repack(&self, threads: usize, release: &(dyn Fn(&[u8]) + Sync)) -> Result<PackedMatrices, PackError> {
        let mut memory = self.memory()?;
        // Pieces of about equal size over all matrices, taken by whichever thread is free.
        let pieces: Vec<(usize, usize)> = self
            .sources
            .iter()
            .enumerate()
            .flat_map(|(matrix, source)| {
                (0..source.rows.div_ceil(TILE)).step_by(TILES_PER_PIECE).map(move |tile| (matrix, tile))
            })
            .collect();
        let bad = AtomicUsize::new(usize::MAX);
        let target = SharedSlice::new(memory.bytes_mut());
        Team::new(threads).run(pieces.len(), &|_, piece| {
            let (matrix, first) = pieces[piece];
            let source = &self.sources[matrix];
            let (layout, blocks) = (Layout::of(source.kind), source.width / BLOCK);
            let tile_bytes = layout.tile_bytes(blocks);
            let end = source.rows.div_ceil(TILE).min(first + TILES_PER_PIECE);
            for tile in first..end {
                let start = self.offsets[matrix] + tile * tile_bytes;
                // SAFETY: each piece is done once and tiles do not overlap.
                let packed = unsafe { target.part(start..start + tile_bytes) };
                pack_tile(source, tile, packed);
                if !layout.is_finite(packed, blocks) {
                    bad.fetch_min(matrix, Ordering::Relaxed);
                }
            }
            let row_bytes = source.bytes.len() / source.rows;
            release(&source.bytes[first * TILE * row_bytes..(end * TILE).min(source.rows) * row_bytes]);
        });
        match bad.into_inner() {
            usize::MAX => Ok(self.place(memory)),
            matrix => Err(PackError::NotFinite { matrix }),
        }
    }

    /// Takes bytes that [`Packing::repack`] gave for the same sources: `fill` writes all of them. Their content is not
    /// looked at, and whatever it is, computing with it is memory-safe.
    ///
    /// # Errors
    /// [`PackError::Memory`], or what `fill` says.
    pub fn restore<E: From<PackError>>(
        &self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PackedMatrices, E> {
        let mut memory = self.memory()?;
        fill(memory.bytes_mut())?;
        Ok(self.place(memory))
    }

    fn memory(&self) -> Result<AnonymousMemory, PackError> {
        AnonymousMemory::new(self.bytes).ok_or(PackError::Memory { bytes: self.bytes })
    }

    fn place(&self, memory: AnonymousMemory) -> PackedMatrices {
        let memory = Arc::new(memory);
        let matrices = std::iter::zip(self.sources, &self.offsets)
            .map(|(source, &offset)| Matrix::at(source, Arc::clone(&memory), offset))
            .collect();
        PackedMatrices { memory, matrices }
    }
}

impl PackedMatrices {
    /// All matrices' bytes, as [`Packing::restore`] takes them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// The matrices, in the order of the sources.
    #[must_use]
    pub fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::tests::{KINDS, random_bytes};
    use super::*;
    use crate::MatrixKind;

    /// 37 rows, so that the last tile is not whole.
    fn bytes_of(kind: MatrixKind) -> Vec<u8> {
        random_bytes(kind, 37, 512, 7)
    }

    fn source(kind: MatrixKind, bytes: &[u8]) -> MatrixSource<'_> {
        MatrixSource { kind, rows: 37, width: 512, bytes }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let bytes = [0; 40];
        let pack = |width, rows, bytes| {
            let good = MatrixSource { kind: MatrixKind::Q4_1, rows: 2, width: 32, bytes: &[0; 40] };
            let other = MatrixSource { kind: MatrixKind::Q4_1, rows, width, bytes };
            Packing::new(&[good, other]).map(|packing| packing.bytes()).unwrap_err()
        };
        assert_eq!(pack(33, 2, &bytes[..]), PackError::Width { matrix: 1, width: 33, multiple_of: 32 });
        assert_eq!(pack(0, 2, &bytes[..]), PackError::Width { matrix: 1, width: 0, multiple_of: 32 });
        assert_eq!(pack(32, 3, &bytes[..]), PackError::Bytes { matrix: 1, bytes: 40, bytes_needed: 60 });
        let bytes_needed = usize::MAX;
        assert_eq!(pack(32, usize::MAX / 2, &bytes[..]), PackError::Bytes { matrix: 1, bytes: 40, bytes_needed });
        let grouped = [MatrixSource { kind: MatrixKind::Q6_K, rows: 8, width: 32, bytes: &[0; 210] }];
        let error = Packing::new(&grouped).unwrap_err();
        assert_eq!(error, PackError::Width { matrix: 0, width: 32, multiple_of: 256 });
        assert_eq!(error.to_string(), "matrix 0 has 32 columns, not a multiple of 256");
    }

    #[test]
    fn restored_bytes_are_the_same_matrices() {
        let bytes = KINDS.map(bytes_of);
        let sources: Vec<_> = std::iter::zip(KINDS, &bytes).map(|(kind, bytes)| source(kind, bytes)).collect();
        let packing = Packing::new(&sources).unwrap();
        let packed = packing.repack(2, &|_| ()).unwrap();
        assert_eq!(packed.bytes().len(), packing.bytes());
        let restored = packing.restore(|to| -> Result<(), PackError> {
            to.copy_from_slice(packed.bytes());
            Ok(())
        });
        for (matrix, other) in std::iter::zip(packed.matrices(), restored.unwrap().matrices()) {
            let (mut row, mut other_row) = ([0.0; 512], [1.0; 512]);
            matrix.row(36, &mut row);
            other.row(36, &mut other_row);
            assert_eq!(row, other_row);
        }
        let refused = packing.restore(|_| Err(PackError::Memory { bytes: 7 }));
        assert_eq!(refused.unwrap_err(), PackError::Memory { bytes: 7 });
    }

    #[test]
    fn every_byte_of_the_sources_is_released_once() {
        let bytes = KINDS.map(bytes_of);
        let sources: Vec<_> = std::iter::zip(KINDS, &bytes).map(|(kind, bytes)| source(kind, bytes)).collect();
        let parts = Mutex::new(Vec::new());
        Packing::new(&sources)
            .unwrap()
            .repack(2, &|part| parts.lock().unwrap().push((part.as_ptr().addr(), part.len())))
            .unwrap();
        let mut parts = parts.into_inner().unwrap();
        for source in &sources {
            let (mut at, end) = (source.bytes.as_ptr().addr(), source.bytes.as_ptr().addr() + source.bytes.len());
            while at < end {
                let part = parts.iter().position(|(start, _)| *start == at).unwrap();
                at += parts.swap_remove(part).1;
            }
            assert_eq!(at, end);
        }
        assert!(parts.is_empty());
    }

    /// What is not finite in the first, in a middle and in the last row, wherever a kind has floats.
    #[test]
    fn weights_that_are_not_numbers_are_refused() {
        const HALVES: [[u8; 2]; 4] = [[0, 0x7c], [0, 0xfc], [1, 0x7e], [1, 0x7c]];
        for kind in KINDS {
            let good = bytes_of(kind);
            // Where a block has its floats: each f16, but for the types of floats, whose last weight is taken.
            let places: &[usize] = match kind {
                MatrixKind::F32 => &[124],
                MatrixKind::F16 | MatrixKind::BF16 => &[0, 62],
                MatrixKind::Q4_0 | MatrixKind::Q5_0 | MatrixKind::Q8_0 => &[0],
                MatrixKind::Q4_1 | MatrixKind::Q5_1 | MatrixKind::Q4_K | MatrixKind::Q5_K => &[0, 2],
                MatrixKind::Q6_K => &[208],
            };
            let blocks = good.len() / kind.block_bytes();
            for block in [0, blocks / 2, blocks - 1] {
                for place in places {
                    for half in HALVES {
                        let mut bytes = good.clone();
                        let at = block * kind.block_bytes() + place;
                        match kind {
                            MatrixKind::F32 => bytes[at + 2..at + 4].copy_from_slice(&[0x80 | half[0], half[1] | 0x7f]),
                            MatrixKind::BF16 => bytes[at..at + 2].copy_from_slice(&[0x80 | half[0], half[1] | 0x7f]),
                            _ => bytes[at..at + 2].copy_from_slice(&half),
                        }
                        let sources = [source(kind, &good), source(kind, &bytes), source(kind, &bytes)];
                        let error = Packing::new(&sources).unwrap().repack(2, &|_| ()).unwrap_err();
                        assert_eq!(error, PackError::NotFinite { matrix: 1 }, "{kind:?}, block {block}, byte {place}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_scale_whose_minimum_is_beyond_half_precision_is_refused() {
        // Q4_0 is kept with a minimum of -8 scales; 8,192 of them are more than an f16 can be.
        let mut bytes = bytes_of(MatrixKind::Q4_0);
        bytes[..2].copy_from_slice(&half::f16::from_f32(8_184.0).to_le_bytes());
        assert!(Packing::new(&[source(MatrixKind::Q4_0, &bytes)]).unwrap().repack(1, &|_| ()).is_ok());
        bytes[..2].copy_from_slice(&half::f16::from_f32(8_192.0).to_le_bytes());
        let error = Packing::new(&[source(MatrixKind::Q4_0, &bytes)]).unwrap().repack(1, &|_| ()).unwrap_err();
        assert_eq!(error, PackError::NotFinite { matrix: 0 });
    }

    /// A sum over the packed bytes of each kind. Whoever changes a layout changes [`PACKED_LAYOUT`] too, or a cache of
    /// another build would be taken for this one's.
    #[test]
    fn packed_bytes_are_those_of_this_version() {
        let sums = KINDS.map(|kind| {
            let bytes = bytes_of(kind);
            let packed = Packing::new(&[source(kind, &bytes)]).unwrap().repack(1, &|_| ()).unwrap();
            // FNV-1a, 64 bits.
            packed
                .bytes()
                .iter()
                .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
        });
        let wanted = [
            0xb6c5_cb46_82b8_fa10,
            0x7465_93ea_14c7_5d7a,
            0xe7ec_7a04_c3a7_2036,
            0xf6a4_59a6_7c48_9014,
            0xaa33_20b2_c94c_eab1,
            0xebd2_1411_a70b_6202,
            0xfbbc_9f95_4889_796d,
            0x823f_0a68_543e_9b07,
            0xf685_4111_6701_a12c,
            0x8c0f_340d_43d9_ee07,
            0x4c29_a879_e81c_286e,
        ];
        assert_eq!((PACKED_LAYOUT, sums), ("rows16.1", wanted));
    }
}
