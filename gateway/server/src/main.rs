//! `bulkhead`: the gateway, its demo and its tools in one program.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

/// Many threads allocate small pieces that others free; this allocator keeps that cheap and its memory small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
