//! Prefixes that an operator has declared to be everybody's.
//!
//! Whoever reads one reads what nobody's request has written: it is computed before the first request, from the declaration
//! alone, and never goes to make room. Nothing that tenants ask makes such a page, however many of them ask the same.

use crate::compute::Compute;
use crate::config::{EngineConfig, StartEngineError};
use crate::machine::Machine;
use crate::sequence::{PromptInput, TokenizeError, tokens_of};
use engine_kv::PAGE_TOKENS;
use engine_model::{ChatMessage, Model};
use std::fmt;

/// Of all pages, one of so many may be everybody's: the tenants' guarantees are four fifths.
const POOL_PART: usize = 10;
/// What a request may say behind a prefix. The tokens that all of these leave alone are the prefix's.
const GOES_ON: [&str; 5] = ["a", " b", "1", "\n\nc", "é"];

/// What many tenants' prompts begin with, by an operator's word.
#[derive(Clone, PartialEq, Eq)]
pub enum PublicPrefix {
    /// A system message, as the first message of a chat.
    System(String),
    /// The beginning of a plain completion's prompt.
    Text(String),
}

impl fmt::Debug for PublicPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(text) => write!(f, "System({} bytes)", text.len()),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
        }
    }
}

impl PublicPrefix {
    /// A prompt that begins with it.
    fn before(&self, goes_on: &str) -> PromptInput {
        let message = |role: &str, content: &str| ChatMessage { role: role.to_owned(), content: content.to_owned() };
        match self {
            Self::System(text) => PromptInput::Chat(vec![message("system", text), message("user", goes_on)]),
            Self::Text(text) => PromptInput::Text(format!("{text}{goes_on}")),
        }
    }

    /// The tokens that a prompt has in front of all that depends on how it goes on.
    fn tokens(&self, model: &Model, tokens_max: usize) -> Result<Vec<u32>, TokenizeError> {
        let [first, others @ ..] = GOES_ON;
        let mut tokens = tokens_of(model, &self.before(first), tokens_max)?;
        for other in others {
            let other = tokens_of(model, &self.before(other), tokens_max)?;
            tokens.truncate(std::iter::zip(&tokens, &other).take_while(|(one, other)| one == other).count());
        }
        Ok(tokens)
    }
}

/// Whole pages of tokens, one list for each declared prefix.
pub(crate) struct PublicTokens(Vec<Vec<u32>>);

impl PublicTokens {
    /// Of these prefixes; each is a prompt of less than `context_max` tokens with something behind it.
    pub(crate) fn of(
        declared: &[PublicPrefix],
        model: &Model,
        config: &EngineConfig,
        has_worker: bool,
        context_max: usize,
    ) -> Result<Self, StartEngineError> {
        if !declared.is_empty() && (has_worker || !config.prefix_cache) {
            return Err(StartEngineError::PublicWithoutCache { has_worker });
        }
        let whole_pages = |(number, prefix): (usize, &PublicPrefix)| {
            let tokens = prefix.tokens(model, context_max - 1);
            let mut tokens = tokens.map_err(|source| StartEngineError::PublicTokens { number, source })?;
            let (shared, page_tokens) = (tokens.len(), PAGE_TOKENS);
            tokens.truncate(shared / page_tokens * page_tokens);
            match tokens.is_empty() {
                true => Err(StartEngineError::PublicTooShort { number, tokens: shared, page_tokens }),
                false => Ok(tokens),
            }
        };
        let public = Self((1..).zip(declared).map(whole_pages).collect::<Result<_, _>>()?);
        let (pages, pages_max) = (public.pages(), config.pages / POOL_PART);
        if pages > pages_max {
            return Err(StartEngineError::PublicTooMany { pages, pages_max });
        }
        Ok(public)
    }

    /// As many as all of them need when no two begin alike.
    pub(crate) fn pages(&self) -> usize {
        self.0.iter().map(|tokens| tokens.len() / PAGE_TOKENS).sum()
    }

    /// Computes them on a machine that keeps prefixes and works for nobody yet.
    pub(crate) fn declare(
        &self,
        machine: &mut Machine<impl Compute>,
        config: &EngineConfig,
    ) -> Result<(), StartEngineError> {
        for (number, tokens) in (1..).zip(&self.0) {
            let declared = machine.declare(tokens, config.prefill_chunk_tokens, self.pages());
            declared.map_err(|source| StartEngineError::Public { number, source })?;
        }
        if !self.0.is_empty() {
            let (prefixes, pages) = (self.0.len(), machine.pages_of_everybody());
            let tokens = pages * PAGE_TOKENS;
            tracing::warn!(
                prefixes,
                pages,
                tokens,
                "every tenant shares the declared prefixes, and can tell that they are"
            );
        }
        Ok(())
    }
}
