//! SentencePiece's BPE as GGUF files carry it: characters are merged into the token with the best score.
//!
//! O(n log n) in the text, whatever it holds. Text is compared as it is read, with plain spaces: the vocabulary's
//! U+2581 was turned into a space when it was loaded.
//! Source: the BPE model of SentencePiece, as llama.cpp computes it for `tokenizer.ggml.model` = `llama`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::merges::NONE;

/// A vocabulary with scores.
pub(super) struct ScoredTokens {
    by_text: HashMap<Vec<u8>, u32>,
    /// Of every token; larger is merged first.
    scores: Vec<f32>,
    byte_tokens: [u32; 256],
    longest_bytes: usize,
}

impl ScoredTokens {
    /// From what merging can make, the scores of all tokens and the tokens of single bytes ([`NONE`] where there is
    /// none).
    pub(super) fn new(by_text: HashMap<Vec<u8>, u32>, scores: Vec<f32>, byte_tokens: [u32; 256]) -> Self {
        let longest_bytes = by_text.keys().map(Vec::len).max().unwrap_or(0);
        Self { by_text, scores, byte_tokens, longest_bytes }
    }

    /// All scores in one form, for a digest of them.
    pub(super) fn score_bytes(&self) -> Vec<u8> {
        self.scores.iter().flat_map(|score| score.to_bits().to_be_bytes()).collect()
    }

    /// The token of one byte, or [`NONE`].
    pub(super) fn byte_token(&self, byte: u8) -> u32 {
        self.byte_tokens[usize::from(byte)]
    }

    /// Appends the tokens of `text` to `out`. A character without a token is written byte by byte; bytes without a
    /// token are left out.
    pub(super) fn encode(&self, text: &str, scratch: &mut ScoreScratch, out: &mut Vec<u32>) {
        let ScoreScratch { symbols, queue } = scratch;
        symbols.clear();
        queue.clear();
        // Offsets fit: the tokenizer refuses texts of 4 GiB and more.
        symbols.extend(text.char_indices().zip(0u32..).map(|((start, character), at)| Symbol {
            start: start as u32,
            bytes: character.len_utf8() as u32,
            token: NONE,
            previous: at.checked_sub(1).unwrap_or(NONE),
            next: at + 1,
        }));
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        for (left, pair) in (0u32..).zip(symbols.windows(2)) {
            queue.extend(self.merge(text, left, pair[0], pair[1]));
        }

        while let Some(Merge { left: Reverse(at), bytes, token, .. }) = queue.pop() {
            let left = symbols[at as usize];
            if left.next == NONE {
                continue;
            }
            let right = symbols[left.next as usize];
            // An entry is stale when one of its two symbols has been merged meanwhile; symbols only grow.
            if left.bytes == 0 || left.bytes + right.bytes != bytes {
                continue;
            }
            symbols[left.next as usize] = Symbol { bytes: 0, token: NONE, next: NONE, ..right };
            let merged = Symbol { bytes, token, next: right.next, ..left };
            symbols[at as usize] = merged;
            if merged.next != NONE {
                symbols[merged.next as usize].previous = at;
                queue.extend(self.merge(text, at, merged, symbols[merged.next as usize]));
            }
            if merged.previous != NONE {
                queue.extend(self.merge(text, merged.previous, symbols[merged.previous as usize], merged));
            }
        }

        for symbol in symbols.iter().filter(|symbol| symbol.bytes > 0) {
            let bytes = symbol.of(text);
            let token = if symbol.token == NONE { self.by_text.get(bytes).copied() } else { Some(symbol.token) };
            match token {
                Some(token) => out.push(token),
                None => out.extend(
                    bytes.iter().map(|&byte| self.byte_tokens[usize::from(byte)]).filter(|&token| token != NONE),
                ),
            }
        }
    }

    fn merge(&self, text: &str, at: u32, left: Symbol, right: Symbol) -> Option<Merge> {
        let bytes = left.bytes + right.bytes;
        // Longer than every token: not worth hashing, and hashing it would not be linear.
        if bytes as usize > self.longest_bytes {
            return None;
        }
        let &token = self.by_text.get(Symbol { bytes, ..left }.of(text))?;
        let score = self.scores.get(token as usize).copied().unwrap_or(0.0);
        Some(Merge { score: ordered(score), left: Reverse(at), bytes, token })
    }
}

/// A float's bits as an integer of the same order; both zeros are one. The scores hold no NaN.
fn ordered(score: f32) -> i32 {
    let bits = (score + 0.0).to_bits().cast_signed();
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}

/// Memory that is used again for the next text.
#[derive(Default)]
pub(super) struct ScoreScratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Merge>,
}

/// A part of the text; linked, because merging removes from the middle.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    /// 0 when it was merged into another.
    bytes: u32,
    /// [`NONE`] before its first merge.
    token: u32,
    previous: u32,
    next: u32,
}

impl Symbol {
    fn of(self, text: &str) -> &[u8] {
        let start = self.start as usize;
        text.as_bytes().get(start..start + self.bytes as usize).unwrap_or_default()
    }
}

/// Two neighbours that make a token. The best score comes first, of equal ones the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Merge {
    score: i32,
    left: Reverse<u32>,
    bytes: u32,
    token: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens in order, with their scores; no bytes.
    fn tokens(list: &[(&str, f32)]) -> ScoredTokens {
        let by_text = list.iter().zip(0..).map(|(&(text, _), token)| (text.as_bytes().to_vec(), token)).collect();
        ScoredTokens::new(by_text, list.iter().map(|&(_, score)| score).collect(), [NONE; 256])
    }

    fn encode(tokens: &ScoredTokens, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        tokens.encode(text, &mut ScoreScratch::default(), &mut out);
        out
    }

    #[test]
    fn the_best_score_goes_first_and_of_equals_the_leftmost() {
        let tokens = tokens(&[("a", 0.0), ("b", 0.0), ("ab", -2.0), ("ba", -1.0), ("aa", -3.0)]);
        assert_eq!(encode(&tokens, "abab"), [0, 3, 1]);
        assert_eq!(encode(&tokens, "aaa"), [4, 0]);
        assert!(encode(&tokens, "").is_empty());
    }

    #[test]
    fn a_merge_needs_no_tokens_for_its_parts() {
        assert_eq!(encode(&tokens(&[("xy", -1.0), ("xyz", -2.0)]), "xyzxy"), [1, 0]);
    }

    #[test]
    fn a_character_without_a_token_is_its_bytes_as_far_as_there_are_any() {
        let mut byte_tokens = [NONE; 256];
        byte_tokens[0xc3] = 7;
        let tokens = ScoredTokens::new(HashMap::from([(b"a".to_vec(), 0)]), vec![0.0], byte_tokens);
        assert_eq!(encode(&tokens, "aéa"), [0, 7, 0]);
    }

    #[test]
    fn scores_are_ordered_as_floats_are() {
        let scores = [f32::NEG_INFINITY, -3.5, -1.0, -1e-40, 0.0, 1e-40, 2.0, f32::INFINITY];
        assert!(scores.is_sorted_by_key(|&score| ordered(score)) && ordered(-0.0) == ordered(0.0));
        assert!(scores.windows(2).all(|pair| ordered(pair[0]) < ordered(pair[1])));
    }

    #[test]
    fn scratch_left_by_one_text_does_not_show_in_the_next() {
        let tokens = tokens(&[("a", 0.0), ("b", 0.0), ("ab", -1.0)]);
        let (mut scratch, mut out) = (ScoreScratch::default(), Vec::new());
        tokens.encode("abababab", &mut scratch, &mut out);
        out.clear();
        tokens.encode("ab", &mut scratch, &mut out);
        assert_eq!(out, [2]);
    }
}
