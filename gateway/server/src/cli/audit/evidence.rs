//! `bulkhead audit report`: evidence of one tenant's isolation in one time, as one signed file for an outside auditor. Reads the
//! log's folder, while a gateway may write to it, and checks what it made before anybody has it.

use super::moment;
use crate::cli::machine;
use crate::cli::serve::read_config;
use crate::cli::{note, say};
use anyhow::{Context, Result, bail};
use audit_evidence::{
    CERTIFICATE, CHECKPOINT, Content, ENTRIES, ENTRIES_MAX, Evidence, FORMAT, Files, MANIFEST, NameOpening, Placed,
    ProvenEntry, RENDERING, STATEMENT, Span, StatedAudit, StatedSelfTests, Statement, VictimIncident, WithheldIncident,
    certified, documents, encode_entries, facts, sign_manifest,
};
use audit_log::{Clock as _, EvidenceQuery, Gathered, Proven, ReportKey, SystemClock, TenantNames, gather_evidence};
use audit_provenance::Entry;
use audit_verify::{
    BundleEvidence, BundleReport, PROOF_BYTES_MAX, VerifierKey, check_bundle, cosigners, follow_rotations, read_file,
};
use clap::{ArgGroup, Args};
use gateway_server::Gateway;
use indicatif::{ProgressBar, ProgressStyle};
use policies_domain::{Digest, TenantName};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

const KEY_BYTES_MAX: usize = 1_024;
/// The last moment that RFC 3339 can write: the end of the year 9999.
const TIME_MAX_US: u64 = 253_402_300_799_999_999;

// Whose evidence, of when, and where the log is. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("place").required(true).args(["log", "config"]))]
pub(crate) struct EvidenceArguments {
    /// The log's folder
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// The gateway's configuration, whose data folder holds the log
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The tenant's name
    #[arg(long, value_name = "NAME")]
    tenant: String,
    /// From this moment on: 2026-12-01T01:02:03Z, 2026-12-01, or seconds since 1970
    #[arg(long, value_name = "T", value_parser = moment::parse)]
    from: u64,
    /// ...up to this one
    #[arg(long, value_name = "T", value_parser = moment::parse)]
    to: u64,
    /// Where the bundle is written; nothing may be there. `evidence-NAME.tar` when not given
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Threads that read
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// What was made, as JSON
    #[arg(long)]
    json: bool,
}

/// Reads, writes the bundle, and says what is in it.
pub(crate) fn run(arguments: &EvidenceArguments) -> Result<()> {
    let EvidenceArguments { tenant, from, to, .. } = arguments;
    let name = TenantName::parse(tenant).with_context(|| format!("`{tenant}` is no tenant's name"))?;
    if to < from {
        bail!("`--to` is before `--from`");
    }
    if *to > TIME_MAX_US {
        bail!("`--to` is after the year 9999");
    }
    let output = arguments.output.clone().unwrap_or_else(|| PathBuf::from(format!("evidence-{name}.tar")));
    check_place(&output)?;
    let dir = match (&arguments.log, &arguments.config) {
        (Some(dir), _) => dir.clone(),
        (None, Some(config)) => Gateway::log_dir(&read_config(config)?.data_dir),
        (None, None) => bail!("the log's folder or a configuration is needed"),
    };
    if !dir.join("log.vkey").is_file() {
        bail!("`{}` is no log: it holds no `log.vkey`", dir.display());
    }
    let key = verifier_key(&dir)?;
    let names = TenantNames::read(&dir)
        .context("the log's `keys/pseudonym.key` cannot be read: run this as the gateway's user")?;
    let mut report_key = ReportKey::read(&dir)
        .context("the log has no `keys/report.skey` that can be read: the gateway makes it at its next start")?;
    // While the log's key is being changed, the one that it has named vouches.
    let keys = follow_rotations(&key, &rotations(&dir)?).context("the log's `rotations`")?;
    // A word of another key of the log, or for another key, vouches for nothing.
    let given = report_key.signer.verifier_key();
    let vouches = |word: &[u8]| keys.keys().any(|key| certified(word, key).as_ref() == Ok(&given));
    report_key.certificate.take_if(|word| !vouches(word));
    let threads = arguments.threads.map_or_else(machine::cores, usize::from);
    let reference = names.reference(&name);
    let time_us = *from..=*to;
    let query = EvidenceQuery { tenant: reference, name: name.clone(), time_us, entries_max: ENTRIES_MAX, threads };
    let gathered = gather(&dir, &query)?;
    let bundle = make(&gathered, &query, &key, &report_key)?;
    // Nobody is given what a verifier refuses.
    let beside = BundleEvidence { report_key: report_key.certificate.is_none().then_some(&given), witnesses: None };
    let checked = check_bundle(&bundle, &keys, beside, |_, _| {}).context("the bundle that was made is not sound")?;
    write(&output, &bundle)?;
    tell(arguments, &output, &bundle, &checked, report_key.certificate.is_some())
}

fn check_place(output: &Path) -> Result<()> {
    // A link to nowhere is something, too.
    if output.symlink_metadata().is_ok() {
        bail!("`{}` is there already: nothing is written over it", output.display());
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("`{}` is no folder", folder.display());
    }
    Ok(())
}

/// The proofs that lead from the log's key to another one, if any.
fn rotations(dir: &Path) -> Result<Vec<Vec<u8>>> {
    let mut proofs = Vec::new();
    for number in 1.. {
        let path = dir.join("rotations").join(number.to_string());
        if !path.exists() {
            break;
        }
        proofs.push(read_file(&path, PROOF_BYTES_MAX).with_context(|| format!("`{}` cannot be read", path.display()))?);
    }
    Ok(proofs)
}

fn verifier_key(dir: &Path) -> Result<VerifierKey> {
    let line = read_file(&dir.join("log.vkey"), KEY_BYTES_MAX).context("`log.vkey` cannot be read")?;
    let line = std::str::from_utf8(&line).context("`log.vkey` is not text")?;
    VerifierKey::parse(line.trim_end_matches('\n')).context("`log.vkey`")
}

/// Half a gigabyte of entries: whoever sees no bar is told what takes so long.
const LONG: u64 = 32;

fn gather(dir: &Path, query: &EvidenceQuery) -> Result<Gathered> {
    let style = ProgressStyle::with_template("{msg:32} {bar:32} {pos}/{len}, {eta} left");
    let bar = ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (lines, mut part) = (!std::io::stderr().is_terminal(), "");
    let gathered = gather_evidence(dir, query, |what, done, of| {
        if part != what {
            part = what;
            if lines && of > LONG {
                note(format_args!("{what}: {of}"));
            }
            bar.set_message(what);
            bar.reset();
            bar.set_length(of);
        }
        bar.set_position(done);
    });
    bar.finish_and_clear();
    gathered.with_context(|| format!("the log in `{}` gives no evidence", dir.display()))
}

fn statement(gathered: &Gathered, query: &EvidenceQuery) -> Statement {
    let incident =
        |(at, incident, stage, updated): &(u64, audit_log::Incident, audit_log::IncidentStage, u64)| VictimIncident {
            id: hex::encode(incident.incident),
            class: incident.class.as_str().to_owned(),
            severity: incident.severity_name().to_owned(),
            state: stage.as_str().to_owned(),
            detected_us: *at,
            // A clock may have been set back.
            updated_us: *updated.max(at),
            bytes_released: incident.bytes_released,
            page: incident.page,
            generation: incident.generation,
        };
    let withheld = |(entry, at, incident): &(u64, u64, audit_log::Incident)| WithheldIncident {
        entry: *entry,
        id: hex::encode(incident.incident),
        class: incident.class.as_str().to_owned(),
        severity: incident.severity_name().to_owned(),
        detected_us: *at,
        request: incident.request.to_string(),
        bytes_released: incident.bytes_released,
    };
    let audit = |(at, audit): &(u64, audit_log::IsolationAudit)| StatedAudit {
        at_us: *at,
        verdict: audit.verdict.as_str().to_owned(),
        arms: audit.arms,
        power: audit.power,
        strongest: audit.strongest,
        result: audit.result.to_string(),
    };
    Statement {
        format: FORMAT,
        rendering: RENDERING,
        program: format!("bulkhead {}", env!("CARGO_PKG_VERSION")),
        made_us: SystemClock::default().wall_us(),
        tenant: query.name.to_string(),
        reference: hex::encode(query.tenant),
        from_us: *query.time_us.start(),
        to_us: *query.time_us.end(),
        name: gathered.name.map(|(entry, salt)| NameOpening { entry, salt: hex::encode(salt) }),
        withheld: gathered.withheld.iter().map(withheld).collect(),
        as_victim: gathered.as_victim.iter().map(incident).collect(),
        side_channels: gathered.audits.iter().map(audit).collect(),
        self_tests: Some(StatedSelfTests {
            tests: gathered.self_tests.tests,
            failed: gathered.self_tests.failed,
            longest_gap_us: gathered.self_tests.longest_gap_us,
        }),
    }
}

/// The tenant's entries of the time alone: the ones around it show that there are no others.
fn span(entries: &[ProvenEntry], query: &EvidenceQuery) -> Result<Span> {
    let (mut placed, mut withheld) = (Vec::with_capacity(entries.len()), Vec::new());
    for proven in entries {
        let (index, leaf) = (proven.index, Digest(proven.leaf().0));
        match &proven.content {
            Content::Entry(bytes) => {
                let entry = Entry::decode(bytes).with_context(|| format!("entry {index}"))?;
                placed.push(Placed { index, leaf, entry });
            }
            Content::Withheld(_) => withheld.push((index, leaf)),
        }
    }
    if placed.first().is_some_and(|first| first.entry.head.wall_us < *query.time_us.start()) {
        placed.remove(0);
    }
    let end_is_closed = placed.last().is_some_and(|last| last.entry.head.wall_us > *query.time_us.end());
    if end_is_closed {
        placed.pop();
    }
    Ok(Span { entries: placed, withheld, begin_is_closed: true, end_is_closed })
}

fn make(gathered: &Gathered, query: &EvidenceQuery, key: &VerifierKey, report_key: &ReportKey) -> Result<Vec<u8>> {
    let statement = statement(gathered, query);
    let proven = |Proven { index, leaf, entry, proof }: &Proven| ProvenEntry {
        index: *index,
        content: entry.clone().map_or(Content::Withheld(leaf.0), Content::Entry),
        proof: proof.iter().map(|hash| hash.0).collect(),
    };
    let entries: Vec<ProvenEntry> = gathered.entries.iter().map(proven).collect();
    let facts = facts(&span(&entries, query)?, &statement.withheld);
    let cosigned_by = cosigners(&gathered.note, key.name());
    let evidence =
        Evidence { statement: &statement, checkpoint: &gathered.checkpoint, cosigned_by: &cosigned_by, facts: &facts };
    let mut files = Files::default();
    files.put(STATEMENT, statement.encode()?);
    files.put(CHECKPOINT, gathered.note.clone());
    files.put(ENTRIES, encode_entries(&entries)?);
    if let Some(certificate) = &report_key.certificate {
        files.put(CERTIFICATE, certificate.clone());
    }
    for (name, bytes) in documents(&evidence) {
        files.put(name, bytes);
    }
    let manifest = sign_manifest(key.name(), &files, &report_key.signer)?;
    files.put(MANIFEST, manifest.into_bytes());
    Ok(files.to_archive()?)
}

/// Whole or not at all, and over nothing that is there.
fn write(output: &Path, bundle: &[u8]) -> Result<()> {
    let shown = || format!("`{}` cannot be written", output.display());
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(output).with_context(shown)?;
    let written = file.write_all(bundle).and_then(|()| file.sync_all());
    if written.is_err() {
        // What is left of it says nothing; why it could not be written is said below.
        let _removed = std::fs::remove_file(output);
    }
    written.with_context(shown)
}

fn tell(
    arguments: &EvidenceArguments,
    output: &Path,
    bundle: &[u8],
    checked: &BundleReport,
    is_vouched_for: bool,
) -> Result<()> {
    let (facts, digest) = (&checked.facts, hex::encode(Sha256::digest(bundle)));
    if arguments.json {
        let text = json!({
            "output": output.display().to_string(), "sha256": digest, "bytes": bundle.len(),
            "origin": checked.checkpoint.origin, "tree_size": checked.checkpoint.size,
            "report_key": checked.report_key.to_string(), "certified": is_vouched_for, "facts": facts,
        });
        return Ok(say(text)?);
    }
    let complete = &facts.completeness;
    let end = if complete.end_is_closed { "" } else { "; up to its last one under the checkpoint" };
    let certified = if is_vouched_for {
        String::new()
    } else {
        format!(
            "\nThe log's key does not vouch for the report key: tell the auditor, who gives it with --report-key\n  {}",
            checked.report_key
        )
    };
    Ok(say(format_args!(
        "`{}`, {} bytes, sha256 {digest}\n{} entries of {}, numbers {} to {}{end}; {} responses, {} foreign pages, {} incidents, \
         {} replays\nWhoever has the log's key from where they trust it checks it with\n  bulkhead-verify bundle {} --key KEY\n  \
         python3 verify/bundle.py KEY {}{certified}",
        output.display(),
        bundle.len(),
        complete.entries,
        checked.statement.tenant,
        complete.first_number,
        complete.last_number,
        facts.responses.sealed,
        facts.pages.foreign,
        facts.incidents.len() as u64 + facts.incidents_left_out,
        facts.replays.same + facts.replays.different + facts.replays.not_done,
        output.display(),
        output.display(),
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_written_over_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there.tar");
        std::fs::write(&there, "older").unwrap();
        let link = folder.path().join("link.tar");
        std::os::unix::fs::symlink(folder.path().join("nowhere"), &link).unwrap();
        for place in [&there, &link, &folder.path().join("missing/new.tar"), &folder.path().to_owned()] {
            assert!(check_place(place).is_err(), "{}", place.display());
        }
        assert!(write(&there, b"newer").is_err() && write(&link, b"newer").is_err());
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "older");
        let new = folder.path().join("new.tar");
        check_place(&new).unwrap();
        write(&new, b"newer").unwrap();
        assert_eq!(std::fs::read(&new).unwrap(), b"newer");
    }
}
