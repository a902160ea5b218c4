//! What an answer was sampled from, as one digest: whoever computes the answer again compares one number, not its logits.

use std::fmt;

/// Bytes that are hashed at a time: as many as the hash takes side by side.
const BYTES_AT_ONCE: usize = 1 << 16;
/// What the digest is of, for nothing else to have it.
const CONTEXT: &str = "bulkhead replay digest v1";

/// A chain over the tokens of an answer. Each link is BLAKE3 (in key derivation mode, [`CONTEXT`]) over the link before it,
/// the token (u32, little-endian) and the logits that the sampler took it from, after penalties (f32 each, little-endian).
/// It begins with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReplayDigest([u8; 32]);

impl fmt::Debug for ReplayDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not salted: with it one could confirm a guess of the answer.
        f.write_str("ReplayDigest(..)")
    }
}

impl ReplayDigest {
    /// Where another sampler stood.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(self) -> [u8; 32] {
        self.0
    }

    /// The next token. `buffer` is memory for a moment.
    pub(crate) fn push(&mut self, logits: &[f32], token: u32, buffer: &mut Vec<u8>) {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&self.0);
        hasher.update(&token.to_le_bytes());
        for logits in logits.chunks(BYTES_AT_ONCE / 4) {
            buffer.clear();
            buffer.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
            hasher.update(buffer);
        }
        self.0 = *hasher.finalize().as_bytes();
    }
}

/// What the engine says of an answer that may be computed again: its tokens, and the digest of what they were sampled from.
/// Its `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct AnswerRecord {
    pub(crate) tokens: Vec<u32>,
    pub(crate) digest: [u8; 32],
}

impl AnswerRecord {
    /// The replay digest.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Tokens of the answer, the one that ended it included.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }
}

impl fmt::Debug for AnswerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerRecord({} tokens)", self.tokens.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_every_bit_every_token_and_their_order() {
        let rows: Vec<Vec<f32>> =
            (0..3).map(|row| (0..40_000).map(|token| (row * 7 + token) as f32 * 0.25).collect()).collect();
        let of = |rows: &[Vec<f32>], tokens: [u32; 3]| {
            let (mut digest, mut buffer) = (ReplayDigest::default(), Vec::new());
            std::iter::zip(rows, tokens).for_each(|(row, token)| digest.push(row, token, &mut buffer));
            digest
        };
        let whole = of(&rows, [1, 2, 3]);
        assert_eq!(of(&rows, [1, 2, 3]), whole);
        assert_ne!(of(&rows, [1, 2, 4]), whole);
        assert_ne!(of(&rows[..2], [1, 2, 3]), whole);
        let mut swapped = rows.clone();
        swapped.swap(0, 1);
        assert_ne!(of(&swapped, [1, 2, 3]), whole);
        for (row, place) in [(0, 0), (1, 16_384), (2, 39_999)] {
            let mut changed = rows.clone();
            changed[row][place] = f32::from_bits(changed[row][place].to_bits() ^ 1);
            assert_ne!(of(&changed, [1, 2, 3]), whole, "row {row}, place {place}");
        }
        // The two zeros are equal as numbers, and not the same bits.
        let mut negative = rows.clone();
        negative[0][0] = -0.0;
        assert_ne!(of(&negative, [1, 2, 3]), whole);
    }

    #[test]
    fn the_digest_is_the_one_that_is_written_down() {
        let mut digest = ReplayDigest::default();
        digest.push(&[1.0, -2.5], 7, &mut Vec::new());
        let content = [&[0; 32][..], &7u32.to_le_bytes(), &1.0f32.to_le_bytes(), &(-2.5f32).to_le_bytes()].concat();
        assert_eq!(digest.bytes(), blake3::derive_key("bulkhead replay digest v1", &content));
        assert_eq!(format!("{digest:?}"), "ReplayDigest(..)");
    }
}
