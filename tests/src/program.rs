//! A `bulkhead`, or another program of this workspace, that runs until it is told to end, as a child process.

use crate::binary;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest wait for a line: a start on a busy machine.
const LINE_LIMIT: Duration = Duration::from_secs(120);

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    lines: Receiver<String>,
    said: String,
}

impl Program {
    /// Starts `bulkhead` with these arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Self> {
        Self::start_named("bulkhead", arguments)
    }

    /// Starts another program of this workspace.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_named(program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Self> {
        let mut command = Command::new(binary(program)?);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pipe = child.stderr.take().context("no stderr")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, lines, said: String::new() })
    }

    /// Waits for a line of its stderr with these words, and gives it.
    ///
    /// # Errors
    /// With all that it said when none comes in time.
    pub fn wait_for(&mut self, words: &str) -> Result<String> {
        let until = Instant::now() + LINE_LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.said += &format!("{line}\n");
                    if line.contains(words) {
                        return Ok(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("no line with `{words}`:\n{}", self.said),
                Err(RecvTimeoutError::Disconnected) => bail!("it ended without `{words}`:\n{}", self.said),
            }
        }
    }

    /// Sends it a signal by name, as in `STOP`.
    ///
    /// # Errors
    /// When the system does not know it.
    pub fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.id().to_string();
        crate::run(Command::new("kill").args([&format!("-{name}"), &id])).map(drop)
    }

    /// Ends it at once.
    ///
    /// # Errors
    /// When the system does not know it.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, waits for that, and returns all that it wrote to stderr.
    ///
    /// # Errors
    /// When it ends in any other way than success.
    pub fn stop(mut self) -> Result<String> {
        self.signal("TERM")?;
        let status = self.child.wait()?;
        let mut said = std::mem::take(&mut self.said);
        while let Ok(line) = self.lines.recv_timeout(LINE_LIMIT) {
            said += &format!("{line}\n");
        }
        ensure!(status.success(), "it ended with {status}: {said}");
        Ok(said)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Already gone after `stop`.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
