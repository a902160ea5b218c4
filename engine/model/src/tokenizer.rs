//! Text to tokens and back, with the vocabulary that a model brings: byte-level BPE, or SentencePiece's BPE.
//!
//! Control tokens cannot come out of ordinary text, by construction: what merging can make does not hold them. They are
//! only found by their text, in [`Tokenizer::encode`] with `allow_special`. No state is kept between calls, so that
//! the time of one request says nothing about another's text. All of it takes O(n log n) time: the crate `tokenizers`
//! runs a model's own patterns in an engine that tracks back, merges across bytes that it dropped, and finds control
//! tokens in every text, so it is not used here.

mod algorithm;
mod bounded_json;
mod byte_level;
mod gguf;
mod json;
mod merges;
mod sentence_piece;
mod split;
mod token_floor;
mod vocabulary;

use std::collections::HashMap;

use regex::Regex;
use sha2::{Digest, Sha256};

use crate::chat_template::INERT;
use crate::config::ConfigError;
use crate::gguf::Gguf;
use algorithm::{Algorithm, Limit, Memory};
pub(crate) use json::Settings;
use merges::NONE;
use token_floor::TokenFloor;
use vocabulary::{
    SPECIAL_BYTES_MAX, SPECIAL_BYTES_SUM_MAX, SPECIAL_TOKENS_MAX, TOKEN_BYTES_MAX, TokenType, Vocabulary,
};

/// Longest text, bytes: positions are 32 bits wide, and no context holds a tenth of this.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Control tokens that end an answer in the model families that are supported.
const END_TEXTS: &[&str] = &[
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|eot|>",
    "<end_of_turn>",
];
/// Tokens that begin a turn: no client may write them, whatever the file says that they are.
const START_TEXTS: &[&str] = &["<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|end_header_id|>"];

fn is_frame_text(text: &str) -> bool {
    END_TEXTS.contains(&text) || START_TEXTS.contains(&text)
}

/// Why a file's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadTokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Key(#[from] ConfigError),
    /// Neither byte-level nor SentencePiece's BPE.
    #[error("tokenizer model `{0}` is not supported (`gpt2` and `llama` are)")]
    Model(String),
    /// A pre-tokenizer without a rule here: a wrong one would give wrong tokens silently.
    #[error(
        "pre-tokenizer `{0}` is not supported (`smollm`, `gpt-2`, `llama-bpe`, `qwen2`, `tekken` and `default` are)"
    )]
    Pre(String),
    /// Lists of different lengths.
    #[error("there are {types} token types for {tokens} tokens")]
    TypeCount {
        /// Entries of `tokenizer.ggml.token_type`.
        types: usize,
        /// Entries of `tokenizer.ggml.tokens`.
        tokens: usize,
    },
    /// Lists of different lengths.
    #[error("there are {scores} token scores for {tokens} tokens")]
    ScoreCount {
        /// Entries of `tokenizer.ggml.scores`.
        scores: usize,
        /// Entries of `tokenizer.ggml.tokens`.
        tokens: usize,
    },
    /// A score that cannot be compared.
    #[error("the score of token {token} is not a number")]
    Score {
        /// The token.
        token: usize,
    },
    /// A token that should stand for one byte and is not written as one.
    #[error("token {token} is not a byte written like `<0x0A>`")]
    NotAByte {
        /// The token.
        token: usize,
    },
    /// A `tokenizer.json` that is not JSON, or has another structure.
    #[error("`tokenizer.json` cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A part of a `tokenizer.json` that has no counterpart here: without it the tokens would be wrong.
    #[error("`tokenizer.json` asks for {0}, which is not supported")]
    Unsupported(String),
    /// A token's number is taken, or beyond the embeddings.
    #[error("token number {number} is taken, or is not one of the {tokens} rows of the embeddings")]
    TokenNumber {
        /// The number.
        number: u64,
        /// Rows of the embeddings.
        tokens: usize,
    },
    /// The same text twice.
    #[error("token {token} has the text of an earlier token")]
    DuplicateToken {
        /// The later one.
        token: usize,
    },
    /// A token's text has a character that stands for no byte.
    #[error("token {token} is not byte-level text")]
    NotByteLevel {
        /// The token.
        token: usize,
    },
    /// More tokens to be found by their text than any model has.
    #[error("there are {tokens} control and added tokens, at most {SPECIAL_TOKENS_MAX} are accepted")]
    SpecialCount {
        /// Control and added tokens.
        tokens: usize,
    },
    /// A token that is longer than any real one: a few of them would be an answer that nothing holds.
    #[error("token {token} has {bytes} bytes, at most {TOKEN_BYTES_MAX} are accepted")]
    LongToken {
        /// The token.
        token: usize,
        /// Of its text.
        bytes: usize,
    },
    /// What finds control and added tokens would take more memory than the rest of the vocabulary.
    #[error("control and added tokens have {bytes} bytes together, at most {SPECIAL_BYTES_SUM_MAX} are accepted")]
    SpecialSum {
        /// Of all their texts.
        bytes: usize,
    },
    /// Without a text, such a token cannot be kept out of answers and prompts.
    #[error("token {token} is a control or added token and has no text")]
    NoText {
        /// The token.
        token: usize,
    },
    /// A control or added token that is too long.
    #[error("token {token} is a control or added token of {bytes} bytes, at most {SPECIAL_BYTES_MAX} are accepted")]
    SpecialText {
        /// The token.
        token: usize,
        /// Of its text.
        bytes: usize,
    },
    /// A control or added token with a character that conversations are marked with inside the engine.
    #[error("token {token} is a control or added token with the character U+{:04X}", u32::from(INERT))]
    SpecialCharacter {
        /// The token.
        token: usize,
    },
    /// A pattern for the control and added tokens, or for the pieces of a text, is larger than is accepted.
    #[error("a pattern that finds tokens or pieces of text is too large")]
    Pattern,
    /// A type that no token has.
    #[error("token {token} has type {kind}, which is none")]
    TokenType {
        /// The token.
        token: usize,
        /// As in the file.
        kind: u64,
    },
    /// A merge is not two tokens that make a third.
    #[error("merge {merge} does not make a token of two tokens")]
    Merge {
        /// Its rank.
        merge: usize,
    },
}

/// Why a text has no tokens.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TokenizeError {
    /// Longer than any context.
    #[error("the text has {bytes} bytes, at most {bytes_max} are accepted")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// [`TEXT_BYTES_MAX`].
        bytes_max: usize,
    },
    /// More tokens than are wanted. The rest of the work is not done.
    #[error("the text has {tokens} tokens or more, at most {tokens_max} are accepted")]
    TooMany {
        /// At least.
        tokens: usize,
        /// As asked for.
        tokens_max: usize,
    },
}

/// The tokens around a text.
struct Frame {
    bos: Option<u32>,
    eos: Option<u32>,
    /// Tokens that end an answer, of which more are known by their texts.
    ends: Vec<u32>,
    adds_bos: bool,
}

/// Text to tokens and tokens to bytes.
pub struct Tokenizer {
    pre: String,
    algorithm: Algorithm,
    floor: TokenFloor,
    special: HashMap<String, u32>,
    /// Finds control and added tokens, the longest first.
    find_special: Option<Regex>,
    /// Finds added tokens only.
    find_added: Option<Regex>,
    /// Finds control tokens only.
    find_control: Option<Regex>,
    types: Vec<TokenType>,
    /// All tokens' bytes, one after the other, and where each one ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    frame: Frame,
}

impl Tokenizer {
    /// Reads the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// [`LoadTokenizerError`], naming the key or the token.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, LoadTokenizerError> {
        gguf::read(gguf)
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`LoadTokenizerError`], naming the part or the token.
    pub(crate) fn from_json(bytes: &[u8], settings: &Settings) -> Result<Self, LoadTokenizerError> {
        json::read(bytes, settings)
    }

    fn assemble(
        pre: &str,
        vocabulary: Vocabulary,
        algorithm: Algorithm,
        mut frame: Frame,
    ) -> Result<Self, LoadTokenizerError> {
        let floor = TokenFloor::new(&vocabulary);
        let is_control = |token: &u32| vocabulary.types.get(*token as usize) == Some(&TokenType::Control);
        frame.ends.extend(END_TEXTS.iter().filter_map(|text| vocabulary.special.get(*text)));
        frame.ends.retain(is_control);
        Ok(Self {
            pre: pre.to_owned(),
            algorithm,
            floor,
            find_special: vocabulary.finder(|_| true)?,
            find_added: vocabulary.finder(|kind| kind == TokenType::Added)?,
            find_control: vocabulary.finder(|kind| kind == TokenType::Control)?,
            special: vocabulary.special,
            types: vocabulary.types,
            bytes: vocabulary.bytes,
            ends: vocabulary.ends,
            frame,
        })
    }

    /// The tokens of a text, without BOS.
    ///
    /// With `allow_special`, text that is written like a control token becomes that token; without, it is ordinary
    /// text, and no control token can come out. Bytes that the vocabulary has no token for (see
    /// [`Tokenizer::byte_tokens_missing`]) are left out; everything else round-trips through
    /// [`Tokenizer::token_bytes`], but for what SentencePiece's vocabularies do with spaces: one is put before the
    /// text where the model was trained so, and U+2581 is one. Takes O(n log n) time, whatever the text.
    ///
    /// # Errors
    /// [`TokenizeError::TooLarge`] above [`TEXT_BYTES_MAX`].
    pub fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, TokenizeError> {
        self.encode_within(text, allow_special, usize::MAX)
    }

    /// As [`Tokenizer::encode`], and gives up once more than `tokens_max` tokens are certain: in most texts before the
    /// first of them is made.
    ///
    /// # Errors
    /// [`TokenizeError`].
    pub fn encode_within(&self, text: &str, allow_special: bool, tokens_max: usize) -> Result<Vec<u32>, TokenizeError> {
        let mut out = Vec::with_capacity((text.len() / 4 + 1).min(tokens_max.saturating_add(1)));
        self.append(text, true, allow_special, tokens_max, &mut out)?;
        Ok(out)
    }

    /// As [`Tokenizer::encode_within`], behind the tokens of `out`, which count; `begins` where the text is the beginning
    /// of a whole one.
    pub(crate) fn append(
        &self,
        text: &str,
        begins: bool,
        allow_special: bool,
        tokens_max: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizeError::TooLarge { bytes: text.len(), bytes_max: TEXT_BYTES_MAX });
        }
        let find = if allow_special { &self.find_special } else { &self.find_added };
        let limit = Limit { floor: &self.floor, tokens_max };
        let mut memory = Memory::default();
        let mut from = 0;
        if let Some(find) = find {
            for found in find.find_iter(text) {
                self.algorithm.encode(&text[from..found.start()], begins && from == 0, limit, &mut memory, out)?;
                out.extend(self.special.get(found.as_str()));
                from = found.end();
            }
        }
        self.algorithm.encode(&text[from..], begins && from == 0, limit, &mut memory, out)?;
        // What was found by its text has not been counted yet.
        limit.check(out.len())
    }

    /// Control tokens that stand in `text` by their text, in order, and where: byte offsets of start and end.
    pub(crate) fn control_matches<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (u32, usize, usize)> + 'a {
        self.find_control
            .iter()
            .flat_map(|find| find.find_iter(text))
            .filter_map(|found| self.special.get(found.as_str()).map(|&token| (token, found.start(), found.end())))
    }

    /// Where the first control token's text at or behind byte `from` begins.
    pub(crate) fn find_control(&self, text: &str, from: usize) -> Option<usize> {
        self.find_control.as_ref()?.find_at(text, from).map(|found| found.start())
    }

    /// SHA-256 of everything that decides how a text becomes tokens, and tokens text, whatever file it came from.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        // What is left out follows from these.
        let Self { pre, algorithm, special, types, bytes, ends, frame, .. } = self;
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        part(pre.as_bytes());
        algorithm.parts(&mut part);
        part(&types.iter().map(|kind| *kind as u8).collect::<Vec<_>>());
        part(bytes);
        part(&ends.iter().flat_map(|end| (*end as u64).to_be_bytes()).collect::<Vec<_>>());
        part(&frame.ends.iter().flat_map(|token| token.to_be_bytes()).collect::<Vec<_>>());
        for token in [frame.bos, frame.eos] {
            part(&token.unwrap_or(NONE).to_be_bytes());
        }
        part(&[u8::from(frame.adds_bos)]);
        let mut special: Vec<_> = special.iter().collect();
        special.sort_unstable();
        for (text, token) in special {
            part(text.as_bytes());
            part(&token.to_be_bytes());
        }
        hash.finalize().into()
    }

    /// The bytes that a token stands for; a control token's are its text. `None` for a number that is no token.
    #[must_use]
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        let token = usize::try_from(token).ok()?;
        let end = *self.ends.get(token)?;
        let start = token.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.bytes.get(start..end)
    }

    /// The token steers the model and is no text.
    #[must_use]
    pub fn is_control(&self, token: u32) -> bool {
        self.types.get(token as usize) == Some(&TokenType::Control)
    }

    /// The token ends an answer: EOS, EOT, EOM, or a control token with one of their known texts.
    #[must_use]
    pub fn is_end(&self, token: u32) -> bool {
        self.frame.ends.contains(&token)
    }

    /// How many tokens there are.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of text that the longest token stands for. A text of more than `n` times as many bytes has more than `n` tokens (or bytes that
    /// nothing can write), which is known without tokenizing it.
    #[must_use]
    pub fn longest_token_bytes(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        self.ends.iter().zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
            * self.algorithm.text_bytes_per_byte()
    }

    /// Begin of sequence.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.frame.bos
    }

    /// End of sequence.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.frame.eos
    }

    /// A prompt begins with BOS.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.frame.adds_bos && self.frame.bos.is_some()
    }

    /// Which kind it is, in words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.algorithm.name()
    }

    /// The pre-tokenizer's name; `none` where there is none.
    #[must_use]
    pub fn pre(&self) -> &str {
        &self.pre
    }

    /// How many of the 256 bytes the vocabulary cannot write. SmolLM2: 21, six rare control characters among them.
    #[must_use]
    pub fn byte_tokens_missing(&self) -> usize {
        (0..=u8::MAX).filter(|&byte| self.algorithm.byte_token(byte) == NONE).count()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens, {})", self.vocab(), self.pre)
    }
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
