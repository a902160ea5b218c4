//! What the scheduler does under an engine that is made up: an example of `engine/scheduler` runs its own code with thousands
//! of tenants, and this tells and draws what it found.

use super::plot::{Plot, Series, thousands};
use super::{result_file, wait_for_quiet};
use crate::phase::execute;
use crate::setup;
use anyhow::{Context, Result, ensure};
use serde_json::{Value as Json, json};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the result is kept.
pub(super) const FILE: &str = "scheduler-simulation.json";
const EXAMPLE: &str = "simulate";
/// What a decision may take, in nanoseconds.
const DECISION_NS_MAX: f64 = 5_000.0;
const JAIN_MIN: f64 = 0.99;
/// Names of decisions in the result, and what they are.
const DECISIONS: [(&str, &str); 6] = [
    ("arrive", "a request comes"),
    ("admit", "who gets the next slot"),
    ("chunk", "a chunk of a prompt"),
    ("charge", "a row's cost"),
    ("give_way", "who gives a slot or pages"),
    ("forget", "a request ends"),
];

pub(super) fn run(root: &Path) -> Result<()> {
    execute(setup::cargo(root).args([
        "build",
        "--release",
        "--locked",
        "-p",
        "engine-scheduler",
        "--example",
        EXAMPLE,
    ]))?;
    wait_for_quiet();
    let before = super::handoff::load_average();
    let program = setup::target(root).join("release/examples").join(EXAMPLE);
    let output = Command::new(&program)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(output.status.success(), "{} failed", program.display());
    let mut result: Json = serde_json::from_slice(&output.stdout).context("the program's answer is not JSON")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    result["machine"] = json!({"cpu": super::handoff::processor(), "cores": cores});
    (result["load_average_before"], result["load_average_after"]) = (before, super::handoff::load_average());
    println!("{}", text(&result));
    let file = result_file(root, FILE);
    std::fs::write(&file, serde_json::to_string_pretty(&result)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

fn rows(result: &Json) -> impl Iterator<Item = &Json> {
    result["decisions"].as_array().into_iter().flatten()
}

/// The measured part of the note; nothing when there was no run. Writing to a String cannot fail.
pub(super) fn text(result: &Json) -> String {
    let mut text = String::new();
    if result.is_null() {
        return text;
    }
    let _ = writeln!(
        text,
        "\nThe scheduler's own code under an engine and a clock that are made up (`cargo xtask bench scheduler-simulation`, seed\n\
         {}). All but the times of decisions is decided by the seed, so that each decision is made again in each of {} runs: the\n\
         least that it took is what it costs, and what one run took beyond that is the machine's (interrupts, other programs,\n\
         memory that is touched for the first time). Times: {}, load average {} before and {} after, looking at the clock\n\
         ({} ns) in each of them; wanted: less than {} ns, and growth with the logarithm of tenants and sequences.\n",
        result["seed"],
        result["runs"],
        result["machine"]["cpu"].as_str().unwrap_or("unknown"),
        result["load_average_before"],
        result["load_average_after"],
        result["clock_ns"],
        thousands(DECISION_NS_MAX),
    );
    decisions_text(result, &mut text);
    shares_text(result, &mut text);
    classes_text(result, &mut text);
    for (name, plot) in plots(result) {
        let _ = writeln!(text, "\n![{}](plots/{name})", plot.title);
    }
    text
}

fn decisions_text(result: &Json, text: &mut String) {
    let tables = [
        (
            "least of all runs, ns: median (99 of 100, most)",
            ["least_median_ns", "least_p99_ns", "least_max_ns"].as_slice(),
        ),
        ("one run, ns: median (99 of 100)", &["median_ns", "p99_ns"]),
    ];
    for (title, names) in tables {
        let _ = writeln!(text, "| {title} | {} | all |", DECISIONS.map(|(_, words)| words).join(" | "));
        let _ = writeln!(text, "| --- | {}--- |", "--- | ".repeat(DECISIONS.len()));
        for row in rows(result) {
            let cell = |of: &str| {
                let ns: Vec<String> = names
                    .iter()
                    .map(|name| row[of][*name].as_f64().map_or_else(|| "-".to_owned(), thousands))
                    .collect();
                format!("{} ({})", ns[0], ns[1..].join(", "))
            };
            let _ = writeln!(
                text,
                "| {} tenants, {} live | {} | {} |",
                thousands(row["tenants"].as_f64().unwrap_or(0.0)),
                thousands(row["live"].as_f64().unwrap_or(0.0)),
                DECISIONS.map(|(name, _)| cell(name)).join(" | "),
                cell("all"),
            );
        }
        let _ = writeln!(text);
    }
    let looks = |of: usize| rows(result).filter_map(|row| row["looks_max"][of].as_u64()).max().unwrap_or(0);
    let _ = writeln!(
        text,
        "However many there are, whoever gets the next slot was found among {} requests at most, and all chunks of a step among\n\
         {}.",
        looks(0),
        looks(1),
    );
    if let Some((tenants, live)) = growth(result) {
        let _ = writeln!(
            text,
            "\nA hundred times as many tenants make the median decision {tenants:.1} times as dear, a hundred times as many live\n\
             sequences {live:.1} times. A logarithm of what there is grows {:.1} and {:.1} times.",
            (10_000f64).ln() / (100f64).ln(),
            (100_000f64).ln() / (1_000f64).ln(),
        );
    }
}

/// The median decision with 10,000 tenants against 100, and with 100,000 live sequences against 1,000.
fn growth(result: &Json) -> Option<(f64, f64)> {
    let median = |tenants: u64, live: u64| {
        let row = rows(result).find(|row| row["tenants"] == tenants && row["live"] == live)?;
        row["all"]["least_median_ns"].as_f64()
    };
    Some((median(10_000, 100_000)? / median(100, 100_000)?, median(100, 100_000)? / median(100, 1_000)?))
}

fn shares_text(result: &Json, text: &mut String) {
    let _ = writeln!(
        text,
        "\n| tenants that always wait | Jain's index over 10 s, least | wanted | largest work difference, s | bound, s |\n\
         | --- | --- | --- | --- | --- |"
    );
    let rows = [
        ("equal", "16 equal ones, long prompts and short ones"),
        ("weighted", "16 of weights 1 to 8"),
        ("prompts", "4 equal ones, prompts alone"),
        ("prompts_weighted", "2 of weights 1 and 3, prompts alone"),
    ];
    for (name, words) in rows {
        let of = &result[name];
        let _ = writeln!(
            text,
            "| {words} | {} | {JAIN_MIN} | {} | {} |",
            of["jain_min"], of["difference_max_s"], of["difference_bound_s"]
        );
    }
    let (quiet, small, uniform, pauses) =
        (&result["quiet"], &result["quiet_small"], &result["uniform"], &result["pauses"]);
    let _ = writeln!(
        text,
        "\nThe bound of prompts alone is two steps and two chunks; that of slots is what the slots of one tenant cost, twice,\n\
         because what has a slot goes on. A quiet tenant beside one that floods at 100 times its share has {} times the p99\n\
         TTFT (wanted: at most 1.25) and {} times the p99 ITL (1.15) of the same tenant beside neighbours that ask for their\n\
         shares; on a small machine, with a cached prefix, {} and {} times. Sixteen requests of each of four tenants that all come at once are answered at {} times the speed of the same 64\n\
         asked by one tenant. Where the machine is away for a second once in a hundred passes, no request that comes after such a\n\
         pause waits longer than {} s for its first token; without pauses, {} s.",
        quiet["ttft_p99_ratio"],
        quiet["itl_p99_ratio"],
        small["ttft_p99_ratio"],
        small["itl_p99_ratio"],
        uniform["throughput_ratio"],
        pauses["ttft_max_after_pauses_s"],
        pauses["ttft_max_without_s"]
    );
}

fn classes_text(result: &Json, text: &mut String) {
    let _ = writeln!(
        text,
        "\n| class, all three with more than there is room for | part of all work | wait for a slot p50, s | p99, s | longest, s | at its share, s |\n\
         | --- | --- | --- | --- | --- | --- |"
    );
    for row in classes(result) {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row["class"].as_str().unwrap_or("unknown"),
            row["part_of_all_work"],
            row["wait_p50_s"],
            row["wait_p99_s"],
            row["wait_longest_s"],
            row["wait_promised_s"],
        );
    }
    let all = &result["everybody"];
    let count = |name: &str| all[name].as_f64().map_or_else(|| "-".to_owned(), thousands);
    let _ = writeln!(
        text,
        "\nThe longest waits are of queues that came at once to slots that others had. {} tenants with {} live sequences by\n\
         Zipf's law, floods, sleepers, long prompts and clients that leave, for {} s: {} requests came, {} were answered, {}\n\
         clients left, {} requests gave way, {} pages of caches were taken, and no slot and no page was lost.",
        count("tenants"),
        count("live"),
        count("seconds"),
        count("arrived"),
        count("ended"),
        count("cancelled"),
        count("gave_way"),
        count("cache_pages_reclaimed"),
    );
}

fn classes(result: &Json) -> impl Iterator<Item = &Json> {
    result["classes"]["classes"].as_array().into_iter().flatten()
}

/// The plots and their files.
pub(super) fn plots(result: &Json) -> Vec<(&'static str, Plot)> {
    if result.is_null() {
        return Vec::new();
    }
    let plot = |title: &str, x, y, series| Plot { title: title.to_owned(), x, y, series };
    let jain = |what: &str| -> Vec<(f64, f64)> {
        points(&result[what]["jain"], f64::min).into_iter().map(|(x, y)| (x, (1.0 - y) * 1e4)).collect()
    };
    let difference = |what: &str| -> Vec<(f64, f64)> {
        points(&result[what]["difference_s"], f64::max).into_iter().map(|(x, y)| (x, y * 1e3)).collect()
    };
    let flat = |y: f64, like: &[(f64, f64)]| like.iter().map(|(x, _)| (*x, y)).collect();
    let bound = |what: &str| result[what]["difference_bound_s"].as_f64().unwrap_or(0.0) * 1e3;
    let sizes = |part: &'static str, of: &'static str, fixed: u64, name: &str, number| {
        let rows = rows(result).filter(|row| row[of] == fixed);
        let points = rows.filter_map(|row| Some((row[part].as_f64()?, row["all"][name].as_f64()?))).collect();
        let name = match name {
            "least_median_ns" => "median",
            "least_p99_ns" => "99 of 100",
            _ => "99 of 100, one run",
        };
        line(name, number, points)
    };
    let limit = |from, to| allowed("wanted", vec![(from, DECISION_NS_MAX), (to, DECISION_NS_MAX)]);
    let waits = |name: &str, what: &str, number| {
        let points =
            classes(result).enumerate().filter_map(|(class, row)| Some((class as f64 + 1.0, row[what].as_f64()?)));
        line(name, number, points.collect())
    };
    vec![
        (
            "scheduler-tenants.svg",
            plot(
                "One decision, 100,000 live sequences",
                "tenants",
                "ns",
                vec![
                    sizes("tenants", "live", 100_000, "least_median_ns", 0),
                    sizes("tenants", "live", 100_000, "least_p99_ns", 1),
                    sizes("tenants", "live", 100_000, "p99_ns", 2),
                    limit(100.0, 10_000.0),
                ],
            ),
        ),
        (
            "scheduler-live.svg",
            plot(
                "One decision, 100 tenants",
                "live sequences",
                "ns",
                vec![
                    sizes("live", "tenants", 100, "least_median_ns", 0),
                    sizes("live", "tenants", 100, "least_p99_ns", 1),
                    sizes("live", "tenants", 100, "p99_ns", 2),
                    limit(1_000.0, 100_000.0),
                ],
            ),
        ),
        (
            "scheduler-jain.svg",
            plot(
                "What Jain's index over ten seconds lacks of 1, in ten-thousandths",
                "seconds",
                "",
                vec![
                    line("16 equal", 0, jain("equal")),
                    line("weights 1 to 8", 1, jain("weighted")),
                    line("prompts alone", 2, jain("prompts")),
                    allowed("wanted", flat((1.0 - JAIN_MIN) * 1e4, &jain("equal"))),
                ],
            ),
        ),
        (
            "scheduler-difference.svg",
            plot(
                "Work difference of tenants whose prompts wait",
                "seconds",
                "ms",
                vec![
                    line("4 equal", 0, difference("prompts")),
                    line("weights 1 and 3", 1, difference("prompts_weighted")),
                    allowed("bound", flat(bound("prompts"), &difference("prompts"))),
                ],
            ),
        ),
        (
            "scheduler-waits.svg",
            plot(
                "Waits for a slot by class, all overloaded",
                "1 interactive, 2 standard, 3 batch",
                "s",
                vec![
                    waits("p50", "wait_p50_s", 0),
                    waits("p99", "wait_p99_s", 1),
                    waits("longest", "wait_longest_s", 2),
                    Series { dashed: true, ..waits("at its share", "wait_promised_s", 3) },
                ],
            ),
        ),
    ]
}

/// The worst of each five seconds.
fn points(pairs: &Json, worst: impl Fn(f64, f64) -> f64) -> Vec<(f64, f64)> {
    let mut points = Vec::<(f64, f64)>::new();
    for pair in pairs.as_array().into_iter().flatten() {
        let (Some(x), Some(y)) = (pair[0].as_f64(), pair[1].as_f64()) else { continue };
        let span = (x / 5.0).floor() * 5.0;
        match points.last_mut() {
            Some((last, so_far)) if *last == span => *so_far = worst(*so_far, y),
            _ => points.push((span, y)),
        }
    }
    points
}

fn line(name: &str, number: usize, points: Vec<(f64, f64)>) -> Series {
    super::note::line(name, number, points)
}

fn allowed(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), colour: "#666666", dashed: true, points }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_simulated_is_not_told() {
        assert!(text(&Json::Null).is_empty() && plots(&Json::Null).is_empty());
    }

    #[test]
    fn growth_is_of_the_median_decision() {
        let row = |tenants: u64, live: u64, ns: f64| json!({"tenants": tenants, "live": live, "all": {"least_median_ns": ns}});
        let result =
            json!({"decisions": [row(100, 1_000, 100.0), row(100, 100_000, 150.0), row(10_000, 100_000, 300.0)]});
        assert_eq!(growth(&result), Some((2.0, 1.5)));
        assert_eq!(growth(&json!({})), None);
    }
}
