//! What `bulkhead-verify` says.

mod bundle;
mod mine;

pub(crate) use bundle::{bundle, bundle_json};
pub(crate) use mine::{mine, mine_json};

use crate::GivenKey;
use audit_provenance::{Coverage, Handover, Opened, SealReason};
use audit_verify::{
    ConsistencyReport, LogReport, NamedKey, ReceiptReport, SelfTests, Unchecked, VerifierKey, Witnessed, rfc3339,
};
use serde_json::json;
use std::fmt::{Display, Write as _};

/// Lines of a name and a value.
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, value: impl Display) {
        // Writing into a string cannot fail.
        let _written = writeln!(self.0, "{name:<12}{value}");
    }
}

pub(crate) fn receipt(report: &ReceiptReport, key: &GivenKey) -> String {
    let (opened, sealed) = (&report.opened, &report.sealed);
    let mut lines = Lines(String::new());
    lines.line("receipt", "genuine");
    lines.line("log", format_args!("{}, {} entries", report.checkpoint.origin, report.checkpoint.size));
    lines.line("key", key_source(key));
    signers(&mut lines, key, &report.signed_by);
    if !report.witnessed.is_empty() {
        lines.line("witnesses", cosigners(&report.witnessed));
    }
    lines.line("request", sealed.request);
    lines.line("entries", format_args!("{} opened, {} sealed", sealed.opened_index, report.index));
    lines.line("time", format_args!("{} opened, {} sealed", utc(report.opened_us), utc(report.sealed_us)));
    let name = report.tenant_name.as_deref().unwrap_or("name not disclosed");
    lines.line("tenant", format_args!("{name} (reference {})", hex::encode(report.tenant.tenant)));
    lines.line("model", format_args!("sha256 {}", opened.model));
    lines.line("fingerprint", fingerprint(opened));
    lines.line("program", format_args!("sha256 {}", opened.build));
    lines.line("rules", format_args!("sha256 {}", opened.rules));
    lines.line(
        "pages",
        format_args!("{} own, {} public, {} foreign", sealed.pages.own, sealed.pages.public, sealed.pages.foreign),
    );
    lines.line("coverage", coverage(sealed.coverage));
    let (reason, steps, chunks) = (sealed.reason.as_str(), sealed.steps, sealed.chunks);
    lines.line("end", format_args!("{reason}, after {steps} steps and {chunks} payloads"));
    lines.line("tokens", format_args!("{} prompt, {} completion", sealed.prompt_tokens, sealed.completion_tokens));
    let ms = |us: u64| format!("{}.{:01} ms", us / 1_000, us % 1_000 / 100);
    let (queued, prefill, decode) = (ms(sealed.queued_us), ms(sealed.prefill_us), ms(sealed.decode_us));
    lines.line("timings", format_args!("{queued} queued, {prefill} prefill, {decode} decode"));
    lines.line("checked", report.passed.join(", "));
    for part in &report.unchecked {
        lines.line("unchecked", unchecked(*part));
    }
    lines.line("verdict", verdict(report));
    lines.0
}

/// Who cosigned, and when by their own clocks.
fn cosigners(witnessed: &[Witnessed]) -> String {
    let one = |one: &Witnessed| format!("{} ({})", one.name, utc(one.unix_seconds.saturating_mul(1_000_000)));
    witnessed.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn cosigners_json(witnessed: &[Witnessed]) -> serde_json::Value {
    witnessed.iter().map(|one| json!({"name": one.name, "unix_seconds": one.unix_seconds})).collect()
}

/// All that decides the answer's bits, as one digest.
fn fingerprint(opened: &Opened) -> String {
    let none = || "not recorded: the entry has version 1 of the format".to_owned();
    opened.fingerprint.map_or_else(none, |fingerprint| format!("sha256 {fingerprint}"))
}

fn unchecked(part: Unchecked) -> &'static str {
    match part {
        Unchecked::Tenant => "tenant's name: the receipt holds no salts",
        Unchecked::Trace => "trace: not available, so it is not shown which pages were read",
        Unchecked::Request => "request commitment: give --request FILE",
        Unchecked::Response => "response commitment: give --response FILE",
        Unchecked::Chunks => "chunk chain: it takes --response FILE and a receipt with a trace",
        Unchecked::Replay => "the answer's bits: `bulkhead audit replay` computes them again, with the model",
        Unchecked::Opened => {
            "opened entry's place: the sealed entry names it by its hash; the receipt as text proves both"
        }
    }
}

fn verdict(report: &ReceiptReport) -> String {
    let bodies: Vec<_> = [(Unchecked::Request, "request"), (Unchecked::Response, "response")]
        .into_iter()
        .filter(|(part, _)| report.unchecked.contains(part))
        .map(|(_, name)| name)
        .collect();
    let bodies = if bodies.is_empty() {
        String::new()
    } else {
        format!("; it was not checked against the {}", bodies.join(" and the "))
    };
    format!("{}{bodies}", recorded(report))
}

/// What the log records of the response.
fn recorded(report: &ReceiptReport) -> &'static str {
    match report.sealed.reason {
        SealReason::Isolation if report.sealed.chunks == 0 => {
            "an isolation fault stopped this response before its first byte left; the log has the incident"
        }
        SealReason::Isolation => {
            "an isolation fault stopped this response after bytes had left; the log has the incident"
        }
        SealReason::Crash => "the program ended before this response did; what it read and sent is not recorded",
        _ if report.trace.is_none() => {
            "this log counts no page of another tenant for this response; the trace that would show each page is not \
             available"
        }
        _ => "this log records that every page this response read was the tenant's own or public",
    }
}

fn coverage(coverage: Coverage) -> String {
    let handover = match coverage.handover {
        Handover::None => "",
        Handover::Relabel => "sealed handoff of pages that stay",
        Handover::Copy => "sealed handoff of pages that are copied",
        Handover::Staged => "sealed handoff of pages from another process",
    };
    let on = [
        (coverage.label_gate, "label gate"),
        (coverage.kernel_tags, "page tags in the kernels"),
        (!handover.is_empty(), handover),
    ];
    let on: Vec<_> = on.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    if on.is_empty() { "no check".to_owned() } else { on.join(", ") }
}

/// Which keys have signed, where there is more than the given one.
fn signers(lines: &mut Lines, key: &GivenKey, signed_by: &[VerifierKey]) {
    if key.named.is_empty() {
        return;
    }
    for signer in signed_by {
        match key.named.iter().find(|named| named.key == *signer) {
            Some(named) => lines.line("signed with", format_args!("{signer}, which entry {} names", named.entry)),
            None => lines.line("signed with", format_args!("{signer}, the given key")),
        }
    }
}

fn key_lines(keys: &[VerifierKey]) -> Vec<String> {
    keys.iter().map(ToString::to_string).collect()
}

fn key_source(key: &GivenKey) -> String {
    match &key.beside {
        None => format!("{}, as given", key.key),
        Some(path) => {
            format!("{}, from `{}`: trust it as far as you trust where that file came from", key.key, path.display())
        }
    }
}

pub(crate) fn receipt_json(report: &ReceiptReport, key: &GivenKey) -> String {
    let (opened, sealed) = (&report.opened, &report.sealed);
    line(&json!({
        "result": "genuine",
        "origin": report.checkpoint.origin,
        "tree_size": report.checkpoint.size,
        "key": key.key.to_string(),
        "key_given": key.beside.is_none(),
        "signed_by": key_lines(&report.signed_by),
        "witnesses": cosigners_json(&report.witnessed),
        "request": sealed.request.to_string(),
        "opened_index": sealed.opened_index,
        "index": report.index,
        "opened_us": report.opened_us,
        "sealed_us": report.sealed_us,
        "tenant": report.tenant_name,
        "tenant_ref": hex::encode(report.tenant.tenant),
        "tenant_number": report.tenant.number,
        "model": opened.model.to_string(),
        "fingerprint": opened.fingerprint.map(|fingerprint| fingerprint.to_string()),
        "build": opened.build.to_string(),
        "rules": opened.rules.to_string(),
        "stream": opened.stream,
        "pages": {"own": sealed.pages.own, "public": sealed.pages.public, "foreign": sealed.pages.foreign},
        "coverage": {
            "label_gate": sealed.coverage.label_gate,
            "kernel_tags": sealed.coverage.kernel_tags,
            "handover": sealed.coverage.handover.as_str(),
        },
        "reason": sealed.reason.as_str(),
        "steps": sealed.steps,
        "chunks": sealed.chunks,
        "prompt_tokens": sealed.prompt_tokens,
        "completion_tokens": sealed.completion_tokens,
        "queued_us": sealed.queued_us,
        "prefill_us": sealed.prefill_us,
        "decode_us": sealed.decode_us,
        "checked": report.passed,
        "unchecked": report.unchecked.iter().map(|part| part.name()).collect::<Vec<_>>(),
        "verdict": verdict(report),
    }))
}

pub(crate) fn log(report: &LogReport, key: &GivenKey) -> String {
    let mut lines = Lines(String::new());
    let counts = |counts: &std::collections::BTreeMap<&str, u64>| {
        counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    lines.line("log", "sound");
    lines.line("origin", &report.checkpoint.origin);
    lines.line("key", key_source(key));
    if report.kinds.contains_key("key_rotation") {
        for NamedKey { key, entry } in &report.signed_by {
            lines.line("signed with", format_args!("{key}, which entry {entry} names"));
        }
    }
    if let Some((size, cosigned)) = &report.witnessed {
        lines.line("witnesses", format_args!("{}: the first {size} entries", cosigners(cosigned)));
    }
    lines.line("entries", format_args!("{}: {}", report.checkpoint.size, counts(&report.kinds)));
    lines.line("root", report.checkpoint.root);
    lines.line("time", format_args!("{} first, {} last", utc(report.wall_us.0), utc(report.wall_us.1)));
    lines.line("tenants", format_args!("{}, each with a dense chain", report.tenants));
    lines.line("responses", format_args!("{}; {} not sealed", counts(&report.reasons), report.unsealed));
    if !report.audits.is_empty() {
        lines.line("audits", format_args!("{}, as the tenants say that made them", counts(&report.audits)));
    }
    if !report.replays.is_empty() {
        lines.line("replays", counts(&report.replays));
    }
    if report.self_tests.tests > 0 {
        let SelfTests { tests, failed, longest_gap_us, .. } = report.self_tests;
        let gap = match tests {
            1 => String::new(),
            _ => format!(
                ", at most {}.{:03} s from one to the next",
                longest_gap_us / 1_000_000,
                longest_gap_us / 1_000 % 1_000
            ),
        };
        lines.line("self-tests", format_args!("{tests}{gap}, {failed} failed"));
    }
    if !report.incidents.is_empty() {
        lines.line("incidents", counts(&report.incidents));
    }
    if report.erasures.0 > 0 {
        let (erased, not_done) = report.erasures;
        lines.line("erasures", format_args!("{erased} keys; of {not_done} the log does not say that no file is left"));
    }
    if report.holds > 0 {
        lines.line("holds", report.holds);
    }
    if report.pruned_before > 0 {
        lines.line("traces", format_args!("dropped before entry {}, for their age", report.pruned_before));
    }
    let [own, public, foreign] = report.pages;
    lines.line("pages", format_args!("{own} own, {public} public, {foreign} foreign"));
    let witnesses = if report.witnessed.is_some() { "witnesses, " } else { "" };
    let checked = "tiles, root, entries, keys, tenants, pairing, incidents, faults, replays, keeping, pages";
    lines.line("checked", format_args!("signature, {witnesses}{checked}"));
    lines.0
}

pub(crate) fn log_json(report: &LogReport, key: &GivenKey) -> String {
    let [own, public, foreign] = report.pages;
    line(&json!({
        "result": "sound",
        "origin": report.checkpoint.origin,
        "tree_size": report.checkpoint.size,
        "root": report.checkpoint.root.to_string(),
        "key": key.key.to_string(),
        "key_given": key.beside.is_none(),
        "signed_by": report.signed_by.iter().map(|named| named.key.to_string()).collect::<Vec<_>>(),
        "witnesses": report.witnessed.as_ref().map(|(_, cosigned)| cosigners_json(cosigned)),
        "witnessed_size": report.witnessed.as_ref().map(|(size, _)| size),
        "entries": report.kinds,
        "responses": report.reasons,
        "unsealed": report.unsealed,
        "audits": report.audits,
        "replays": report.replays,
        "self_tests": {
            "tests": report.self_tests.tests,
            "failed": report.self_tests.failed,
            "longest_gap_us": report.self_tests.longest_gap_us,
            "first_us": report.self_tests.first_us,
            "last_us": report.self_tests.last_us,
        },
        "incidents": report.incidents,
        "erasures": report.erasures.0,
        "erasures_not_done": report.erasures.1,
        "holds": report.holds,
        "pruned_before": report.pruned_before,
        "tenants": report.tenants,
        "pages": {"own": own, "public": public, "foreign": foreign},
        "first_us": report.wall_us.0,
        "last_us": report.wall_us.1,
    }))
}

pub(crate) fn consistency(report: &ConsistencyReport, key: &GivenKey) -> String {
    let mut lines = Lines(String::new());
    lines.line("log", "has only grown");
    lines.line("origin", &report.newer.origin);
    lines.line("key", key_source(key));
    signers(&mut lines, key, &report.signed_by);
    if !report.witnessed.is_empty() {
        lines.line("witnesses", cosigners(&report.witnessed));
    }
    lines.line("entries", format_args!("{} then, {} now", report.older.size, report.newer.size));
    lines.line("root", report.newer.root);
    lines.0
}

pub(crate) fn consistency_json(report: &ConsistencyReport, key: &GivenKey) -> String {
    line(&json!({
        "result": "consistent",
        "origin": report.newer.origin,
        "key": key.key.to_string(),
        "key_given": key.beside.is_none(),
        "signed_by": key_lines(&report.signed_by),
        "witnesses": cosigners_json(&report.witnessed),
        "older_size": report.older.size,
        "tree_size": report.newer.size,
        "root": report.newer.root.to_string(),
    }))
}

pub(crate) fn refusal(what: &str, check: &str, reason: &impl Display) -> String {
    let mut lines = Lines(String::new());
    lines.line(what, "REFUSED");
    lines.line("check", check);
    lines.line("reason", reason);
    lines.0
}

pub(crate) fn refusal_json(check: &str, reason: &impl Display) -> String {
    line(&json!({"result": "refused", "check": check, "reason": reason.to_string()}))
}

fn line(value: &serde_json::Value) -> String {
    format!("{value}\n")
}

/// Microseconds since 1970 as people read them.
fn utc(wall_us: u64) -> String {
    format!("{} UTC", rfc3339(wall_us).trim_end_matches('Z').replace('T', " "))
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00.000 UTC");
        assert_eq!(utc(1_796_000_523_123_456), "2026-11-30 01:02:03.123 UTC");
        assert_eq!(utc(4_102_444_799_999_999), "2099-12-31 23:59:59.999 UTC");
    }
}
