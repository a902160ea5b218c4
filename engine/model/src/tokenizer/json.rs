//! The tokenizer of a `tokenizer.json`, the format of the crate `tokenizers`, as far as the Llama family uses it.
//!
//! BPE, of bytes (GPT-2's alphabet) or of characters with bytes for the rest. Everything that the file asks for and that
//! decides about a text's tokens is either done or refused: a part that is passed over would give wrong tokens silently.
//! Two parts are left aside. `truncation` and `padding` are what somebody's training run was set to when the file was
//! written; the library `transformers`, too, takes them out before it tokenizes, unless its caller asks for them, and a
//! text that is too long is refused here rather than cut. The `decoder` puts texts together again, which is done here
//! with the tokens' bytes.
//! Source: the structures of the crate `tokenizers`, whose tokens are the golden ones.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::algorithm::{Algorithm, Prefix};
use super::bounded_json::{Component, List, Numbers};
use super::merges::Merges;
use super::split::{Rule, Split};
use super::vocabulary::{Alphabet, SPECIAL_TOKENS_MAX, TokenType, Vocabulary, byte_of};
use super::{Frame, LoadTokenizerError, Tokenizer, is_frame_text};
use crate::config::VOCAB;

const VOCAB_MAX: usize = *VOCAB.end() as usize;
/// Gemma has 580,000 for a quarter as many tokens.
const MERGES_MAX: usize = 4 * VOCAB_MAX;

/// What stands beside `tokenizer.json` and matters for it.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Rows of the token embeddings; a vocabulary with fewer tokens is filled up with unused ones.
    pub(crate) vocab: usize,
    /// Begin of sequence, by its text.
    pub(crate) bos: Option<String>,
    /// End of sequence, by its text.
    pub(crate) eos: Option<String>,
    /// Whether prompts begin with BOS, where that is stated.
    pub(crate) adds_bos: Option<bool>,
    /// Tokens that end an answer.
    pub(crate) ends: Vec<u64>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: List<AddedToken, SPECIAL_TOKENS_MAX>,
    normalizer: Option<Component>,
    pre_tokenizer: Option<Component>,
    post_processor: Option<Component>,
    model: Bpe,
}

/// The file without what only a BPE model has.
#[derive(Deserialize)]
struct AnyFile {
    model: AnyModel,
}

#[derive(Deserialize)]
struct AnyModel {
    /// Absent in old files of BPE models.
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    /// Found in the text as the normalizer leaves it.
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Bpe {
    vocab: Numbers<VOCAB_MAX>,
    merges: List<MergeText, MERGES_MAX>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeText {
    Pair([String; 2]),
    Line(String),
}

fn unsupported<T>(what: impl Into<String>) -> Result<T, LoadTokenizerError> {
    Err(LoadTokenizerError::Unsupported(what.into()))
}

fn value(component: &Option<Component>) -> Option<&Value> {
    component.as_ref().map(|Component(value)| value)
}

pub(super) fn read(bytes: &[u8], settings: &Settings) -> Result<Tokenizer, LoadTokenizerError> {
    match serde_json::from_slice::<AnyFile>(bytes)?.model.kind.as_deref() {
        None | Some("BPE") => {}
        Some(kind) => return unsupported(format!("the model `{kind}`")),
    }
    let file: File = serde_json::from_slice(bytes)?;
    let model = &file.model;
    let is_empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return unsupported("merges by chance");
    }
    if !is_empty(&model.continuing_subword_prefix) || !is_empty(&model.end_of_word_suffix) {
        return unsupported("marks inside or behind words");
    }

    let mut text = Normalizer::of(value(&file.normalizer))?;
    let cut = PreTokenizer::of(value(&file.pre_tokenizer), &mut text)?;
    let begin = post_processor(value(&file.post_processor))?;
    let alphabet = if cut.is_byte_level { Alphabet::Bytes } else { Alphabet::Spaces };

    // Such a token would only be found behind the mark that is put before every text.
    if text.prefix == Prefix::Every && file.added_tokens.0.iter().any(|token| token.normalized && !token.special) {
        return unsupported("added tokens that are found behind a mark");
    }
    let tokens = numbered(&file, settings.vocab)?;
    let mut types = types(&file, alphabet, &tokens);
    let by_text = |text: &String| tokens.iter().position(|token| token.as_ref() == Some(&text.as_str()));
    if begin.as_ref().is_some_and(|text| by_text(text).is_none()) {
        return unsupported("a first token that is not in its vocabulary");
    }
    let bos = begin.as_ref().or(settings.bos.as_ref()).and_then(by_text);
    let eos = settings.eos.as_ref().and_then(by_text);
    let mut ends = Vec::with_capacity(settings.ends.len() + 1);
    for &end in &settings.ends {
        match usize::try_from(end) {
            Ok(number) if number < tokens.len() => ends.push(number),
            _ => return Err(LoadTokenizerError::TokenNumber { number: end, tokens: tokens.len() }),
        }
    }
    ends.extend(eos);
    for &token in ends.iter().chain(&bos) {
        types[token] = TokenType::Control;
    }

    let mut vocabulary = Vocabulary::new(alphabet);
    for (text, kind) in tokens.iter().zip(types) {
        vocabulary.push(text.unwrap_or_default(), kind)?;
    }
    let mut merges = Merges::default();
    for (merge, text) in model.merges.0.iter().enumerate() {
        let sides = match text {
            MergeText::Pair([left, right]) => Some((left.as_str(), right.as_str())),
            MergeText::Line(line) => line.split_once(' '),
        };
        merges.push_text(&vocabulary, merge, sides)?;
    }

    let byte_tokens = vocabulary.byte_tokens;
    let algorithm = match alphabet {
        Alphabet::Bytes => {
            if text.spaces_are_marked || model.byte_fallback {
                return unsupported("bytes as characters and by number");
            }
            let split = Split::of_rules(&cut.rules, model.ignore_merges).ok_or(LoadTokenizerError::Pattern)?;
            let whole_pieces = if model.ignore_merges { vocabulary.normal.clone() } else { HashMap::new() };
            Algorithm::ByteLevel { is_nfc: text.is_nfc, split, byte_tokens, merges, whole_pieces }
        }
        Alphabet::Spaces => {
            if !text.spaces_are_marked || !model.byte_fallback {
                return unsupported("a vocabulary of characters without marked spaces or without bytes");
            }
            if text.is_nfc || model.ignore_merges || !cut.rules.is_empty() {
                return unsupported("pieces of text in a vocabulary of characters");
            }
            let one = |(bytes, &token): (&Vec<u8>, &u32)| {
                let mut characters = std::str::from_utf8(bytes).ok()?.chars();
                let character = characters.next()?;
                characters.next().is_none().then_some((character, token))
            };
            let characters = vocabulary.normal.iter().filter_map(one).collect();
            Algorithm::Characters { characters, byte_tokens, merges, prefix: text.prefix }
        }
    };
    let number = |token: usize| u32::try_from(token).ok();
    let frame = Frame {
        bos: bos.and_then(number),
        eos: eos.and_then(number),
        ends: ends.into_iter().filter_map(number).collect(),
        adds_bos: settings.adds_bos.unwrap_or(begin.is_some()),
    };
    Tokenizer::assemble(&cut.name, vocabulary, algorithm, frame)
}

/// All tokens' texts by number; numbers that no token has are there for rows of the embeddings that nothing uses.
fn numbered(file: &File, vocab: usize) -> Result<Vec<Option<&str>>, LoadTokenizerError> {
    let mut tokens: Vec<Option<&str>> = vec![None; vocab];
    let added = file.added_tokens.0.iter().map(|token| (token.content.as_str(), token.id));
    for (text, id) in file.model.vocab.0.iter().map(|(text, &id)| (text.as_str(), id)).chain(added) {
        let slot = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id));
        match slot {
            Some(slot) if slot.is_none_or(|known| known == text) => *slot = Some(text),
            _ => return Err(LoadTokenizerError::TokenNumber { number: id, tokens: vocab }),
        }
    }
    for token in &file.added_tokens.0 {
        if token.lstrip || token.rstrip || token.single_word {
            return unsupported("added tokens that look at the text around them");
        }
    }
    Ok(tokens)
}

fn types(file: &File, alphabet: Alphabet, tokens: &[Option<&str>]) -> Vec<TokenType> {
    let unknown = file.model.unk_token.as_deref();
    let of = |text: &Option<&str>| match text {
        None => TokenType::Unused,
        Some(_) if *text == unknown => TokenType::Control,
        Some(text) if alphabet == Alphabet::Spaces && byte_of(text).is_some() => TokenType::Byte,
        Some(_) => TokenType::Normal,
    };
    let mut types: Vec<TokenType> = tokens.iter().map(of).collect();
    for token in &file.added_tokens.0 {
        let is_control = token.special || is_frame_text(&token.content) || Some(token.content.as_str()) == unknown;
        // INVARIANT: `numbered` has found a place for each of them.
        if let Some(kind) = usize::try_from(token.id).ok().and_then(|id| types.get_mut(id)) {
            *kind = if is_control { TokenType::Control } else { TokenType::Added };
        }
    }
    types
}

/// The parts of a component: itself, or those of a sequence of them. No file nests sequences.
fn parts<'a>(component: Option<&'a Value>, list: &str) -> Result<Vec<&'a Value>, LoadTokenizerError> {
    match component {
        None => Ok(Vec::new()),
        Some(component) if component["type"] == "Sequence" => match component[list].as_array() {
            Some(parts) => Ok(parts.iter().collect()),
            None => unsupported(format!("a sequence whose `{list}` are no list")),
        },
        Some(component) => Ok(vec![component]),
    }
}

fn kind_of(component: &Value) -> &str {
    component["type"].as_str().unwrap_or("?")
}

/// What happens to a text before it is cut.
struct Normalizer {
    is_nfc: bool,
    spaces_are_marked: bool,
    prefix: Prefix,
}

/// SentencePiece's space.
const SPACE_MARK: &str = "\u{2581}";

impl Normalizer {
    fn of(component: Option<&Value>) -> Result<Self, LoadTokenizerError> {
        let mut text = Self { is_nfc: false, spaces_are_marked: false, prefix: Prefix::None };
        for part in parts(component, "normalizers")? {
            match kind_of(part) {
                "NFC" => text.is_nfc = true,
                "Prepend" if part["prepend"] == SPACE_MARK => text.prefix = Prefix::Every,
                "Replace" if part["pattern"]["String"] == " " && part["content"] == SPACE_MARK => {
                    text.spaces_are_marked = true;
                }
                kind => return unsupported(format!("the normalizer `{kind}`")),
            }
        }
        if text.prefix == Prefix::Every && !text.spaces_are_marked {
            return unsupported("a mark before texts whose spaces are not marked");
        }
        Ok(text)
    }
}

/// Where a text is cut.
struct PreTokenizer {
    /// For people: the kinds of its parts.
    name: String,
    rules: Vec<Rule>,
    is_byte_level: bool,
}

impl PreTokenizer {
    fn of(component: Option<&Value>, text: &mut Normalizer) -> Result<Self, LoadTokenizerError> {
        let mut cut = Self { name: "none".to_owned(), rules: Vec::new(), is_byte_level: false };
        let parts = parts(component, "pretokenizers")?;
        if !parts.is_empty() {
            cut.name = parts.iter().map(|part| kind_of(part)).collect::<Vec<_>>().join("+");
        }
        for part in parts {
            match kind_of(part) {
                _ if cut.is_byte_level => return unsupported("a pre-tokenizer behind `ByteLevel`"),
                "Split" => cut.rules.extend(split(part, text)?),
                "Digits" if part["individual_digits"] == true => cut.rules.push(Rule::digit()),
                "ByteLevel" if part["add_prefix_space"] == false => {
                    cut.is_byte_level = true;
                    if part["use_regex"] != false {
                        cut.rules.push(Rule::gpt2());
                    }
                }
                "Metaspace" => metaspace(part, text)?,
                kind => return unsupported(format!("the pre-tokenizer `{kind}` with its settings")),
            }
        }
        Ok(cut)
    }
}

fn split(part: &Value, text: &Normalizer) -> Result<Option<Rule>, LoadTokenizerError> {
    let pattern = &part["pattern"];
    // Gemma's: no space is left to cut at.
    if pattern["String"] == " " && text.spaces_are_marked {
        return Ok(None);
    }
    if part["behavior"] != "Isolated" || part["invert"] != false {
        return unsupported("the pre-tokenizer `Split` with its settings");
    }
    match pattern["Regex"].as_str().and_then(Rule::published) {
        Some(rule) => Ok(Some(rule)),
        None => unsupported("a pattern of the pre-tokenizer `Split` that is not one of the known families'"),
    }
}

fn metaspace(part: &Value, text: &mut Normalizer) -> Result<(), LoadTokenizerError> {
    if part["replacement"] != SPACE_MARK || part["split"] != false {
        return unsupported("the pre-tokenizer `Metaspace` with its settings");
    }
    text.spaces_are_marked = true;
    text.prefix = match part["prepend_scheme"].as_str() {
        Some("always") => Prefix::EveryWithout,
        Some("first") => Prefix::Start,
        Some("never") => Prefix::None,
        _ => return unsupported("the pre-tokenizer `Metaspace` with its settings"),
    };
    Ok(())
}

/// The text of the token that every prompt begins with, if any.
fn post_processor(component: Option<&Value>) -> Result<Option<String>, LoadTokenizerError> {
    let mut begin = None;
    for part in parts(component, "processors")? {
        match kind_of(part) {
            // Is about offsets.
            "ByteLevel" => {}
            "TemplateProcessing" => {
                let single: Vec<&Value> = part["single"].as_array().into_iter().flatten().collect();
                begin = match single.as_slice() {
                    [text] if text["Sequence"]["id"] == "A" => None,
                    [token, text] if text["Sequence"]["id"] == "A" && token["SpecialToken"]["id"].is_string() => {
                        token["SpecialToken"]["id"].as_str().map(str::to_owned)
                    }
                    _ => return unsupported("a post-processor that adds more than one token before the text"),
                };
            }
            kind => return unsupported(format!("the post-processor `{kind}`")),
        }
    }
    Ok(begin)
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
