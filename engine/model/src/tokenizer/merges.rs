//! Byte-pair merging: in one piece, the neighbouring pair that was merged earliest in training is merged first.
//!
//! O(n log n) in the piece, whatever it holds: a megabyte of one letter takes no longer than one of prose.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// No token: a byte that the vocabulary cannot write, or the end of a piece.
pub(super) const NONE: u32 = u32::MAX;

/// The merge table.
pub(super) struct Merges {
    byte_tokens: [u32; 256],
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
    /// From the token of each byte ([`NONE`] where there is none).
    pub(super) fn new(byte_tokens: [u32; 256]) -> Self {
        Self { byte_tokens, pairs: Vec::new(), by_pair: HashMap::default() }
    }

    /// Adds the merge of the next rank. The first of two merges of one pair counts.
    pub(super) fn push(&mut self, left: u32, right: u32, merged: u32) {
        let Ok(rank) = u32::try_from(self.pairs.len()) else { return };
        self.pairs.push(Pair { left, right, merged });
        self.by_pair.entry(key(left, right)).or_insert(rank);
    }

    /// The token of one byte, or [`NONE`].
    #[cfg(test)]
    pub(super) fn byte_token(&self, byte: u8) -> u32 {
        self.byte_tokens[usize::from(byte)]
    }

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        if left == NONE || right == NONE { None } else { self.by_pair.get(&key(left, right)).copied() }
    }

    /// Appends the tokens of one piece to `out`. Bytes without a token are left out, and nothing merges across them.
    pub(super) fn encode(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        queue.clear();
        // Positions fit: the tokenizer refuses texts of 4 GiB and more.
        symbols.extend(piece.iter().zip(0u32..).map(|(&byte, at)| Symbol {
            token: self.byte_tokens[usize::from(byte)],
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
        let mut merges = Merges::new(std::array::from_fn(|byte| byte as u32));
        for (token, &(left, right)) in (256..).zip(list) {
            merges.push(left, right, token);
        }
        merges
    }

    fn encode(merges: &Merges, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        merges.encode(text.as_bytes(), &mut Scratch::default(), &mut out);
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
    fn nothing_merges_across_a_byte_without_a_token() {
        let mut byte_tokens: [u32; 256] = std::array::from_fn(|byte| byte as u32);
        byte_tokens[4] = NONE;
        let mut merges = Merges::new(byte_tokens);
        merges.push(A, B, 256);
        assert_eq!(encode(&merges, "a\u{4}bab"), [A, B, 256]);
    }

    #[test]
    fn scratch_left_by_one_piece_does_not_show_in_the_next() {
        let merges = merges(&[(A, B)]);
        let mut scratch = Scratch::default();
        let mut out = Vec::new();
        merges.encode(b"abababab", &mut scratch, &mut out);
        out.clear();
        merges.encode(b"ab", &mut scratch, &mut out);
        assert_eq!(out, [256]);
    }
}
