//! How a tile of 16 rows is laid out, written from the file's rows and read back for one row.
//!
//! * nibbles (Q4_0, Q4_1): for each block of 32 columns 4 x 64 bytes (low nibbles: columns 4j to 4j+3, high: 16 more),
//!   16 f16 scales, 16 f16 minima; Q4_0 is Q4_1 with a minimum of -8 scales.
//! * bytes (Q8_0, Q5_0): all blocks' 8 x 64 bytes, each weight plus 128, then all blocks' 16 f16 scales.
//! * planes (Q5_1 and the K types): all blocks' 4 x 64 bytes of nibbles, each block's followed by 64 bytes with the
//!   fifth bits (bit j: columns 4j to 4j+3) or 2 x 64 with the fifth and sixth (bits 2j and 2j+1 of the one or the
//!   other); then all blocks' scales; then all groups' f16, a group being 256 columns:
//!     - Q5_1: 16 f16 scales, 16 f16 minima a block; nothing a group.
//!     - Q4_K, Q5_K: 16 bytes of scales, 16 bytes of minima a block; 16 f16 scales, 16 f16 minima with the sign turned
//!       a group.
//!     - Q6_K: 2 x 16 `i8` scales a block, for 16 columns each; 16 f16 scales a group.
//! * floats (F32, F16, BF16): column by column 16 weights as they are in the file.

use half::f16;

use super::kind::{Q6_K_SCALE, half_at, scale_and_minimum, sixteen_scale};
use super::{MatrixKind, MatrixSource, TILE};
use crate::activations::BLOCK;

/// Bytes of a block's nibbles.
pub(crate) const NIBBLES_BYTES: usize = BLOCK / 2 * TILE;
/// Bytes of a block of the nibble layout.
pub(crate) const NIBBLE_BLOCK_BYTES: usize = NIBBLES_BYTES + 2 * SCALES_BYTES;
/// Bytes of a block's weights in the byte layout; its scales lie behind all of them.
pub(crate) const BYTE_BLOCK_BYTES: usize = BLOCK * TILE;
/// Bytes of one bit of each of a block's weights.
pub(crate) const PLANE_BYTES: usize = BLOCK / 8 * TILE;
/// Bytes of 16 f16.
const SCALES_BYTES: usize = 2 * TILE;
/// Blocks of a group.
pub(crate) const GROUP_BLOCKS: usize = 256 / BLOCK;
/// Every tile begins at a cache line.
const TILE_ALIGNMENT: usize = 64;

/// How a tile is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Nibbles,
    Bytes,
    F32,
    F16,
    BF16,
    /// Q5_1.
    Five,
    /// Q4_K.
    FourGrouped,
    /// Q5_K.
    FiveGrouped,
    /// Q6_K.
    SixGrouped,
}

/// Bytes of the parts of a tile with planes.
struct Planes {
    weights: usize,
    scales: usize,
    group: usize,
}

impl Layout {
    pub(super) fn of(kind: MatrixKind) -> Self {
        match kind {
            MatrixKind::F32 => Self::F32,
            MatrixKind::F16 => Self::F16,
            MatrixKind::BF16 => Self::BF16,
            MatrixKind::Q4_0 | MatrixKind::Q4_1 => Self::Nibbles,
            MatrixKind::Q5_0 | MatrixKind::Q8_0 => Self::Bytes,
            MatrixKind::Q5_1 => Self::Five,
            MatrixKind::Q4_K => Self::FourGrouped,
            MatrixKind::Q5_K => Self::FiveGrouped,
            MatrixKind::Q6_K => Self::SixGrouped,
        }
    }

    fn planes(self) -> Planes {
        let (planes, scales, group) = match self {
            Self::Nibbles | Self::Bytes | Self::F32 | Self::F16 | Self::BF16 => (0, 0, 0),
            Self::Five => (1, 2 * SCALES_BYTES, 0),
            Self::FourGrouped => (0, 2 * TILE, 2 * SCALES_BYTES),
            Self::FiveGrouped => (1, 2 * TILE, 2 * SCALES_BYTES),
            Self::SixGrouped => (2, 2 * TILE, SCALES_BYTES),
        };
        Planes { weights: NIBBLES_BYTES + planes * PLANE_BYTES, scales, group }
    }

    /// Bytes of a tile of this many blocks.
    pub(super) fn tile_bytes(self, blocks: usize) -> usize {
        match self {
            Self::Nibbles => blocks * NIBBLE_BLOCK_BYTES,
            Self::Bytes => blocks * BYTE_BLOCK_BYTES + (blocks * SCALES_BYTES).next_multiple_of(TILE_ALIGNMENT),
            Self::F32 => blocks * BLOCK * TILE * 4,
            Self::F16 | Self::BF16 => blocks * BLOCK * TILE * 2,
            Self::Five | Self::FourGrouped | Self::FiveGrouped | Self::SixGrouped => {
                let Planes { weights, scales, group } = self.planes();
                (blocks * (weights + scales) + blocks / GROUP_BLOCKS * group).next_multiple_of(TILE_ALIGNMENT)
            }
        }
    }

    /// Whether all floats of a tile are finite: of its weights, or of its scales and minima.
    pub(super) fn is_finite(self, tile: &[u8], blocks: usize) -> bool {
        const HALF: u32 = 0x7c00;
        const BRAIN: u32 = 0x7f80;
        match self {
            Self::Nibbles => {
                let blocks = tile.as_chunks::<NIBBLE_BLOCK_BYTES>().0;
                blocks.iter().all(|block| exponents_below::<2>(&block[NIBBLES_BYTES..], HALF))
            }
            Self::Bytes => exponents_below::<2>(&tile[blocks * BYTE_BLOCK_BYTES..], HALF),
            Self::F32 => exponents_below::<4>(tile, BRAIN << 16),
            Self::F16 => exponents_below::<2>(tile, HALF),
            Self::BF16 => exponents_below::<2>(tile, BRAIN),
            Self::Five => exponents_below::<2>(&tile[blocks * self.planes().weights..], HALF),
            Self::FourGrouped | Self::FiveGrouped | Self::SixGrouped => {
                let Planes { weights, scales, .. } = self.planes();
                exponents_below::<2>(&tile[blocks * (weights + scales)..], HALF)
            }
        }
    }

    /// The weights of one row of a tile in one block of 32 columns.
    pub(super) fn read(self, tile: &[u8], blocks: usize, block: usize, lane: usize) -> [f32; BLOCK] {
        let half = |at: usize| half_at(tile, at);
        match self {
            Self::Nibbles => {
                let start = block * NIBBLE_BLOCK_BYTES;
                let scales = start + NIBBLES_BYTES;
                let (scale, minimum) = (half(scales + 2 * lane), half(scales + SCALES_BYTES + 2 * lane));
                std::array::from_fn(|i| scale * f32::from(packed(&tile[start..], 0, lane, i)) + minimum)
            }
            Self::Bytes => {
                let start = block * BYTE_BLOCK_BYTES;
                let scale = half(blocks * BYTE_BLOCK_BYTES + block * SCALES_BYTES + 2 * lane);
                std::array::from_fn(|i| {
                    let byte = tile[start + i / 4 * 64 + 4 * lane + i % 4];
                    scale * f32::from((byte ^ 0x80) as i8)
                })
            }
            Self::F32 => std::array::from_fn(|i| {
                let at = 4 * ((block * BLOCK + i) * TILE + lane);
                f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]])
            }),
            Self::F16 => std::array::from_fn(|i| half(2 * ((block * BLOCK + i) * TILE + lane))),
            Self::BF16 => std::array::from_fn(|i| {
                let at = 2 * ((block * BLOCK + i) * TILE + lane);
                f32::from_le_bytes([0, 0, tile[at], tile[at + 1]])
            }),
            Self::Five | Self::FourGrouped | Self::FiveGrouped | Self::SixGrouped => {
                let Planes { weights, scales, group } = self.planes();
                let planes = (weights - NIBBLES_BYTES) / PLANE_BYTES;
                let quants = &tile[block * weights..];
                let quant = |i| f32::from(packed(quants, planes, lane, i));
                let of_block = blocks * weights + block * scales;
                let of_group = blocks * (weights + scales) + block / GROUP_BLOCKS * group + 2 * lane;
                match self {
                    Self::SixGrouped => {
                        let scale = |i| half(of_group) * f32::from(tile[of_block + i / 16 * TILE + lane] as i8);
                        std::array::from_fn(|i| scale(i) * (quant(i) - 32.0))
                    }
                    Self::Five => {
                        let (scale, minimum) = (half(of_block + 2 * lane), half(of_block + SCALES_BYTES + 2 * lane));
                        std::array::from_fn(|i| scale * quant(i) + minimum)
                    }
                    _ => {
                        let [scale, minimum] = [0, 1].map(|part| {
                            half(of_group + part * SCALES_BYTES) * f32::from(tile[of_block + part * TILE + lane])
                        });
                        std::array::from_fn(|i| scale * quant(i) + minimum)
                    }
                }
            }
        }
    }
}

/// Whether no little-endian float of `BYTES` has all bits of its exponent set, which are those of `mask`.
fn exponents_below<const BYTES: usize>(floats: &[u8], mask: u32) -> bool {
    let is_bad = |float: &[u8; BYTES]| {
        let bits = float.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        bits & mask == mask
    };
    // Without a branch, so that many are looked at together.
    !floats.as_chunks::<BYTES>().0.iter().fold(false, |bad, float| bad | is_bad(float))
}

/// Weight `i` of a row in a block of nibbles and planes.
fn packed(block: &[u8], planes: usize, lane: usize, i: usize) -> u8 {
    let place = 4 * lane + i % 4;
    let byte = block[i % 16 / 4 * 64 + place];
    let nibble = if i < 16 { byte & 15 } else { byte >> 4 };
    let quad = i / 4;
    match planes {
        0 => nibble,
        1 => nibble | (block[NIBBLES_BYTES + place] >> quad & 1) << 4,
        _ => nibble | (block[NIBBLES_BYTES + quad / 4 * PLANE_BYTES + place] >> (2 * (quad % 4)) & 3) << 4,
    }
}

/// Writes what [`packed`] reads, four weights at a time.
fn pack(block: &mut [u8], planes: usize, lane: usize, quants: &[u8; BLOCK]) {
    const NIBBLES: u32 = 0x0f0f_0f0f;
    let quads = quants.as_chunks::<4>().0;
    let low = |quad: usize| u32::from_le_bytes(quads[quad]) & NIBBLES;
    let high = |quad: usize| u32::from_le_bytes(quads[quad]) >> 4 & NIBBLES;
    let mut put = |at: usize, word: u32| block[at + 4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
    for quad in 0..4 {
        put(64 * quad, low(quad) | low(quad + 4) << 4);
    }
    match planes {
        0 => {}
        1 => put(NIBBLES_BYTES, (0..8).fold(0, |plane, quad| plane | high(quad) << quad)),
        _ => {
            for half in 0..2 {
                let plane = (0..4).fold(0, |plane, quad| plane | high(4 * half + quad) << (2 * quad));
                put(NIBBLES_BYTES + half * PLANE_BYTES, plane);
            }
        }
    }
}

/// Writes one tile; `to` is zeroed.
pub(super) fn pack_tile(source: &MatrixSource<'_>, tile: usize, to: &mut [u8]) {
    let kind = source.kind;
    let blocks = source.width / BLOCK;
    let row_bytes = source.width / kind.block_weights() * kind.block_bytes();
    for lane in 0..TILE.min(source.rows - tile * TILE) {
        let row = &source.bytes[(tile * TILE + lane) * row_bytes..][..row_bytes];
        for (index, from) in row.chunks_exact(kind.block_bytes()).enumerate() {
            match Layout::of(kind) {
                Layout::Nibbles => pack_nibbles(kind, from, lane, &mut to[index * NIBBLE_BLOCK_BYTES..]),
                Layout::Bytes => {
                    let (weights, scales) = to.split_at_mut(blocks * BYTE_BLOCK_BYTES);
                    let weights = &mut weights[index * BYTE_BLOCK_BYTES..][..BYTE_BLOCK_BYTES];
                    let mut bytes = kind.quants(from, 0);
                    if kind == MatrixKind::Q5_0 {
                        // Centred at 128 instead of 16.
                        bytes = bytes.map(|byte| byte + (128 - 16));
                    }
                    for (quad, to) in std::iter::zip(bytes.as_chunks::<4>().0, weights.chunks_exact_mut(64)) {
                        to[4 * lane..][..4].copy_from_slice(quad);
                    }
                    scales[index * SCALES_BYTES + 2 * lane..][..2].copy_from_slice(&from[..2]);
                }
                Layout::F32 => pack_floats::<4>(from, index, lane, to),
                Layout::F16 | Layout::BF16 => pack_floats::<2>(from, index, lane, to),
                Layout::Five | Layout::FourGrouped | Layout::FiveGrouped | Layout::SixGrouped => {
                    pack_planes(kind, from, index, blocks, lane, to);
                }
            }
        }
    }
}

/// Floats of some bytes.
fn pack_floats<const BYTES: usize>(from: &[u8], block: usize, lane: usize, to: &mut [u8]) {
    for (i, weight) in from.as_chunks::<BYTES>().0.iter().enumerate() {
        to[BYTES * ((block * BLOCK + i) * TILE + lane)..][..BYTES].copy_from_slice(weight);
    }
}

fn pack_nibbles(kind: MatrixKind, from: &[u8], lane: usize, to: &mut [u8]) {
    let (weights, scales) = to[..NIBBLE_BLOCK_BYTES].split_at_mut(NIBBLES_BYTES);
    let (scales, minima) = scales.split_at_mut(SCALES_BYTES);
    let (head, nibbles) = from.split_at(from.len() - BLOCK / 2);
    for (quad, to) in std::iter::zip(nibbles.as_chunks::<4>().0, weights.chunks_exact_mut(64)) {
        to[4 * lane..][..4].copy_from_slice(quad);
    }
    scales[2 * lane..][..2].copy_from_slice(&head[..2]);
    let minimum = match kind {
        MatrixKind::Q4_1 => [head[2], head[3]],
        // Times a power of two: exact, but for scales above 8,188, whose minimum is infinite and refused.
        _ => f16::from_f32(-8.0 * half_at(head, 0)).to_le_bytes(),
    };
    minima[2 * lane..][..2].copy_from_slice(&minimum);
}

/// One block of the file, which is one of ours (Q5_1) or eight, a group.
fn pack_planes(kind: MatrixKind, from: &[u8], index: usize, blocks: usize, lane: usize, to: &mut [u8]) {
    let Planes { weights, scales, group } = Layout::of(kind).planes();
    let planes = (weights - NIBBLES_BYTES) / PLANE_BYTES;
    let (of_weights, of_scales) = to.split_at_mut(blocks * weights);
    let (of_blocks, of_groups) = of_scales.split_at_mut(blocks * scales);
    let count = kind.block_weights() / BLOCK;
    for part in 0..count {
        let block = index * count + part;
        pack(&mut of_weights[block * weights..][..weights], planes, lane, &kind.quants(from, part));
        let of_block = &mut of_blocks[block * scales..][..scales];
        match kind {
            MatrixKind::Q5_1 => {
                of_block[2 * lane..][..2].copy_from_slice(&from[..2]);
                of_block[SCALES_BYTES + 2 * lane..][..2].copy_from_slice(&from[2..4]);
            }
            MatrixKind::Q6_K => {
                of_block[lane] = sixteen_scale(from, 2 * part);
                of_block[TILE + lane] = sixteen_scale(from, 2 * part + 1);
            }
            _ => (of_block[lane], of_block[TILE + lane]) = scale_and_minimum(from, part),
        }
    }
    if group > 0 {
        let of_group = &mut of_groups[index * group..][..group];
        let scale = if kind == MatrixKind::Q6_K { Q6_K_SCALE } else { 0 };
        of_group[2 * lane..][..2].copy_from_slice(&from[scale..scale + 2]);
        if kind != MatrixKind::Q6_K {
            // The file's minimum is taken off; the sign bit makes it one that is added.
            of_group[SCALES_BYTES + 2 * lane..][..2].copy_from_slice(&[from[2], from[3] ^ 0x80]);
        }
    }
}
