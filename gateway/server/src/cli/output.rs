//! What the program says: results to stdout, everything said on the way there to stderr.
//!
//! `println!` and `eprintln!` panic when the reader has left, as in `bulkhead model inspect FILE | head -1`. Here that
//! ends the program quietly. The lints of `main.rs` refuse those macros, so that everything comes through this file.

use std::fmt::Display;
use std::io::{self, Write};

/// A result could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SayError {
    /// Nobody reads it any more: no failure of this program, and nothing more to do.
    #[error("nobody reads the output")]
    ReaderGone,
    /// Another reason, such as a full disk behind a redirection.
    #[error("the output cannot be written")]
    Failed(#[source] io::Error),
}

impl From<io::Error> for SayError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::ReaderGone } else { Self::Failed(error) }
    }
}

/// One line of results.
pub(crate) fn say(text: impl Display) -> Result<(), SayError> {
    say_piece(format_args!("{text}\n"))
}

/// A part of a line of results, at once.
pub(crate) fn say_piece(text: impl Display) -> Result<(), SayError> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}

/// One line on the way to a result. Nothing depends on somebody reading it.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether an error only says that the reader of the results has left.
pub(crate) fn is_reader_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(SayError::ReaderGone))
}
