//! Compiling and rendering a template, apart from what is done around it: whoever loads a model chooses where.
//!
//! A template is a program from a model file. [`InProcess`] bounds its instructions, what it writes and how deep it
//! calls; it does not bound how deep the parser descends, how deep values nest or how long comparing two of them takes,
//! so a hostile template can end the process that it runs in, or keep it. A server compiles and renders elsewhere.

use std::fmt;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, context};

use super::{ChatMessage, calendar};
use crate::printable::{PRINTABLE_BYTES_MAX, printable};

/// Instructions of one rendering, and 64-byte units of what it makes: 256 MB and well under a second.
const FUEL: u64 = 4_000_000;
/// Nesting of one rendering; minijinja counts a macro call as several.
const RECURSION_MAX: usize = 200;
const NAME: &str = "chat";

/// What a template is given.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// Never empty.
    pub messages: &'a [ChatMessage],
    /// The text of the token that begins a sequence; empty when there is none.
    pub bos: &'a str,
    /// The text of the token that ends a sequence; empty when there is none.
    pub eos: &'a str,
}

/// Compiles templates.
pub trait CompileChat: fmt::Debug + Send + Sync {
    /// Compiles a template in the dialect of Hugging Face's `apply_chat_template`.
    ///
    /// # Errors
    /// [`LoadTemplateError`].
    fn compile(&self, source: &str) -> Result<Box<dyn RenderChat>, LoadTemplateError>;
}

/// A compiled template.
pub trait RenderChat: Send + Sync {
    /// The text that the template makes of a conversation, ready for the assistant's next turn. Blocks.
    ///
    /// # Errors
    /// [`RenderError`]; none of its texts repeats a content.
    fn render(&self, conversation: &Conversation<'_>) -> Result<String, RenderError>;
}

/// Why a template cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum LoadTemplateError {
    /// It is not written as templates are.
    #[error("the chat template has a mistake in line {line}: {kind}")]
    Mistake {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// What kind of mistake.
        kind: String,
    },
    /// Compiling it takes more time, memory or stack than it may, or it is far longer than any template.
    #[error("the chat template takes too much work to compile")]
    TooMuchWork,
    /// What compiles templates cannot be had.
    #[error("chat templates cannot be compiled: {0}")]
    Unavailable(#[from] io::Error),
}

/// Why a conversation has no text. Says nothing of what was said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template refused the conversation. The reason is given when it stands in the template word by word.
    #[error("the model's chat template refuses the conversation{}", reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default())]
    Raised {
        /// The template's own words, see [`printable`].
        reason: Option<String>,
    },
    /// The template asks for more time, memory or stack than a rendering may take.
    #[error("the model's chat template takes too much work")]
    TooMuchWork,
    /// The template failed in another way.
    #[error("the model's chat template failed in line {line}: {kind}")]
    Failed {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// What kind of failure.
        kind: String,
    },
    /// What renders templates cannot be had. It is no fault of the conversation.
    #[error("chat templates cannot be rendered at the moment")]
    Unavailable,
}

/// Compiles and renders in the process that calls: for templates that are trusted, and for a process that is there for
/// nothing else.
#[derive(Clone, Copy, Debug)]
pub struct InProcess;

impl CompileChat for InProcess {
    fn compile(&self, source: &str) -> Result<Box<dyn RenderChat>, LoadTemplateError> {
        let failed = |error: &Error| LoadTemplateError::Mistake {
            line: error.line().unwrap_or(0),
            kind: error.kind().to_string(),
        };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| failed(&error))?);
        environment.set_debug(false);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(reason)))
        });
        environment.add_function("strftime_now", |format: &str| calendar::strftime_now(format));
        environment.add_template_owned(NAME, source.to_owned()).map_err(|error| failed(&error))?;
        Ok(Box::new(Compiled { environment, source: source.to_owned() }))
    }
}

struct Compiled {
    environment: Environment<'static>,
    source: String,
}

impl RenderChat for Compiled {
    fn render(&self, conversation: &Conversation<'_>) -> Result<String, RenderError> {
        let messages: Vec<Value> = conversation
            .messages
            .iter()
            .map(|message| context! { role => message.role.as_str(), content => message.content.as_str() })
            .collect();
        let template = self.environment.get_template(NAME).map_err(|error| self.failed(&error))?;
        template
            .render(context! {
                messages,
                add_generation_prompt => true,
                bos_token => conversation.bos,
                eos_token => conversation.eos,
                tools => Value::from(()),
                documents => Value::from(()),
            })
            .map_err(|error| self.failed(&error))
    }
}

impl Compiled {
    /// Errors of the template engine can quote values, so only their kind and place are kept.
    fn failed(&self, error: &Error) -> RenderError {
        let raised = std::iter::successors(std::error::Error::source(error), |error| error.source())
            .find_map(|error| error.downcast_ref::<Raised>());
        if let Some(Raised(reason)) = raised {
            let is_told = !reason.is_empty() && self.source.contains(reason.as_str());
            let reason = is_told.then(|| printable(reason, PRINTABLE_BYTES_MAX));
            return RenderError::Raised { reason };
        }
        match error.kind() {
            ErrorKind::OutOfFuel => RenderError::TooMuchWork,
            kind => RenderError::Failed { line: error.line().unwrap_or(0), kind: kind.to_string() },
        }
    }
}

/// `raise_exception` was called with this reason.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised(String);
