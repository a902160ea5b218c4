//! Byte-pair merging: in one piece, the neighbouring pair that was merged earliest in training is merged first.
//!
//! O(n log n) in the piece, whatever it holds: a megabyte of one letter takes no longer than one of prose.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::LoadTokenizerError;
use super::vocabulary::Vocabulary;

/// No token: a byte that the vocabulary cannot write, or the end of a piece.
pub(super) const NONE: u32 = u32::MAX;

/// The merge table.
#[derive(Default)]
pub(super) struct Merges {
    /// By rank.
    pairs: Vec<Pair>,
    by_pair: HashMap<u64, u32, BuildHasherDefault<PairHasher>>,
}

#[derive(Clone, Copy)]
struct Pair {
    left: u32,
    right: u32,
    merged: u32,
}

impl Merges {
    /// Adds the merge of the next rank. The first of two merges of one pair counts.
    pub(super) fn push(&mut self, left: u32, right: u32, merged: u32) {
        let Ok(rank) = u32::try_from(self.pairs.len()) else { return };
        self.pairs.push(Pair { left, right, merged });
        self.by_pair.entry(key(left, right)).or_insert(rank);
    }

    /// The table in one form, for a digest of it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let pairs = self.pairs.iter().flat_map(|pair| [pair.left, pair.right, pair.merged]);
        pairs.flat_map(u32::to_be_bytes).collect()
    }

    /// Adds the merge of rank `merge` by the texts of its two sides.
    pub(super) fn push_text(
        &mut self,
        vocabulary: &Vocabulary,
        merge: usize,
        sides: Option<(&str, &str)>,
    ) -> Result<(), LoadTokenizerError> {
        let tokens = sides.and_then(|(left, right)| {
            let merged = [vocabulary.bytes_of(left)?, vocabulary.bytes_of(right)?].concat();
            let merged = vocabulary.normal.get(&merged).copied()?;
            Some((vocabulary.normal_token(left)?, vocabulary.normal_token(right)?, merged))
        });
        let (left, right, merged) = tokens.ok_or(LoadTokenizerError::Merge { merge })?;
        self.push(left, right, merged);
        Ok(())
    }

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        if left == NONE || right == NONE { None } else { self.by_pair.get(&key(left, right)).copied() }
    }

    /// Merges the tokens of one piece's smallest parts and appends the result to `out`. [`NONE`] stands for a part
    /// without a token: it is left out, and nothing merges across it.
    pub(super) fn encode(&self, parts: impl Iterator<Item = u32>, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        queue.clear();
        // Positions fit: the tokenizer refuses texts of 4 GiB and more.
        symbols.extend(parts.zip(0u32..).map(|(token, at)| Symbol {
            token,
            previous: at.checked_sub(1).unwrap_or(NONE),
            next: at + 1,
        }));
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        for (at, pair) in (0u32..).zip(symbols.windows(2)) {
            if let Some(rank) = self.rank(pair[0].token, pair[1].token) {
                queue.push(Reverse((rank, at)));
            }
        }

        while let Some(Reverse((rank, at))) = queue.pop() {
            let left = symbols[at as usize];
            if left.next == NONE {
                continue;
            }
            let right = symbols[left.next as usize];
            let pair = self.pairs[rank as usize];
            // An entry is stale when one of its two symbols has been merged meanwhile.
            if (left.token, right.token) != (pair.left, pair.right) {
                continue;
            }
            symbols[left.next as usize].token = NONE;
            symbols[left.next as usize].next = NONE;
            symbols[at as usize] = Symbol { token: pair.merged, next: right.next, ..left };
            if right.next != NONE {
                symbols[right.next as usize].previous = at;
                if let Some(rank) = self.rank(pair.merged, symbols[right.next as usize].token) {
                    queue.push(Reverse((rank, at)));
                }
            }
            if left.previous != NONE
                && let Some(rank) = self.rank(symbols[left.previous as usize].token, pair.merged)
            {
                queue.push(Reverse((rank, left.previous)));
            }
        }
        out.extend(symbols.iter().map(|symbol| symbol.token).filter(|&token| token != NONE));
    }
}

/// Memory that is used again for the next piece.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, u32)>>,
}

/// A part of the piece; linked, because merging removes from the middle.
#[derive(Clone, Copy)]
struct Symbol {
    token: u32,
    previous: u32,
    next: u32,
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Multiplies and folds. Keys come from the model file, never from a request, so nobody can aim for collisions.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0-255 are the bytes; merges make 256 and up.
    fn merges(list: &[(u32, u32)]) -> Merges {
        let mut merges = Merges::default();
        for (token, &(left, right)) in (256..).zip(list) {
            merges.push(left, right, token);
        }
        merges
    }

    fn encode(merges: &Merges, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        merges.encode(text.bytes().map(u32::from), &mut Scratch::default(), &mut out);
        out
    }

    const A: u32 = b'a' as u32;
    const B: u32 = b'b' as u32;

    #[test]
    fn the_earliest_merge_goes_first_and_from_the_left() {
        let merges = merges(&[(A, B), (B, B), (256, 257)]);
        assert_eq!(encode(&merges, "abbb"), [258]);
        assert_eq!(encode(&merges, "bbb"), [257, B]);
        assert!(encode(&merges, "").is_empty());
    }

    #[test]
    fn a_merged_symbol_does_not_take_part_in_an_older_pair() {
        let merges = merges(&[(A, A), (A, B)]);
        assert_eq!(encode(&merges, "aab"), [256, B]);
        assert_eq!(encode(&merges, "aaab"), [256, 257]);
    }

    #[test]
    fn nothing_merges_across_a_part_without_a_token() {
        let mut out = Vec::new();
        let parts = [A, NONE, B, A, B];
        merges(&[(A, B)]).encode(parts.into_iter(), &mut Scratch::default(), &mut out);
        assert_eq!(out, [A, B, 256]);
    }

    #[test]
    fn scratch_left_by_one_piece_does_not_show_in_the_next() {
        let merges = merges(&[(A, B)]);
        let mut scratch = Scratch::default();
        let mut out = Vec::new();
        merges.encode("abababab".bytes().map(u32::from), &mut scratch, &mut out);
        out.clear();
        merges.encode("ab".bytes().map(u32::from), &mut scratch, &mut out);
        assert_eq!(out, [256]);
    }
}
