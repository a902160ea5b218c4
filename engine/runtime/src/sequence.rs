//! A prompt on its way into the engine.

use engine_model::{ChatMessage, ChatTemplateError, Model};
use policies_domain::{Label, RequestId};
use std::fmt;

/// What a request asks the model to continue.
pub enum PromptInput {
    /// Messages, to be rendered by the model's chat template.
    Chat(Vec<ChatMessage>),
    /// Plain text; text that looks like a control token stays text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl PromptInput {
    /// Text that is to be tokenized, without the chat frame.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Chat(messages) => messages.iter().map(|message| message.content.len()).sum(),
            Self::Text(text) => text.len(),
            Self::Tokens(_) => 0,
        }
    }
}

impl fmt::Debug for PromptInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chat(messages) => write!(f, "Chat({} messages)", messages.len()),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Tokens(tokens) => write!(f, "Tokens({})", tokens.len()),
        }
    }
}

/// A tokenized prompt that carries the label of the permit it was made under.
pub struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) label: Label,
    pub(crate) request: RequestId,
}

impl Sequence {
    /// Tokens of the prompt, those of the chat frame included.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Whose data it is.
    #[must_use]
    pub fn label(&self) -> Label {
        self.label
    }

    /// The request that it was tokenized for.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({} tokens, {})", self.tokens.len(), self.label)
    }
}

/// Why a prompt could not become a sequence.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {tokens} tokens or more, at most {tokens_max} are possible")]
    TooLong {
        /// Tokens of the prompt, or a lower bound of them when its text is longer than any tokens that fit.
        tokens: usize,
        /// Room of the context, one token of answer taken off.
        tokens_max: usize,
    },
    /// No token at all.
    #[error("the prompt is empty")]
    Empty,
    /// The model's file has no chat template.
    #[error("the model has no chat template: use plain completions")]
    NoChatTemplate,
    /// The template refused the messages or failed.
    #[error("the chat template could not be applied")]
    Template(#[source] ChatTemplateError),
    /// A token id beyond the vocabulary.
    #[error("a token id is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The tokenizer failed.
    #[error("the prompt could not be tokenized")]
    Tokenizer(#[source] engine_model::TokenizeError),
}

impl From<engine_model::TokenizeError> for TokenizeError {
    fn from(error: engine_model::TokenizeError) -> Self {
        match error {
            engine_model::TokenizeError::TooMany { tokens, tokens_max } => Self::TooLong { tokens, tokens_max },
            engine_model::TokenizeError::TooLarge { .. } => Self::Tokenizer(error),
        }
    }
}

impl From<ChatTemplateError> for TokenizeError {
    fn from(error: ChatTemplateError) -> Self {
        match error {
            ChatTemplateError::Tokenize(error) => error.into(),
            error => Self::Template(error),
        }
    }
}

/// The tokens of a prompt, of which there are `tokens_max` at most.
pub(crate) fn tokens_of(model: &Model, prompt: &PromptInput, tokens_max: usize) -> Result<Vec<u32>, TokenizeError> {
    let tokenizer = model.tokenizer();
    // No token is longer than the longest: a text that cannot fit is refused before the work of tokenizing it.
    let tokens_min = prompt.text_bytes() / tokenizer.longest_token_bytes().max(1);
    if tokens_min > tokens_max {
        return Err(TokenizeError::TooLong { tokens: tokens_min, tokens_max });
    }
    let tokens = match prompt {
        PromptInput::Chat(messages) => {
            let template = model.chat_template().ok_or(TokenizeError::NoChatTemplate)?;
            template.tokens(tokenizer, messages, tokens_max)?
        }
        PromptInput::Text(text) => {
            let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
            bos.into_iter().chain(tokenizer.encode_within(text, false, tokens_max)?).collect()
        }
        PromptInput::Tokens(tokens) => {
            let vocab = tokenizer.vocab();
            if tokens.iter().any(|token| *token as usize >= vocab) {
                return Err(TokenizeError::UnknownToken { vocab });
            }
            tokens.clone()
        }
    };
    if tokens.is_empty() {
        return Err(TokenizeError::Empty);
    }
    if tokens.len() > tokens_max {
        return Err(TokenizeError::TooLong { tokens: tokens.len(), tokens_max });
    }
    Ok(tokens)
}
