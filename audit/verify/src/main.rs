//! `bulkhead-verify`: checks a receipt, an evidence bundle or a whole log without a server and without a network.
//!
//! Exit status: 0 genuine, 1 refused (the check that failed is named), 2 wrong usage or unreadable input.
#![forbid(unsafe_code)]

mod print;

use anyhow::{Context as _, bail};
use audit_tlog::{ADD_CHECKPOINT_BYTES_MAX, CosignerKey, KeyChain, PROOF_BYTES_MAX, VerifierKey};
use audit_verify::{
    BUNDLE_BYTES_MAX, BundleEvidence, Evidence, Held, MINE_BYTES_MAX, NamedKey, RESPONSE_BYTES_MAX, RotationRefusal,
    Witnesses, check_bundle, check_consistency, check_log, check_mine, check_receipt, follow_rotations, named_keys,
    page, read_file,
};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const KEY_BYTES_MAX: usize = 1_024;

/// Checks receipts and logs offline.
#[derive(Parser)]
#[command(name = "bulkhead-verify", version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Check the receipt of one response.
    Receipt {
        /// The receipt.
        file: PathBuf,
        /// The log's verifier key, or a file that holds it. Otherwise `log.vkey` beside the receipt.
        #[arg(long, value_name = "KEY|FILE")]
        key: Option<String>,
        #[command(flatten)]
        rotations: RotationArguments,
        /// The request body as it was sent.
        #[arg(long, value_name = "FILE")]
        request: Option<PathBuf>,
        /// The response as it was received: server-sent events as curl prints them, or the JSON body.
        #[arg(long, value_name = "FILE")]
        response: Option<PathBuf>,
        /// Also writes the sealed entry's bytes to a file.
        #[arg(long, value_name = "FILE")]
        extract_entry: Option<PathBuf>,
        #[command(flatten)]
        witnesses: WitnessArguments,
        /// One line of JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Check that a log has only grown since a checkpoint or a receipt that you hold.
    Consistency {
        /// What you hold: a checkpoint, or a receipt.
        held: PathBuf,
        /// What the gateway answered to `/v1/isolation/proof/consistency?from=SIZE`, with that checkpoint's size.
        answer: PathBuf,
        /// The log's verifier key, or a file that holds it. Otherwise `log.vkey` beside what you hold.
        #[arg(long, value_name = "KEY|FILE")]
        key: Option<String>,
        #[command(flatten)]
        rotations: RotationArguments,
        #[command(flatten)]
        witnesses: WitnessArguments,
        /// One line of JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Check an evidence bundle: each entry is in the log and none is missing, and every figure and page follows from them.
    Bundle {
        /// The bundle, as `bulkhead audit report` wrote it.
        file: PathBuf,
        /// The log's verifier key, or a file that holds it. Otherwise `log.vkey` beside the bundle.
        #[arg(long, value_name = "KEY|FILE")]
        key: Option<String>,
        #[command(flatten)]
        rotations: RotationArguments,
        /// The key that signed the bundle, or a file that holds it; otherwise the one that the log's key vouches for in it.
        #[arg(long, value_name = "KEY|FILE")]
        report_key: Option<String>,
        #[command(flatten)]
        witnesses: WitnessArguments,
        /// One line of JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Check what the gateway answered to `/v1/isolation/mine`: that it is all of your entries, each in the signed log.
    Mine {
        /// The pages, in any order.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The log's verifier key, or a file that holds it. Otherwise `log.vkey` beside the first page.
        #[arg(long, value_name = "KEY|FILE")]
        key: Option<String>,
        #[command(flatten)]
        rotations: RotationArguments,
        /// A receipt that you hold: the pages go on right behind its entry instead of beginning with your first one.
        #[arg(long, value_name = "FILE")]
        after: Option<PathBuf>,
        /// A receipt that you hold, whose entry must be among these: then the tail is not cut before it.
        #[arg(long, value_name = "FILE")]
        receipt: Option<PathBuf>,
        #[command(flatten)]
        witnesses: WitnessArguments,
        /// One line of JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Print the page that checks receipts in a browser, for use without a gateway.
    Page,
    /// Check a whole log: every entry, tile, chain and pair. From a former key of the log its entries lead to the newest one.
    Log {
        /// The log's folder.
        dir: PathBuf,
        /// The log's verifier key, or a file that holds it. Otherwise `log.vkey` in the folder.
        #[arg(long, value_name = "KEY|FILE")]
        key: Option<String>,
        #[command(flatten)]
        witnesses: WitnessArguments,
        /// One line of JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct RotationArguments {
    /// The proof that the log's key was followed by another one, as `/v1/isolation/rotations/N` or the log's folder has it. May be
    /// repeated: of each rotation the one that begins it and the one that finishes it. Each key is believed for the trees of its
    /// time, a former one for none behind the rotation. Otherwise the given key alone is believed, for all.
    #[arg(long = "rotation", id = "rotation", value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Args)]
struct WitnessArguments {
    /// The verifier key of a witness that must have cosigned the checkpoint, or a file that holds it. May be repeated.
    #[arg(long = "witness", value_name = "KEY|FILE")]
    keys: Vec<String>,
    /// How many of the given witnesses must have; all of them otherwise.
    #[arg(long, value_name = "N", requires = "keys")]
    quorum: Option<usize>,
}

impl WitnessArguments {
    /// `None` when no witness is given.
    fn witnesses(&self) -> anyhow::Result<Option<Witnesses>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let mut keys = Vec::new();
        for argument in &self.keys {
            if let Ok(key) = CosignerKey::parse(argument.trim()) {
                keys.push(key);
                continue;
            }
            let path = Path::new(argument);
            if !path.exists() {
                bail!("`{argument}` is neither the verifier key of a witness nor a file");
            }
            keys.push(read_line(path, |line| Ok(CosignerKey::parse(line)?))?);
        }
        let quorum = self.quorum.unwrap_or(keys.len());
        Ok(Some(Witnesses::new(keys, quorum)?))
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _closed = writeln!(std::io::stderr(), "error: {error:#}");
            // A rotation that is none was read, and is refused.
            ExitCode::from(if error.is::<RotationRefusal>() { 1 } else { 2 })
        }
    }
}

/// `false` when the receipt or log is refused.
fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match arguments.what {
        What::Receipt { file, key, rotations, request, response, extract_entry, witnesses, json } => {
            let witnesses = witnesses.witnesses()?;
            let folder = file.parent().unwrap_or(Path::new(""));
            let key = find_key(key.as_deref(), folder, "the receipt")?.following(&rotations)?;
            let receipt = read(&file, PROOF_BYTES_MAX)?;
            let request = request.map(|path| read(&path, RESPONSE_BYTES_MAX)).transpose()?;
            let response = response.map(|path| read(&path, RESPONSE_BYTES_MAX)).transpose()?;
            let evidence =
                Evidence { request: request.as_deref(), response: response.as_deref(), witnesses: witnesses.as_ref() };
            let checked = check_receipt(&receipt, &key.chain, evidence);
            if let (Some(path), Ok(report)) = (extract_entry, &checked) {
                if path.exists() && !path.is_file() {
                    bail!("cannot write `{}`: not a regular file", path.display());
                }
                std::fs::write(&path, &report.entry).with_context(|| format!("cannot write `{}`", path.display()))?;
            }
            let text = match (&checked, json) {
                (Ok(report), false) => print::receipt(report, &key),
                (Ok(report), true) => print::receipt_json(report, &key),
                (Err(refusal), false) => print::refusal("receipt", refusal.check(), refusal),
                (Err(refusal), true) => print::refusal_json(refusal.check(), refusal),
            };
            out.write_all(text.as_bytes())?;
            Ok(checked.is_ok())
        }
        What::Consistency { held, answer, key, rotations, witnesses, json } => {
            let witnesses = witnesses.witnesses()?;
            let key = find_key(key.as_deref(), held.parent().unwrap_or(Path::new("")), "what you hold")?;
            let key = key.following(&rotations)?;
            let (held, answer) = (read(&held, PROOF_BYTES_MAX)?, read(&answer, ADD_CHECKPOINT_BYTES_MAX)?);
            let checked = check_consistency(&held, &answer, &key.chain, witnesses.as_ref());
            let text = match (&checked, json) {
                (Ok(report), false) => print::consistency(report, &key),
                (Ok(report), true) => print::consistency_json(report, &key),
                (Err(refusal), false) => print::refusal("answer", refusal.check(), refusal),
                (Err(refusal), true) => print::refusal_json(refusal.check(), refusal),
            };
            out.write_all(text.as_bytes())?;
            Ok(checked.is_ok())
        }
        What::Bundle { file, key, rotations, report_key, witnesses, json } => {
            let witnesses = witnesses.witnesses()?;
            let folder = file.parent().unwrap_or(Path::new(""));
            let key = find_key(key.as_deref(), folder, "the bundle")?.following(&rotations)?;
            let given = report_key.map(|key| find_key(Some(&key), folder, "the bundle")).transpose()?;
            let bundle = read(&file, BUNDLE_BYTES_MAX)?;
            let bar = progress_bar(json);
            let report_key = given.as_ref().map(|given| &given.key);
            let beside = BundleEvidence { report_key, witnesses: witnesses.as_ref() };
            let checked = check_bundle(&bundle, &key.chain, beside, |done, all| {
                bar.set_length(all);
                bar.set_position(done);
            });
            bar.finish_and_clear();
            let text = match (&checked, json) {
                (Ok(report), false) => print::bundle(report, &key),
                (Ok(report), true) => print::bundle_json(report, &key),
                (Err(refusal), false) => print::refusal("bundle", refusal.check(), refusal),
                (Err(refusal), true) => print::refusal_json(refusal.check(), refusal),
            };
            out.write_all(text.as_bytes())?;
            Ok(checked.is_ok())
        }
        What::Mine { files, key, rotations, after, receipt, witnesses, json } => {
            let witnesses = witnesses.witnesses()?;
            let folder = files.first().and_then(|file| file.parent()).unwrap_or(Path::new(""));
            let key = find_key(key.as_deref(), folder, "the pages")?.following(&rotations)?;
            let pages = files.iter().map(|file| read(file, MINE_BYTES_MAX)).collect::<anyhow::Result<Vec<_>>>()?;
            let after = after.map(|path| read(&path, PROOF_BYTES_MAX)).transpose()?;
            let receipt = receipt.map(|path| read(&path, PROOF_BYTES_MAX)).transpose()?;
            let held = Held { after: after.as_deref(), receipt: receipt.as_deref(), witnesses: witnesses.as_ref() };
            let checked = check_mine(&pages, &key.chain, held);
            let text = match (&checked, json) {
                (Ok(report), false) => print::mine(report, &key),
                (Ok(report), true) => print::mine_json(report, &key),
                (Err(refusal), false) => print::refusal("entries", refusal.check(), refusal),
                (Err(refusal), true) => print::refusal_json(refusal.check(), refusal),
            };
            out.write_all(text.as_bytes())?;
            Ok(checked.is_ok())
        }
        What::Page => {
            out.write_all(page().html.as_bytes())?;
            Ok(true)
        }
        What::Log { dir, key, witnesses, json } => {
            let witnesses = witnesses.witnesses()?;
            let key = find_key(key.as_deref(), &dir, "the log")?;
            if !dir.is_dir() {
                bail!("`{}` is not a folder", dir.display());
            }
            let bar = progress_bar(json);
            let checked = check_log(&dir, &key.key, witnesses.as_ref(), |done, all| {
                bar.set_length(all);
                bar.set_position(done);
            });
            bar.finish_and_clear();
            let text = match (&checked, json) {
                (Ok(report), false) => print::log(report, &key),
                (Ok(report), true) => print::log_json(report, &key),
                (Err(refusal), false) => print::refusal("log", refusal.check(), refusal),
                (Err(refusal), true) => print::refusal_json(refusal.check(), refusal),
            };
            out.write_all(text.as_bytes())?;
            Ok(checked.is_ok())
        }
    }
}

/// A key, and where it came from: a key that came with the receipt proves less than one that came from elsewhere.
struct GivenKey {
    key: VerifierKey,
    /// The file beside the receipt or in the log's folder; `None` when the caller named the key.
    beside: Option<PathBuf>,
    /// That key and those that it leads to, each for the trees of its time.
    chain: KeyChain,
    /// Those, and which entry names each.
    named: Vec<NamedKey>,
}

impl GivenKey {
    /// Goes on to the keys that these rotations lead to.
    fn following(self, rotations: &RotationArguments) -> anyhow::Result<Self> {
        let proofs =
            rotations.files.iter().map(|file| read(file, PROOF_BYTES_MAX)).collect::<anyhow::Result<Vec<_>>>()?;
        let chain = follow_rotations(&self.key, &proofs).map_err(|refusal| {
            let check = refusal.check();
            anyhow::Error::new(refusal).context(format!("rotation REFUSED ({check})"))
        })?;
        Ok(Self { named: named_keys(&chain), chain, ..self })
    }

    fn new(key: VerifierKey, beside: Option<PathBuf>) -> Self {
        Self { chain: KeyChain::new(key.clone()), key, beside, named: Vec::new() }
    }
}

fn find_key(argument: Option<&str>, folder: &Path, what: &str) -> anyhow::Result<GivenKey> {
    if let Some(argument) = argument {
        // A key line always has a plus; a file's name may have one too.
        if let Ok(key) = VerifierKey::parse(argument.trim()) {
            return Ok(GivenKey::new(key, None));
        }
        let path = Path::new(argument);
        if !path.exists() {
            bail!("`{argument}` is neither a verifier key nor a file");
        }
        return Ok(GivenKey::new(read_key(path)?, None));
    }
    let path = folder.join("log.vkey");
    if !path.exists() {
        bail!(
            "no key: give the log's verifier key with --key KEY or --key FILE, or put it beside {what} as `log.vkey`; \
             without the key of the log that you trust, a signature proves nothing"
        );
    }
    Ok(GivenKey::new(read_key(&path)?, Some(path)))
}

fn read_key(path: &Path) -> anyhow::Result<VerifierKey> {
    read_line(path, |line| Ok(VerifierKey::parse(line)?))
}

fn read_line<T>(path: &Path, parse: impl FnOnce(&str) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let bytes = read(path, KEY_BYTES_MAX)?;
    let text = std::str::from_utf8(&bytes).with_context(|| format!("`{}` is not text", path.display()))?;
    parse(text.trim()).with_context(|| format!("`{}`", path.display()))
}

fn read(path: &Path, bytes_max: usize) -> anyhow::Result<Vec<u8>> {
    read_file(path, bytes_max).with_context(|| format!("cannot read `{}`", path.display()))
}

fn progress_bar(hidden: bool) -> ProgressBar {
    let bar = ProgressBar::no_length();
    let visible = std::io::stderr().is_terminal() && !hidden;
    bar.set_draw_target(if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} entries, {eta} left") {
        bar.set_style(style);
    }
    bar
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
