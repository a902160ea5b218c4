//! The digest of pages' bytes: a universal hash with secret constants for every position, in two lanes of 64 bits.
//!
//! A page consists of slabs, one per layer. A slab is hashed as NH does it: of every eight bytes, read as two 32-bit words
//! `lo` and `hi`, the product `(lo + a) * (hi + b)` is summed up, with constants of that position. The sum, times an odd
//! constant of the layer and the logical page, is the slab's digest; a page's digest is the sum over its layers, a layer's
//! total the sum over the pages. So the same bytes at another position, in another layer or in another page of the
//! sequence have another digest, but where they lie in memory does not matter, and the order of summing does not either.
//!
//! Made for faults, not for adversaries who hold the key: two different slabs agree in both lanes with a chance of 2^-64.
//! The tag in the page's header is not covered; it changes with the page's place and has a check of its own.

use crate::key::HandoffKey;
use std::fmt;

/// Two lanes of a digest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ContentDigest(pub [u64; 2]);

impl ContentDigest {
    /// Takes another part's digest in. The order does not matter.
    pub fn add(&mut self, part: Self) {
        for (lane, value) in self.0.iter_mut().zip(part.0) {
            *lane = lane.wrapping_add(value);
        }
    }

    /// The sum of many.
    #[must_use]
    pub fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self::default();
        parts.into_iter().for_each(|part| sum.add(part));
        sum
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentDigest({:016x}.{:016x})", self.0[0], self.0[1])
    }
}

/// Eight bytes at a time, this many times, before the sums are written back.
const BLOCK_WORDS: usize = 8;
/// Words by which the second lane's constants are shifted against the first's: it gets constants of its own for the
/// price of four words.
const LANE_SHIFT: usize = 4;

/// The constants for slabs of one size. Made once per process.
#[derive(Clone)]
pub struct ContentKey {
    slab_bytes: usize,
    /// 32-bit constants, two for each eight bytes of a slab and `2 * LANE_SHIFT` more.
    constants: Vec<u32>,
    /// For the odd factors of layers and pages.
    positions: [u64; 4],
}

impl ContentKey {
    /// For slabs of `slab_bytes`, 0 < `slab_bytes` <= [`ContentKey::SLAB_BYTES_MAX`].
    ///
    /// `None` for another size.
    #[must_use]
    pub fn new(key: &HandoffKey, slab_bytes: usize) -> Option<Self> {
        if slab_bytes == 0 || slab_bytes > Self::SLAB_BYTES_MAX {
            return None;
        }
        let words = slab_bytes.div_ceil(8).next_multiple_of(BLOCK_WORDS);
        let mut bytes = vec![0; 32 + 4 * (2 * words + 2 * LANE_SHIFT)];
        key.content().finalize_xof().fill(&mut bytes);
        let (positions, constants) = bytes.split_at(32);
        let mut key = Self { slab_bytes, constants: Vec::with_capacity(constants.len() / 4), positions: [0; 4] };
        for (position, bytes) in key.positions.iter_mut().zip(positions.as_chunks::<8>().0) {
            *position = u64::from_le_bytes(*bytes);
        }
        key.constants.extend(constants.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
        Some(key)
    }

    /// A slab of 16 tokens with 128 KV heads of 256 numbers in 32 bits has 8 MiB.
    pub const SLAB_BYTES_MAX: usize = 8 << 20;

    /// The digest of one slab: the bytes of `layer` in the sequence's page number `logical`.
    ///
    /// A slab that is shorter than the key's size counts as if it were filled up with zeros; what is beyond it is not
    /// looked at, so a caller whose slabs are longer has the wrong key.
    #[must_use]
    pub fn slab(&self, logical: u32, layer: u32, slab: &[u8]) -> ContentDigest {
        let slab = &slab[..slab.len().min(self.slab_bytes)];
        let (blocks, rest) = slab.as_chunks::<{ 8 * BLOCK_WORDS }>();
        let mut sums = [0u64; 2];
        let mut at = 0;
        for block in blocks {
            sums = self.block(sums, at, block);
            at += 2 * BLOCK_WORDS;
        }
        // Zeros count too: their products are those of the constants.
        let mut last = [0; 8 * BLOCK_WORDS];
        last[..rest.len()].copy_from_slice(rest);
        while at + 2 * LANE_SHIFT < self.constants.len() {
            sums = self.block(sums, at, &last);
            last = [0; 8 * BLOCK_WORDS];
            at += 2 * BLOCK_WORDS;
        }
        let factors = [self.factor(logical, layer, 0), self.factor(logical, layer, 1)];
        ContentDigest([sums[0].wrapping_mul(factors[0]), sums[1].wrapping_mul(factors[1])])
    }

    #[inline]
    fn block(&self, mut sums: [u64; 2], at: usize, block: &[u8; 8 * BLOCK_WORDS]) -> [u64; 2] {
        let Some(constants) = self.constants[at..].first_chunk::<{ 2 * (BLOCK_WORDS + LANE_SHIFT) }>() else {
            return sums;
        };
        let (words, _) = block.as_chunks::<8>();
        for (i, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            let (lo, hi) = (word as u32, (word >> 32) as u32);
            for (lane, sum) in sums.iter_mut().enumerate() {
                let at = 2 * (i + lane * LANE_SHIFT);
                let a = lo.wrapping_add(constants[at]);
                let b = hi.wrapping_add(constants[at + 1]);
                *sum = sum.wrapping_add(u64::from(a) * u64::from(b));
            }
        }
        sums
    }

    /// Odd, so that multiplying by it loses nothing.
    fn factor(&self, logical: u32, layer: u32, lane: usize) -> u64 {
        let position = u64::from(logical) << 32 | u64::from(layer);
        let mut mixed = (position ^ self.positions[2 * lane]).wrapping_mul(self.positions[2 * lane + 1] | 1);
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ mixed >> 32) | 1
    }
}

impl fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentKey(slabs of {} bytes)", self.slab_bytes)
    }
}

/// Digests of all pages of one handoff while they are written or read, slab by slab, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentTotals {
    /// One for each logical page.
    pub pages: Vec<ContentDigest>,
    /// One for each layer.
    pub layers: Vec<ContentDigest>,
}

impl ContentTotals {
    /// For `pages` pages of `layers` layers, nothing taken in yet.
    #[must_use]
    pub fn new(pages: usize, layers: usize) -> Self {
        Self { pages: vec![ContentDigest::default(); pages], layers: vec![ContentDigest::default(); layers] }
    }

    /// Takes in one slab; each is to be taken in once. `false`, and nothing changes, when there is no such page or layer.
    pub fn add(&mut self, logical: u32, layer: u32, slab: ContentDigest) -> bool {
        match (self.pages.get_mut(logical as usize), self.layers.get_mut(layer as usize)) {
            (Some(page), Some(total)) => {
                page.add(slab);
                total.add(slab);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(slab_bytes: usize) -> ContentKey {
        ContentKey::new(&HandoffKey::new([3; 32]), slab_bytes).unwrap()
    }

    /// The definition, word by word.
    fn naive(key: &ContentKey, logical: u32, layer: u32, slab: &[u8]) -> ContentDigest {
        let words = key.slab_bytes.div_ceil(8).next_multiple_of(BLOCK_WORDS);
        let mut padded = slab.to_vec();
        padded.resize(words * 8, 0);
        let mut lanes = [0u64; 2];
        for (lane, sum) in lanes.iter_mut().enumerate() {
            for i in 0..words {
                let part = |at: usize| u32::from_le_bytes(padded[at..at + 4].try_into().unwrap());
                let a = part(8 * i).wrapping_add(key.constants[2 * (i + lane * LANE_SHIFT)]);
                let b = part(8 * i + 4).wrapping_add(key.constants[2 * (i + lane * LANE_SHIFT) + 1]);
                *sum = sum.wrapping_add(u64::from(a) * u64::from(b));
            }
            *sum = sum.wrapping_mul(key.factor(logical, layer, lane));
        }
        ContentDigest(lanes)
    }

    proptest! {
        #[test]
        fn the_digest_is_its_definition(bytes in proptest::collection::vec(any::<u8>(), 0..700), spare in 0usize..90,
                                        logical in 0u32..1000, layer in 0u32..100) {
            let key = key((bytes.len() + spare).max(1));
            prop_assert_eq!(key.slab(logical, layer, &bytes), naive(&key, logical, layer, &bytes));
        }

        #[test]
        fn a_flipped_bit_changes_both_lanes(bytes in proptest::collection::vec(any::<u8>(), 1..300), at in any::<prop::sample::Index>(),
                                            bit in 0u32..8) {
            let key = key(bytes.len());
            let before = key.slab(1, 2, &bytes);
            let mut changed = bytes;
            let at = at.index(changed.len());
            changed[at] ^= 1 << bit;
            let after = key.slab(1, 2, &changed);
            prop_assert!(before.0[0] != after.0[0] && before.0[1] != after.0[1]);
        }
    }

    #[test]
    fn place_in_the_sequence_counts_and_place_in_memory_does_not() {
        let key = key(256);
        let (a, b) = (vec![1u8; 256], vec![2u8; 256]);
        let copy = [vec![9], a.clone()].concat();
        assert_eq!(key.slab(3, 4, &a), key.slab(3, 4, &copy[1..]));
        assert_ne!(key.slab(3, 4, &a), key.slab(4, 4, &a));
        assert_ne!(key.slab(3, 4, &a), key.slab(3, 5, &a));
        // Two pages or two layers that changed places are seen in the sums.
        let pair = |x: &[u8], y: &[u8]| ContentDigest::sum([key.slab(0, 0, x), key.slab(0, 1, y)]);
        assert_ne!(pair(&a, &b), pair(&b, &a));
        let mut swapped = a.clone();
        swapped[..8].copy_from_slice(&[5; 8]);
        let mut other = a;
        other[8..16].copy_from_slice(&[5; 8]);
        assert_ne!(key.slab(0, 0, &swapped), key.slab(0, 0, &other), "words that changed places within a slab");
    }

    #[test]
    fn all_zeros_have_a_digest_of_their_own_in_every_position() {
        let key = key(64);
        assert_ne!(key.slab(0, 0, &[0; 64]), ContentDigest::default());
        assert_ne!(key.slab(0, 0, &[0; 64]), key.slab(1, 0, &[0; 64]));
        assert_ne!(
            key.slab(0, 0, &[0; 64]),
            ContentKey::new(&HandoffKey::new([4; 32]), 64).unwrap().slab(0, 0, &[0; 64])
        );
    }

    #[test]
    fn totals_take_each_slab_into_its_page_and_its_layer() {
        let key = key(128);
        let slab = |page: u32, layer: u32| key.slab(page, layer, &[(10 * page + layer) as u8; 128]);
        let mut totals = ContentTotals::new(2, 3);
        for layer in (0..3).rev() {
            for page in 0..2 {
                assert!(totals.add(page, layer, slab(page, layer)));
            }
        }
        assert_eq!(totals.pages[1], ContentDigest::sum((0..3).map(|layer| slab(1, layer))));
        assert_eq!(totals.layers[2], ContentDigest::sum((0..2).map(|page| slab(page, 2))));
        let before = totals.clone();
        assert!(!totals.add(2, 0, slab(0, 0)) && !totals.add(0, 3, slab(0, 0)));
        assert_eq!(totals, before);
    }

    #[test]
    fn sizes_of_no_slab_are_refused() {
        let key = HandoffKey::new([0; 32]);
        assert!(ContentKey::new(&key, 0).is_none() && ContentKey::new(&key, ContentKey::SLAB_BYTES_MAX + 1).is_none());
    }
}
