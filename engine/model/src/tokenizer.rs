//! The tokenizer that a GGUF file carries: byte-level BPE (`tokenizer.ggml.model` = `gpt2`).
//!
//! Control tokens cannot come out of ordinary text, by construction: the merge table does not hold them. They are
//! only found by their text, in [`Tokenizer::encode`] with `allow_special`. No state is kept between calls, so that
//! the time of one request says nothing about another's text.

mod byte_level;
mod merges;
mod split;

use std::collections::HashMap;

use regex::Regex;

use crate::chat_template::INERT;
use crate::config::{ConfigError, Keys};
use crate::gguf::Gguf;
use merges::{Merges, NONE, Scratch};
use split::Split;

/// Longest text, bytes: positions are 32 bits wide, and no context holds a tenth of this.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Most tokens that are found by their text; Llama 3 has 256, known vocabularies a few thousand.
const SPECIAL_TOKENS_MAX: usize = 8_192;
/// Longest text of such a token, bytes.
const SPECIAL_BYTES_MAX: usize = 256;
/// Control tokens that end an answer in the model families that use this tokenizer.
const END_TEXTS: &[&str] =
    &["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|eot|>"];

/// Why a file's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadTokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Key(#[from] ConfigError),
    /// Not byte-level BPE.
    #[error("tokenizer model `{0}` is not supported (`gpt2` is)")]
    Model(String),
    /// A pre-tokenizer without a rule here: a wrong one would give wrong tokens silently.
    #[error("pre-tokenizer `{0}` is not supported (`smollm`, `gpt-2`, `llama-bpe`, `qwen2` and `default` are)")]
    Pre(String),
    /// Lists of different lengths.
    #[error("there are {types} token types for {tokens} tokens")]
    TypeCount {
        /// Entries of `tokenizer.ggml.token_type`.
        types: usize,
        /// Entries of `tokenizer.ggml.tokens`.
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
    /// A control or added token is empty or too long, or there are too many of them.
    #[error(
        "the control and added tokens are not usable: at most {SPECIAL_TOKENS_MAX} of 1 to {SPECIAL_BYTES_MAX} bytes"
    )]
    Special,
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
}

/// `tokenizer.ggml.token_type`, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenType {
    /// Byte-level text.
    Normal,
    /// Types 2 (unknown) and 3: steers the model, only found when asked for.
    Control,
    /// Type 4: text that is one token wherever it stands.
    Added,
    /// Type 5: never found.
    Unused,
}

/// Text to tokens and tokens to bytes.
pub struct Tokenizer {
    pre: String,
    split: Split,
    merges: Merges,
    /// Pieces that are tokens as a whole; empty unless the pre-tokenizer asks for it.
    whole_pieces: HashMap<Vec<u8>, u32>,
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
    end_tokens: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    byte_tokens_missing: usize,
}

impl Tokenizer {
    /// Reads the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// [`LoadTokenizerError`], naming the key or the token.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, LoadTokenizerError> {
        let pre = match gguf.metadata("tokenizer.ggml.pre") {
            None => "default",
            Some(_) => Keys { gguf }.text("tokenizer.ggml.pre")?,
        };
        Self::with_pre(gguf, pre)
    }

    fn with_pre(gguf: &Gguf, pre: &str) -> Result<Self, LoadTokenizerError> {
        let keys = Keys { gguf };
        let model = keys.text("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(LoadTokenizerError::Model(model.to_owned()));
        }
        let split = Split::named(pre).ok_or_else(|| LoadTokenizerError::Pre(pre.to_owned()))?;
        let tokens = keys.strings("tokenizer.ggml.tokens")?;
        if tokens.is_empty() {
            return Err(ConfigError::Contradiction("a vocabulary without tokens".to_owned()).into());
        }
        let token_key = |key: &str| -> Result<Option<u32>, ConfigError> {
            let last = tokens.len().saturating_sub(1).min(NONE as usize - 1);
            if gguf.metadata(key).is_none() {
                return Ok(None);
            }
            Ok(u32::try_from(keys.integer(key, 0, last as u64)?).ok())
        };
        let bos = token_key("tokenizer.ggml.bos_token_id")?;
        let eos = token_key("tokenizer.ggml.eos_token_id")?;
        let ends = [eos, token_key("tokenizer.ggml.eot_token_id")?, token_key("tokenizer.ggml.eom_token_id")?];

        let mut types = token_types(&keys, tokens.len())?;
        for token in ends.into_iter().chain([bos]).flatten() {
            types[token as usize] = TokenType::Control;
        }

        let mut vocabulary = Vocabulary::default();
        for (token, (text, kind)) in tokens.iter().zip(&types).enumerate() {
            vocabulary.push(token, text, *kind)?;
        }
        let mut end_tokens: Vec<u32> = ends.into_iter().flatten().collect();
        end_tokens.extend(END_TEXTS.iter().filter_map(|text| vocabulary.special.get(*text)));
        end_tokens.retain(|&token| types[token as usize] == TokenType::Control);

        let mut byte_tokens = [NONE; 256];
        for (byte, slot) in (0..=u8::MAX).zip(&mut byte_tokens) {
            *slot = vocabulary.normal.get([byte].as_slice()).copied().unwrap_or(NONE);
        }
        let merges = read_merges(keys.strings("tokenizer.ggml.merges")?, &vocabulary, byte_tokens)?;
        let is_added = |token: &u32| types[*token as usize] == TokenType::Added;
        Ok(Self {
            pre: pre.to_owned(),
            merges,
            find_special: finder(&vocabulary.special, |_| true)?,
            find_added: finder(&vocabulary.special, is_added)?,
            find_control: finder(&vocabulary.special, |token| !is_added(token))?,
            whole_pieces: if split.whole_pieces_first { vocabulary.normal } else { HashMap::new() },
            split,
            special: vocabulary.special,
            types,
            bytes: vocabulary.bytes,
            ends: vocabulary.ends,
            end_tokens,
            bos,
            eos,
            adds_bos: match gguf.metadata("tokenizer.ggml.add_bos_token") {
                None => split_adds_bos(pre),
                Some(_) => keys.boolean("tokenizer.ggml.add_bos_token")?,
            },
            byte_tokens_missing: byte_tokens.iter().filter(|&&token| token == NONE).count(),
        })
    }

    /// The tokens of a text, without BOS.
    ///
    /// With `allow_special`, text that is written like a control token becomes that token; without, it is ordinary
    /// text, and no control token can come out. Bytes that the vocabulary has no token for (see
    /// [`Tokenizer::byte_tokens_missing`]) are left out, as every implementation does; everything else round-trips
    /// through [`Tokenizer::token_bytes`]. Takes O(n log n) time, whatever the text.
    ///
    /// # Errors
    /// [`TokenizeError::TooLarge`] above [`TEXT_BYTES_MAX`].
    pub fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, TokenizeError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizeError::TooLarge { bytes: text.len(), bytes_max: TEXT_BYTES_MAX });
        }
        let find = if allow_special { &self.find_special } else { &self.find_added };
        let mut out = Vec::with_capacity(text.len() / 4 + 1);
        let mut scratch = Scratch::default();
        let mut from = 0;
        if let Some(find) = find {
            for found in find.find_iter(text) {
                self.encode_ordinary(&text[from..found.start()], &mut scratch, &mut out);
                out.extend(self.special.get(found.as_str()));
                from = found.end();
            }
        }
        self.encode_ordinary(&text[from..], &mut scratch, &mut out);
        Ok(out)
    }

    fn encode_ordinary(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        self.split.pieces(text, &mut |piece| match self.whole_pieces.get(piece.as_bytes()) {
            Some(&token) => out.push(token),
            None => self.merges.encode(piece.as_bytes(), scratch, out),
        });
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
        self.end_tokens.contains(&token)
    }

    /// How many tokens there are.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the longest token. A text of more than `n` times as many bytes has more than `n` tokens (or bytes that
    /// nothing can write), which is known without tokenizing it.
    #[must_use]
    pub fn longest_token_bytes(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        self.ends.iter().zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
    }

    /// Begin of sequence.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of sequence.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// A prompt begins with BOS.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// The pre-tokenizer's name.
    #[must_use]
    pub fn pre(&self) -> &str {
        &self.pre
    }

    /// How many of the 256 bytes the vocabulary cannot write. SmolLM2: 21, six rare control characters among them.
    #[must_use]
    pub fn byte_tokens_missing(&self) -> usize {
        self.byte_tokens_missing
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens, {})", self.vocab(), self.pre)
    }
}

/// The default of `add_bos_token` for a pre-tokenizer: Llama 3 begins with BOS, the others do not.
fn split_adds_bos(pre: &str) -> bool {
    matches!(pre, "llama-bpe" | "llama3" | "llama-v3")
}

fn token_types(keys: &Keys<'_>, tokens: usize) -> Result<Vec<TokenType>, LoadTokenizerError> {
    let key = "tokenizer.ggml.token_type";
    if keys.gguf.metadata(key).is_none() {
        return Ok(vec![TokenType::Normal; tokens]);
    }
    let types = keys.unsigned(key)?;
    if types.len() != tokens {
        return Err(LoadTokenizerError::TypeCount { types: types.len(), tokens });
    }
    Ok(types
        .into_iter()
        .map(|kind| match kind {
            2 | 3 => TokenType::Control,
            4 => TokenType::Added,
            5 => TokenType::Unused,
            _ => TokenType::Normal,
        })
        .collect())
}

#[derive(Default)]
struct Vocabulary {
    /// What merging can make.
    normal: HashMap<Vec<u8>, u32>,
    /// What is found by its text.
    special: HashMap<String, u32>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Vocabulary {
    fn push(&mut self, token: usize, text: &str, kind: TokenType) -> Result<(), LoadTokenizerError> {
        let id = u32::try_from(token).unwrap_or(NONE);
        let bytes = match kind {
            TokenType::Normal => byte_level::decode(text).ok_or(LoadTokenizerError::NotByteLevel { token })?,
            TokenType::Control | TokenType::Added | TokenType::Unused => text.as_bytes().to_vec(),
        };
        self.bytes.extend_from_slice(&bytes);
        self.ends.push(self.bytes.len());
        let earlier = match kind {
            TokenType::Normal => self.normal.insert(bytes, id),
            TokenType::Control | TokenType::Added => self.special.insert(text.to_owned(), id),
            TokenType::Unused => None,
        };
        if earlier.is_some() { Err(LoadTokenizerError::DuplicateToken { token }) } else { Ok(()) }
    }
}

fn read_merges(
    lines: &[String],
    vocabulary: &Vocabulary,
    byte_tokens: [u32; 256],
) -> Result<Merges, LoadTokenizerError> {
    let mut merges = Merges::new(byte_tokens);
    for (merge, line) in lines.iter().enumerate() {
        let token = |bytes: &[u8]| vocabulary.normal.get(bytes).copied();
        let pushed = line.split_once(' ').and_then(|(left, right)| {
            let (left, right) = (byte_level::decode(left)?, byte_level::decode(right)?);
            let merged = [left.as_slice(), right.as_slice()].concat();
            merges.push(token(&left)?, token(&right)?, token(&merged)?);
            Some(())
        });
        if pushed.is_none() {
            return Err(LoadTokenizerError::Merge { merge });
        }
    }
    Ok(merges)
}

/// A pattern that finds the texts of the wanted tokens, the longest first.
fn finder(special: &HashMap<String, u32>, wanted: impl Fn(&u32) -> bool) -> Result<Option<Regex>, LoadTokenizerError> {
    let mut texts: Vec<&str> =
        special.iter().filter(|(_, token)| wanted(token)).map(|(text, _)| text.as_str()).collect();
    if texts.is_empty() {
        return Ok(None);
    }
    let fits = |text: &&str| (1..=SPECIAL_BYTES_MAX).contains(&text.len()) && !text.contains(INERT);
    if texts.len() > SPECIAL_TOKENS_MAX || !texts.iter().all(fits) {
        return Err(LoadTokenizerError::Special);
    }
    texts.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
    let pattern = texts.into_iter().map(regex::escape).collect::<Vec<_>>().join("|");
    Regex::new(&pattern).map(Some).map_err(|_| LoadTokenizerError::Special)
}

#[cfg(test)]
mod tests;
