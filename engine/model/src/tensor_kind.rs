//! The element types of GGUF tensors: their numbers in the file, their names, their block sizes.
//!
//! All types in use are named here, so that `model inspect` can say what a file holds; which of them the engine
//! computes with is for the weights to say.

use std::fmt;

/// A tensor's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorKind {
    number: u32,
}

/// (number in the file, name, weights per block, bytes per block). Source: the GGUF specification and ggml's types.
const KINDS: &[(u32, &str, u32, u32)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

impl TensorKind {
    /// 32-bit floats.
    pub const F32: Self = Self { number: 0 };

    /// `None` for a number that no type has.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        KINDS.iter().any(|kind| kind.0 == number).then_some(Self { number })
    }

    fn row(self) -> (u32, &'static str, u32, u32) {
        // INVARIANT: values are only made from a number of the table; the fallback keeps this total.
        KINDS.iter().copied().find(|kind| kind.0 == self.number).unwrap_or((self.number, "unknown", 1, 1))
    }

    /// The number that stands for this type in a file.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }

    /// The name as ggml writes it, such as `Q4_1`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Weights in one block; rows are whole blocks.
    #[must_use]
    pub fn block_weights(self) -> u32 {
        self.row().2
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(self) -> u32 {
        self.row().3
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_unknown_ones_are_refused() {
        for (position, kind) in KINDS.iter().enumerate() {
            assert!(KINDS.iter().skip(position + 1).all(|other| other.0 != kind.0 && other.1 != kind.1));
        }
        for number in [4, 5, 31, 36, 40, u32::MAX] {
            assert_eq!(TensorKind::from_number(number), None);
        }
    }
}
