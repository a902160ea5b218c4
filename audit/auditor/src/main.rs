//! `bulkhead-auditor`: audits a log as it grows, and cosigns what it has audited.
//!
//! Exit status: 0 after a signal, a made key or an audit without objection; 1 for an objection; 2 for anything that keeps it from
//! its work.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::{Context as _, bail};
use audit_auditor::{Audited, Auditor, WITHOUT_TRACE_PERCENT};
use audit_tlog::{CHECKPOINT_BYTES_MAX, Checkpoint, VerifierKey};
use audit_verify::{SelfTests, read_file};
use audit_witness::{Examine, Examined, Witness, make_key, serve_until_signal};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const KEY_BYTES_MAX: usize = 1_024;

/// Audits a log as it grows, and cosigns what it has audited.
#[derive(Parser)]
#[command(name = "bulkhead-auditor", version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make the auditor's folder and key, if they are not there, and print its verifier key.
    Key {
        /// The auditor's name, as in `auditor.example.com/a1`: no spaces, no plus.
        name: String,
        /// Where the key is kept, and later what it has signed.
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
    },
    /// Audit a log once and say what was found.
    Check {
        #[command(flatten)]
        log: Log,
    },
    /// Audit a log as it grows: answer its gateway, which asks as it asks witnesses.
    Serve {
        #[command(flatten)]
        log: Log,
        /// Where to listen: plain HTTP. Port 0 takes a free one.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8091")]
        listen: SocketAddr,
        /// The folder that `key` made.
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
    },
}

#[derive(Args)]
struct Log {
    /// The log's folder.
    #[arg(long = "log", value_name = "DIR")]
    dir: PathBuf,
    /// The log's verifier key, or a file that holds it. While the log changes its key, the former and then the next one: twice.
    #[arg(long = "key", value_name = "KEY|FILE", required = true)]
    keys: Vec<String>,
    /// The folder of the engine's feeds, `feeds` in the gateway's data directory: each response is compared with what the engine
    /// itself says that it read.
    #[arg(long, value_name = "DIR")]
    feeds: Option<PathBuf>,
    /// Responses in a hundred that may be without their trace, or without their part of the feed: more than crashes lose were
    /// taken away.
    #[arg(long, value_name = "PERCENT", default_value_t = WITHOUT_TRACE_PERCENT, value_parser = clap::value_parser!(u64).range(0..=100))]
    without_trace_max: u64,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// `false` when there is an objection.
fn run(arguments: Arguments) -> anyhow::Result<bool> {
    match arguments.what {
        What::Key { name, data_dir } => {
            writeln!(std::io::stdout(), "{}", make_key(&data_dir, &name)?)?;
            Ok(true)
        }
        What::Check { log } => {
            let (key, _, checkpoint, note) = log.read()?;
            let auditor = log.auditor(key);
            let audited = catch_up(&auditor, &checkpoint, &note);
            let mut out = std::io::stdout().lock();
            match &audited {
                Ok(audited) => writeln!(out, "no objection: {}", told(*audited, log.feeds.is_some()))?,
                Err(Examined::Refused(objection)) => writeln!(out, "OBJECTION: {objection}")?,
                Err(Examined::Unable(reason)) => bail!("{reason}"),
            }
            Ok(audited.is_ok())
        }
        What::Serve { log, listen, data_dir } => {
            let (key, keys, checkpoint, note) = log.read()?;
            let mut witness = Witness::open(&data_dir, keys)?;
            let auditor = Arc::new(log.auditor(key));
            // What is there already takes longer than a question may.
            match catch_up(&auditor, &checkpoint, &note) {
                Ok(audited) => say(&format!("no objection: {}", told(audited, log.feeds.is_some()))),
                Err(Examined::Refused(objection)) => say(&format!("OBJECTION, nothing is cosigned: {objection}")),
                Err(Examined::Unable(reason)) => say(&format!("it is read when the gateway asks: {reason}")),
            }
            witness.examine(&checkpoint.origin, Box::new(Shared(auditor)));
            listen_there(listen, witness)?;
            Ok(true)
        }
    }
}

struct Shared(Arc<Auditor>);

impl Examine for Shared {
    fn examine(&self, checkpoint: &Checkpoint, note: &[u8]) -> Result<(), Examined> {
        self.0.examine(checkpoint, note)
    }
}

impl Log {
    fn auditor(&self, key: VerifierKey) -> Auditor {
        let auditor = Auditor::new(&self.dir, key, self.without_trace_max);
        match &self.feeds {
            Some(feeds) => auditor.with_feeds(feeds),
            None => auditor,
        }
    }

    /// The first key, all of them, and the checkpoint, which one of them has signed, with its note.
    fn read(&self) -> anyhow::Result<(VerifierKey, Vec<VerifierKey>, Checkpoint, Vec<u8>)> {
        if !self.dir.is_dir() {
            bail!("`{}` is not a folder", self.dir.display());
        }
        let keys = self.keys.iter().map(|key| read_key(key)).collect::<anyhow::Result<Vec<_>>>()?;
        let first = keys.first().cloned().context("no key is given")?;
        let note = read(&self.dir.join("checkpoint"), CHECKPOINT_BYTES_MAX)?;
        let (checkpoint, _) = Checkpoint::open_under(&note, &keys).context("the log's checkpoint")?;
        Ok((first, keys, checkpoint, note))
    }
}

fn read_key(key: &str) -> anyhow::Result<VerifierKey> {
    if let Ok(key) = VerifierKey::parse(key.trim()) {
        return Ok(key);
    }
    if !Path::new(key).exists() {
        bail!("`{key}` is neither a verifier key nor a file");
    }
    let bytes = read(Path::new(key), KEY_BYTES_MAX)?;
    let line = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    VerifierKey::parse(line).with_context(|| format!("`{key}`"))
}

fn read(path: &Path, bytes_max: usize) -> anyhow::Result<Vec<u8>> {
    read_file(path, bytes_max).with_context(|| format!("cannot read `{}`", path.display()))
}

/// With a bar, where somebody looks.
fn catch_up(auditor: &Auditor, checkpoint: &Checkpoint, note: &[u8]) -> Result<Audited, Examined> {
    let bar = ProgressBar::new(checkpoint.size);
    let visible = std::io::stderr().is_terminal();
    bar.set_draw_target(if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} entries, {eta} left") {
        bar.set_style(style);
    }
    let audited = auditor.audit(checkpoint, |entries| bar.set_position(entries));
    bar.finish_and_clear();
    let audited = audited?;
    auditor.is_signed(checkpoint, note)?;
    Ok(audited)
}

fn told(audited: Audited, feeds: bool) -> String {
    let Audited { entries, responses, without_trace, pruned, stopped, self_tests, .. } = audited;
    let Audited { fed, unfed, before_feed, unclaimed, .. } = audited;
    let engine = match feeds {
        false => String::new(),
        true => {
            let older =
                if before_feed > 0 { format!(", {before_feed} are older than its feed") } else { String::new() };
            let wrong = match unclaimed {
                0 => String::new(),
                _ => format!(", and it did something wrong for {unclaimed} requests of which the log says nothing yet"),
            };
            format!(", of {fed} the engine says the same, of {unfed} not all{older}{wrong}")
        }
    };
    let dropped = if pruned > 0 { format!(", {pruned} whose trace was dropped for its age") } else { String::new() };
    let SelfTests { tests, failed, longest_gap_us, .. } = self_tests;
    let gap_s = longest_gap_us.div_ceil(1_000_000);
    let tested = match tests {
        0 => "no self-tests".to_owned(),
        _ => format!("{tests} self-tests, {failed} of them failed, at most {gap_s} s from one to the next"),
    };
    format!(
        "{entries} entries, {responses} responses, {stopped} of them stopped, {without_trace} without their trace{dropped}{engine}; {tested}"
    )
}

fn listen_there(listen: SocketAddr, witness: Witness) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("no threads")?;
    let said = |key, address| {
        say(&format!("auditor {key}"));
        say(&format!("listening on http://{address}"));
    };
    runtime.block_on(serve_until_signal(listen, witness, said)).with_context(|| format!("cannot listen on {listen}"))
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
