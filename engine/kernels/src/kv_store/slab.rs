//! One layer of a page: where its parts lie, how it is read and how a token is appended.

use super::kind::to_bf16;
use super::{HEADER_BYTES, KvKind, PAGE_TOKENS};
use crate::simd::{LANES, Simd};

/// Bytes of an f32 for each token of a page.
const SCALES_BYTES: usize = 4 * PAGE_TOKENS;

/// Where the parts of a slab lie, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabLayout {
    kind: KvKind,
    /// K, or V, of one head, without scales.
    values_bytes: usize,
    /// K, or V, of one head.
    head_bytes: usize,
    slab_bytes: usize,
}

impl SlabLayout {
    /// `None` when a size overflows.
    pub(super) fn new(kind: KvKind, kv_heads: usize, head_dim: usize) -> Option<Self> {
        let values_bytes = head_dim.checked_mul(PAGE_TOKENS)?.checked_mul(kind.value_bytes())?;
        let scales_bytes = if kind == KvKind::Int8 { SCALES_BYTES } else { 0 };
        let head_bytes = values_bytes.checked_add(scales_bytes)?;
        let slab_bytes = head_bytes.checked_mul(kv_heads)?.checked_mul(2)?.checked_add(HEADER_BYTES)?;
        Some(Self { kind, values_bytes, head_bytes, slab_bytes })
    }

    #[inline(always)]
    pub(super) fn slab_bytes(self) -> usize {
        self.slab_bytes
    }

    #[inline(always)]
    fn keys(self, kv_head: usize) -> usize {
        HEADER_BYTES + 2 * kv_head * self.head_bytes
    }

    #[inline(always)]
    fn values(self, kv_head: usize) -> usize {
        self.keys(kv_head) + self.head_bytes
    }
}

/// A slab whose tags were compared.
#[derive(Clone, Copy)]
pub(crate) struct Slab<'a> {
    bytes: &'a [u8],
    layout: &'a SlabLayout,
}

impl<'a> Slab<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], layout: &'a SlabLayout) -> Self {
        Self { bytes, layout }
    }

    /// The in-band tag, as it lies in memory now.
    #[inline(always)]
    pub(crate) fn tag(self) -> u32 {
        u32::from_le_bytes([self.bytes[0], self.bytes[1], self.bytes[2], self.bytes[3]])
    }

    /// `[head_dim][16]`.
    #[inline(always)]
    pub(crate) fn keys(self, kv_head: usize) -> &'a [u8] {
        &self.bytes[self.layout.keys(kv_head)..][..self.layout.values_bytes]
    }

    /// `[16][head_dim]`.
    #[inline(always)]
    pub(crate) fn values(self, kv_head: usize) -> &'a [u8] {
        &self.bytes[self.layout.values(kv_head)..][..self.layout.values_bytes]
    }

    /// K as f32, `[head_dim][16]`, without its scales.
    #[inline(always)]
    pub(crate) fn widen_keys<S: Simd>(self, simd: S, kv_head: usize, to: &mut [[f32; LANES]]) {
        widen(simd, self.layout.kind, self.keys(kv_head), to);
    }

    /// V as f32, `[16][head_dim]`, without its scales.
    #[inline(always)]
    pub(crate) fn widen_values<S: Simd>(self, simd: S, kv_head: usize, to: &mut [[f32; LANES]]) {
        widen(simd, self.layout.kind, self.values(kv_head), to);
    }

    /// What K of each token is to be multiplied with, if it is.
    #[inline(always)]
    pub(crate) fn key_scales(self, kv_head: usize) -> Option<&'a [u8; SCALES_BYTES]> {
        self.scales(self.layout.keys(kv_head))
    }

    /// What V of each token is to be multiplied with, if it is.
    #[inline(always)]
    pub(crate) fn value_scales(self, kv_head: usize) -> Option<&'a [u8; SCALES_BYTES]> {
        self.scales(self.layout.values(kv_head))
    }

    #[inline(always)]
    fn scales(self, start: usize) -> Option<&'a [u8; SCALES_BYTES]> {
        match self.layout.kind {
            KvKind::Int8 => self.bytes[start + self.layout.values_bytes..].first_chunk(),
            KvKind::Bf16 | KvKind::F32 => None,
        }
    }
}

/// Exact, whatever the kind.
#[inline(always)]
fn widen<S: Simd>(simd: S, kind: KvKind, bytes: &[u8], to: &mut [[f32; LANES]]) {
    match kind {
        KvKind::Bf16 => {
            for (to, chunk) in std::iter::zip(to, bytes.as_chunks::<{ 2 * LANES }>().0) {
                simd.store(simd.load_bf16(chunk), to);
            }
        }
        KvKind::F32 => {
            for (to, chunk) in std::iter::zip(to, bytes.as_chunks::<{ 4 * LANES }>().0) {
                simd.store(simd.load_f32_bytes(chunk), to);
            }
        }
        KvKind::Int8 => {
            for (to, chunk) in std::iter::zip(to, bytes.as_chunks::<LANES>().0) {
                simd.store(simd.load_i8(chunk), to);
            }
        }
    }
}

/// A slab whose tags were compared, for writing.
pub(crate) struct SlabMut<'a> {
    bytes: &'a mut [u8],
    layout: SlabLayout,
}

impl<'a> SlabMut<'a> {
    pub(super) fn new(bytes: &'a mut [u8], layout: SlabLayout) -> Self {
        Self { bytes, layout }
    }

    /// Stores K and V of one token and head, `[head_dim]` each.
    #[inline(always)]
    pub(crate) fn append<S: Simd>(&mut self, simd: S, kv_head: usize, slot: usize, keys: &[f32], values: &[f32]) {
        let SlabLayout { kind, values_bytes, .. } = self.layout;
        let (keys_start, values_start) = (self.layout.keys(kv_head), self.layout.values(kv_head));
        let (to_keys, to_values) = self.bytes.split_at_mut(values_start);
        let (to_keys, to_values) = (&mut to_keys[keys_start..], to_values);
        let (to_keys, key_scales) = to_keys.split_at_mut(values_bytes);
        let (to_values, value_scales) = to_values.split_at_mut(values_bytes);
        let to_values = &mut to_values[slot * (values_bytes / PAGE_TOKENS)..][..values_bytes / PAGE_TOKENS];
        match kind {
            KvKind::Bf16 => {
                for (tokens, key) in std::iter::zip(to_keys.as_chunks_mut::<{ 2 * PAGE_TOKENS }>().0, keys) {
                    tokens.as_chunks_mut::<2>().0[slot] = to_bf16(*key);
                }
                for (to, value) in std::iter::zip(to_values.as_chunks_mut::<2>().0, values) {
                    *to = to_bf16(*value);
                }
            }
            KvKind::F32 => {
                for (tokens, key) in std::iter::zip(to_keys.as_chunks_mut::<{ 4 * PAGE_TOKENS }>().0, keys) {
                    tokens.as_chunks_mut::<4>().0[slot] = key.to_le_bytes();
                }
                for (to, value) in std::iter::zip(to_values.as_chunks_mut::<4>().0, values) {
                    *to = value.to_le_bytes();
                }
            }
            KvKind::Int8 => {
                let (inverse, scale) = scale(simd, keys);
                key_scales.as_chunks_mut::<4>().0[slot] = scale.to_le_bytes();
                let chunks = to_keys.as_chunks_mut::<{ LANES * PAGE_TOKENS }>().0;
                for (tokens, keys) in std::iter::zip(chunks, keys.as_chunks::<LANES>().0) {
                    let quants = quants(simd, keys, inverse);
                    for (tokens, quant) in std::iter::zip(tokens.as_chunks_mut::<PAGE_TOKENS>().0, quants) {
                        tokens[slot] = quant;
                    }
                }
                let (inverse, scale) = self::scale(simd, values);
                value_scales.as_chunks_mut::<4>().0[slot] = scale.to_le_bytes();
                for (to, values) in std::iter::zip(to_values.as_chunks_mut::<LANES>().0, values.as_chunks::<LANES>().0)
                {
                    *to = quants(simd, values, inverse);
                }
            }
        }
    }
}

/// What values are divided by, as a factor, and the scale that an `i8` stands for: their largest magnitude / 127. Zeros,
/// or what is too small for a scale, become zeros; what is not finite makes the scale, and so the token, not finite.
#[inline(always)]
fn scale<S: Simd>(simd: S, values: &[f32]) -> (f32, f32) {
    let mut largest = simd.splat(0.0);
    let mut total = simd.splat(0.0);
    for values in values.as_chunks::<LANES>().0 {
        let values = simd.load(values);
        largest = simd.max(simd.abs(values), largest);
        total = simd.fma(values, simd.splat(0.0), total);
    }
    let scale = simd.largest(largest) / 127.0 + simd.sum(total);
    let inverse = if scale > 0.0 && (1.0 / scale).is_finite() { 1.0 / scale } else { 0.0 };
    (inverse, scale)
}

/// 16 `i8`, rounded to nearest, ties to even.
#[inline(always)]
fn quants<S: Simd>(simd: S, values: &[f32; LANES], inverse: f32) -> [u8; LANES] {
    let words = simd.low_bytes(simd.to_i32(simd.mul(simd.load(values), simd.splat(inverse))));
    let mut bytes = [0; LANES];
    for (to, word) in std::iter::zip(bytes.as_chunks_mut::<4>().0, words) {
        *to = word.to_le_bytes();
    }
    bytes
}
