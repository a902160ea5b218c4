//! What tenants have of the engine and of the gateway beside each other, on the real model, and what that costs.
//!
//! `bulkhead bench scheduler` measures the engine in its own process; `tests/clients/contended.py` measures over loopback, beside
//! llama.cpp's server. What was not measured this time stays as it was in the result.

use super::note::{lengths, line, words};
use super::plot::{Plot, Series, thousands};
use super::{handoff, peers, result_file, wait_for_quiet};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value as Json, json};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the result is kept.
pub(super) const FILE: &str = "scheduler.json";

/// Parts that the program measures in its own process.
const IN_PROCESS: [&str; 7] = ["uniform", "quiet", "long-prompt", "backlog", "exclusive", "prefixes", "guesses"];
/// Parts that a client measures over loopback.
const OVER_LOOPBACK: [&str; 2] = ["served", "shaped"];
/// Starting servers and long prompts take their time.
const OVER_LOOPBACK_REPETITIONS_MAX: u16 = 3;

/// What is wanted: name, where it is in the result, whether at least or at most, how much, and what it is called.
const FLOORS: [(&str, &str, Wanted, &str); 9] = [
    ("uniform_throughput", "/uniform/ratio/median", Wanted::Least(0.98), "throughput through first come, first served"),
    ("quiet_ttft_p99", "/quiet/ttft_p99/ratio", Wanted::Most(1.25), "quiet tenant beside a flood, times its p99 TTFT"),
    ("quiet_itl_p99", "/quiet/itl_p99/ratio", Wanted::Most(1.15), "the same, times its p99 ITL"),
    (
        "quiet_hit_rate",
        "/quiet/hit_rate_difference_points",
        Wanted::Most(1.0),
        "the same, points of its cache's hit rate",
    ),
    (
        "long_prompt",
        "/long_prompt/delay_in_step_targets_worst",
        Wanted::Most(1.0),
        "delay by a long prompt, in step targets",
    ),
    ("jain_two", "/backlog/two/jain_min", Wanted::Least(0.99), "Jain's index over 10 s, least, two tenants"),
    ("jain_four", "/backlog/four/jain_min", Wanted::Least(0.99), "the same, four tenants"),
    (
        "difference_two",
        "/backlog/two/difference_max_s",
        Wanted::MostOf("/backlog/two/difference_bound_s"),
        "work difference, s, two tenants",
    ),
    (
        "difference_four",
        "/backlog/four/difference_max_s",
        Wanted::MostOf("/backlog/four/difference_bound_s"),
        "the same, four tenants",
    ),
];

#[derive(Clone, Copy)]
enum Wanted {
    Least(f64),
    Most(f64),
    /// What stands in another place of the result.
    MostOf(&'static str),
}

/// How to measure.
pub(super) struct Options<'a> {
    pub(super) repetitions: u16,
    pub(super) seconds: u16,
    /// All when empty.
    pub(super) parts: &'a [String],
    pub(super) json: bool,
}

pub(super) fn run(root: &Path, options: &Options<'_>) -> Result<()> {
    let known = |part: &&String| IN_PROCESS.contains(&part.as_str()) || OVER_LOOPBACK.contains(&part.as_str());
    if let Some(part) = options.parts.iter().find(|part| !known(part)) {
        bail!("there is no part `{part}`; the parts are {}, {}", IN_PROCESS.join(", "), OVER_LOOPBACK.join(", "));
    }
    let wanted = |parts: &[&str]| -> String {
        let wanted = |part: &&&str| options.parts.is_empty() || options.parts.iter().any(|asked| asked == *part);
        parts.iter().filter(wanted).copied().collect::<Vec<_>>().join(",")
    };
    let (in_process, over_loopback) = (wanted(&IN_PROCESS), wanted(&OVER_LOOPBACK));
    let bulkhead = super::bulkhead(root)?;
    let model = super::model(&bulkhead)?;
    let server = if over_loopback.is_empty() { None } else { Some(peers::llama_server_alone(root)?) };
    wait_for_quiet();
    let mut result = read(root)?;
    if !in_process.is_empty() {
        let mut command = Command::new(&bulkhead);
        command.args(["bench", "scheduler", "--parts", &in_process]).arg("--model").arg(&model);
        command.args(["--repetitions", &options.repetitions.to_string(), "--seconds", &options.seconds.to_string()]);
        merge(&mut result, &answer(&mut command)?);
        // What follows may fail: this stays.
        write(root, &mut result)?;
    }
    if let Some(server) = server {
        let repetitions = options.repetitions.min(OVER_LOOPBACK_REPETITIONS_MAX).to_string();
        let mut command = Command::new("python3");
        command.arg(root.join("tests/clients/contended.py")).arg(&bulkhead).arg(server).arg(&model);
        let mut measured = answer(command.args([&repetitions, &over_loopback]))?;
        // Another part may have been measured on another machine, which the program's own facts are of.
        for part in OVER_LOOPBACK {
            if measured[part].is_object() {
                measured[part]["processor"] = handoff::processor();
            }
        }
        merge(&mut result, &measured);
        if result["served"].is_object() {
            result["served"]["peer"] = json!(peers::LLAMA_CPP);
        }
    }
    write(root, &mut result)?;
    println!("{}", if options.json { result.to_string() } else { floors_text(&result) });
    Ok(())
}

/// Keeps what was measured, with what of the wanted is met.
fn write(root: &Path, result: &mut Json) -> Result<()> {
    result["floors"] = floors(result);
    result["load_average_after"] = handoff::load_average();
    let file = result_file(root, FILE);
    std::fs::write(&file, serde_json::to_string_pretty(result)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

/// What was measured before.
fn read(root: &Path) -> Result<Json> {
    match std::fs::read_to_string(result_file(root, FILE)) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("{FILE} is not JSON")),
        Err(_) => Ok(json!({})),
    }
}

fn answer(command: &mut Command) -> Result<Json> {
    let output = command.stderr(Stdio::inherit()).output().context("the measuring program cannot be started")?;
    ensure!(output.status.success(), "{command:?} failed");
    serde_json::from_slice(&output.stdout).context("the program's answer is not JSON")
}

/// What was measured now takes the place of what was measured before.
fn merge(result: &mut Json, measured: &Json) {
    for (part, value) in measured.as_object().into_iter().flatten() {
        result[part] = value.clone();
    }
}

/// What of the wanted is met; nothing of what was not measured.
fn floors(result: &Json) -> Json {
    let mut floors = json!({});
    for (name, place, wanted, _) in FLOORS {
        let of = |place: &str| result.pointer(place).and_then(Json::as_f64);
        let Some(value) = of(place) else { continue };
        let (kind, floor) = match wanted {
            Wanted::Least(floor) => ("at least", Some(floor)),
            Wanted::Most(floor) => ("at most", Some(floor)),
            Wanted::MostOf(place) => ("at most", of(place)),
        };
        let Some(floor) = floor else { continue };
        let met = if kind == "at least" { value >= floor } else { value <= floor };
        floors[name] = json!({"value": value, "kind": kind, "floor": floor, "met": met});
    }
    floors
}

/// The measured part of the note; nothing when there was no run. Writing to a String cannot fail, here and below.
pub(super) fn text(result: &Json) -> String {
    let mut text = String::new();
    if result.is_null() {
        return text;
    }
    let facts = &result["facts"];
    let _ = writeln!(
        text,
        "\nTenants beside each other on the real model (`cargo xtask bench scheduler`): {}, {} threads, {} kernels, step target\n\
         {} ms; load average {} before and {} after. First come, first served is the same engine and the same load, all\n\
         of it asked by one tenant.\n",
        words(&facts["machine"]["cpu"]),
        facts["threads"],
        words(&facts["kernels"]),
        facts["step_target_ms"],
        facts["load_average_before"],
        result["load_average_after"],
    );
    text.push_str(&floors_text(result));
    prices_text(result, &mut text);
    served_text(&result["served"], &mut text);
    for (name, plot) in plots(result) {
        let _ = writeln!(text, "\n![{}](plots/{name})", plot.title);
    }
    text
}

fn floors_text(result: &Json) -> String {
    let mut text = "| tenants beside each other | measured | wanted | met |\n| --- | --- | --- | --- |\n".to_owned();
    for (name, _, _, called) in FLOORS {
        let floor = &result["floors"][name];
        let Some((value, bound)) = floor["value"].as_f64().zip(floor["floor"].as_f64()) else { continue };
        let met = if floor["met"] == true { "yes" } else { "no" };
        let _ =
            writeln!(text, "| {called} | {} | {} {} | {met} |", figure(value), words(&floor["kind"]), figure(bound));
    }
    text
}

/// What modes cost and caches save: with through without.
fn prices_text(result: &Json, text: &mut String) {
    let mut rows = Vec::new();
    let mut row = |called: String, of: &Json, without: &str, with: &str| {
        if !of.is_null() {
            rows.push(format!(
                "| {called} | {} | {} | {} |",
                spread(&of[without]),
                spread(&of[with]),
                spread(&of["ratio"])
            ));
        }
    };
    for prefix in result["prefixes"]["prefixes"].as_array().into_iter().flatten() {
        let called = format!("{} of {} tokens cached: TTFT, ms", prefix["cached_tokens"], prefix["prompt_tokens"]);
        row(called, prefix, "cold_ttft_ms", "warm_ttft_ms");
    }
    for prompt in result["guesses"]["prompts"].as_array().into_iter().flatten() {
        let repeats = prompt["prompt"] == "repeating";
        let called = format!("guesses, an answer that {}: tokens/s", if repeats { "repeats itself" } else { "is new" });
        row(called, prompt, "plain_tokens_per_second", "guessing_tokens_per_second");
    }
    for (figure, called) in [
        ("tokens_per_second", "`exclusive`, two tenants: tokens/s of both"),
        ("ttft_p50_ms", "`exclusive`: its p50 TTFT, ms"),
        ("itl_p50_ms", "`exclusive`: its p50 ITL, ms"),
        ("other_itl_p50_ms", "`exclusive`: the other's p50 ITL, ms"),
    ] {
        row(called.to_owned(), &result["exclusive"][figure], "shared", "exclusive");
    }
    for (figure, called) in [
        ("output_tokens_per_second", "`constant-shape`, 4 streams (machine of the table below): tokens/s"),
        ("ttft_ms_p50", "`constant-shape`: p50 TTFT, ms"),
        ("itl_ms_p50", "`constant-shape`: p50 from text to text, ms"),
        ("tpot_ms_p50", "`constant-shape`: p50 TPOT, ms"),
    ] {
        row(called.to_owned(), &result["shaped"]["figures"][figure], "plain", "shaped");
    }
    if !rows.is_empty() {
        let _ = writeln!(
            text,
            "\n| with and without | without | with | ratio |\n| --- | --- | --- | --- |\n{}",
            rows.join("\n")
        );
    }
}

/// Figures of the table beside the other server.
const SERVED: [(&str, &str); 9] = [
    ("output_tokens_per_second", "output of all streams, tokens/s"),
    ("ttft_ms_p50", "TTFT p50, ms"),
    ("ttft_ms_p95", "TTFT p95, ms"),
    ("ttft_ms_p99", "TTFT p99, ms"),
    ("itl_ms_p50", "ITL p50, ms"),
    ("itl_ms_p95", "ITL p95, ms"),
    ("itl_ms_p99", "ITL p99, ms"),
    ("itl_ms_max", "largest ITL, ms"),
    ("tpot_ms_p50", "TPOT p50, ms"),
];

fn served_text(served: &Json, text: &mut String) {
    if served.is_null() {
        return;
    }
    let _ = writeln!(
        text,
        "\nThe gateway beside `llama-server` ({}) on {}: the same file and threads, the same prompts of {} tokens, greedy answers\n\
         of {} tokens. Of the {} answers that were compared before, {} are the same to the last character; half of them are the same\n\
         for the first {} of {} characters or more. ITL is from text to text, and a step that guessed well writes several tokens;\n\
         TPOT is from token to token on average. p99 of TTFT is the largest of a repetition.\n\n\
         | streams | | gateway | llama-server, the better of two settings | ratio |\n| --- | --- | --- | --- | --- |",
        words(&served["peer"]),
        words(&served["processor"]),
        served["prompt_tokens"],
        lengths(&served["completion_tokens"]),
        served["alike"]["answers"],
        served["alike"]["same"],
        served["alike"]["same_characters_median"],
        served["alike"]["characters_median"],
    );
    for size in served["sizes"].as_array().into_iter().flatten() {
        for (name, called) in SERVED {
            let of = &size["figures"][name];
            let cells = ["bulkhead", "peer", "ratio"].map(|part| spread(&of[part]));
            let _ = writeln!(text, "| {} | {called} | {} |", size["streams"], cells.join(" | "));
        }
    }
    text.push_str(
        "\nThe client, which shares the processors with the servers, and everybody else had these shares of all processors:\n\n\
         | streams | beside | client | server | everybody else |\n| --- | --- | --- | --- | --- |\n",
    );
    for size in served["sizes"].as_array().into_iter().flatten() {
        for (name, facts) in size["facts"].as_object().into_iter().flatten() {
            let called = if name == "bulkhead" { "gateway".to_owned() } else { format!("llama-server, {name}") };
            let cells = ["client", "server", "others"].map(|who| percent(&facts[format!("{who}_cpu_share")]));
            let _ = writeln!(text, "| {} | {called} | {} |", size["streams"], cells.join(" | "));
        }
    }
}

/// `1.2 % (1.1 to 1.3)` of a spread of shares.
fn percent(spread: &Json) -> String {
    let part =
        |name: &str| spread[name].as_f64().map_or_else(|| "?".to_owned(), |share| format!("{:.1}", share * 100.0));
    format!("{} % ({} to {})", part("median"), part("min"), part("max"))
}

/// `1.23 (1.20 to 1.30)`.
fn spread(spread: &Json) -> String {
    let part = |name: &str| spread[name].as_f64().map_or_else(|| "?".to_owned(), figure);
    format!("{} ({} to {})", part("median"), part("min"), part("max"))
}

/// Three digits that count.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => thousands(value),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The plots and their files.
pub(super) fn plots(result: &Json) -> Vec<(&'static str, Plot)> {
    let plot = |title: &str, x, y, series| Plot { title: title.to_owned(), x, y, series };
    let mut plots = Vec::new();
    let quiet = &result["quiet"];
    if !quiet.is_null() {
        let series = vec![
            line("a flood", 1, cumulated(&quiet["ttft_flood_ms"])),
            line("shares", 0, cumulated(&quiet["ttft_share_ms"])),
        ];
        plots.push(("scheduler-quiet.svg", plot("TTFT of a quiet tenant, beside:", "ms", "%", series)));
    }
    let backlog = &result["backlog"];
    if !backlog.is_null() {
        let difference = |of: &Json| -> Vec<(f64, f64)> {
            pairs(&of["difference_s"]).map(|(at, seconds)| (at, seconds * 1e3)).collect()
        };
        let bound = |name: &str, of: &Json| Series {
            name: name.to_owned(),
            colour: "#666666",
            dashed: true,
            points: difference(of)
                .iter()
                .filter_map(|(at, _)| Some((*at, of["difference_bound_s"].as_f64()? * 1e3)))
                .collect(),
        };
        let series = vec![
            line("two tenants", 0, difference(&backlog["two"])),
            line("four tenants", 1, difference(&backlog["four"])),
            bound("bound, four", &backlog["four"]),
        ];
        plots.push(("scheduler-work.svg", plot("Work difference of equal tenants that wait", "seconds", "ms", series)));
    }
    let long = &result["long_prompt"];
    if !long.is_null() {
        let gaps: Vec<(f64, f64)> = pairs(&long["timeline_ms"]).collect();
        let (own, target) = (long["own_step_ms"]["median"].as_f64(), long["step_target_ms"].as_f64());
        let allowed = own.zip(target).map_or(0.0, |(own, target)| own + target);
        let allowed = Series {
            name: "one step target more".to_owned(),
            colour: "#666666",
            dashed: true,
            points: gaps.iter().map(|(at, _)| (*at, allowed)).collect(),
        };
        let series = vec![line("from token to token", 0, gaps), allowed];
        plots.push((
            "scheduler-long-prompt.svg",
            plot("ITL of an answer, another tenant's long prompt at 0", "ms", "ms", series),
        ));
    }
    plots
}

/// How many percent of the values, in ascending order, each does not exceed.
fn cumulated(values: &Json) -> Vec<(f64, f64)> {
    let values: Vec<f64> = values.as_array().into_iter().flatten().filter_map(Json::as_f64).collect();
    let percent = |place: usize| 100.0 * (place + 1) as f64 / values.len() as f64;
    values.iter().enumerate().map(|(place, value)| (*value, percent(place))).collect()
}

fn pairs(pairs: &Json) -> impl Iterator<Item = (f64, f64)> {
    pairs.as_array().into_iter().flatten().filter_map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_told() {
        assert!(text(&Json::Null).is_empty() && plots(&Json::Null).is_empty());
        assert_eq!(floors(&json!({})), json!({}));
        assert!(plots(&json!({"facts": {}})).is_empty());
    }

    #[test]
    fn what_is_wanted_is_met_or_not() {
        let result = json!({
            "uniform": {"ratio": {"median": 0.97}}, "quiet": {"ttft_p99": {"ratio": 1.2}},
            "backlog": {"two": {"difference_max_s": 1.0, "difference_bound_s": 2.0}},
        });
        let floors = floors(&result);
        let met = |name: &str| floors[name]["met"].as_bool();
        let names = ["uniform_throughput", "quiet_ttft_p99", "difference_two", "difference_four"];
        assert_eq!(names.map(met), [Some(false), Some(true), Some(true), None]);
        let text = floors_text(&json!({"floors": floors}));
        assert!(text.contains("| 0.970 | at least 0.980 | no |"), "{text}");
    }

    #[test]
    fn parts_that_were_not_measured_again_stay() {
        let mut result = json!({"uniform": 1, "quiet": 2});
        merge(&mut result, &json!({"quiet": 3, "served": 4}));
        assert_eq!(result, json!({"uniform": 1, "quiet": 3, "served": 4}));
    }

    #[test]
    fn the_table_beside_another_server_says_who_used_the_processors() {
        let spread = |median: f64| json!({"median": median, "min": median, "max": median});
        let facts = json!({"client_cpu_share": spread(0.012), "server_cpu_share": spread(0.95), "others_cpu_share": spread(0.0)});
        let figure = json!({"bulkhead": spread(20.0), "peer": spread(10.0), "ratio": spread(2.0)});
        let size = json!({
            "streams": 4, "figures": {"output_tokens_per_second": figure}, "facts": {"bulkhead": facts, "defaults": facts},
        });
        let mut text = String::new();
        served_text(&json!({"peer": "p==1", "alike": {"answers": 32, "same": 20}, "sizes": [size]}), &mut text);
        for line in [
            "| 4 | output of all streams, tokens/s | 20.0 (20.0 to 20.0) | 10.0 (10.0 to 10.0) | 2.00 (2.00 to 2.00) |",
            "| 4 | gateway | 1.2 % (1.2 to 1.2) | 95.0 % (95.0 to 95.0) | 0.0 % (0.0 to 0.0) |",
            "| 4 | llama-server, defaults |",
            "Of the 32 answers that were compared before, 20 are the same",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        served_text(&Json::Null, &mut text);
    }

    #[test]
    fn a_cumulated_distribution_ends_with_everybody() {
        assert_eq!(cumulated(&json!([1.0, 2.0])), [(1.0, 50.0), (2.0, 100.0)]);
    }
}
