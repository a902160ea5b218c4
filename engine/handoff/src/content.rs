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

/// Words by which the second lane's constants are shifted against the first's: it gets constants of its own for the
/// price of four words.
const LANE_SHIFT: usize = 4;

/// Secret words for the factors: two for each lane.
const POSITION_WORDS: usize = 4;

/// The constants for slabs of one size. Made once per process.
#[derive(Clone)]
pub struct ContentKey {
    slab_bytes: usize,
    /// Two of 32 bits for each eight bytes of a slab, `a` in the lower half, and [`LANE_SHIFT`] more.
    constants: Vec<u64>,
    /// For the odd factors of layers and pages.
    positions: [u64; POSITION_WORDS],
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
        let words = slab_bytes.div_ceil(8);
        let mut bytes = vec![0; 8 * (POSITION_WORDS + words + LANE_SHIFT)];
        key.content().finalize_xof().fill(&mut bytes);
        let mut secrets = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut positions = [0; POSITION_WORDS];
        positions.fill_with(|| secrets.next().unwrap_or_default());
        Some(Self { slab_bytes, constants: secrets.collect(), positions })
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
        let (words, rest) = slab.as_chunks::<8>();
        let mut sums = products(words, &self.constants);
        // What is missing counts as zeros, whose products are those of the constants.
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for at in words.len()..self.constants.len() - LANE_SHIFT {
            let part = products(&[last], &self.constants[at..]);
            sums = [sums[0].wrapping_add(part[0]), sums[1].wrapping_add(part[1])];
            last = [0; 8];
        }
        let factors = [self.factor(logical, layer, 0), self.factor(logical, layer, 1)];
        ContentDigest([sums[0].wrapping_mul(factors[0]), sums[1].wrapping_mul(factors[1])])
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

/// The sums of both lanes over words that stand at the beginning of `constants`.
///
/// One plain loop over words of 64 bits, whose sums wrap as 32-bit halves would where it matters: this is what compilers
/// make vector instructions of, those that every x86-64 and 64-bit ARM has. Reading memory takes longer then.
fn products(words: &[[u8; 8]], constants: &[u64]) -> [u64; 2] {
    const HALF: u64 = 0xffff_ffff;
    let product = |word: u64, constant: u64| {
        let (a, b) = (word.wrapping_add(constant) & HALF, (word >> 32).wrapping_add(constant >> 32) & HALF);
        a.wrapping_mul(b)
    };
    let mut sums = [0u64; 2];
    for ((word, first), second) in words.iter().zip(constants).zip(&constants[LANE_SHIFT..]) {
        let word = u64::from_le_bytes(*word);
        sums[0] = sums[0].wrapping_add(product(word, *first));
        sums[1] = sums[1].wrapping_add(product(word, *second));
    }
    sums
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
        let words = key.slab_bytes.div_ceil(8);
        let mut padded = slab.to_vec();
        padded.resize(words * 8, 0);
        let mut lanes = [0u64; 2];
        for (lane, sum) in lanes.iter_mut().enumerate() {
            for i in 0..words {
                let part = |at: usize| u32::from_le_bytes(padded[at..at + 4].try_into().unwrap());
                let constant = key.constants[i + lane * LANE_SHIFT];
                let a = part(8 * i).wrapping_add(constant as u32);
                let b = part(8 * i + 4).wrapping_add((constant >> 32) as u32);
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
