//! The tokens of a model: their bytes, which of them text can make, and which are found by their text.

use std::collections::HashMap;

use regex::Regex;

use super::merges::NONE;
use super::{LoadTokenizerError, byte_level};
use crate::chat_template::INERT;

/// Most tokens that are found by their text; Gemma 3 has 6,400.
pub(super) const SPECIAL_TOKENS_MAX: usize = 8_192;
/// Longest text of such a token, bytes.
pub(super) const SPECIAL_BYTES_MAX: usize = 256;
/// Longest text of all of them together, bytes; Gemma's have 70,000. The automaton that finds them takes some hundred
/// times as much.
pub(super) const SPECIAL_BYTES_SUM_MAX: usize = 128 << 10;
/// Longest token of any kind, bytes. Those of known models are runs of at most 256 spaces or dashes.
pub(super) const TOKEN_BYTES_MAX: usize = 4_096;
/// SentencePiece's space.
const SPACE_MARK: char = '\u{2581}';

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    /// Text that merging makes.
    Normal,
    /// Steers the model, only found when asked for.
    Control,
    /// Text that is one token wherever it stands.
    Added,
    /// Never found.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

/// How tokens are written in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// GPT-2's: one printable character for every byte.
    Bytes,
    /// SentencePiece's: plain text with U+2581 for spaces.
    Spaces,
}

/// All tokens, by number.
pub(super) struct Vocabulary {
    alphabet: Alphabet,
    /// What merging can make, by its bytes.
    pub(super) normal: HashMap<Vec<u8>, u32>,
    /// What is found by its text.
    pub(super) special: HashMap<String, u32>,
    /// The token of every byte, [`NONE`] where there is none.
    pub(super) byte_tokens: [u32; 256],
    pub(super) types: Vec<TokenType>,
    /// All tokens' bytes, one after the other, and where each one ends.
    pub(super) bytes: Vec<u8>,
    pub(super) ends: Vec<usize>,
}

impl Vocabulary {
    pub(super) fn new(alphabet: Alphabet) -> Self {
        Self {
            alphabet,
            normal: HashMap::new(),
            special: HashMap::new(),
            byte_tokens: [NONE; 256],
            types: Vec::new(),
            bytes: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Adds the token of the next number.
    pub(super) fn push(&mut self, text: &str, kind: TokenType) -> Result<(), LoadTokenizerError> {
        let token = self.ends.len();
        let id = u32::try_from(token).unwrap_or(NONE);
        let bytes = match kind {
            TokenType::Normal => self.bytes_of(text).ok_or(LoadTokenizerError::NotByteLevel { token })?,
            TokenType::Byte => vec![byte_of(text).ok_or(LoadTokenizerError::NotAByte { token })?],
            TokenType::Control | TokenType::Added | TokenType::Unused => text.as_bytes().to_vec(),
        };
        if bytes.len() > TOKEN_BYTES_MAX {
            return Err(LoadTokenizerError::LongToken { token, bytes: bytes.len() });
        }
        self.bytes.extend_from_slice(&bytes);
        self.ends.push(self.bytes.len());
        self.types.push(kind);
        let earlier = match kind {
            TokenType::Normal => {
                if let (Alphabet::Bytes, [byte]) = (self.alphabet, bytes.as_slice()) {
                    self.byte_tokens[usize::from(*byte)] = id;
                }
                // A plain space stands in no text that is looked up here, and an empty token is found nowhere.
                let found_never = self.alphabet == Alphabet::Spaces && (text.is_empty() || text.contains(' '));
                if found_never { None } else { self.normal.insert(bytes, id) }
            }
            TokenType::Byte => bytes.first().and_then(|&byte| {
                let before = std::mem::replace(&mut self.byte_tokens[usize::from(byte)], id);
                (before != NONE).then_some(before)
            }),
            TokenType::Control | TokenType::Added => self.special.insert(text.to_owned(), id),
            TokenType::Unused => None,
        };
        if earlier.is_some() { Err(LoadTokenizerError::DuplicateToken { token }) } else { Ok(()) }
    }

    /// What a text of the file's alphabet stands for; `None` when a character is not of it.
    pub(super) fn bytes_of(&self, text: &str) -> Option<Vec<u8>> {
        match self.alphabet {
            Alphabet::Bytes => byte_level::decode(text),
            Alphabet::Spaces => Some(text.replace(SPACE_MARK, " ").into_bytes()),
        }
    }

    /// The token that merging makes of a text in the file's alphabet.
    pub(super) fn normal_token(&self, text: &str) -> Option<u32> {
        self.normal.get(&self.bytes_of(text)?).copied()
    }

    /// A pattern that finds the texts of the wanted tokens, the longest first.
    pub(super) fn finder(&self, wanted: impl Fn(TokenType) -> bool) -> Result<Option<Regex>, LoadTokenizerError> {
        let is_wanted = |token: u32| self.types.get(token as usize).is_some_and(|&kind| wanted(kind));
        let found = self.special.iter().filter(|(_, token)| is_wanted(**token));
        let mut texts = Vec::new();
        for (text, &token) in found {
            let token = token as usize;
            match text.len() {
                0 => return Err(LoadTokenizerError::NoText { token }),
                bytes if bytes > SPECIAL_BYTES_MAX => return Err(LoadTokenizerError::SpecialText { token, bytes }),
                _ if text.contains(INERT) => return Err(LoadTokenizerError::SpecialCharacter { token }),
                _ => texts.push(text.as_str()),
            }
        }
        if texts.is_empty() {
            return Ok(None);
        }
        if texts.len() > SPECIAL_TOKENS_MAX {
            return Err(LoadTokenizerError::SpecialCount { tokens: texts.len() });
        }
        let bytes = texts.iter().map(|text| text.len()).sum();
        if bytes > SPECIAL_BYTES_SUM_MAX {
            return Err(LoadTokenizerError::SpecialSum { bytes });
        }
        texts.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        let pattern = texts.into_iter().map(regex::escape).collect::<Vec<_>>().join("|");
        Regex::new(&pattern).map(Some).map_err(|_| LoadTokenizerError::Pattern)
    }
}

/// The byte of a token that is written `<0x0A>`.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens_have_one_form() {
        assert_eq!((byte_of("<0x0A>"), byte_of("<0xff>")), (Some(10), Some(255)));
        for text in ["<0x>", "<0xA>", "<0x+A>", "<0x00A>", "0x0A", "<0xGG>", "<0x0A", ""] {
            assert_eq!(byte_of(text), None, "{text}");
        }
    }

    #[test]
    fn no_token_is_longer_than_any_real_one() {
        for kind in [TokenType::Normal, TokenType::Control, TokenType::Added, TokenType::Unused] {
            let mut vocabulary = Vocabulary::new(Alphabet::Spaces);
            vocabulary.push(&"a".repeat(TOKEN_BYTES_MAX), kind).unwrap();
            let error = vocabulary.push(&"b".repeat(TOKEN_BYTES_MAX + 1), kind).unwrap_err();
            assert_eq!(error.to_string(), "token 1 has 4097 bytes, at most 4096 are accepted");
        }
    }

    #[test]
    fn what_is_found_by_its_text_has_a_bound_together() {
        let finder = |tokens: usize| {
            let mut vocabulary = Vocabulary::new(Alphabet::Spaces);
            for token in 0..tokens {
                vocabulary.push(&format!("{token:0256}"), TokenType::Control).unwrap();
            }
            vocabulary.finder(|_| true).map_err(|error| error.to_string())
        };
        assert!(finder(512).is_ok());
        let wanted = "control and added tokens have 131328 bytes together, at most 131072 are accepted";
        assert_eq!(finder(513).unwrap_err(), wanted);
    }

    #[test]
    fn a_token_with_a_plain_space_is_never_made() {
        let mut vocabulary = Vocabulary::new(Alphabet::Spaces);
        for text in ["\u{2581}a", " a", ""] {
            vocabulary.push(text, TokenType::Normal).unwrap();
        }
        assert_eq!((vocabulary.normal.len(), vocabulary.normal_token("\u{2581}a")), (1, Some(0)));
    }
}
