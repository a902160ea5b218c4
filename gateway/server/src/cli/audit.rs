//! `bulkhead audit`: can one tenant of a running gateway see another's cache, order, eviction or speculation? Which responses
//! can something suspect have touched (`audit/blast_radius.rs`)?
//! What is shown to an auditor (`audit/evidence.rs`)?
//!
//! For the first, the gateway is asked over its ordinary API, as two of its tenants, and what comes is judged with statistics
//! (`audit/verdict.rs`). A gateway whose operator named the first tenant as a probe writes the result to its log.

pub(crate) mod blast_radius;
mod evidence;
mod incidents;
mod keeping;
mod measure;
mod moment;
mod ocsf;
mod operator;
mod probe;
mod prompts;
mod replay;
mod report;
mod rotate;
#[cfg(feature = "selftest")]
pub(crate) mod selftest;
mod statistics;
mod verdict;

use super::http_client::Address;
use super::{environment, note, say};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use measure::Plan;
use probe::{HttpGateway, Keys, Recorded};
use prompts::{Prompts, Random};
use report::{Levels, Report};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use verdict::{Looks, Verdict};

/// Pairs or rounds of one arm. Judging takes time with the square of it.
const SAMPLES_MAX: i64 = 10_000;
/// Fewer cannot give a positive control the power that it must have.
const SAMPLES_MIN: i64 = 20;

/// What can be audited.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Audit {
    /// Probe a running gateway as two of its tenants, whose keys are in BULKHEAD_API_KEY_A and BULKHEAD_API_KEY_B
    ///
    /// Ends with 0 when the tenants are isolated, 3 when a channel was found, 4 when the run is void because the positive
    /// control has no power, 5 when it is inconclusive, and 1 when the audit could not be made. Pairs end early when they have
    /// said what they can say. Even so a full run sends some million tokens: hours on a small machine. The result says so when
    /// the gateway did not record it, and why.
    Sidechannel(Sidechannel),
    /// List every response that something suspect could have touched, from the log's folder
    ///
    /// Reads the folder, while a gateway may write to it. Every entry is hashed and compared with the signed checkpoint, so that
    /// nobody is left out; what dropped traces leave unknown is said.
    BlastRadius(blast_radius::BlastRadiusArguments),
    /// List incidents and say what becomes of them, as an operator of a running gateway; the key is in BULKHEAD_OPERATOR_KEY
    Incidents(incidents::IncidentsArguments),
    /// Make a signed evidence bundle of one tenant and time for an outside auditor, from the log's folder
    ///
    /// Reads the folder, while a gateway may write to it. The bundle is a tar archive: the tenant's entries with their proofs, a
    /// report as JSON, HTML, PDF and OSCAL that follows from them, and a verifier in Python. `bulkhead-verify bundle` checks it
    /// offline, and so does this command before anybody has it. No other tenant is named in it.
    Report(evidence::EvidenceArguments),
    /// Erase a tenant's commitment keys, as two operators of a running gateway; the key of each is in BULKHEAD_OPERATOR_KEY
    ///
    /// What was committed to with an erased key cannot be opened any more, by nobody but who holds its receipts: this cannot be
    /// undone. The first operator proposes, and another one says the same. What a hold covers is refused. What was erased before
    /// stays so, and is said.
    Erase(keeping::EraseArguments),
    /// Let nothing be destroyed of a tenant, or of anybody, as an operator of a running gateway
    Hold(keeping::HoldArguments),
    /// End a hold, as two operators of a running gateway
    Release(keeping::ReleaseArguments),
    /// List what is held
    Holds(keeping::HoldsArguments),
    /// Change the key that signs the log's checkpoints, while no gateway runs on its folder
    ///
    /// The first time it makes the next key and names it in an entry of the log, which both keys sign; from then on both sign every
    /// checkpoint, so that whoever knows either can check the log. With `--finish` the former key is dropped. Whoever knows only
    /// that one follows the entry: `bulkhead-verify log` by itself, the others with `--rotation`. A log whose key another program
    /// keeps (`[audit] signer`) is refused.
    Rotate(rotate::RotateArguments),
    /// Compute an answer again from its receipt, the request and the model, and compare it bit for bit
    ///
    /// Nobody is asked, and nothing but the files is needed. Ends with 0 when the answer is the same, 3 when it is not, 4 when
    /// it cannot be compared (another model, or no replay digest in the receipt), and 1 when the receipt is refused or a file
    /// cannot be read.
    Replay(replay::ReplayArguments),
}

// How a gateway is probed. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
pub(crate) struct Sidechannel {
    /// Where the gateway listens
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    address: String,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Also write the result here: the bytes whose digest is in the log
    #[arg(long)]
    output: Option<PathBuf>,
    /// A short run: finds coarse channels, and is too small to say that there is none
    #[arg(long, conflicts_with = "samples")]
    quick: bool,
    /// Pairs in each positive control, and six times as many in each arm between tenants, whose claim needs them; at most
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(i64).range(SAMPLES_MIN..=SAMPLES_MAX / 6))]
    samples: i64,
    /// Rounds of each oracle: order, eviction, speculation; by `--samples` when not given
    #[arg(long, conflicts_with = "quick", value_parser = clap::value_parser!(i64).range(12..=ROUNDS_MAX as i64))]
    rounds: Option<i64>,
    /// Lengths of the shared prefixes
    #[arg(long, value_delimiter = ',', default_value = "64,512,1500",
          value_parser = clap::value_parser!(i64).range(32..=1_000_000))]
    prefix_tokens: Vec<i64>,
    /// What the second tenant sends in order to evict the first one's prefixes; as much as the KV pool holds shows most
    #[arg(long, default_value_t = 24_000, value_parser = clap::value_parser!(i64).range(1..=100_000_000))]
    flood_tokens: i64,
    /// The first tenant has streams of a constant shape: they must not tell prompts apart
    #[arg(long)]
    constant_shape: bool,
    /// Draws prompts and orders; a seed that this gateway has seen finds its prompts in the cache, and the run is void
    #[arg(long)]
    seed: Option<u64>,
}

/// The audit was made, and its verdict is not `isolated`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{}", report::conclusion(*.0))]
pub(crate) struct NotIsolated(Verdict);

pub(crate) use replay::NotTheSame;

impl NotIsolated {
    /// The program's exit code.
    pub(crate) fn exit_code(self) -> u8 {
        self.0.exit_code()
    }
}

/// Makes the audit and prints its result.
pub(crate) async fn run(what: Audit) -> Result<()> {
    match what {
        Audit::Sidechannel(options) => probe_gateway(options).await,
        Audit::BlastRadius(arguments) => blast_radius::run(&arguments),
        Audit::Report(arguments) => evidence::run(&arguments),
        Audit::Incidents(arguments) => incidents::run(arguments).await,
        Audit::Erase(arguments) => keeping::erase(arguments).await,
        Audit::Hold(arguments) => keeping::hold(arguments).await,
        Audit::Release(arguments) => keeping::release(arguments).await,
        Audit::Holds(arguments) => keeping::holds(arguments).await,
        Audit::Rotate(arguments) => rotate::run(&arguments),
        Audit::Replay(arguments) => replay::run(arguments).await,
    }
}

async fn probe_gateway(options: Sidechannel) -> Result<()> {
    let Sidechannel {
        address,
        json,
        output,
        quick,
        samples,
        rounds,
        prefix_tokens,
        flood_tokens,
        constant_shape,
        seed,
    } = options;
    if let Some(output) = &output {
        check_place(output)?;
    }
    let address = Address::parse(&address)?;
    let keys = keys(environment::audit_keys())?;
    let mut prefix_tokens: Vec<usize> = prefix_tokens.into_iter().map(count).collect();
    prefix_tokens.sort_unstable();
    prefix_tokens.dedup();
    let size = match (quick, rounds) {
        (true, _) => Size::QUICK,
        (false, None) => Size::of(count(samples)),
        (false, Some(rounds)) => Size::of(count(samples)).with_rounds(count(rounds)),
    };
    let plan = size.plan(prefix_tokens, count(flood_tokens), constant_shape);
    let seed = seed.map_or_else(getrandom::u64, Ok).context("the system gave no random bytes")?;
    let report = sidechannel(address.clone(), keys.clone(), plan, seed).await?;
    // INVARIANT: one encoding, which is what the digest in the log is of.
    let result = serde_json::to_string(&report)?;
    // What was measured for hours is recorded and said whatever becomes of the file.
    let kept = output.as_ref().map_or(Ok(()), |output| {
        std::fs::write(output, &result).with_context(|| format!("`{}` cannot be written", output.display()))
    });
    let digest = hex::encode(Sha256::digest(&result));
    let recorded = match probe::record(&address, &keys, result).await {
        Ok(recorded) => recorded,
        Err(error) => Recorded::Not { reason: format!("{error:#}") },
    };
    if json {
        say(json!({"result": report, "sha256": digest, "recorded": recorded}))?;
    } else {
        say(format_args!("{report}\n{}", words(&recorded, &digest)))?;
    }
    kept?;
    match report.judgement.verdict {
        Verdict::Isolated => Ok(()),
        verdict => Err(NotIsolated(verdict).into()),
    }
}

/// A result can be written here. Nothing that is there is changed.
fn check_place(output: &Path) -> Result<()> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(output);
    opened.map(drop).with_context(|| format!("`{}` cannot be written", output.display()))
}

/// Measures and judges.
async fn sidechannel(address: Address, keys: Keys, plan: Plan, seed: u64) -> Result<Report> {
    let (mut gateway, server) = HttpGateway::connect(address, keys, plan.prompt_tokens_max()).await?;
    let mut prompts = Prompts::new(Random::new(seed));
    // A bar is drawn on a terminal alone; elsewhere each part has a line.
    let (bar, lines) = (bar(), !std::io::stderr().is_terminal());
    let mut part = String::new();
    let mut progress = |what: &str, done: usize, of: usize| {
        if part != what {
            what.clone_into(&mut part);
            if lines {
                note(format_args!("measuring: {what}, {of} at most"));
            }
            bar.set_message(part.clone());
            bar.reset();
            bar.set_length(of as u64);
        }
        bar.set_position(done as u64);
    };
    let samples = measure::measure(&mut gateway, &plan, &mut prompts, &Looks::of(&plan), &mut progress).await;
    bar.finish_and_clear();
    let judgement = verdict::judge(&samples?, &plan);
    let version = env!("CARGO_PKG_VERSION");
    Ok(Report { audit: "sidechannel", version, server, seed, plan, levels: Levels::ALL, judgement })
}

/// How many of everything.
struct Size {
    control_pairs: usize,
    cross_pairs: usize,
    order_rounds: usize,
    eviction_pairs: usize,
    stream_pairs: usize,
}

impl Size {
    /// Enough for every channel that is coarse, and for no interval.
    const QUICK: Self =
        Self { control_pairs: 30, cross_pairs: 30, order_rounds: 12, eviction_pairs: 12, stream_pairs: 12 };

    /// The interval of an arm between tenants needs about three times what the controls need, and must have twice that in case
    /// that the first looks are not lucky: see `verdict.rs`.
    fn of(samples: usize) -> Self {
        let fifth = (samples / 5).max(12);
        Self {
            control_pairs: samples,
            cross_pairs: 6 * samples,
            order_rounds: fifth.min(ROUNDS_MAX),
            eviction_pairs: (samples / 10).clamp(12, ROUNDS_MAX),
            stream_pairs: fifth.min(ROUNDS_MAX),
        }
    }

    fn with_rounds(self, rounds: usize) -> Self {
        Self { order_rounds: rounds, eviction_pairs: rounds, stream_pairs: rounds, ..self }
    }

    fn plan(self, prefix_tokens: Vec<usize>, flood_tokens: usize, constant_shape: bool) -> Plan {
        let Self { control_pairs, cross_pairs, order_rounds, eviction_pairs, stream_pairs } = self;
        Plan {
            prefix_tokens,
            control_pairs,
            cross_pairs,
            order_rounds,
            eviction_pairs,
            flood_tokens,
            stream_pairs,
            constant_shape,
        }
    }
}

/// Rounds whose exact distribution is still quickly computed.
const ROUNDS_MAX: usize = 500;

/// Both keys, which must be there, sendable and not the same.
fn keys([victim, attacker]: [Option<String>; 2]) -> Result<Keys> {
    let (Some(victim), Some(attacker)) = (victim, attacker) else {
        bail!("no keys: set BULKHEAD_API_KEY_A and BULKHEAD_API_KEY_B to the keys of two tenants");
    };
    for key in [&victim, &attacker] {
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("a key holds a line break, a space or another character that no key has");
        }
    }
    if victim == attacker {
        bail!("both keys are the same: the audit needs two tenants, or it would find what one may see of itself");
    }
    Ok(Keys { victim, attacker })
}

/// Negative numbers are refused by the command line.
fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

fn words(recorded: &Recorded, digest: &str) -> String {
    match recorded {
        Recorded::At { index, .. } => format!("recorded as entry {index} of the audit log, sha256 {digest}"),
        Recorded::Not { reason } => format!("not recorded in the audit log: {reason}"),
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:34} {bar:32} {pos}/{len}, {eta} left");
    ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_for_the_result_is_looked_at_before_hours_of_work() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("result.json");
        std::fs::write(&there, "older").unwrap();
        assert!(check_place(&there).is_ok() && check_place(&folder.path().join("new.json")).is_ok());
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "older");
        for nowhere in [folder.path().to_owned(), folder.path().join("missing/result.json")] {
            let refused = check_place(&nowhere).unwrap_err().to_string();
            assert!(refused.ends_with("cannot be written"), "{refused}");
        }
    }

    #[test]
    fn two_tenants_are_needed() {
        let keys = |a: Option<&str>, b: Option<&str>| keys([a.map(str::to_owned), b.map(str::to_owned)]).err();
        for (a, b) in [(None, None), (Some("bk_1"), None), (Some("bk_1"), Some("bk_1")), (Some("bk_\n"), Some("bk_2"))]
        {
            let error = keys(a, b).expect("refused").to_string();
            assert!(!error.contains("bk_"), "a key is never written: {error}");
        }
        assert!(keys(Some("bk_1"), Some("bk_2")).is_none());
    }

    #[test]
    fn every_verdict_has_an_exit_code_of_its_own() {
        let verdicts = [Verdict::Isolated, Verdict::ChannelFound, Verdict::Void, Verdict::Inconclusive];
        assert_eq!(verdicts.map(Verdict::exit_code), [0, 3, 4, 5]);
    }
}
