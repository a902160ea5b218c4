//! What `bulkhead-verify` says of an evidence bundle.

use super::{Lines, cosigners, cosigners_json, key_lines, key_source, line, signers, utc};
use crate::GivenKey;
use audit_verify::{BundleReport, BundleUnchecked};
use serde_json::json;

pub(crate) fn bundle(report: &BundleReport, key: &GivenKey) -> String {
    let (facts, statement) = (&report.facts, &report.statement);
    let mut lines = Lines(String::new());
    lines.line("bundle", "genuine");
    lines.line("log", format_args!("{}, {} entries", report.checkpoint.origin, report.checkpoint.size));
    lines.line("key", key_source(key));
    signers(&mut lines, key, &report.signed_by);
    lines.line("signed by", &report.report_key);
    if !report.witnessed.is_empty() {
        lines.line("witnesses", cosigners(&report.witnessed));
    }
    lines.line("tenant", format_args!("{} (reference {})", statement.tenant, statement.reference));
    lines.line("time", format_args!("{} to {}", utc(statement.from_us), utc(statement.to_us)));
    let complete = &facts.completeness;
    let end = if complete.end_is_closed { "none before, between or after" } else { "none before or between" };
    lines.line(
        "entries",
        format_args!(
            "{}, numbers {} to {}: {end} is missing",
            complete.entries, complete.first_number, complete.last_number
        ),
    );
    let ends: Vec<_> = facts.responses.ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
    lines.line(
        "responses",
        format_args!("{}: {}; {} not sealed", facts.responses.sealed, ends.join(", "), facts.responses.not_sealed),
    );
    lines.line(
        "pages",
        format_args!("{} own, {} public, {} foreign", facts.pages.own, facts.pages.public, facts.pages.foreign),
    );
    lines.line(
        "incidents",
        format_args!("{}, {} open", facts.incidents.len() as u64 + facts.incidents_left_out, facts.incidents_open),
    );
    let replays = &facts.replays;
    lines.line(
        "replays",
        format_args!("{} same, {} different, {} not done", replays.same, replays.different, replays.not_done),
    );
    lines.line("checked", report.passed.join(", "));
    for part in &report.unchecked {
        lines.line("not shown", words(*part));
    }
    lines.0
}

fn words(part: BundleUnchecked) -> &'static str {
    match part {
        BundleUnchecked::End => {
            "that no later entry belongs to the time: a later receipt or bundle of the tenant shows it"
        }
        BundleUnchecked::Name => "that the reference is this tenant's: no commitment of its name can be opened",
        BundleUnchecked::Stated => {
            "what the operator states of chains of others and of self-tests: it is its signed word"
        }
        BundleUnchecked::Report => "figures and pages: another version made them; those above were made of the entries",
        BundleUnchecked::Witnesses => "that everybody is shown the same log: give --witness KEY",
    }
}

fn name(part: BundleUnchecked) -> &'static str {
    match part {
        BundleUnchecked::End => "end",
        BundleUnchecked::Name => "name",
        BundleUnchecked::Stated => "stated",
        BundleUnchecked::Report => "report",
        BundleUnchecked::Witnesses => "witnesses",
    }
}

pub(crate) fn bundle_json(report: &BundleReport, key: &GivenKey) -> String {
    line(&json!({
        "result": "genuine",
        "origin": report.checkpoint.origin,
        "tree_size": report.checkpoint.size,
        "root": report.checkpoint.root.to_string(),
        "key": key.key.to_string(),
        "key_given": key.beside.is_none(),
        "signed_by": key_lines(&report.signed_by),
        "report_key": report.report_key.to_string(),
        "witnesses": cosigners_json(&report.witnessed),
        "statement": report.statement,
        "facts": report.facts,
        "checked": report.passed,
        "unchecked": report.unchecked.iter().map(|part| name(*part)).collect::<Vec<_>>(),
    }))
}
