//! What the audit log takes, and what an answer pays for it: `bulkhead bench audit`, and its part of the note.

use super::{note, result_file, wait_for_quiet};
use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// In the folder of results.
pub(super) const FILE: &str = "audit.json";

pub(super) fn run(root: &Path, repetitions: u16, parts: &[String]) -> Result<()> {
    let bulkhead = super::bulkhead(root)?;
    wait_for_quiet();
    let mut command = Command::new(&bulkhead);
    command.args(["bench", "audit", "--repetitions", &repetitions.to_string(), "--folder"]).arg(root.join("target"));
    if !parts.is_empty() {
        command.args(["--parts", &parts.join(",")]);
    }
    let output = command.stderr(Stdio::inherit()).output().context("the program cannot be started")?;
    ensure!(output.status.success(), "the benchmark failed");
    let measured: Json = serde_json::from_slice(&output.stdout).context("the program's answer is not JSON")?;
    let file = result_file(root, FILE);
    let old = std::fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str::<Json>(&text).ok());
    let all = together(old, measured);
    std::fs::write(&file, serde_json::to_string_pretty(&all)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Parts that were not measured anew are kept.
fn together(old: Option<Json>, new: Json) -> Json {
    match (old, new) {
        (Some(Json::Object(mut old)), Json::Object(new)) => {
            old.extend(new);
            Json::Object(old)
        }
        (_, new) => new,
    }
}

/// The section; nothing where nothing was measured.
pub(super) fn text(audit: &Json) -> String {
    let mut text = String::new();
    if audit.is_null() {
        return text;
    }
    let spread = |value: &Json, digits: usize| {
        let number = |name: &str| value[name].as_f64().map_or_else(note::missing, |number| grouped(number, digits));
        format!("{} ({} to {})", number("median"), number("min"), number("max"))
    };
    let facts = &audit["facts"];
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        text,
        "The audit log (`cargo xtask bench audit`): {}, {} cores' threads for the engine, medians of {} repetitions with the\n\
         lowest and the highest. Logs lie on the disk of the build, with the index on it too; each entry's writer waits until it\n\
         is durable. Processor time is that of the whole process.\n",
        note::words(&facts["machine"]["cpu"]),
        note::number(&facts["threads"]),
        note::number(&facts["repetitions"]),
    );
    let _ = writeln!(text, "| | reached | wanted |\n| --- | --- | --- |");
    let mut row = |name: &str, value: &Json, digits: usize, wanted: &str| {
        let _ = writeln!(text, "| {name} | {} | {wanted} |", spread(value, digits));
    };
    for (writers, speed, wait) in [(256, "25,000", "10"), (1_024, "100,000", "")] {
        let of = &audit["durable"][format!("writers_{writers}")];
        row(
            &format!("{writers} writers: durable entries/s"),
            &of["entries_per_second"],
            0,
            &format!("at least {speed}"),
        );
        let wanted = if wait.is_empty() { String::new() } else { format!("at most {wait}") };
        row(&format!("{writers} writers: wait p50, ms"), &of["wait_p50_ms"], 2, &wanted);
        row(&format!("{writers} writers: wait p99, ms"), &of["wait_p99_ms"], 2, "");
        row(&format!("{writers} writers: processor time of an entry, us"), &of["cpu_us_per_entry"], 1, "");
    }
    let verification = &audit["verification"];
    row("a whole log checked, entries/s", &verification["entries_per_second"], 0, "at least 1,000,000");
    row("an inclusion proof checked, us", &verification["inclusion_proof_us"], 2, "at most 10");
    row("a receipt checked with its request, us", &verification["receipt_us"], 1, "");
    for tokens in [16, 64, 512] {
        let of = &audit["first_token"][format!("prompt_{tokens}")];
        row(&format!("TTFT, {tokens} tokens, without a log, ms"), &of["without_ms"], 2, "");
        row(&format!("times that, entry durable before prefill, {tokens} tokens"), &of["before_to_without"], 3, "");
        row(&format!("times that, entry durable beside prefill, {tokens} tokens"), &of["beside_to_without"], 3, "");
    }
    for batch in [1, 16] {
        let of = &audit["replay"][format!("batch_{batch}")];
        let name = format!("{batch} answers at once");
        row(&format!("{name}: processor time of one, ms"), &of["answer_cpu_ms"], 0, "");
        row(&format!("{name}: times that, with the digest"), &of["digest_to_answer"], 3, "");
        row(&format!("{name}: times that, the replay"), &of["replay_to_answer"], 3, "");
        row(&format!("{name}: times that, with digest and replay"), &of["with_replay_to_answer"], 3, "at most 1.12");
    }
    let (receipt, evidence) = (&verification["receipt_bytes"], &audit["evidence"]);
    let _ = writeln!(
        text,
        "\nA receipt of an answer without a trace has {} bytes as text and {} in COSE (wanted: at most 1,536). An answer of {} tokens\n\
         with its prompt, in {} steps, leaves {} bytes of pages that were read (wanted: at most 5,120), and its receipt has {}.\n",
        whole(receipt),
        whole(&verification["receipt_cose_bytes"]),
        whole(&evidence["tokens"]),
        whole(&evidence["steps"]),
        whole(&evidence["trace_bytes"]),
        whole(&evidence["receipt_with_trace_bytes"]),
    );
    text
}

fn whole(value: &Json) -> String {
    value.as_f64().map_or_else(note::missing, |number| grouped(number, 0))
}

/// With commas between thousands.
fn grouped(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.into_iter().for_each(|rest| grouped.extend(['.'].into_iter().chain(rest.chars())));
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_measured_anew_stays_and_thousands_have_commas() {
        let all = together(Some(json!({"durable": 1, "replay": 1})), json!({"replay": 2}));
        assert_eq!(all, json!({"durable": 1, "replay": 2}));
        assert_eq!(together(None, json!({"replay": 2})), json!({"replay": 2}));
        assert_eq!(grouped(1_234_567.891, 2), "1,234,567.89");
        assert_eq!((grouped(123.0, 0), grouped(1_000.4, 0)), ("123".to_owned(), "1,000".to_owned()));
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        assert_eq!(text(&Json::Null), "");
        let text = text(
            &json!({"durable": {"writers_256": {"entries_per_second": {"median": 30_000.0, "min": 1.0, "max": 2.0}}}}),
        );
        assert!(text.contains("| 256 writers: durable entries/s | 30,000 (1 to 2) | at least 25,000 |"), "{text}");
    }
}
