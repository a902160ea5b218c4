//! The measured part of `docs/performance.md` and its plots, made from the files in `tests/results`: numbers are written
//! by this program or not at all.

use super::plot::{Plot, Series, thousands};
use super::{audit, checks, handoff, result_file, scheduler, simulation};
use anyhow::{Context, Result};
use serde_json::Value as Json;
use std::fmt::Write;
use std::path::Path;

const NOTE: &str = "docs/performance.md";
const PLOTS: &str = "docs/plots";
const BEGIN: &str = "<!-- measured: written by `cargo xtask bench`, not by hand -->";
const END: &str = "<!-- end of measured -->";

/// Figure, what it is called, and the floors of the ratios: same file, best peer.
const FIGURES: [(&str, &str, f64, f64); 4] = [
    ("decode_b1", "decode, 1 sequence", 2.2, 1.3),
    ("decode_b16", "decode, 16 sequences", 4.0, 2.2),
    ("prefill_512", "prefill, 512 tokens", 5.0, 1.6),
    ("prefill_2048", "prefill, 2,048 tokens", 4.0, 1.6),
];

/// Share of a ceiling, what it is called, and its floor where there is one.
const SHARES: [(&str, &str, Option<f64>); 6] = [
    ("decode_b1_bandwidth", "decode, 1 sequence: bytes read", Some(0.6)),
    ("decode_b16_int8", "decode, 16 sequences: integer operations", None),
    ("prefill_512_int8", "prefill, 512 tokens: integer operations", Some(0.6)),
    ("prefill_2048_int8", "prefill, 2,048 tokens: integer operations", None),
    ("prefill_512_int8_and_f32", "prefill, 512 tokens: with attention at the peak of f32", None),
    ("prefill_2048_int8_and_f32", "prefill, 2,048 tokens: with attention at the peak of f32", None),
];

/// Figure of the served comparison, what it is called, and what is wanted of it against the same file.
const SERVED: [(&str, &str, &str); 3] = [
    ("output_tokens_per_second", "output of all streams, tokens/s", "at least 4"),
    ("ttft_ms_p50", "TTFT p50, ms", "at most 0.25"),
    ("itl_ms_max", "largest ITL, ms", "at most 0.05"),
];

/// Writes the note and the plots anew from what was measured last.
pub(super) fn write(root: &Path) -> Result<()> {
    let path = root.join(NOTE);
    let old = std::fs::read_to_string(&path).with_context(|| format!("cannot read {NOTE}"))?;
    let results = Results::read(root)?;
    let new = replaced(&old, &results.text())?;
    std::fs::write(&path, new).with_context(|| format!("cannot write {NOTE}"))?;
    let folder = root.join(PLOTS);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {PLOTS}"))?;
    for (name, plot) in results.plots() {
        std::fs::write(folder.join(name), plot.svg()).with_context(|| format!("cannot write {PLOTS}/{name}"))?;
    }
    Ok(())
}

/// The note with another measured part.
fn replaced(note: &str, text: &str) -> Result<String> {
    let (before, rest) = note.split_once(BEGIN).with_context(|| format!("{NOTE} has no line `{BEGIN}`"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{NOTE} has no line `{END}`"))?;
    Ok(format!("{before}{BEGIN}\n\n{text}\n{END}{after}"))
}

/// What was measured; null for what was not.
struct Results {
    engine: Json,
    served: Json,
    checks: Json,
    handoff: Json,
    simulation: Json,
    scheduler: Json,
    audit: Json,
}

impl Results {
    fn read(root: &Path) -> Result<Self> {
        let read = |name: &str| match std::fs::read_to_string(result_file(root, name)) {
            Ok(text) => serde_json::from_str(&text).with_context(|| format!("{name} is not JSON")),
            Err(_) => Ok(Json::Null),
        };
        let (engine, served) = (read("engine.json")?, read("served.json")?);
        Ok(Self {
            engine,
            served,
            checks: read("checks.json")?,
            handoff: read("handoff.json")?,
            simulation: read(simulation::FILE)?,
            scheduler: read(scheduler::FILE)?,
            audit: read(audit::FILE)?,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        self.engine_text(&mut text);
        self.served_text(&mut text);
        self.checks_text(&mut text);
        self.handoff_text(&mut text);
        text.push_str(&scheduler::text(&self.scheduler));
        text.push_str(&simulation::text(&self.simulation));
        text.push_str(&audit::text(&self.audit));
        text
    }

    /// Writing to a String cannot fail, here and below.
    fn engine_text(&self, text: &mut String) {
        let engine = &self.engine;
        let _ = writeln!(
            text,
            "Model `{}`, {}, {} threads, {} kernels. Medians of {} repetitions with the lowest and the highest; load average\n\
             {} before, {} after.\n",
            words(&engine["model"]["name"]),
            words(&engine["machine"]["cpu"]),
            number(&engine["threads"]),
            words(&engine["kernels"]),
            number(&engine["repetitions"]),
            number(&engine["load_average_before"]),
            number(&engine["load_average_after"]),
        );
        let _ = writeln!(
            text,
            "| forward pass | tokens/s | times llama.cpp, same file | floor | times its best format | floor |"
        );
        let _ = writeln!(text, "| --- | --- | --- | --- | --- | --- |");
        for (figure, name, same_floor, best_floor) in FIGURES {
            let (same, best) = (&engine["same_file"][figure], &engine["best_peer"][figure]);
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {same_floor} | {}, {} | {best_floor} |",
                speed(&engine["engine"][figure]),
                ratio(same),
                ratio(best),
                words(&best["peer"]),
            );
        }
        let ceilings = &engine["ceilings"];
        let _ = writeln!(
            text,
            "\nThe ceilings, measured between the repetitions: reading {} GB/s ({} MB, {} streams), {} GOP/s of dot\n\
             products of bytes, {} GOP/s of f32.\n",
            speed(&ceilings["read_gigabytes_per_second"]),
            ceilings["read_bytes"].as_f64().map_or_else(missing, |bytes| format!("{:.1}", bytes / 1e6)),
            number(&ceilings["read_streams"]),
            speed(&ceilings["int8_giga_operations_per_second"]),
            speed(&ceilings["f32_giga_operations_per_second"]),
        );
        let _ = writeln!(text, "| share of the ceiling | reached | floor |\n| --- | --- | --- |");
        for (figure, name, floor) in SHARES {
            let floor = floor.map_or_else(String::new, |floor| floor.to_string());
            let _ = writeln!(text, "| {name} | {} | {floor} |", ratio(&engine["roofline"][figure]));
        }
        let _ = writeln!(text, "\n| kernel, alone | tokens | predicted, us | reached, us | share |");
        let _ = writeln!(text, "| --- | --- | --- | --- | --- |");
        for row in engine["kernel_table"].as_array().into_iter().flatten() {
            let us = |value: &Json| value.as_f64().map_or_else(missing, |us| format!("{us:.1}"));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                words(&row["kernel"]),
                number(&row["tokens"]),
                us(&row["predicted_us"]),
                us(&row["reached_us"]["median"]),
                row["share"].as_f64().map_or_else(missing, |share| format!("{share:.2}")),
            );
        }
        let neighbour = &engine["neighbour"];
        if !neighbour.is_null() {
            let _ = writeln!(
                text,
                "\nBeside a process that keeps one processor busy, decode of one sequence keeps {} of its speed (wanted: at least\n\
                 0.4); {} keeps {}.",
                ratio(&neighbour["engine"]),
                words(&neighbour["peer"]["peer"]),
                ratio(&neighbour["peer"]["share"]),
            );
        }
        let _ = writeln!(text, "\nPeers, tokens/s:\n");
        let _ = writeln!(
            text,
            "| peer | decode, 1 | decode, 16 | prefill, 512 | prefill, 2,048 |\n| --- | --- | --- | --- | --- |"
        );
        for peer in engine["peers"].as_array().into_iter().flatten() {
            let speeds = FIGURES.map(|(figure, ..)| speed(&peer["tokens_per_second"][figure]));
            let _ = writeln!(text, "| {} | {} |", words(&peer["name"]), speeds.join(" | "));
        }
        for peer in engine["other_peers"].as_array().into_iter().flatten() {
            let speeds = FIGURES.map(|(figure, ..)| speed(&peer["tokens_per_second"][figure]));
            let (name, version) = (words(&peer["name"]), words(&peer["version"]));
            let _ = writeln!(text, "| {name} {version}, after the others | {} |", speeds.join(" | "));
        }
        for (name, plot) in self.engine_plots() {
            let _ = writeln!(text, "\n![{}]({}/{name})", plot.title, PLOTS.trim_start_matches("docs/"));
        }
    }

    fn served_text(&self, text: &mut String) {
        let served = &self.served;
        if served.is_null() {
            return;
        }
        let _ = writeln!(
            text,
            "\nServed, {} streams with {}-token prompts and {} tokens of answer, through the gateway with everything that\n\
             it checks and records, against `llama-server`:\n",
            number(&served["streams"]),
            number(&served["prompt_tokens"]),
            lengths(&served["completion_tokens"]),
        );
        let _ = writeln!(
            text,
            "| | gateway | through the same file's | wanted | through the best |\n| --- | --- | --- | --- | --- |"
        );
        for (figure, name, wanted) in SERVED {
            let (same, best) = (&served["same_file"][figure], &served["best_peer"][figure]);
            let _ = writeln!(
                text,
                "| {name} | {} | {} ({}) | {wanted} | {} ({}) |",
                speed(&served["bulkhead"][figure]),
                ratio(same),
                words(&same["peer"]),
                ratio(best),
                words(&best["peer"]),
            );
        }
    }

    fn checks_text(&self, text: &mut String) {
        if let Some((prefill, decode)) = checks::percent(&self.checks) {
            let _ = writeln!(
                text,
                "\nLabel checks and digests take {prefill:.3} % of the instructions of a prefill of {} tokens (wanted: at most\n\
                 0.5) and {decode:.3} % of those of decoding after it (at most 1): the kernels of AVX2 with the checks and with\n\
                 the checks taken out, counted by callgrind. Timed in turn with the machine's own kernels, prefill with them\n\
                 has {} of the speed without, decode {}.",
                number(&self.checks["prefill_tokens"]),
                ratio(&self.checks["timed_prefill"]),
                ratio(&self.checks["timed_decode"]),
            );
        }
    }

    fn handoff_text(&self, text: &mut String) {
        let handoff = &self.handoff;
        if handoff.is_null() {
            return;
        }
        let _ = writeln!(
            text,
            "\nVerifying a handoff: the digests of all pages, made on both ends, as a share of the prefill that they follow\n\
             (wanted: at most 3 %). {}, {} threads, which `copy` divides between the groups, {} kernels;\n\
             medians of {} prompts, load average {} before, {} after. A group makes its digests on one thread: at {} GB/s where\n\
             the pages are in no cache.\n",
            words(&handoff["machine"]["cpu"]),
            number(&handoff["threads"]),
            words(&handoff["kernels"]),
            number(&handoff["repeats"]),
            number(&handoff["load_average_before"]),
            number(&handoff["load_average_after"]),
            ratio(&handoff["digest_gigabytes_per_second"]),
        );
        let _ = writeln!(text, "| handoff | prompt | prefill, ms | digests, ms | share, % |");
        let _ = writeln!(text, "| --- | --- | --- | --- | --- |");
        for row in handoff::rows(handoff) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                words(&row["transport"]),
                row["prompt_tokens"].as_f64().map_or_else(missing, thousands),
                speed(&row["prefill_ms"]),
                ratio(&row["digests_ms"]),
                ratio(&row["share_percent"]),
            );
        }
    }

    fn plots(&self) -> Vec<(&'static str, Plot)> {
        let mut plots = self.engine_plots();
        plots.extend(scheduler::plots(&self.scheduler));
        plots.extend(simulation::plots(&self.simulation));
        plots
    }

    fn engine_plots(&self) -> Vec<(&'static str, Plot)> {
        let scaling = &self.engine["scaling"];
        if scaling.is_null() {
            return Vec::new();
        }
        let plot = |title: &str, x, series| Plot { title: title.to_owned(), x, y: "tokens/s", series };
        let rows = |what: &str| sized(&scaling[what]);
        let threads = |figure: &str| {
            let points = |name: &str| -> Vec<(f64, f64)> {
                let rows = scaling["threads"].as_array().into_iter().flatten();
                let y = |row: &Json| row[name]["median"].as_f64().or_else(|| row[name].as_f64());
                rows.filter_map(|row| Some((row["threads"].as_f64()?, y(row)?))).collect()
            };
            vec![line("Bulkhead", 0, points(figure)), roofline(points(&format!("{figure}_roofline")))]
        };
        vec![
            ("decode.svg", plot("Decode, all sequences together", "sequences", rows("decode"))),
            ("prefill.svg", plot("Prefill", "prompt tokens", rows("prefill"))),
            ("threads-decode.svg", plot("Decode, one sequence", "threads", threads("decode_b1"))),
            ("threads-prefill.svg", plot("Prefill, 512 tokens", "threads", threads("prefill_512"))),
        ]
    }
}

/// Colours that are told apart by people who see few: dark to light.
const COLOURS: [&str; 4] = ["#0b3d91", "#c2410c", "#0f766e", "#7c3aed"];

pub(super) fn line(name: &str, number: usize, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), colour: COLOURS[number % COLOURS.len()], dashed: false, points }
}

fn roofline(points: Vec<(f64, f64)>) -> Series {
    Series { name: "roofline".to_owned(), colour: "#666666", dashed: true, points }
}

/// Ours, the peers' and the roofline over sizes.
fn sized(rows: &Json) -> Vec<Series> {
    let (mut own, mut ceiling, mut peers) = (Vec::new(), Vec::new(), Vec::<(String, Vec<(f64, f64)>)>::new());
    for row in rows.as_array().into_iter().flatten() {
        let Some(size) = row["size"].as_f64() else { continue };
        own.extend(row["tokens_per_second"]["median"].as_f64().map(|speed| (size, speed)));
        ceiling.extend(row["roofline"].as_f64().map(|speed| (size, speed)));
        for peer in row["peers"].as_array().into_iter().flatten() {
            let (name, speed) = (words(&peer["peer"]), peer["tokens_per_second"]["median"].as_f64());
            let Some(point) = speed.map(|speed| (size, speed)) else { continue };
            match peers.iter_mut().find(|(known, _)| *known == name) {
                Some((_, points)) => points.push(point),
                None => peers.push((name, vec![point])),
            }
        }
    }
    let mut series = vec![line("Bulkhead", 0, own)];
    series.extend(peers.into_iter().enumerate().map(|(number, (name, points))| line(&name, number + 1, points)));
    series.push(roofline(ceiling));
    series
}

pub(super) fn missing() -> String {
    "not measured".to_owned()
}

pub(super) fn words(value: &Json) -> String {
    value.as_str().map_or_else(missing, str::to_owned)
}

pub(super) fn number(value: &Json) -> String {
    match value {
        Json::Number(number) => number.to_string(),
        _ => missing(),
    }
}

/// `30, 50, 70 or 90`.
pub(super) fn lengths(value: &Json) -> String {
    let lengths: Vec<String> = value.as_array().into_iter().flatten().map(number).collect();
    match lengths.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => number(value),
    }
}

/// `1,234 (1,200 to 1,300)`; numbers below a hundred have one digit after the point.
fn speed(spread: &Json) -> String {
    let round = |value: f64| if value < 100.0 { format!("{value:.1}") } else { thousands(value) };
    spread_of(spread, round)
}

/// `1.23 (1.20 to 1.30)`.
fn ratio(spread: &Json) -> String {
    spread_of(spread, |value| format!("{value:.2}"))
}

fn spread_of(spread: &Json, round: impl Fn(f64) -> String) -> String {
    let part = |name: &str| spread[name].as_f64().map(&round);
    match (part("median"), part("min"), part("max")) {
        (Some(median), Some(min), Some(max)) => format!("{median} ({min} to {max})"),
        _ => missing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_note_says_what_was_measured_last() {
        let root = crate::root();
        let note = std::fs::read_to_string(root.join(NOTE)).unwrap();
        let results = Results::read(&root).unwrap();
        let wanted = replaced(&note, &results.text()).unwrap();
        assert!(note == wanted, "{NOTE} is not what tests/results say: run `cargo xtask bench note`");
        for (name, plot) in results.plots() {
            let drawn = std::fs::read_to_string(root.join(PLOTS).join(name)).unwrap();
            assert!(drawn == plot.svg(), "{name} is not what tests/results say: run `cargo xtask bench note`");
        }
    }

    #[test]
    fn what_was_not_measured_is_said_so() {
        let none = Results {
            engine: Json::Null,
            served: Json::Null,
            checks: Json::Null,
            handoff: Json::Null,
            simulation: Json::Null,
            scheduler: Json::Null,
            audit: Json::Null,
        };
        let text = none.text();
        assert!(text.contains("| decode, 1 sequence | not measured | not measured | 2.2 |"), "{text}");
        assert!(
            !text.contains("Served")
                && !text.contains("Label checks")
                && !text.contains("handoff")
                && none.plots().is_empty()
        );
    }

    #[test]
    fn numbers_are_written_with_their_spread() {
        let spread = json!({"median": 1234.5, "min": 99.94, "max": 2000.0});
        assert_eq!(speed(&spread), "1,234 (99.9 to 2,000)");
        assert_eq!(ratio(&json!({"median": 1.234, "min": 1.0, "max": 2.0})), "1.23 (1.00 to 2.00)");
        assert_eq!(ratio(&json!({"median": 1.0})), "not measured");
    }

    #[test]
    fn one_length_or_several_are_written() {
        let written = [json!([30, 50, 70]), json!([30]), json!(64), json!(null)].map(|value| lengths(&value));
        assert_eq!(written, ["30, 50 or 70", "30", "64", "not measured"]);
    }

    #[test]
    fn a_note_without_its_marks_is_an_error() {
        assert!(replaced("text", "x").is_err());
        assert!(replaced(&format!("a\n{BEGIN}\n"), "x").is_err());
        let note = replaced(&format!("a\n{BEGIN}\nold\n{END}\nb\n"), "new").unwrap();
        assert_eq!(note, format!("a\n{BEGIN}\n\nnew\n{END}\nb\n"));
    }
}
