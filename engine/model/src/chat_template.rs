//! Conversations to tokens, through the template that a model file carries.
//!
//! Contents come from users and must not steer the model: no content can make, move or remove a control token. What
//! is written like one inside a content is broken by a mark before rendering and comes out as ordinary text, and
//! a rendering whose control tokens would differ from those of the same conversation with inert contents is refused.
//! The template itself is untrusted input too: what compiles and renders it is chosen with care, see `renderer`.

mod calendar;
mod renderer;

use std::fmt;

use sha2::{Digest, Sha256};

pub use renderer::{CompileChat, Conversation, InProcess, LoadTemplateError, RenderChat, RenderError};

use crate::tokenizer::{TokenizeError, Tokenizer};

/// Most messages of one conversation.
pub const MESSAGES_MAX: usize = 4_096;
/// Stands for every character of a content in the rendering that shows what the template does on its own.
pub(crate) const INERT: char = '\u{1}';
/// Longest rendering, bytes: a million tokens and more of any language, and little beside what a server holds anyway.
pub const RENDERING_BYTES_MAX: usize = 8 << 20;
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// One turn of a conversation.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl fmt::Debug for ChatMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatMessage({} bytes)", self.content.len())
    }
}

/// Why a conversation has no tokens. Says nothing of what was said.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ChatTemplateError {
    /// No messages.
    #[error("there are no messages")]
    Empty,
    /// More than [`MESSAGES_MAX`].
    #[error("there are {messages} messages, at most {messages_max} are accepted")]
    TooMany {
        /// Given.
        messages: usize,
        /// Accepted.
        messages_max: usize,
    },
    /// Another role than the four.
    #[error("the role of message {message} is not `system`, `user`, `assistant` or `tool`")]
    Role {
        /// Counted from 0.
        message: usize,
    },
    /// The template made no text of it.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The rendering has nothing but white space.
    #[error("the model's chat template makes nothing of the conversation")]
    Nothing,
    /// The control tokens depend on what was said.
    #[error("the contents would change the control tokens of the conversation")]
    ContentChangesFrame,
    /// The rendering has no tokens.
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
}

/// A compiled template.
pub struct ChatTemplate {
    renderer: Box<dyn RenderChat>,
    source: String,
}

impl ChatTemplate {
    /// Compiles a template in the dialect of Hugging Face's `apply_chat_template`, where `compiler` does that.
    ///
    /// # Errors
    /// [`LoadTemplateError`] when it does not compile.
    pub fn new(source: &str, compiler: &dyn CompileChat) -> Result<Self, LoadTemplateError> {
        Ok(Self { renderer: compiler.compile(source)?, source: source.to_owned() })
    }

    /// The conversation as the model was trained to read it, ready for the assistant's next turn: at most `tokens_max`
    /// tokens. What the template makes beyond them costs no more than finding out.
    ///
    /// # Errors
    /// [`ChatTemplateError`]; none of its texts repeats a content.
    pub fn tokens(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        tokens_max: usize,
    ) -> Result<Vec<u32>, ChatTemplateError> {
        match messages.len() {
            0 => return Err(ChatTemplateError::Empty),
            1..=MESSAGES_MAX => {}
            messages => return Err(ChatTemplateError::TooMany { messages, messages_max: MESSAGES_MAX }),
        }
        if let Some(message) = messages.iter().position(|message| !ROLES.contains(&message.role.as_str())) {
            return Err(ChatTemplateError::Role { message });
        }

        let mark = unused_character(&self.source, messages);
        let text = self.render(tokenizer, messages, |content| break_control_text(tokenizer, content, mark))?;
        let longest = tokenizer.longest_token_bytes().max(1);
        let tokens = (text.len() - mark.len_utf8() * text.matches(mark).count()) / longest;
        if tokens > tokens_max {
            return Err(TokenizeError::TooMany { tokens, tokens_max }.into());
        }
        let inert = self.render(tokenizer, messages, |content| {
            content.chars().map(|c| if c.is_whitespace() { c } else { INERT }).collect()
        })?;
        let controls = |text| tokenizer.control_matches(text).map(|(token, ..)| token);
        if !controls(&text).eq(controls(&inert)) {
            return Err(ChatTemplateError::ContentChangesFrame);
        }
        if text.trim().is_empty() {
            return Err(ChatTemplateError::Nothing);
        }

        let mut tokens = Vec::with_capacity((text.len() / 3 + 1).min(tokens_max.saturating_add(2)));
        let mut from = 0;
        for (token, start, end) in tokenizer.control_matches(&text) {
            tokenizer.append(&text[from..start].replace(mark, ""), from == 0, false, tokens_max, &mut tokens)?;
            tokens.push(token);
            from = end;
        }
        tokenizer.append(&text[from..].replace(mark, ""), from == 0, false, tokens_max, &mut tokens)?;
        if let (true, Some(bos)) = (tokenizer.adds_bos(), tokenizer.bos())
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }

    /// SHA-256 of the template's text.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.source).into()
    }

    fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        content: impl Fn(&str) -> String,
    ) -> Result<String, ChatTemplateError> {
        let messages: Vec<ChatMessage> = messages
            .iter()
            .map(|message| ChatMessage { role: message.role.clone(), content: content(&message.content) })
            .collect();
        let text_of = |token: Option<u32>| {
            let bytes = token.and_then(|token| tokenizer.token_bytes(token)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let (bos, eos) = (text_of(tokenizer.bos()), text_of(tokenizer.eos()));
        let text = self.renderer.render(&Conversation { messages: &messages, bos: &bos, eos: &eos })?;
        if text.len() > RENDERING_BYTES_MAX { Err(RenderError::TooMuchWork.into()) } else { Ok(text) }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatTemplate({} bytes)", self.source.len())
    }
}

/// A private-use character that stands neither in the template nor in any message. There are 131,068 of them; a
/// conversation that uses all (half a megabyte of nothing else) gets the last one and loses it from its contents.
fn unused_character(source: &str, messages: &[ChatMessage]) -> char {
    const PRIVATE_USE: std::ops::RangeInclusive<char> = '\u{f0000}'..='\u{10fffd}';
    let texts = messages.iter().flat_map(|message| [message.content.as_str(), message.role.as_str()]);
    let used: std::collections::HashSet<char> =
        texts.chain([source]).flat_map(str::chars).filter(|c| PRIVATE_USE.contains(c)).collect();
    PRIVATE_USE.into_iter().find(|c| !used.contains(c)).unwrap_or('\u{10fffd}')
}

/// The content with `mark` after the first character of everything that is written like a control token.
fn break_control_text(tokenizer: &Tokenizer, content: &str, mark: char) -> String {
    let mut broken = String::with_capacity(content.len());
    let mut from = 0;
    // Searching goes on behind the first character, for another one may begin inside the one just broken.
    while let Some(start) = tokenizer.find_control(content, from) {
        let first = content[start..].chars().next().map_or(0, char::len_utf8);
        broken.push_str(&content[from..start + first]);
        broken.push(mark);
        from = start + first;
    }
    broken.push_str(&content[from..]);
    broken
}

#[cfg(test)]
mod tests;
