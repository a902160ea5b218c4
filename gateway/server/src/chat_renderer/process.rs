//! One rendering process, as the gateway sees it: started, asked, ended.

use super::frame::{self, ANSWER_BYTES_MAX, Answer, HELLO};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
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
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lost {
    /// It was ended for what it did, or did not come to an end with the processor time that it may use. It would do the
    /// same again.
    #[error("it took too much work")]
    TooMuchWork,
    /// It got no processor time to answer with: the machine has other things to do, or somebody stopped it.
    #[error("it did not get to answer in time")]
    HeldUp,
    /// It was ended from outside, such as by a system without memory, or ended by itself.
    #[error("it was lost: {0}")]
    Ended(ExitStatus),
    /// What it said means nothing.
    #[error("it answered what is no answer")]
    Nonsense,
    /// The stream between the two failed, or nobody knows what became of it.
    #[error("{0}")]
    Stream(io::ErrorKind),
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
        let used_before = self.processor_time();
        let mut timed = Timed { stream: &self.stream, until: Instant::now() + limit };
        let answer = timed.write_all(request).and_then(|()| frame::read(&mut timed, ANSWER_BYTES_MAX));
        match answer {
            Ok(Some(answer)) => Answer::decode(answer).ok_or(Lost::Nonsense),
            Ok(None) => Err(self.ended()),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    let used = self.processor_time().zip(used_before).map(|(now, before)| now.saturating_sub(before));
                    timed_out(used)
                }
                io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    self.ended()
                }
                io::ErrorKind::InvalidData => Lost::Nonsense,
                kind => Lost::Stream(kind),
            }),
        }
    }

    /// What it died of. One that only closed its end of the stream is ended here.
    fn ended(&mut self) -> Lost {
        // What has begun to end keeps its own reason.
        let _gone = self.child.kill();
        self.child.wait().map_or_else(|error| Lost::Stream(error.kind()), why_ended)
    }

    /// Processor time that it has used, if the system tells. In `stat`, behind the name in parentheses, which may hold
    /// anything, stand the state and ten other fields before the two times.
    fn processor_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        let times = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(2);
        let ticks = times.map(|time| time.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some(Duration::from_millis(ticks.saturating_mul(TICK_MS)))
    }
}

/// What Linux counts processor time in, wherever programs can see it.
const TICK_MS: u64 = 10;

/// Who had less processor time than this until the answer was due was held up; a rendering takes some milliseconds. One
/// that had more, on however busy a machine, is a template that takes its time.
const HELD_UP_BELOW: Duration = Duration::from_millis(100);

fn timed_out(used: Option<Duration>) -> Lost {
    match used {
        Some(used) if used < HELD_UP_BELOW => Lost::HeldUp,
        Some(_) | None => Lost::TooMuchWork,
    }
}

/// What a program that panicked ends with: its template asked for a text that no address space holds, or found a mistake
/// of the library's.
const PANIC_CODE: i32 = 101;

fn why_ended(status: ExitStatus) -> Lost {
    match status.signal() {
        // Its processor time is over, it has no memory, it has no stack.
        Some(libc::SIGXCPU | libc::SIGABRT | libc::SIGSEGV) => Lost::TooMuchWork,
        _ if status.code() == Some(PANIC_CODE) => Lost::TooMuchWork,
        _ => Lost::Ended(status),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_process_did_itself_is_too_much_work() {
        for (signal, is_work) in [
            (libc::SIGXCPU, true),
            (libc::SIGABRT, true),
            (libc::SIGSEGV, true),
            (libc::SIGKILL, false),
            (libc::SIGTERM, false),
        ] {
            let lost = why_ended(ExitStatus::from_raw(signal));
            assert_eq!(lost == Lost::TooMuchWork, is_work, "{lost}");
        }
        assert_eq!(why_ended(ExitStatus::from_raw(PANIC_CODE << 8)), Lost::TooMuchWork);
        let code = ExitStatus::from_raw(1 << 8);
        assert_eq!(why_ended(code), Lost::Ended(code));
    }

    #[test]
    fn a_process_that_used_no_processor_time_was_held_up() {
        for (used_ms, wanted) in [(0, Lost::HeldUp), (90, Lost::HeldUp), (100, Lost::TooMuchWork)] {
            assert_eq!(timed_out(Some(Duration::from_millis(used_ms))), wanted);
        }
        assert_eq!(timed_out(None), Lost::TooMuchWork);
    }
}
