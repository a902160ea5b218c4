//! `bulkhead`: the gateway, its demo and its tools in one program.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic when the reader has left: see `cli::output`.

mod cli;

use engine_model::printable;
use std::process::ExitCode;

/// Many threads allocate small pieces that others free; this allocator keeps that cheap and its memory small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // It would only end without a word otherwise.
    let _untold = engine_kernels::tell_of_cut_files();
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if cli::is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::note(format_args!("error: {}", lines(&chain(&error))));
            ExitCode::from(cli::exit_code(&error))
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

/// Longest error that is shown, bytes: all mistakes of a configuration among them.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// An error may repeat the words of a file. None of them moves the cursor, and none begins a line: lines behind the first
/// are indented.
fn lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| printable(line, ERROR_BYTES_MAX)).collect();
    let text = lines.join("\n  ");
    text[..text.floor_char_boundary(ERROR_BYTES_MAX)].to_owned()
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

    #[test]
    fn no_word_of_a_file_begins_a_line_of_its_own() {
        assert_eq!(lines("2 settings are wrong:\n  `a`\n  `b`"), "2 settings are wrong:\n    `a`\n    `b`");
        assert_eq!(
            lines("tensor `x\nERROR all is lost\r\u{1b}[2J`"),
            "tensor `x\n  ERROR all is lost\u{fffd}\u{fffd}[2J`"
        );
        assert!(lines(&"x\n".repeat(1_000_000)).len() <= ERROR_BYTES_MAX);
    }
}
