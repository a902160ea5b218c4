//! `bulkhead`: the gateway, its demo and its tools in one program.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic when the reader has left: see `cli::output`.

mod cli;

use std::process::ExitCode;

/// Many threads allocate small pieces that others free; this allocator keeps that cheap and its memory small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if cli::is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::note(format_args!("error: {}", chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes in one line; a cause that the error above it repeats is said once.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_cause_is_said_once() {
        let error = anyhow::anyhow!("not found").context("cannot read: not found").context("no model");
        assert_eq!(chain(&error), "no model: cannot read: not found");
        assert_eq!(chain(&anyhow::anyhow!("b").context("a")), "a: b");
    }
}
