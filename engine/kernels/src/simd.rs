//! Sixteen lanes of arithmetic: what every kernel is written in, once, for all families.
//!
//! [`Scalar`] is the definition; the others do the same operations on each lane in the same order, so all families
//! give the same bits. The trait's methods are safe because a value of a family's type proves that the machine has
//! its instructions. Everything is `#[inline(always)]`: it has to end up inside the one function per family that
//! enables the instructions, in [`dispatch`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;

use crate::KernelFamily;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// A family of instructions.
pub(crate) trait Simd: Copy {
    /// 16 f32.
    type F: Copy;
    /// 16 i32.
    type I: Copy;
    /// 64 bytes: four for each lane.
    type B: Copy;

    /// Tokens of a product computed at a time at most: as many as the registers hold. A power of two up to 8.
    const TOKENS_MAX: usize;
    /// Queries of attention computed at a time at most: 1, 2, 3 or 6.
    const QUERIES_MAX: usize;
    /// Vectors of sums of their outputs at a time at most: a panel of more does not stay in the registers, and takes twice as
    /// long.
    const SUMS_MAX: usize;

    /// Runs a kernel in a function of its own that has the family's instructions enabled: for what several kernels share
    /// and is too long to stand in each of them.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, value: f32) -> Self::F;
    fn load(self, from: &[f32; LANES]) -> Self::F;
    /// Little-endian.
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F;
    fn store(self, value: Self::F, to: &mut [f32; LANES]);
    /// IEEE half precision, little-endian.
    fn load_f16(self, from: &[u8; 2 * LANES]) -> Self::F;
    /// The upper halves of f32, little-endian.
    fn load_bf16(self, from: &[u8; 2 * LANES]) -> Self::F;
    fn load_u8(self, from: &[u8; LANES]) -> Self::F;
    /// The bytes are `i8`.
    fn load_i8(self, from: &[u8; LANES]) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// `2^n` for an integral `n` from -126 to 127.
    fn exp2_integral(self, n: Self::F) -> Self::F;
    /// Lanes below `count` from `a`, the others from `b`.
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F;
    /// The sum of all lanes, in the one order that [`Scalar`] shows.
    fn sum(self, a: Self::F) -> f32;
    /// The largest lane.
    fn largest(self, a: Self::F) -> f32;

    fn splat_i32(self, value: i32) -> Self::I;
    /// Rounds to nearest, ties to even; what does not fit becomes `i32::MIN`.
    fn to_i32(self, a: Self::F) -> Self::I;
    fn to_f32(self, a: Self::I) -> Self::F;
    /// The lowest byte of each lane, in memory order.
    fn low_bytes(self, a: Self::I) -> [i32; LANES / 4];
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    fn sum_i32(self, a: Self::I) -> i32;

    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::B;
    fn store_bytes(self, value: Self::B, to: &mut [u8; 4 * LANES]);
    fn low_nibbles(self, a: Self::B) -> Self::B;
    fn high_nibbles(self, a: Self::B) -> Self::B;
    /// `a` with bits of `plane` set: each byte of it shifted right by `right` (left, when that is negative; up to 7),
    /// then masked. `mask` has no bits that the shift fills.
    fn with_bits(self, a: Self::B, plane: Self::B, right: i32, mask: u8) -> Self::B;
    /// The sum of 16 `i8`.
    fn sum_i8(self, quads: [i32; 4]) -> i32;
    /// Adds to each lane the dot product of its four bytes of `a`, each at most 63, with the four `i8` of `b`.
    fn dot_unsigned(self, sum: Self::I, a: Self::B, b: i32) -> Self::I;
    /// Where a sum of [`Simd::dot_offset`]s starts; `correction` is -128 times the sum of all their `i8`.
    fn dot_offset_start(self, correction: i32) -> Self::I;
    /// Adds to each lane the dot product of its four bytes of `a`, minus 128 each, with the four `i8` of `b`, none of
    /// them -128. Whether the 128 are taken off here or by [`Simd::dot_offset_start`] is the family's choice.
    fn dot_offset(self, sum: Self::I, a: Self::B, b: i32) -> Self::I;

    /// Asks for the cache line at `address`, which may be any.
    fn prefetch(self, address: *const u8);
    /// As [`Simd::prefetch`], into the second-level cache only: more of these can be on their way at once.
    fn prefetch_l2(self, address: *const u8);
}

/// Work that is compiled for every family.
pub(crate) trait Kernel {
    type Output;
    /// To be marked `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs a kernel with the instructions of `family`.
pub(crate) fn dispatch<K: Kernel>(family: KernelFamily, kernel: K) -> K::Output {
    match family {
        KernelFamily::Scalar => kernel.run(Scalar),
        #[cfg(target_arch = "x86_64")]
        KernelFamily::Avx2 => match Avx2::detect() {
            Some(simd) => simd.run(kernel),
            None => kernel.run(Scalar),
        },
        #[cfg(target_arch = "x86_64")]
        KernelFamily::Avx512Vnni => match Avx512::detect() {
            Some(simd) => simd.run(kernel),
            None => kernel.run(Scalar),
        },
        #[cfg(not(target_arch = "x86_64"))]
        KernelFamily::Avx2 | KernelFamily::Avx512Vnni => kernel.run(Scalar),
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        KernelFamily::Neon => match Neon::<false>::detect() {
            Some(simd) => simd.run(kernel),
            None => kernel.run(Scalar),
        },
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        KernelFamily::NeonDot => match Neon::<true>::detect() {
            Some(simd) => simd.run(kernel),
            None => kernel.run(Scalar),
        },
        #[cfg(not(all(target_arch = "aarch64", target_endian = "little")))]
        KernelFamily::Neon | KernelFamily::NeonDot => kernel.run(Scalar),
    }
}

/// `e^x` to about one unit in the last place, for x clamped to -87..=88.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F) -> S::F {
    /// ln 2 in two parts: the first has few enough bits that its multiples by an exponent are exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // The bounds come first: of two that do not compare, min and max give the second, so NaN stays NaN.
    let x = simd.max(simd.splat(-87.0), simd.min(simd.splat(88.0), x));
    // x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series, whose eighth term is below half a unit.
    let n = simd.round(simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.fma(n, simd.splat(-LN_2_HIGH), x);
    let r = simd.fma(n, simd.splat(-LN_2_LOW), r);
    let mut series = simd.splat(1.0 / 5_040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = simd.fma(series, r, simd.splat(coefficient));
    }
    simd.mul(series, simd.exp2_integral(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Everything that a family computes from 16 pairs of floats, as bits.
    struct Everything<'a> {
        a: &'a [f32; LANES],
        b: &'a [f32; LANES],
    }

    impl Kernel for Everything<'_> {
        type Output = Vec<u32>;
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<u32> {
            let mut bits = Vec::new();
            let (a, b) = (simd.load(self.a), simd.load(self.b));
            let mut floats = |value: S::F| {
                let mut lanes = [0.0; LANES];
                simd.store(value, &mut lanes);
                bits.extend(lanes.map(f32::to_bits));
            };
            floats(simd.add(a, b));
            floats(simd.sub(a, b));
            floats(simd.mul(a, b));
            floats(simd.div(a, b));
            floats(simd.fma(a, b, simd.splat(0.1)));
            floats(simd.max(a, b));
            floats(simd.min(a, b));
            floats(simd.abs(a));
            floats(simd.round(a));
            floats(exp(simd, a));
            floats(simd.exp2_integral(simd.max(simd.min(simd.round(a), simd.splat(127.0)), simd.splat(-126.0))));
            for count in 0..=LANES {
                floats(simd.first(count, a, b));
            }
            let mut halves = [0; 2 * LANES];
            for (to, value) in std::iter::zip(halves.as_chunks_mut::<2>().0, self.a) {
                *to = half::f16::from_f32(*value).to_le_bytes();
            }
            floats(simd.load_f16(&halves));
            floats(simd.load_bf16(&halves));
            floats(simd.load_u8(&halves.as_chunks::<LANES>().0[0]));
            floats(simd.load_i8(&halves.as_chunks::<LANES>().0[1]));
            floats(simd.to_f32(simd.add_i32(simd.to_i32(a), simd.splat_i32(3))));
            bits.extend([simd.sum(a).to_bits(), simd.largest(b).to_bits()]);
            bits.extend(simd.low_bytes(simd.to_i32(a)).map(|bytes| bytes as u32));
            bits.push(simd.sum_i32(simd.to_i32(simd.min(a, simd.splat(1e6)))) as u32);
            bits
        }
    }

    struct Dots<'a> {
        bytes: &'a [u8; 64],
        quad: i32,
    }

    impl Kernel for Dots<'_> {
        type Output = Vec<u32>;
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<u32> {
            let mut bits = Vec::new();
            let mut floats = |value: S::I| {
                let mut lanes = [0.0; LANES];
                simd.store(simd.to_f32(value), &mut lanes);
                bits.extend(lanes.map(f32::to_bits));
            };
            let bytes = simd.load_bytes(self.bytes);
            floats(simd.dot_unsigned(simd.splat_i32(5), simd.low_nibbles(bytes), self.quad));
            floats(simd.dot_unsigned(simd.splat_i32(-5), simd.high_nibbles(bytes), self.quad));
            let sum: i32 = self.quad.to_le_bytes().iter().map(|byte| i32::from(*byte as i8)).sum();
            floats(simd.dot_offset(simd.dot_offset_start(-128 * sum), bytes, self.quad));
            // All bits that a byte of up to 63 can have, from every place in a plane.
            for quad in 0..4 {
                let six = simd.with_bits(simd.high_nibbles(bytes), bytes, 2 * quad - 4, 0x30);
                floats(simd.dot_unsigned(simd.splat_i32(-7), six, self.quad));
            }
            for quad in 0..8 {
                let five = simd.with_bits(simd.low_nibbles(bytes), bytes, quad - 4, 0x10);
                floats(simd.dot_unsigned(simd.splat_i32(7), five, self.quad));
            }
            bits.push(simd.sum_i8([self.quad, -1, self.quad, 0x7f81_7f81]) as u32);
            bits
        }
    }

    fn lanes() -> impl Strategy<Value = [f32; LANES]> {
        let lane = prop_oneof![-100.0f32..100.0, -1.0f32..1.0, Just(0.0), Just(-0.0), Just(0.5), Just(2.5), Just(7e4)];
        proptest::array::uniform16(lane)
    }

    proptest! {
        #[test]
        fn all_families_give_the_same_bits(a in lanes(), b in lanes()) {
            let scalar = dispatch(KernelFamily::Scalar, Everything { a: &a, b: &b });
            for family in KernelFamily::ALL.into_iter().filter(|family| family.is_available()) {
                prop_assert_eq!(&dispatch(family, Everything { a: &a, b: &b }), &scalar, "{}", family);
            }
        }

        #[test]
        fn all_families_agree_on_dot_products(bytes in proptest::collection::vec(any::<u8>(), 64), x in proptest::array::uniform4(-127i8..=127)) {
            let bytes: &[u8; 64] = bytes.as_slice().try_into().unwrap();
            let quad = i32::from_le_bytes(x.map(|value| value as u8));
            let scalar = dispatch(KernelFamily::Scalar, Dots { bytes, quad });
            // The definition, for lane 0.
            let low: i32 = (0..4).map(|i| i32::from(bytes[i] & 15) * i32::from(x[i])).sum();
            let offset: i32 = (0..4).map(|i| (i32::from(bytes[i]) - 128) * i32::from(x[i])).sum();
            prop_assert_eq!(scalar[0], ((5 + low) as f32).to_bits());
            prop_assert_eq!(scalar[32], (offset as f32).to_bits());
            let six = |i: usize| i32::from(bytes[i] >> 4) + 16 * i32::from(bytes[i] >> 6);
            let six: i32 = (0..4).map(|i| six(i) * i32::from(x[i])).sum();
            prop_assert_eq!(scalar[48 + 3 * LANES], ((six - 7) as f32).to_bits());
            let five = |i: usize| i32::from(bytes[i] & 15) + 16 * i32::from(bytes[i] >> 7);
            let five: i32 = (0..4).map(|i| five(i) * i32::from(x[i])).sum();
            prop_assert_eq!(scalar[48 + 11 * LANES], ((five + 7) as f32).to_bits());
            let sum = 2 * x.map(i32::from).iter().sum::<i32>() - 4;
            prop_assert_eq!(scalar.last().map(|bits| *bits as i32), Some(sum));
            for family in KernelFamily::ALL.into_iter().filter(|family| family.is_available()) {
                prop_assert_eq!(&dispatch(family, Dots { bytes, quad }), &scalar, "{}", family);
            }
        }

        #[test]
        fn the_extremes_of_dot_products_do_not_saturate(high in any::<bool>(), sign in any::<bool>()) {
            let bytes = [if high { 255 } else { 0 }; 64];
            let quad = i32::from_le_bytes([if sign { 127 } else { 129 }; 4]);
            let scalar = dispatch(KernelFamily::Scalar, Dots { bytes: &bytes, quad });
            for family in KernelFamily::ALL.into_iter().filter(|family| family.is_available()) {
                prop_assert_eq!(&dispatch(family, Dots { bytes: &bytes, quad }), &scalar, "{}", family);
            }
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for step in -87_000..=88_000 {
            let x = step as f32 / 1_000.0;
            let mut lanes = [0.0; LANES];
            Scalar.store(exp(Scalar, Scalar.splat(x)), &mut lanes);
            let exact = f64::from(x).exp();
            let error = (f64::from(lanes[0]) - exact).abs() / exact;
            assert!(error < 2.4e-7, "exp({x}) is off by {error:e}");
        }
    }
}
