//! The ways in which K and V are stored.

/// How the values of K and V are stored. All sums are of f32, whatever is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// The upper half of an f32, rounded to nearest: its range, 8 bits of precision, half its size.
    #[default]
    Bf16,
    /// As computed.
    F32,
    /// `i8` with one f32 scale for each token and head, a quarter of the size; changes answers more than the others.
    Int8,
}

impl KvKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::F32, Self::Int8];

    /// `bf16`, `f32` or `int8`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }

    /// The kind with this [`KvKind::name`].
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes of one value, scales not counted.
    pub(super) fn value_bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
            Self::Int8 => 1,
        }
    }
}

impl std::fmt::Display for KvKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The nearest bf16, ties to even; what is not a number stays none.
#[inline(always)]
pub(super) fn to_bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    if value.is_nan() { quiet } else { rounded }.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_their_names() {
        for kind in KvKind::ALL {
            assert_eq!(KvKind::parse(kind.name()), Some(kind));
        }
        assert_eq!(KvKind::parse("f16"), None);
    }

    #[test]
    fn bf16_is_rounded_as_an_independent_crate_rounds_it() {
        for bits in
            (0..=u32::MAX).step_by(65_521).chain([0x7f80_0001, 0xff80_0001, 0x7f7f_ffff, 0x3f80_8000, 0x3f81_8000])
        {
            let value = f32::from_bits(bits);
            let wanted = half::bf16::from_f32(value);
            let found = half::bf16::from_le_bytes(to_bf16(value));
            assert!(found == wanted || found.is_nan() && wanted.is_nan(), "{bits:#x}");
        }
    }
}
