//! The element types that can be repacked, and what their bytes mean: the definition that everything is tested against.
//!
//! Source: ggml's block structures. The K types are blocks of 256 weights in eight groups of 32, with scales of 6 or 8
//! bits that are themselves multiples of the block's f16 scale.

use half::{bf16, f16};

use crate::activations::BLOCK;

/// Element types that can be repacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the names as ggml writes them")]
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
    /// 32 times 5 bits, f16 scale and minimum.
    Q5_1,
    /// 32 times `i8`, f16 scale.
    Q8_0,
    /// 256 times 4 bits; f16 scale and minimum, each times 6 bits for every 32 weights.
    Q4_K,
    /// 256 times 5 bits, otherwise as Q4_K.
    Q5_K,
    /// 256 times 6 bits, centred at 32; f16 scale times an `i8` for every 16 weights.
    Q6_K,
}

/// Where Q4_K and Q5_K have their scales of 6 bits, behind two f16.
const GROUP_SCALES: usize = 4;
/// Where Q5_K has the fifth bits, and the others.
const Q5_K_HIGH: usize = 16;
const Q5_K_LOW: usize = 48;
/// Where Q6_K has the upper two bits, the scales of groups of 16, and the f16 scale.
const Q6_K_HIGH: usize = 128;
const Q6_K_SCALES: usize = 192;
pub(super) const Q6_K_SCALE: usize = 208;

impl MatrixKind {
    /// Weights of a block; a row is whole blocks.
    #[must_use]
    pub fn block_weights(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 32,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 128,
            Self::F16 | Self::BF16 => 64,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// The weights of one block, as f32: exact, but that the difference of a product and a minimum is rounded once.
    ///
    /// # Panics
    /// When `block` does not have [`MatrixKind::block_bytes`] bytes, or `out` not room for exactly
    /// [`MatrixKind::block_weights`].
    pub fn dequantise(self, block: &[u8], out: &mut [f32]) {
        assert_eq!(block.len(), self.block_bytes(), "a block has a fixed size");
        assert_eq!(out.len(), self.block_weights(), "room for a block");
        let half = |at: usize| half_at(block, at);
        for (group, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            let quants = self.quants(block, group).map(f32::from);
            *out = std::array::from_fn(|i| match self {
                Self::F32 => f32::from_le_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]]),
                Self::F16 => half(2 * i),
                Self::BF16 => bf16::from_le_bytes([block[2 * i], block[2 * i + 1]]).to_f32(),
                Self::Q4_0 => half(0) * (quants[i] - 8.0),
                Self::Q5_0 => half(0) * (quants[i] - 16.0),
                Self::Q8_0 => half(0) * (quants[i] - 128.0),
                Self::Q4_1 | Self::Q5_1 => half(0) * quants[i] + half(2),
                Self::Q4_K | Self::Q5_K => {
                    let (scale, minimum) = scale_and_minimum(block, group);
                    half(0) * f32::from(scale) * quants[i] - half(2) * f32::from(minimum)
                }
                Self::Q6_K => {
                    let scale = sixteen_scale(block, 2 * group + i / 16) as i8;
                    half(Q6_K_SCALE) * f32::from(scale) * (quants[i] - 32.0)
                }
            });
        }
    }

    /// 32 weights of a block as the unsigned numbers that are stored; an `i8` plus 128. Zeros for floats, which have
    /// none.
    pub(super) fn quants(self, block: &[u8], group: usize) -> [u8; BLOCK] {
        use std::array::from_fn;
        // In blocks of 32, byte j has weight j in its low and weight 16 + j in its high bits.
        let nibbles = |from: usize| -> [u8; BLOCK] {
            let bytes = &block[from..][..16];
            from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
        };
        let with_bits = |low: [u8; BLOCK], from: usize| -> [u8; BLOCK] {
            let bits = &block[from..][..4];
            from_fn(|i| low[i] | (bits[i / 8] >> (i % 8) & 1) << 4)
        };
        // In blocks of 256, the bits of several groups lie above each other in the same 32 bytes.
        let part = |from: usize, shift: usize, mask: u8| -> [u8; BLOCK] {
            let bytes = &block[from..][..BLOCK];
            from_fn(|i| bytes[i] >> shift & mask)
        };
        let above = |low: [u8; BLOCK], high: [u8; BLOCK]| -> [u8; BLOCK] { from_fn(|i| low[i] | high[i] << 4) };
        match self {
            Self::F32 | Self::F16 | Self::BF16 => [0; BLOCK],
            Self::Q4_0 => nibbles(2),
            Self::Q4_1 => nibbles(4),
            Self::Q5_0 => with_bits(nibbles(6), 2),
            Self::Q5_1 => with_bits(nibbles(8), 4),
            Self::Q8_0 => {
                let bytes = &block[2..][..BLOCK];
                from_fn(|i| bytes[i] ^ 0x80)
            }
            Self::Q4_K => part(16 + group / 2 * 32, group % 2 * 4, 15),
            Self::Q5_K => above(part(Q5_K_LOW + group / 2 * 32, group % 2 * 4, 15), part(Q5_K_HIGH, group, 1)),
            Self::Q6_K => {
                // Each half of 128 weights: 64 bytes with groups 0 and 1 in the low bits, 2 and 3 in the high ones.
                let (half, group) = (group / 4, group % 4);
                let low = part(half * 64 + group % 2 * 32, group / 2 * 4, 15);
                above(low, part(Q6_K_HIGH + half * 32, 2 * group, 3))
            }
        }
    }
}

/// The f16 at a byte.
pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The 6 bits of scale and minimum of a group of 32 in Q4_K and Q5_K. Groups 0 to 3 have a byte each, whose upper two
/// bits are those of groups 4 to 7.
pub(super) fn scale_and_minimum(block: &[u8], group: usize) -> (u8, u8) {
    let scales = &block[GROUP_SCALES..];
    if group < 4 {
        return (scales[group] & 63, scales[group + 4] & 63);
    }
    let low = scales[group + 4];
    (low & 15 | scales[group - 4] >> 6 << 4, low >> 4 | scales[group] >> 6 << 4)
}

/// The `i8` scale of a group of 16 in Q6_K.
pub(super) fn sixteen_scale(block: &[u8], group: usize) -> u8 {
    block[Q6_K_SCALES + group]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(kind: MatrixKind, block: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; kind.block_weights()];
        kind.dequantise(block, &mut out);
        out
    }

    #[test]
    fn blocks_of_32_mean_what_the_format_says() {
        let half = f16::from_f32(0.5).to_le_bytes();
        let block = |head: &[u8], tail: &[u8]| [&half, head, tail].concat();
        let q4_0 = weights(MatrixKind::Q4_0, &block(&[], &[0x9f; 16]));
        assert_eq!((q4_0[0], q4_0[16]), (3.5, 0.5));
        let minimum = f16::from_f32(-2.0).to_le_bytes();
        let q4_1 = weights(MatrixKind::Q4_1, &block(&minimum, &[0x4f; 16]));
        assert_eq!((q4_1[15], q4_1[31]), (5.5, 0.0));
        let q5_0 = weights(MatrixKind::Q5_0, &block(&[1, 0, 0, 0x80], &[0x21; 16]));
        assert_eq!((q5_0[0], q5_0[1], q5_0[31], q5_0[30]), (0.5, -7.5, 1.0, -7.0));
        let q5_1 = weights(MatrixKind::Q5_1, &block(&[&minimum[..], &[1, 0, 0, 0x80]].concat(), &[0x21; 16]));
        assert_eq!((q5_1[0], q5_1[1], q5_1[31], q5_1[30]), (6.5, -1.5, 7.0, -1.0));
        let q8_0 = weights(MatrixKind::Q8_0, &block(&[], &[0x80; 32]));
        assert_eq!(q8_0[7], -64.0);
    }

    /// Four blocks from a fixed sequence, with scales of ordinary size.
    fn sequence(kind: MatrixKind) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut bytes: Vec<u8> = (0..4 * kind.block_bytes()).map(|_| next()).collect();
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            let scale = if kind == MatrixKind::Q6_K { Q6_K_SCALE } else { 0 };
            block[scale..scale + 2].copy_from_slice(&f16::from_f32(0.0371).to_le_bytes());
            if kind != MatrixKind::Q6_K {
                block[2..4].copy_from_slice(&f16::from_f32(0.217).to_le_bytes());
            }
        }
        bytes
    }

    /// The numbers are those of the Python package `gguf` 0.19 (`gguf.quants.dequantize`) for the same bytes: the first,
    /// the 18th and the last weight, and the sums of all weights and of their magnitudes, each times its position from 1.
    #[test]
    fn blocks_with_minima_and_groups_are_what_an_independent_reader_finds() {
        for (kind, some, sum, magnitudes) in [
            (MatrixKind::Q5_1, [0.365_478_52, 1.181_884_8, 0.810_791], 6_813.271_484_375, 6_813.271_484_375),
            (MatrixKind::Q4_K, [4.475_586, 4.030_273_4, -10.686_768], 1_688_978.285_156_25, 4_265_480.463_867_187_5),
            (MatrixKind::Q5_K, [2.249_023_4, 12.491_211, -6.494_385], 10_426_598.751_953_125, 11_262_317.495_117_188),
            (MatrixKind::Q6_K, [-42.601_563, 74.738_28, -124.687_5], -940_265.765_625, 22_683_924.769_531_25),
        ] {
            let bytes = sequence(kind);
            let weights: Vec<f32> =
                bytes.chunks_exact(kind.block_bytes()).flat_map(|block| weights(kind, block)).collect();
            assert_eq!([weights[0], weights[17], weights[weights.len() - 1]], some, "{kind:?}");
            let total = |f: fn(f64) -> f64| -> f64 {
                (1..).zip(&weights).map(|(position, weight)| f64::from(position) * f(f64::from(*weight))).sum()
            };
            assert!((total(|x| x) - sum).abs() <= 1e-6, "{kind:?}: {}", total(|x| x));
            assert!((total(f64::abs) - magnitudes).abs() <= 1e-6, "{kind:?}: {}", total(f64::abs));
        }
    }
}
