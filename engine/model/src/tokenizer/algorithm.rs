//! From a stretch of ordinary text to tokens, in one of the three ways that vocabularies are made for.

use std::borrow::Cow;
use std::collections::HashMap;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::TokenizeError;
use super::merges::{Merges, NONE, Scratch};
use super::sentence_piece::{ScoreScratch, ScoredTokens};
use super::split::Split;
use super::token_floor::TokenFloor;

/// SentencePiece's space.
const SPACE_MARK: char = '\u{2581}';

/// The way.
pub(super) enum Algorithm {
    /// Pieces of text, whose bytes are merged by rank.
    ByteLevel {
        /// Text is composed first (Unicode's form C).
        is_nfc: bool,
        split: Split,
        byte_tokens: [u32; 256],
        merges: Merges,
        /// Pieces that are tokens as a whole; empty unless the vocabulary asks for it.
        whole_pieces: HashMap<Vec<u8>, u32>,
    },
    /// Characters, merged by the score of the result.
    Scores { tokens: ScoredTokens, prefix: Prefix },
    /// Characters, merged by rank; a character without a token is written byte by byte.
    Characters { characters: HashMap<char, u32>, byte_tokens: [u32; 256], merges: Merges, prefix: Prefix },
}

/// Whether a space is put before a stretch of text that does not begin with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// Never.
    None,
    /// Before every stretch, behind every token that was found by its text, also when a space is there already.
    Every,
    /// As `Every`, but not where a space is there already.
    EveryWithout,
    /// Only at the beginning of the whole text, where no space is there already.
    Start,
}

/// Memory that is used again for the next stretch.
#[derive(Default)]
pub(super) struct Memory {
    ranks: Scratch,
    scores: ScoreScratch,
}

/// How many tokens are wanted at most, and what tells early that there will be more.
#[derive(Clone, Copy)]
pub(super) struct Limit<'a> {
    pub(super) floor: &'a TokenFloor,
    pub(super) tokens_max: usize,
}

impl Limit<'_> {
    /// # Errors
    /// [`TokenizeError::TooMany`].
    pub(super) fn check(&self, tokens: usize) -> Result<(), TokenizeError> {
        let tokens_max = self.tokens_max;
        if tokens > tokens_max { Err(TokenizeError::TooMany { tokens, tokens_max }) } else { Ok(()) }
    }
}

impl Algorithm {
    /// What it is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::ByteLevel { .. } => "byte-level BPE",
            Self::Scores { .. } | Self::Characters { .. } => "SentencePiece BPE",
        }
    }

    /// Appends the tokens of `text` to `out`; `begins` where it is the beginning of the whole text.
    ///
    /// # Errors
    /// [`TokenizeError::TooMany`] once there are more in `out` than `limit` allows, or it is certain that there will be.
    pub(super) fn encode(
        &self,
        text: &str,
        begins: bool,
        limit: Limit<'_>,
        memory: &mut Memory,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        if text.is_empty() {
            return limit.check(out.len());
        }
        match self {
            Self::ByteLevel { is_nfc, split, byte_tokens, merges, whole_pieces } => {
                let text = if *is_nfc { compose(text) } else { text.into() };
                limit.check(out.len() + limit.floor.tokens_min(&text))?;
                split.pieces(&text, &mut |piece| match whole_pieces.get(piece.as_bytes()) {
                    // Enough to know: the rest is only cut.
                    _ if out.len() > limit.tokens_max => {}
                    Some(&token) => out.push(token),
                    None => {
                        let parts = piece.bytes().map(|byte| byte_tokens[usize::from(byte)]);
                        merges.encode(parts, &mut memory.ranks, out);
                    }
                });
            }
            Self::Scores { tokens, prefix } => {
                let text = prefix.apply(text, begins);
                limit.check(out.len() + limit.floor.tokens_min(&text))?;
                tokens.encode(&text, &mut memory.scores, out);
            }
            Self::Characters { characters, byte_tokens, merges, prefix } => {
                let text = prefix.apply(text, begins);
                limit.check(out.len() + limit.floor.tokens_min(&text))?;
                let parts = text.chars().flat_map(|character| Parts::of(character, characters, byte_tokens));
                merges.encode(parts, &mut memory.ranks, out);
            }
        }
        limit.check(out.len())
    }

    /// Bytes of text for each byte of its tokens, at most.
    pub(super) fn text_bytes_per_byte(&self) -> usize {
        match self {
            Self::ByteLevel { is_nfc: true, .. } => COMPOSED_SHARE_MAX,
            // U+2581 is a space.
            Self::Scores { .. } | Self::Characters { .. } => SPACE_MARK.len_utf8(),
            Self::ByteLevel { is_nfc: false, .. } => 1,
        }
    }

    /// Calls `part` for everything that the algorithm knows beside the vocabulary, in one form.
    pub(super) fn parts(&self, part: &mut impl FnMut(&[u8])) {
        part(self.name().as_bytes());
        match self {
            Self::ByteLevel { is_nfc, split, merges, whole_pieces, .. } => {
                part(&[u8::from(*is_nfc)]);
                part(split.description().as_bytes());
                part(&merges.bytes());
                part(&[u8::from(!whole_pieces.is_empty())]);
            }
            Self::Scores { tokens, prefix } => {
                part(&tokens.score_bytes());
                part(&[*prefix as u8]);
            }
            Self::Characters { merges, prefix, .. } => {
                part(&merges.bytes());
                part(&[*prefix as u8]);
            }
        }
        part(&(0..=u8::MAX).flat_map(|byte| self.byte_token(byte).to_be_bytes()).collect::<Vec<_>>());
    }

    /// The token of one byte, or [`NONE`].
    pub(super) fn byte_token(&self, byte: u8) -> u32 {
        match self {
            Self::ByteLevel { byte_tokens, .. } | Self::Characters { byte_tokens, .. } => {
                byte_tokens[usize::from(byte)]
            }
            Self::Scores { tokens, .. } => tokens.byte_token(byte),
        }
    }
}

/// Bytes of text that become one byte when they are composed, at most: the Kelvin sign becomes a K, three letters of
/// Hangul one syllable.
const COMPOSED_SHARE_MAX: usize = 3;

fn compose(text: &str) -> Cow<'_, str> {
    match is_nfc_quick(text.chars()) {
        IsNormalized::Yes => text.into(),
        IsNormalized::No | IsNormalized::Maybe => text.nfc().collect(),
    }
}

impl Prefix {
    /// The text as the vocabulary compares it: U+2581 is the same as a space.
    fn apply(self, text: &str, begins: bool) -> Cow<'_, str> {
        let text = if text.contains(SPACE_MARK) { Cow::Owned(text.replace(SPACE_MARK, " ")) } else { text.into() };
        let adds = match self {
            Self::None => false,
            Self::Every => true,
            Self::EveryWithout => !text.starts_with(' '),
            Self::Start => begins && !text.starts_with(' '),
        };
        if adds { Cow::Owned(format!(" {text}")) } else { text }
    }
}

/// The tokens that a character begins as: its own, or those of its bytes. [`NONE`] where there is none.
struct Parts {
    tokens: [u32; 4],
    next: usize,
    end: usize,
}

impl Parts {
    fn of(character: char, characters: &HashMap<char, u32>, byte_tokens: &[u32; 256]) -> Self {
        let mut tokens = [NONE; 4];
        if let Some(&token) = characters.get(&character) {
            tokens[0] = token;
            return Self { tokens, next: 0, end: 1 };
        }
        let mut buffer = [0; 4];
        let bytes = character.encode_utf8(&mut buffer).as_bytes();
        for (token, &byte) in tokens.iter_mut().zip(bytes) {
            *token = byte_tokens[usize::from(byte)];
        }
        Self { tokens, next: 0, end: bytes.len() }
    }
}

impl Iterator for Parts {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let at = self.next;
        self.next += 1;
        if at < self.end { self.tokens.get(at).copied() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_put_where_each_vocabulary_expects_it() {
        for (prefix, begins, text, wanted) in [
            (Prefix::None, true, "a", "a"),
            (Prefix::Every, false, "a", " a"),
            (Prefix::Every, false, " a", "  a"),
            (Prefix::EveryWithout, false, "a", " a"),
            (Prefix::EveryWithout, false, "\u{2581}a", " a"),
            (Prefix::Start, true, "a", " a"),
            (Prefix::Start, true, " a", " a"),
            (Prefix::Start, false, "a", "a"),
            (Prefix::None, true, "a\u{2581}b c", "a b c"),
        ] {
            assert_eq!(prefix.apply(text, begins), wanted, "{prefix:?} {begins} {text:?}");
        }
    }

    #[test]
    fn composing_shrinks_no_character_below_the_stated_share() {
        for character in '\0'..=char::MAX {
            let text = character.to_string();
            assert!(compose(&text).len() * COMPOSED_SHARE_MAX >= text.len(), "{character:?}");
        }
        assert_eq!((compose("\u{1112}\u{1161}\u{11ab}").len(), compose("\u{212a}")), (3, "K".into()));
    }

    #[test]
    fn a_character_without_a_token_begins_as_its_bytes() {
        let mut byte_tokens = [NONE; 256];
        byte_tokens[0xc3] = 7;
        let characters = HashMap::from([('a', 1)]);
        let parts = |character| Parts::of(character, &characters, &byte_tokens).collect::<Vec<_>>();
        assert_eq!((parts('a'), parts('é')), (vec![1], vec![7, NONE]));
    }
}
