//! The project's own chores: tests, everything that CI checks, and the mutations that show that the tests can fail.
//!
//! Depends on no product crate, so that it builds in seconds and works while the product does not build.
//! `./x` puts what a build needs on the machine first and then calls this program.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command-line tool: its output is for the terminal")]

mod aarch64;
mod architecture;
mod bench;
mod checks;
mod mutations;
mod phase;
mod setup;
mod soak;
mod tree;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "./x", about = "Bulkhead's chores")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run every test; fetches the model, Python packages and test tools that are missing
    Test {
        /// Passed on to `cargo nextest run`, for example `-p engine-kv` or a part of a test's name
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
    /// Format, clippy, docs, licences, architecture, checks for CUDA and 64-bit ARM, then every test
    Ci,
    /// The engine's tests on 64-bit ARM, under an emulator that is installed already
    Aarch64 {
        /// Passed on to the tests, for example a part of a test's name
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
    /// Compare the crates with the rules in ARCHITECTURE.md
    Architecture,
    /// Measure against other engines and the machine's ceilings; writes tests/results and docs/performance.md
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Build `bulkhead` with its defects brought back, apart from the one that serves, and let it test itself
    Selftest {
        /// `incident`, `leaks` or `traces`, and what they take; `--help` says more
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The log's long tests: a million disks, a thousand kills; writes tests/results
    #[command(subcommand)]
    Soak(soak::Soak),
    /// Switch off each safety check in turn and see that a test notices
    Mutations {
        /// Only those whose name contains this text
        name: Option<String>,
        /// Print the list and run nothing
        #[arg(long)]
        list: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let root = root();
    let result = match arguments.chore {
        Chore::Test { filter } => checks::test(&root, &filter),
        Chore::Ci => checks::ci(&root),
        Chore::Aarch64 { filter } => aarch64::test(&root, &filter),
        Chore::Architecture => checks::architecture(&root),
        Chore::Bench(bench) => bench::run(&root, &bench),
        Chore::Selftest { arguments } => checks::selftest(&root, &arguments),
        Chore::Soak(soak) => soak::run(&root, &soak),
        Chore::Mutations { list: true, .. } => {
            mutations::list();
            Ok(())
        }
        Chore::Mutations { name, list: false } => mutations::run(&root, name.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder: two above this crate's.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root.pop();
    root
}
