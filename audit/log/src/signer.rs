//! A log whose signing key is kept by another program: in a security module, on another account, wherever it reaches.
//!
//! The program runs as long as the log is open and answers on its standard output, a line for each line that it gets; see
//! docs/signer.md. What it answers is verified before it is used.

use crate::fault::OpenLogError;
use audit_tlog::{ExternalSigner, LogSigner, VerifierKey};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// First word of a conversation: the version of what is said.
const GREETING: &str = "bulkhead-signer/1";
/// Until an answer is there. A module signs in some milliseconds; a log that waits longer than this stands still.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4_096;
/// After its input has ended, the program has so much time to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether it has.
const END_LOOK: Duration = Duration::from_millis(10);

/// Where the key is that signs a log's checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SignerPlace {
    /// In the log's folder, where it is made.
    #[default]
    File,
    /// With this program, given as its name and its arguments.
    Command(Vec<String>),
}

/// A program that signs.
pub(crate) struct CommandSigner {
    program: String,
    conversation: Mutex<Conversation>,
}

struct Conversation {
    child: Child,
    /// `None` when it is over.
    to: Option<ChildStdin>,
    answers: Receiver<io::Result<String>>,
}

impl CommandSigner {
    /// Starts the program and asks it for the key of this origin.
    pub(crate) fn start(command: &[String], origin: &str) -> Result<LogSigner, OpenLogError> {
        let (program, arguments) = command.split_first().map_or(("", command), |(first, rest)| (first.as_str(), rest));
        let failed = |reason: String| OpenLogError::Signer { command: program.to_owned(), reason };
        let conversation = Conversation::begin(program, arguments).map_err(|error| failed(error.to_string()))?;
        let signer = Self { program: program.to_owned(), conversation: Mutex::new(conversation) };
        let line = signer.ask(&format!("{GREETING} {origin}")).map_err(|error| failed(error.to_string()))?;
        let key = VerifierKey::parse(&line)
            .map_err(|error| failed(format!("its first answer is no verifier key: {error}")))?;
        if key.name() != origin {
            return Err(failed(format!("its key is for `{}`, the log is `{origin}`", key.name())));
        }
        Ok(LogSigner::elsewhere(key, Box::new(signer)))
    }

    fn ask(&self, line: &str) -> io::Result<String> {
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner).ask(line)
    }
}

impl ExternalSigner for CommandSigner {
    fn sign(&self, message: &[u8]) -> io::Result<[u8; 64]> {
        let signature = self.ask(&format!("sign {}", BASE64_STANDARD.encode(message))).and_then(|answer| {
            let mut signature = [0; 64];
            match BASE64_STANDARD.decode_slice(&answer, &mut signature) {
                Ok(64) => Ok(signature),
                _ => Err(io::Error::other("its answer is no signature")),
            }
        });
        if let Err(error) = &signature {
            tracing::error!(program = self.program, %error, "the log's signer does not sign");
        }
        signature
    }
}

impl Conversation {
    fn begin(program: &str, arguments: &[String]) -> io::Result<Self> {
        let mut command = Command::new(program);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take();
        let (sender, answers) = sync_channel(1);
        let from = child.stdout.take();
        let mut conversation = Self { child, to, answers };
        let from = from.ok_or(io::ErrorKind::BrokenPipe)?;
        let reader = move || {
            let mut from = BufReader::new(from);
            while let Some(answer) = next_line(&mut from).transpose() {
                let over = answer.is_err();
                if sender.send(answer).is_err() || over {
                    break;
                }
            }
        };
        // It ends with the program's output, or with this conversation.
        if let Err(error) = thread::Builder::new().name("log-signer".to_owned()).spawn(reader) {
            conversation.end();
            return Err(error);
        }
        Ok(conversation)
    }

    /// One line there, one line back. After a failure nothing more is said: an answer that comes late is to another question.
    fn ask(&mut self, line: &str) -> io::Result<String> {
        let answer = self.try_ask(line);
        if answer.is_err() {
            self.to = None;
        }
        answer
    }

    fn try_ask(&mut self, line: &str) -> io::Result<String> {
        let to = self.to.as_mut().ok_or_else(|| io::Error::other("it failed before"))?;
        let said = to.write_all(format!("{line}\n").as_bytes()).and_then(|()| to.flush());
        said.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => io::Error::other("it has ended"),
            _ => error,
        })?;
        let answer = self.answers.recv_timeout(ANSWER_TIMEOUT).map_err(|error| match error {
            std::sync::mpsc::RecvTimeoutError::Timeout => io::Error::from(io::ErrorKind::TimedOut),
            std::sync::mpsc::RecvTimeoutError::Disconnected => io::Error::other("it has ended"),
        })??;
        match answer.strip_prefix("error") {
            Some(reason) => Err(io::Error::other(format!("it says: {}", printable(reason)))),
            None => Ok(answer),
        }
    }

    fn end(&mut self) {
        self.to = None;
        let until = Instant::now() + END_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                // Refused when it has ended by itself: then it is waited for all the same.
                let _ended = self.child.kill();
                let _status = self.child.wait();
                return;
            }
            thread::sleep(END_LOOK);
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.end();
    }
}

/// `None` at the end.
fn next_line(from: &mut BufReader<ChildStdout>) -> io::Result<Option<String>> {
    let mut line = String::new();
    from.take(ANSWER_BYTES_MAX).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(Some(line.to_owned())),
        None if line.is_empty() => Ok(None),
        None => Err(io::Error::other("its answer is too long or is cut off")),
    }
}

/// Of what another program said, what may stand in a line of a log.
pub(crate) fn printable(text: &str) -> String {
    text.trim().chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(200).collect()
}
