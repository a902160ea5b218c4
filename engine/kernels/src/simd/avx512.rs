//! AVX-512 with VNNI: one register for the 16 lanes.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

/// Proof that the machine has the family's instructions.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn enabled<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `detect`, which alone makes a `Self`, has seen all of these features.
        unsafe { enabled(self, kernel) }
    }
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const TOKENS_MAX: usize = 8;
    const QUERIES_MAX: usize = 6;
    const SUMS_MAX: usize = 24;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        self.run(kernel)
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves the instructions; an array reference is writable, unaligned access is allowed.
        unsafe {
            _mm512_storeu_ps(to.as_mut_ptr(), value);
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }
    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn exp2_integral(self, n: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(
                _mm512_cvtps_epi32(n),
                _mm512_set1_epi32(127),
            )))
        }
    }
    #[inline(always)]
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_mask_blend_ps(((1u32 << count.min(LANES)) - 1) as __mmask16, b, a) }
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { super::avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a))) }
    }
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { super::avx2::largest(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a))) }
    }
    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    fn to_i32(self, a: Self::F) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_cvtps_epi32(a) }
    }
    #[inline(always)]
    fn to_f32(self, a: Self::I) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn low_bytes(self, a: Self::I) -> [i32; LANES / 4] {
        // SAFETY: `self` proves the instructions; both types are 16 plain bytes.
        unsafe { std::mem::transmute::<__m128i, [i32; LANES / 4]>(_mm512_cvtepi32_epi8(a)) }
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sum_i32(self, a: Self::I) -> i32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_reduce_add_epi32(a) }
    }
    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::B {
        // SAFETY: `self` proves the instructions; an array reference is readable, unaligned access is allowed.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_bytes(self, value: Self::B, to: &mut [u8; 4 * LANES]) {
        // SAFETY: `self` proves the instructions; an array reference is writable, unaligned access is allowed.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::B) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::B) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(a), _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    fn with_bits(self, a: Self::B, plane: Self::B, right: i32, mask: u8) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            // There is no shift of bytes; the mask takes off what comes from a neighbour.
            let shifted = match right < 0 {
                true => _mm512_sll_epi16(plane, _mm_cvtsi32_si128(-right)),
                false => _mm512_srl_epi16(plane, _mm_cvtsi32_si128(right)),
            };
            _mm512_or_si512(a, _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8)))
        }
    }
    #[inline(always)]
    fn sum_i8(self, quads: [i32; 4]) -> i32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { super::avx2::sum_i8(quads) }
    }
    #[inline(always)]
    fn dot_unsigned(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_dpbusd_epi32(sum, a, _mm512_set1_epi32(b)) }
    }
    #[inline(always)]
    fn dot_offset_start(self, correction: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_set1_epi32(correction) }
    }
    #[inline(always)]
    fn dot_offset(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { _mm512_dpbusd_epi32(sum, a, _mm512_set1_epi32(b)) }
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
