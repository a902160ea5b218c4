//! Chat templates, compiled and rendered in processes of their own.
//!
//! A template is a program that comes with a model's file. What bounds it inside a process does not bound everything (how
//! deep its values nest, how long comparing them takes, how deep its parser descends), and what goes wrong there ends
//! the whole process. So it runs in one that may be lost: this program, started again as `render-chat`, without
//! environment, files or network, with little memory and little time. One that takes too long, dies or answers nonsense
//! is ended and replaced; the request that it worked for is refused, and no other one notices. One that was held up, or
//! ended from outside, is no fault of the conversation: another process gets it, and then the refusal says so.

mod child;
mod frame;
mod process;

pub use child::render_chat;

use engine_model::{CompileChat, Conversation, LoadTemplateError, RenderChat, RenderError};
use frame::Answer;
use process::{Lost, Process};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Templates of published models have at most some tens of kilobytes.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// A process that took and made more than this for one conversation is not kept: its memory would stay grown.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// One compilation or rendering. It is for a process that is not given the processor, for one that uses it is ended
/// by its own limit before: see `child`.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);
/// Processes that one conversation may be lost with, when it is none of its own doing.
const TRIES: usize = 2;

/// Compiles templates in processes of their own, which it starts when they are needed.
pub struct RenderProcesses {
    program: PathBuf,
    idle_max: usize,
    answer_limit: Duration,
}

impl RenderProcesses {
    /// Processes of `program`, which must be `bulkhead` of the same build; at most `idle_max` of them are kept ready for
    /// each template.
    #[must_use]
    pub fn new(program: &Path, idle_max: usize) -> Self {
        Self { program: program.to_owned(), idle_max, answer_limit: ANSWER_LIMIT }
    }

    /// Processes of the program that is running, which must be `bulkhead`.
    ///
    /// # Errors
    /// It cannot be found out which that is.
    pub fn of_this_program(idle_max: usize) -> io::Result<Self> {
        // On Linux the file that runs, even if another one has its name by now.
        let running = Path::new("/proc/self/exe");
        let program = if running.exists() { running.to_owned() } else { std::env::current_exe()? };
        Ok(Self::new(&program, idle_max))
    }
}

impl fmt::Debug for RenderProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RenderProcesses({})", self.program.display())
    }
}

impl CompileChat for RenderProcesses {
    fn compile(&self, source: &str) -> Result<Box<dyn RenderChat>, LoadTemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(LoadTemplateError::TooMuchWork);
        }
        let Self { program, idle_max, answer_limit } = self;
        let pool = Pool {
            program: program.clone(),
            idle_max: *idle_max,
            answer_limit: *answer_limit,
            source: source.to_owned(),
            idle: Mutex::default(),
        };
        let first = pool.start()?;
        pool.keep(first);
        Ok(Box::new(pool))
    }
}

/// The processes of one template. Dropping it ends them.
struct Pool {
    program: PathBuf,
    idle_max: usize,
    answer_limit: Duration,
    source: String,
    idle: Mutex<Vec<Process>>,
}

impl Pool {
    /// A process that has compiled the template.
    fn start(&self) -> Result<Process, LoadTemplateError> {
        let mut process = Process::start(&self.program)?;
        let answer = process.ask(&frame::source(&self.source), self.answer_limit);
        match answer {
            Ok(Answer::Compiled) => Ok(process),
            Ok(Answer::Mistake { line, kind }) => Err(LoadTemplateError::Mistake { line, kind }),
            Err(Lost::TooMuchWork) => Err(LoadTemplateError::TooMuchWork),
            Ok(Answer::Text(_) | Answer::Refused(_)) => Err(io::Error::other(Lost::Nonsense).into()),
            Err(lost) => Err(io::Error::other(lost).into()),
        }
    }

    /// One that waits, or a new one. Whoever calls bounds how many there are at a time.
    fn take(&self) -> Result<Process, LoadTemplateError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                None => return self.start(),
                // It may have been ended from outside; that is not this conversation's fault.
                Some(mut process) => {
                    if !process.has_ended() {
                        return Ok(process);
                    }
                }
            }
        }
    }

    fn keep(&self, process: Process) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.idle_max {
            idle.push(process);
        }
    }
}

impl RenderChat for Pool {
    fn render(&self, conversation: &Conversation<'_>) -> Result<String, RenderError> {
        let Some(request) = frame::conversation(conversation) else { return Err(RenderError::TooMuchWork) };
        let unavailable = |error: LoadTemplateError| {
            tracing::error!(%error, "no process for chat templates");
            RenderError::Unavailable
        };
        let mut process = self.take().map_err(unavailable)?;
        for tries_left in (0..TRIES).rev() {
            let lost = match process.ask(&request, self.answer_limit) {
                Ok(answer @ (Answer::Text(_) | Answer::Refused(_))) => {
                    let result = answer.into_rendering();
                    if request.len() + result.as_ref().map_or(0, String::len) <= KEPT_BYTES_MAX {
                        self.keep(process);
                    }
                    return result;
                }
                Ok(Answer::Compiled | Answer::Mistake { .. }) => Lost::Nonsense,
                Err(lost) => lost,
            };
            if lost == Lost::TooMuchWork {
                tracing::warn!("a chat template took too much work: its process was ended");
                return Err(RenderError::TooMuchWork);
            }
            tracing::warn!(%lost, tries_left, "a process for chat templates is of no more use");
            if tries_left > 0 {
                process = self.start().map_err(unavailable)?;
            }
        }
        Err(RenderError::Unavailable)
    }
}

#[cfg(test)]
mod tests;
