//! What is said of a tenant's own entries.

use super::{Lines, cosigners, cosigners_json, key_lines, key_source, line, signers, utc};
use crate::GivenKey;
use audit_verify::MineReport;
use serde_json::json;
use std::collections::BTreeMap;

pub(crate) fn mine(report: &MineReport, key: &GivenKey) -> String {
    let mut lines = Lines(String::new());
    let counts = |counts: &BTreeMap<&'static str, u64>| {
        counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    let (from, end) = report.numbers;
    lines.line("entries", "genuine, and none is missing between them");
    lines.line("log", format_args!("{}, {} entries", report.checkpoint.origin, report.checkpoint.size));
    lines.line("key", key_source(key));
    signers(&mut lines, key, &report.signed_by);
    if !report.witnessed.is_empty() {
        lines.line("witnesses", cosigners(&report.witnessed));
    }
    let name = report.tenant_name.as_deref().unwrap_or("name not disclosed");
    lines.line("tenant", format_args!("{name} (reference {})", hex::encode(report.tenant)));
    match end.checked_sub(1).filter(|last| *last >= from) {
        Some(last) => lines.line("numbers", format_args!("{from} to {last}: {}", counts(&report.kinds))),
        None => lines.line("numbers", "no entry"),
    }
    if report.withheld > 0 {
        let last = if report.last_withheld { ", the last one among them" } else { "" };
        lines.line(
            "withheld",
            format_args!("{} entries of incidents{last}: shown by their hashes alone", report.withheld),
        );
    }
    if let Some((first, last)) = report.wall_us {
        lines.line("time", format_args!("{} first, {} last", utc(first), utc(last)));
    }
    if !report.reasons.is_empty() {
        lines.line("responses", counts(&report.reasons));
        let [own, public, foreign] = report.pages;
        lines.line("pages", format_args!("{own} own, {public} public, {foreign} foreign"));
    }
    lines.line("begin", begin(report));
    lines.line("end", tail(report));
    lines.0
}

fn begin(report: &MineReport) -> String {
    match report.after {
        None => "the tenant's first entry".to_owned(),
        Some(number) => format!("right behind entry {number}, which the receipt has"),
    }
}

fn tail(report: &MineReport) -> String {
    let more = if report.more { "; the gateway says that there are more" } else { "" };
    match report.receipt {
        Some(number) => format!("not cut before entry {number}, which the receipt has{more}"),
        None => format!("a later receipt shows whether the tail is cut: give --receipt FILE{more}"),
    }
}

pub(crate) fn mine_json(report: &MineReport, key: &GivenKey) -> String {
    let [own, public, foreign] = report.pages;
    line(&json!({
        "result": "genuine",
        "origin": report.checkpoint.origin,
        "tree_size": report.checkpoint.size,
        "root": report.checkpoint.root.to_string(),
        "key": key.key.to_string(),
        "key_given": key.beside.is_none(),
        "signed_by": key_lines(&report.signed_by),
        "witnesses": cosigners_json(&report.witnessed),
        "tenant": report.tenant_name,
        "tenant_ref": hex::encode(report.tenant),
        "from": report.numbers.0,
        "to": report.numbers.1,
        "entries": report.kinds,
        "withheld": report.withheld,
        "last_withheld": report.last_withheld,
        "responses": report.reasons,
        "pages": {"own": own, "public": public, "foreign": foreign},
        "first_us": report.wall_us.map(|(first, _)| first),
        "last_us": report.wall_us.map(|(_, last)| last),
        "after": report.after,
        "receipt": report.receipt,
        "more": report.more,
    }))
}
