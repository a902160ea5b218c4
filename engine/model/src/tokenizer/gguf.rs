//! The tokenizer that a GGUF file carries: the `tokenizer.ggml.*` keys.

use super::algorithm::{Algorithm, Prefix};
use super::merges::{Merges, NONE};
use super::sentence_piece::ScoredTokens;
use super::split::Split;
use super::vocabulary::{Alphabet, TokenType, Vocabulary};
use super::{Frame, LoadTokenizerError, Tokenizer, is_frame_text};
use crate::config::{ConfigError, Keys};
use crate::gguf::Gguf;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const PRE: &str = "tokenizer.ggml.pre";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const SCORES: &str = "tokenizer.ggml.scores";

pub(super) fn read(gguf: &Gguf) -> Result<Tokenizer, LoadTokenizerError> {
    let keys = Keys { gguf };
    match keys.text("tokenizer.ggml.model")? {
        "gpt2" => {
            let pre = if gguf.metadata(PRE).is_none() { "default" } else { keys.text(PRE)? };
            byte_level(&keys, pre)
        }
        "llama" => sentence_piece(&keys),
        model => Err(LoadTokenizerError::Model(model.to_owned())),
    }
}

/// Byte-level BPE.
pub(super) fn byte_level(keys: &Keys<'_>, pre: &str) -> Result<Tokenizer, LoadTokenizerError> {
    let split = Split::named(pre).ok_or_else(|| LoadTokenizerError::Pre(pre.to_owned()))?;
    let (vocabulary, mut frame) = read_vocabulary(keys, Alphabet::Bytes)?;
    frame.adds_bos = boolean_or(keys, ADD_BOS, split.adds_bos)?;
    let mut merges = Merges::default();
    for (merge, line) in keys.strings("tokenizer.ggml.merges")?.iter().enumerate() {
        merges.push_text(&vocabulary, merge, line.split_once(' '))?;
    }
    let whole_pieces = if split.whole_pieces_first { vocabulary.normal.clone() } else { Default::default() };
    let algorithm =
        Algorithm::ByteLevel { is_nfc: false, split, byte_tokens: vocabulary.byte_tokens, merges, whole_pieces };
    Tokenizer::assemble(pre, vocabulary, algorithm, frame)
}

/// SentencePiece's BPE, with scores.
fn sentence_piece(keys: &Keys<'_>) -> Result<Tokenizer, LoadTokenizerError> {
    // Without types nothing tells a control token from text.
    if keys.gguf.metadata(TYPES).is_none() {
        return Err(ConfigError::MissingKey(TYPES.to_owned()).into());
    }
    let (mut vocabulary, mut frame) = read_vocabulary(keys, Alphabet::Spaces)?;
    frame.adds_bos = boolean_or(keys, ADD_BOS, true)?;
    let scores = keys.floats(SCORES)?;
    if scores.len() != vocabulary.ends.len() {
        return Err(LoadTokenizerError::ScoreCount { scores: scores.len(), tokens: vocabulary.ends.len() });
    }
    if let Some(token) = scores.iter().position(|score| score.is_nan()) {
        return Err(LoadTokenizerError::Score { token });
    }
    let prefix = if boolean_or(keys, ADD_SPACE, true)? { Prefix::Every } else { Prefix::None };
    let scores = scores.into_iter().map(|score| score as f32).collect();
    let tokens = ScoredTokens::new(std::mem::take(&mut vocabulary.normal), scores, vocabulary.byte_tokens);
    Tokenizer::assemble("none", vocabulary, Algorithm::Scores { tokens, prefix }, frame)
}

fn boolean_or(keys: &Keys<'_>, key: &str, default: bool) -> Result<bool, ConfigError> {
    if keys.gguf.metadata(key).is_none() { Ok(default) } else { keys.boolean(key) }
}

fn read_vocabulary(keys: &Keys<'_>, alphabet: Alphabet) -> Result<(Vocabulary, Frame), LoadTokenizerError> {
    let tokens = keys.strings(TOKENS)?;
    if tokens.is_empty() {
        return Err(ConfigError::Contradiction("a vocabulary without tokens".to_owned()).into());
    }
    let token_key = |key: &str| -> Result<Option<u32>, ConfigError> {
        let last = tokens.len().saturating_sub(1).min(NONE as usize - 1);
        if keys.gguf.metadata(key).is_none() {
            return Ok(None);
        }
        Ok(u32::try_from(keys.integer(key, 0, last as u64)?).ok())
    };
    let bos = token_key("tokenizer.ggml.bos_token_id")?;
    let eos = token_key("tokenizer.ggml.eos_token_id")?;
    let ends = [eos, token_key("tokenizer.ggml.eot_token_id")?, token_key("tokenizer.ggml.eom_token_id")?];

    let mut types = token_types(keys, alphabet, tokens)?;
    for token in ends.into_iter().chain([bos]).flatten() {
        types[token as usize] = TokenType::Control;
    }
    let mut vocabulary = Vocabulary::new(alphabet);
    for (text, kind) in tokens.iter().zip(types) {
        vocabulary.push(text, kind)?;
    }
    Ok((vocabulary, Frame { bos, eos, ends: ends.into_iter().flatten().collect(), adds_bos: false }))
}

fn token_types(keys: &Keys<'_>, alphabet: Alphabet, tokens: &[String]) -> Result<Vec<TokenType>, LoadTokenizerError> {
    if keys.gguf.metadata(TYPES).is_none() {
        return Ok(vec![TokenType::Normal; tokens.len()]);
    }
    let types = keys.unsigned(TYPES)?;
    if types.len() != tokens.len() {
        return Err(LoadTokenizerError::TypeCount { types: types.len(), tokens: tokens.len() });
    }
    let of = |(token, (kind, text)): (usize, (u64, &String))| {
        Ok(match kind {
            0 | 1 => TokenType::Normal,
            2 | 3 => TokenType::Control,
            // Some converters call the tokens that frame a conversation ordinary additions.
            4 if is_frame_text(text) => TokenType::Control,
            4 => TokenType::Added,
            5 => TokenType::Unused,
            6 if alphabet == Alphabet::Spaces => TokenType::Byte,
            6 => TokenType::Normal,
            _ => return Err(LoadTokenizerError::TokenType { token, kind }),
        })
    };
    types.into_iter().zip(tokens).enumerate().map(of).collect()
}
