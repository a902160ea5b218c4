//! `bulkhead-witness`: a witness of transparency logs as a program of its own.
//!
//! Exit status: 0 after a signal or a made key, 2 for anything that keeps it from its work.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::{Context as _, bail, ensure};
use audit_tlog::VerifierKey;
use audit_witness::{LOGS_MAX, Witness, make_key, serve_until_signal};
use clap::{Parser, Subcommand};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A line for each of [`LOGS_MAX`] logs, and remarks.
const LOGS_BYTES_MAX: u64 = 1 << 20;

/// A witness of transparency logs: cosigns what continues what it has seen.
#[derive(Parser)]
#[command(name = "bulkhead-witness", version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make the witness's folder and key, if they are not there, and print its verifier key.
    Key {
        /// The witness's name, as in `witness.example.com/w1`: no spaces, no plus.
        name: String,
        /// Where the key is kept, and later what it has signed.
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
    },
    /// Answer the logs that this witness follows.
    Serve {
        /// Where to listen: plain HTTP. Port 0 takes a free one.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
        listen: SocketAddr,
        /// The folder that `key` made.
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
        /// The logs: one verifier key on each line (its name is the log's origin), `#` before a remark.
        #[arg(long, value_name = "FILE")]
        logs: PathBuf,
    },
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.what {
        What::Key { name, data_dir } => {
            let key = make_key(&data_dir, &name)?;
            writeln!(std::io::stdout(), "{key}")?;
            Ok(())
        }
        What::Serve { listen, data_dir, logs } => {
            let keys = read_logs(&logs)?;
            if keys.is_empty() {
                tracing::warn!("no log is listed, so every checkpoint is answered 404");
            }
            let witness = Witness::open(&data_dir, keys)?;
            listen_there(listen, witness)
        }
    }
}

fn listen_there(listen: SocketAddr, witness: Witness) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("no threads")?;
    let said = |key, address| {
        say(&format!("witness {key}"));
        say(&format!("listening on http://{address}"));
    };
    runtime.block_on(serve_until_signal(listen, witness, said)).with_context(|| format!("cannot listen on {listen}"))
}

fn read_logs(path: &Path) -> anyhow::Result<Vec<VerifierKey>> {
    let shown = path.display();
    let kind = path.metadata().with_context(|| format!("cannot read `{shown}`"))?;
    ensure!(kind.is_file(), "cannot read `{shown}`: not a regular file");
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read `{shown}`"))?;
    file.take(LOGS_BYTES_MAX + 1).read_to_string(&mut text).with_context(|| format!("cannot read `{shown}`"))?;
    ensure!(text.len() as u64 <= LOGS_BYTES_MAX, "`{shown}` is longer than a list of {LOGS_MAX} logs");
    let mut keys = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        match VerifierKey::parse(text) {
            Ok(key) => keys.push(key),
            Err(error) => bail!("`{shown}`, line {line}: {error}"),
        }
    }
    Ok(keys)
}

/// A line on stderr. Nothing is lost when nobody reads it.
fn say(text: &str) {
    let _closed = writeln!(std::io::stderr(), "{text}");
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
