//! NEON of 64-bit ARM: four registers for the 16 lanes, with the instruction for dot products of bytes or without.
//!
//! What the compiler has no stable intrinsic for is assembly of one instruction.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{Kernel, LANES, Simd};

/// Proof that the machine has NEON and, when `DOT` says so, `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool>(());

impl Neon<false> {
    pub(crate) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "neon")]
        fn enabled<K: Kernel>(simd: Neon<false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `detect`, which alone makes a `Self`, has seen the feature.
        unsafe { enabled(self, kernel) }
    }
}

impl Neon<true> {
    pub(crate) fn detect() -> Option<Self> {
        (is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod")).then_some(Self(()))
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod")]
        fn enabled<K: Kernel>(simd: Neon<true>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `detect`, which alone makes a `Self`, has seen both features.
        unsafe { enabled(self, kernel) }
    }
}

/// Lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
type Quad<T> = [T; 4];

#[inline(always)]
fn map<A: Copy, B>(a: Quad<A>, f: impl Fn(A) -> B) -> Quad<B> {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: Quad<A>, b: Quad<B>, f: impl Fn(A, B) -> C) -> Quad<C> {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// The instruction `fmax` takes -0 for less than 0 and makes a NaN of one; the definition does neither.
#[inline]
#[target_feature(enable = "neon")]
fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(a, b), a, b)
}

/// The conversion stops at `i32::MAX` and makes 0 of a NaN.
#[inline]
#[target_feature(enable = "neon")]
fn to_i32(a: float32x4_t) -> int32x4_t {
    let fits = vcltq_f32(a, vdupq_n_f32(-(i32::MIN as f32)));
    vbslq_s32(fits, vcvtnq_s32_f32(a), vdupq_n_s32(i32::MIN))
}

/// Sixteen bytes to four registers of wider lanes.
#[inline]
#[target_feature(enable = "neon")]
fn widen_u8(bytes: uint8x16_t) -> Quad<uint32x4_t> {
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
}

#[inline]
#[target_feature(enable = "neon")]
fn widen_i8(bytes: int8x16_t) -> Quad<int32x4_t> {
    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
}

/// Adds to each lane of `sum` the dot product of its four `i8` of `a` with the four of `b`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_instruction(sum: int32x4_t, a: int8x16_t, b: i32) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the function enables the instruction, which reads and writes the named registers only. The second
    // factor, as a number of 4 bytes, is in the lowest lane of its register.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[0]",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) f32::from_bits(b as u32),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// As [`dot_instruction`], for `b` none of which is -128: then pairs of products fit an `i16`.
#[inline]
#[target_feature(enable = "neon")]
fn dot_widened(sum: int32x4_t, a: int8x16_t, b: i32) -> int32x4_t {
    let b = vreinterpretq_s8_s32(vdupq_n_s32(b));
    let (low, high) = (vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
    vpadalq_s16(sum, vpaddq_s16(low, high))
}

impl<const DOT: bool> Neon<DOT> {
    #[inline(always)]
    fn dot(self, sum: Quad<int32x4_t>, a: Quad<int8x16_t>, b: i32) -> Quad<int32x4_t> {
        if DOT {
            // SAFETY: `self` proves the instructions; on registers only.
            zip(sum, a, |sum, a| unsafe { dot_instruction(sum, a, b) })
        } else {
            // SAFETY: as above.
            zip(sum, a, |sum, a| unsafe { dot_widened(sum, a, b) })
        }
    }
}

impl<const DOT: bool> Simd for Neon<DOT> {
    type F = Quad<float32x4_t>;
    type I = Quad<int32x4_t>;
    type B = Quad<uint8x16_t>;

    // Of the 32 registers, the dot products of four tokens take 16 and the weights 8. The sums over blocks wait in memory
    // meanwhile, which costs less than unpacking the weights for two tokens at a time would.
    const TOKENS_MAX: usize = 4;
    const QUERIES_MAX: usize = 2;
    const SUMS_MAX: usize = 4;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        if DOT { Neon::<true>(()).run(kernel) } else { Neon::<false>(()).run(kernel) }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { [vdupq_n_f32(value); 4] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable up to its end.
        map([0, 4, 8, 12], |lane| unsafe { vld1q_f32(from.as_ptr().add(lane)) })
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        map(self.load_bytes(from), |bytes| unsafe { vreinterpretq_f32_u8(bytes) })
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        for (to, value) in std::iter::zip(to.as_chunks_mut::<4>().0, value) {
            // SAFETY: `self` proves the instructions; an array reference is writable.
            unsafe { vst1q_f32(to.as_mut_ptr(), value) };
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable up to its end.
        unsafe {
            let a = vreinterpretq_f16_u8(vld1q_u8(from.as_ptr()));
            let b = vreinterpretq_f16_u8(vld1q_u8(from.as_ptr().add(16)));
            [vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)]
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable up to its end.
        unsafe {
            let a = vreinterpretq_u16_u8(vld1q_u8(from.as_ptr()));
            let b = vreinterpretq_u16_u8(vld1q_u8(from.as_ptr().add(16)));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(a))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(a))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(b))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(b))),
            ]
        }
    }
    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable.
        unsafe { map(widen_u8(vld1q_u8(from.as_ptr())), |a| vcvtq_f32_u32(a)) }
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: `self` proves the instructions; an array reference is readable.
        unsafe { map(widen_i8(vreinterpretq_s8_u8(vld1q_u8(from.as_ptr()))), |a| vcvtq_f32_s32(a)) }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        zip(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        zip(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        zip(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        zip(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        map([0, 1, 2, 3], |i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        zip(a, b, |a, b| unsafe { max(a, b) })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        zip(a, b, |a, b| unsafe { min(a, b) })
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        map(a, |a| unsafe { vabsq_f32(a) })
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        map(a, |a| unsafe { vrndnq_f32(a) })
    }
    #[inline(always)]
    fn exp2_integral(self, n: Self::F) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let bias = vdupq_n_s32(127);
            map(n, |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), bias))))
        }
    }
    #[inline(always)]
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F {
        const LANE_NUMBERS: [i32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        // SAFETY: `self` proves the instructions; both types are 64 plain bytes.
        unsafe {
            let lanes = std::mem::transmute::<[i32; LANES], Self::I>(LANE_NUMBERS);
            let count = vdupq_n_s32(count.min(LANES) as i32);
            map([0, 1, 2, 3], |i| vbslq_f32(vcltq_s32(lanes[i], count), a[i], b[i]))
        }
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let a = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)))
        }
    }
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            let a = max(max(a[0], a[2]), max(a[1], a[3]));
            let a = max(a, vextq_f32::<2>(a, a));
            vgetq_lane_f32::<0>(max(a, vextq_f32::<1>(a, a)))
        }
    }

    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { [vdupq_n_s32(value); 4] }
    }
    #[inline(always)]
    fn to_i32(self, a: Self::F) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        map(a, |a| unsafe { to_i32(a) })
    }
    #[inline(always)]
    fn to_f32(self, a: Self::I) -> Self::F {
        // SAFETY: `self` proves the instructions; on registers only.
        map(a, |a| unsafe { vcvtq_f32_s32(a) })
    }
    #[inline(always)]
    fn low_bytes(self, a: Self::I) -> [i32; LANES / 4] {
        // SAFETY: `self` proves the instructions; both types are 16 plain bytes.
        unsafe {
            let [a, b, c, d] = map(a, |a| vreinterpretq_s16_s32(a));
            let (low, high) = (vreinterpretq_s8_s16(vuzp1q_s16(a, b)), vreinterpretq_s8_s16(vuzp1q_s16(c, d)));
            std::mem::transmute::<int8x16_t, [i32; LANES / 4]>(vuzp1q_s8(low, high))
        }
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        zip(a, b, |a, b| unsafe { vaddq_s32(a, b) })
    }
    #[inline(always)]
    fn sum_i32(self, a: Self::I) -> i32 {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[1]), vaddq_s32(a[2], a[3]))) }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::B {
        // SAFETY: `self` proves the instructions; an array reference is readable up to its end.
        map([0, 16, 32, 48], |byte| unsafe { vld1q_u8(from.as_ptr().add(byte)) })
    }
    #[inline(always)]
    fn store_bytes(self, value: Self::B, to: &mut [u8; 4 * LANES]) {
        for (to, value) in std::iter::zip(to.as_chunks_mut::<16>().0, value) {
            // SAFETY: `self` proves the instructions; an array reference is writable.
            unsafe { vst1q_u8(to.as_mut_ptr(), value) };
        }
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::B) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        map(a, |a| unsafe { vandq_u8(a, vdupq_n_u8(15)) })
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::B) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        map(a, |a| unsafe { vshrq_n_u8::<4>(a) })
    }
    #[inline(always)]
    fn with_bits(self, a: Self::B, plane: Self::B, right: i32, mask: u8) -> Self::B {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe {
            // A negative count shifts right.
            let (left, mask) = (vdupq_n_s8(-right as i8), vdupq_n_u8(mask));
            zip(a, plane, |a, plane| vorrq_u8(a, vandq_u8(vshlq_u8(plane, left), mask)))
        }
    }
    #[inline(always)]
    fn sum_i8(self, quads: [i32; 4]) -> i32 {
        // SAFETY: `self` proves the instructions; both types are 16 plain bytes.
        i32::from(unsafe { vaddlvq_s8(std::mem::transmute::<[i32; 4], int8x16_t>(quads)) })
    }
    #[inline(always)]
    fn dot_unsigned(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        self.dot(sum, map(a, |a| unsafe { vreinterpretq_s8_u8(a) }), b)
    }
    #[inline(always)]
    fn dot_offset_start(self, _correction: i32) -> Self::I {
        // SAFETY: `self` proves the instructions; on registers only.
        unsafe { [vdupq_n_s32(0); 4] }
    }
    #[inline(always)]
    fn dot_offset(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        // As an `i8`, a byte with its highest bit turned over is itself minus 128.
        // SAFETY: `self` proves the instructions; on registers only.
        let a = map(a, |a| unsafe { vreinterpretq_s8_u8(veorq_u8(a, vdupq_n_u8(0x80))) });
        self.dot(sum, a, b)
    }

    #[expect(clippy::pointers_in_nomem_asm_block, reason = "a prefetch reads nothing that a program can see")]
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch never faults and changes nothing that a program can see.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags)) };
    }
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "a prefetch reads nothing that a program can see")]
    #[inline(always)]
    fn prefetch_l2(self, address: *const u8) {
        // SAFETY: a prefetch never faults and changes nothing that a program can see.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags)) };
    }
}
