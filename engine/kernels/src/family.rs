//! Which instructions the kernels use, chosen at run time.

use std::fmt;

/// A set of instructions that every kernel is compiled for. All families give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelFamily {
    /// Plain Rust, on every machine: the reference.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512Vnni,
    /// NEON of 64-bit ARM.
    Neon,
    /// NEON with the instruction for dot products of bytes.
    NeonDot,
}

impl KernelFamily {
    /// All families, slowest first.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Avx2, Self::Avx512Vnni, Self::Neon, Self::NeonDot];

    /// The fastest family that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|family| family.is_available()).unwrap_or(Self::Scalar)
    }

    /// Whether this machine has the family's instructions.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => crate::simd::Avx2::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => crate::simd::Avx512::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512Vnni => false,
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Self::Neon => crate::simd::Neon::<false>::detect().is_some(),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Self::NeonDot => crate::simd::Neon::<true>::detect().is_some(),
            #[cfg(not(all(target_arch = "aarch64", target_endian = "little")))]
            Self::Neon | Self::NeonDot => false,
        }
    }

    /// `scalar`, `avx2`, `avx512-vnni`, `neon` or `neon-dot`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dot",
        }
    }
}

impl fmt::Display for KernelFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_family_is_available_and_none_above_it_is() {
        let detected = KernelFamily::detect();
        assert!(detected.is_available());
        assert!(KernelFamily::ALL.into_iter().filter(|family| *family > detected).all(|family| !family.is_available()));
    }
}
