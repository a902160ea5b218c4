//! One rendering process, as the gateway sees it: started, asked, ended.

use super::frame::{self, Answer, FRAME_BYTES_MAX, HELLO};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// From starting a process to its first word: for a machine that has other things to do.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The hidden command of `bulkhead`.
const COMMAND: &str = "render-chat";

/// Ended when dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stream: UnixStream,
}

/// Why there is no answer: the process is of no more use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// It took too long, or could not be written to or read.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// It ended.
    #[error("it ended")]
    Ended,
    /// What it said means nothing.
    #[error("it answered what is no answer")]
    Nonsense,
}

impl Process {
    /// Starts `program` and waits until it says that its limits stand.
    ///
    /// # Errors
    /// It cannot be started, or is no `bulkhead` of this build.
    pub(super) fn start(program: &Path) -> io::Result<Self> {
        // Both ends are closed in every other process that this one starts.
        let (stream, far) = UnixStream::pair()?;
        let (input, output) = (OwnedFd::from(far.try_clone()?), OwnedFd::from(far));
        let child = Command::new(program)
            .arg0("bulkhead")
            .arg(COMMAND)
            .env_clear()
            // The allocator takes its memory as it needs it, and not from a reserve that the limit would not count.
            .env("MIMALLOC_ARENA_RESERVE", "0")
            .current_dir("/")
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()?;
        let mut process = Self { child, stream };
        let mut timed = Timed { stream: &process.stream, until: Instant::now() + START_LIMIT };
        match frame::read(&mut timed, HELLO.len())? {
            Some(hello) if hello == HELLO => Ok(process),
            _ => {
                let ended = process.child.try_wait()?.map_or("did not begin".to_owned(), |status| status.to_string());
                Err(io::Error::other(format!("a process for them ended at its start: {ended}")))
            }
        }
    }

    /// It has ended by itself, or was ended from outside.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a frame and reads the answer, both within `limit`.
    ///
    /// # Errors
    /// [`Lost`]; the process must be dropped then.
    pub(super) fn ask(&mut self, request: &[u8], limit: Duration) -> Result<Answer, Lost> {
        let mut timed = Timed { stream: &self.stream, until: Instant::now() + limit };
        timed.write_all(request)?;
        let answer = frame::read(&mut timed, FRAME_BYTES_MAX)?.ok_or(Lost::Ended)?;
        Answer::decode(answer).ok_or(Lost::Nonsense)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A stream that is read and written until a certain time.
struct Timed<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
