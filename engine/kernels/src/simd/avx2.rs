//! AVX2 with FMA and F16C: two registers for the 16 lanes.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

/// Proof that the machine has the family's instructions.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"))
            .then_some(Self(()))
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn enabled<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `detect`, which alone makes a `Self`, has seen all of these features.
        unsafe { enabled(self, kernel) }
    }
}

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Pair<T>(T, T);

/// The rest of the sum after lanes 8 to 15 were added to 0 to 7.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum(a: __m256) -> f32 {
    let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
}

/// As [`sum`], for the largest.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn largest(a: __m256) -> f32 {
    let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
}

/// Products of bytes up to 128 with `i8` that are not -128: pairs of them fit an `i16`.
#[inline]
#[target_feature(enable = "avx2")]
fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
}

/// The sum of 16 `i8`: the instruction sums unsigned bytes, so each is taken as itself plus 128.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_i8(quads: [i32; 4]) -> i32 {
    let bytes = _mm_xor_si128(_mm_setr_epi32(quads[0], quads[1], quads[2], quads[3]), _mm_set1_epi8(-128));
    let sums = _mm_sad_epu8(bytes, _mm_setzero_si128());
    _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128
}

/// Each byte shifted right, or left when `right` is negative, then masked: there is no shift of bytes, so the mask
/// takes off what comes from a neighbour.
#[inline]
#[target_feature(enable = "avx2")]
fn shifted(a: __m256i, right: i32, mask: u8) -> __m256i {
    let shifted = match right < 0 {
        true => _mm256_sll_epi16(a, _mm_cvtsi32_si128(-right)),
        false => _mm256_srl_epi16(a, _mm_cvtsi32_si128(right)),
    };
    _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
}

/// `|a - 128|` is at most 128 and `|b|` at most 127, so that pairs of products fit an `i16`; the sign goes to `b`.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_offset(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    let a = _mm256_xor_si256(a, _mm256_set1_epi8(-128));
    dot(sum, _mm256_abs_epi8(a), _mm256_sign_epi8(b, a))
}

/// The lowest byte of each of the 8 lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn low_bytes(a: __m256i) -> u64 {
    let order = _mm256_set1_epi64x(0x0c08_0400);
    let bytes = _mm256_shuffle_epi8(a, order);
    let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
    u64::from(_mm_cvtsi128_si32(low) as u32) | u64::from(_mm_cvtsi128_si32(high) as u32) << 32
}

impl Simd for Avx2 {
    type F = Pair<__m256>;
    type I = Pair<__m256i>;
    type B = Pair<__m256i>;

    const TOKENS_MAX: usize = 4;
    const QUERIES_MAX: usize = 2;
    const SUMS_MAX: usize = 4;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        self.run(kernel)
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { Pair(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))) }
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { Pair(_mm256_loadu_ps(from.as_ptr().cast()), _mm256_loadu_ps(from.as_ptr().add(32).cast())) }
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves the instructions; an array reference is writable, unaligned access is allowed.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), value.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), value.1);
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe {
            Pair(
                _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(16).cast())),
            )
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(16).cast()));
            Pair(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)))
        }
    }
    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            Pair(
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))),
            )
        }
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            Pair(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))),
            )
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            Pair(_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        }
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            Pair(
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a.0),
                _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a.1),
            )
        }
    }
    #[inline(always)]
    fn exp2_integral(self, n: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            Pair(
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n.0), bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n.1), bias))),
            )
        }
    }
    #[inline(always)]
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let count = _mm256_set1_epi32(count.min(LANES) as i32);
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let more = _mm256_add_epi32(lanes, _mm256_set1_epi32(8));
            Pair(
                _mm256_blendv_ps(b.0, a.0, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lanes))),
                _mm256_blendv_ps(b.1, a.1, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, more))),
            )
        }
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { sum(_mm256_add_ps(a.0, a.1)) }
    }
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { largest(_mm256_max_ps(a.0, a.1)) }
    }
    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_set1_epi32(value), _mm256_set1_epi32(value)) }
    }
    #[inline(always)]
    fn to_i32(self, a: Self::F) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_cvtps_epi32(a.0), _mm256_cvtps_epi32(a.1)) }
    }
    #[inline(always)]
    fn to_f32(self, a: Self::I) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1)) }
    }
    #[inline(always)]
    fn low_bytes(self, a: Self::I) -> [i32; LANES / 4] {
        // SAFETY: `self` proves the instructions; both types are 16 plain bytes.
        unsafe { std::mem::transmute::<[u64; 2], [i32; LANES / 4]>([low_bytes(a.0), low_bytes(a.1)]) }
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
    }
    #[inline(always)]
    fn sum_i32(self, a: Self::I) -> i32 {
        // SAFETY: `self` proves the instructions; both types are 32 plain bytes.
        unsafe {
            std::mem::transmute::<__m256i, [i32; 8]>(_mm256_add_epi32(a.0, a.1))
                .iter()
                .fold(0, |sum: i32, lane| sum.wrapping_add(*lane))
        }
    }
    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::B {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { Pair(_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(32).cast())) }
    }
    #[inline(always)]
    fn store_bytes(self, value: Self::B, to: &mut [u8; 4 * LANES]) {
        // SAFETY: `self` proves the instructions; an array reference is writable, unaligned access is allowed.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), value.0);
            _mm256_storeu_si256(to.as_mut_ptr().add(32).cast(), value.1);
        }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::B) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            Pair(_mm256_and_si256(a.0, mask), _mm256_and_si256(a.1, mask))
        }
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::B) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            Pair(
                _mm256_and_si256(_mm256_srli_epi16::<4>(a.0), mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(a.1), mask),
            )
        }
    }
    #[inline(always)]
    fn with_bits(self, a: Self::B, plane: Self::B, right: i32, mask: u8) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            Pair(
                _mm256_or_si256(a.0, shifted(plane.0, right, mask)),
                _mm256_or_si256(a.1, shifted(plane.1, right, mask)),
            )
        }
    }
    #[inline(always)]
    fn sum_i8(self, quads: [i32; 4]) -> i32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { sum_i8(quads) }
    }
    #[inline(always)]
    fn dot_unsigned(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let b = _mm256_set1_epi32(b);
            Pair(dot(sum.0, a.0, b), dot(sum.1, a.1, b))
        }
    }
    #[inline(always)]
    fn dot_offset_start(self, _correction: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { Pair(_mm256_setzero_si256(), _mm256_setzero_si256()) }
    }
    #[inline(always)]
    fn dot_offset(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let b = _mm256_set1_epi32(b);
            Pair(dot_offset(sum.0, a.0, b), dot_offset(sum.1, a.1, b))
        }
    }
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: `self` proves the instructions; a prefetch never faults.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(address.cast());
        }
    }
    #[inline(always)]
    fn prefetch_l2(self, address: *const u8) {
        // SAFETY: `self` proves the instructions; a prefetch never faults.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(address.cast());
        }
    }
}
