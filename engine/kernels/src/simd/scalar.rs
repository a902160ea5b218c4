//! The definition of every operation, and the fallback on machines without a faster family.

use half::f16;

use super::{Kernel, LANES, Simd};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

#[inline(always)]
fn map<A: Copy, B: Copy, C>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> C) -> [C; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Simd for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 4 * LANES];

    const TOKENS_MAX: usize = 1;
    const QUERIES_MAX: usize = 1;
    const SUMS_MAX: usize = 4;

    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8; 4 * LANES]) -> Self::F {
        std::array::from_fn(|lane| f32::from_le_bytes(std::array::from_fn(|byte| from[4 * lane + byte])))
    }
    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        *to = value;
    }
    #[inline(always)]
    fn load_f16(self, from: &[u8; 2 * LANES]) -> Self::F {
        std::array::from_fn(|lane| f16::from_le_bytes([from[2 * lane], from[2 * lane + 1]]).to_f32())
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u8; 2 * LANES]) -> Self::F {
        std::array::from_fn(|lane| f32::from_le_bytes([0, 0, from[2 * lane], from[2 * lane + 1]]))
    }
    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        from.map(f32::from)
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::F {
        from.map(|byte| f32::from(byte as i8))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2_integral(self, n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|lane| if lane < count { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        let mut a = a;
        for distance in [8, 4, 2, 1] {
            for lane in 0..distance {
                a[lane] += a[lane + distance];
            }
        }
        a[0]
    }
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        let mut a = a;
        for distance in [8, 4, 2, 1] {
            for lane in 0..distance {
                a[lane] = if a[lane] > a[lane + distance] { a[lane] } else { a[lane + distance] };
            }
        }
        a[0]
    }

    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I {
        [value; LANES]
    }
    #[inline(always)]
    fn to_i32(self, a: Self::F) -> Self::I {
        let bound = -(i32::MIN as f32);
        a.map(|lane| if lane >= -bound && lane < bound { lane.round_ties_even() as i32 } else { i32::MIN })
    }
    #[inline(always)]
    fn to_f32(self, a: Self::I) -> Self::F {
        a.map(|lane| lane as f32)
    }
    #[inline(always)]
    fn low_bytes(self, a: Self::I) -> [i32; LANES / 4] {
        std::array::from_fn(|quad| i32::from_le_bytes(std::array::from_fn(|byte| a[4 * quad + byte] as u8)))
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sum_i32(self, a: Self::I) -> i32 {
        a.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::B {
        *from
    }
    #[inline(always)]
    fn store_bytes(self, value: Self::B, to: &mut [u8; 4 * LANES]) {
        *to = value;
    }
    #[inline(always)]
    fn low_nibbles(self, a: Self::B) -> Self::B {
        a.map(|byte| byte & 15)
    }
    #[inline(always)]
    fn high_nibbles(self, a: Self::B) -> Self::B {
        a.map(|byte| byte >> 4)
    }
    #[inline(always)]
    fn with_bits(self, a: Self::B, plane: Self::B, right: i32, mask: u8) -> Self::B {
        let shifted = |byte: u8| if right < 0 { byte << -right } else { byte >> right };
        std::array::from_fn(|byte| a[byte] | shifted(plane[byte]) & mask)
    }
    #[inline(always)]
    fn sum_i8(self, quads: [i32; 4]) -> i32 {
        quads.iter().flat_map(|quad| quad.to_le_bytes()).map(|byte| i32::from(byte as i8)).sum()
    }
    #[inline(always)]
    fn dot_unsigned(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        let b = b.to_le_bytes().map(|byte| i32::from(byte as i8));
        std::array::from_fn(|lane| {
            (0..4).fold(sum[lane], |sum, byte| sum.wrapping_add(i32::from(a[4 * lane + byte]) * b[byte]))
        })
    }
    #[inline(always)]
    fn dot_offset_start(self, _correction: i32) -> Self::I {
        [0; LANES]
    }
    #[inline(always)]
    fn dot_offset(self, sum: Self::I, a: Self::B, b: i32) -> Self::I {
        let b = b.to_le_bytes().map(|byte| i32::from(byte as i8));
        std::array::from_fn(|lane| {
            (0..4).fold(sum[lane], |sum, byte| sum.wrapping_add((i32::from(a[4 * lane + byte]) - 128) * b[byte]))
        })
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}
    #[inline(always)]
    fn prefetch_l2(self, _address: *const u8) {}
}
