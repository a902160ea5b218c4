//! `bulkhead-signer`: signs the checkpoints of a log whose key the gateway does not have.
//!
//! The gateway starts it and speaks with it over its standard input and output (docs/signer.md). Exit status: 0 when the input has
//! ended, 2 for anything that keeps it from its work.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod conversation;
mod file;
#[cfg(feature = "pkcs11")]
mod pkcs11;

use clap::{Parser, Subcommand};
use file::KeyFile;
use std::io::{Write as _, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

/// Signs the checkpoints of a log whose key the gateway does not have.
#[derive(Parser)]
#[command(name = "bulkhead-signer", version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make a key file and print the verifier key.
    Key {
        /// The log's origin, as in `api.example.com/isolation/2026h2`: no spaces, no plus.
        origin: String,
        /// The file to make.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Sign with the key in a file.
    File {
        /// What `key` made, or a gateway's `keys/log.skey`.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Sign with an Ed25519 key in a security module.
    #[cfg(feature = "pkcs11")]
    Pkcs11 {
        /// The module's PKCS#11 library.
        #[arg(long, value_name = "FILE")]
        module: PathBuf,
        /// The token's label.
        #[arg(long)]
        token: String,
        /// The label of both halves of the key.
        #[arg(long)]
        label: String,
        /// A file with the user's PIN, readable by nobody else.
        #[arg(long, value_name = "FILE")]
        pin_file: PathBuf,
        /// Print the verifier key under this origin and end.
        #[arg(long, value_name = "ORIGIN")]
        show: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is lost when nobody reads it.
            let _closed = writeln!(std::io::stderr(), "bulkhead-signer: error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.what {
        What::Key { origin, key } => {
            writeln!(stdout(), "{}", KeyFile::make(&key, &origin)?.public())?;
            Ok(())
        }
        What::File { key } => conversation::converse(&KeyFile::read(&key)?, stdin().lock(), stdout()),
        #[cfg(feature = "pkcs11")]
        What::Pkcs11 { module, token, label, pin_file, show } => {
            let place = pkcs11::Place { module: &module, token: &token, label: &label, pin_file: &pin_file };
            let key = pkcs11::ModuleKey::open(&place)?;
            match show {
                Some(origin) => Ok(writeln!(stdout(), "{}", key.public(&origin)?)?),
                None => conversation::converse(&key, stdin().lock(), stdout()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }
}
