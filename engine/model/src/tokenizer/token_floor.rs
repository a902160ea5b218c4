//! How many tokens a text has at least, told from its bytes in a time that is nothing beside merging them.
//!
//! Merging finds out only at its end how many tokens are left. A text that cannot fit any context is refused before it.

use super::merges::NONE;
use super::vocabulary::{TokenType, Vocabulary};

/// Fixed-point one: shares of a token are added up without rounding up.
const ONE: u64 = 1 << 32;

/// What each byte of a text counts at least, in shares of a token.
pub(super) struct TokenFloor {
    /// One by the longest token that holds the byte; 0 for a byte that no token writes, which is left out of a text.
    share: [u64; 256],
    /// One by the longest token that holds nothing else.
    share_in_run: [u64; 256],
    longest_bytes: usize,
}

impl TokenFloor {
    /// Of everything that merging can make.
    pub(super) fn new(vocabulary: &Vocabulary) -> Self {
        let mut longest = [0usize; 256];
        let mut longest_run = [0usize; 256];
        let mut is_written = vocabulary.byte_tokens.map(|token| token != NONE);
        let starts = std::iter::once(&0).chain(&vocabulary.ends);
        for ((&start, &end), kind) in starts.zip(&vocabulary.ends).zip(&vocabulary.types) {
            let token = vocabulary.bytes.get(start..end).unwrap_or_default();
            if !matches!(kind, TokenType::Normal | TokenType::Byte) {
                continue;
            }
            let is_run = token.windows(2).all(|pair| pair[0] == pair[1]);
            for &byte in token {
                let byte = usize::from(byte);
                longest[byte] = longest[byte].max(token.len());
                if is_run {
                    longest_run[byte] = longest_run[byte].max(token.len());
                }
            }
            if let [byte] = token {
                is_written[usize::from(*byte)] = true;
            }
        }
        let share = |longest: [usize; 256]| {
            let of = |byte: usize| if is_written[byte] { ONE / longest[byte].max(1) as u64 } else { 0 };
            std::array::from_fn(of)
        };
        let longest_bytes = longest.into_iter().max().unwrap_or(0);
        Self { share: share(longest), share_in_run: share(longest_run), longest_bytes }
    }

    /// Tokens that merging leaves of `text`, at least.
    ///
    /// A token's bytes have shares of one at most together, so that all shares together are not more than the tokens. Of
    /// a long run of one byte, the tokens that lie inside the run altogether hold nothing else; the two at its ends are
    /// taken off, and so no token is counted twice.
    pub(super) fn tokens_min(&self, text: &str) -> usize {
        let of_run = |run: &[u8]| {
            let byte = run.first().map_or(0, |byte| usize::from(*byte));
            let inside = run.len().saturating_sub(2 * self.longest_bytes) as u64;
            (run.len() as u64 * self.share[byte]).max(inside * self.share_in_run[byte])
        };
        let shares: u64 = text.as_bytes().chunk_by(|a, b| a == b).map(of_run).sum();
        usize::try_from(shares / ONE).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocabulary::Alphabet;
    use super::*;

    fn floor(tokens: &[&str]) -> TokenFloor {
        let mut vocabulary = Vocabulary::new(Alphabet::Bytes);
        for text in tokens {
            vocabulary.push(text, TokenType::Normal).unwrap();
        }
        vocabulary.push(&"a".repeat(99), TokenType::Control).unwrap();
        TokenFloor::new(&vocabulary)
    }

    #[test]
    fn every_byte_counts_as_in_the_longest_token_that_holds_it() {
        let floor = floor(&["a", "b", "c", "ab", "abaa"]);
        for (text, wanted) in
            [("", 0), ("c", 1), ("ccccc", 5), ("abaaabaa", 2), ("abaac", 2), ("aba", 0), ("abcabc", 3)]
        {
            assert_eq!(floor.tokens_min(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_byte_that_no_token_writes_counts_nothing() {
        assert_eq!(floor(&["a"]).tokens_min("aaxxxx\u{e9}"), 2);
    }

    #[test]
    fn inside_a_run_only_tokens_of_the_run_count() {
        // By the longest tokens that hold an `a` there would be at least 100.
        let floor = floor(&["a", "aa", "b", "baaaaaaaaa"]);
        assert_eq!(floor.tokens_min(&"a".repeat(1_000)), 490);
        assert_eq!(floor.tokens_min(&"a".repeat(21)), 2);
    }
}
