//! What verifying a handoff costs: the digests on both ends, as a share of the prefill that they follow.
//!
//! The engine counts the time that its groups spend on digests; an example of `engine/runtime` sends prompts through it,
//! with both ways to hand pages over, and puts that time beside the prefill's.

use super::{result_file, wait_for_quiet};
use crate::phase::execute;
use crate::setup;
use anyhow::{Context, Result, ensure};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::process::{Command, Stdio};

pub(super) fn run(root: &Path, repetitions: u16, threads: Option<usize>) -> Result<()> {
    let model = super::model(&super::bulkhead(root)?)?;
    execute(setup::cargo(root).args(["build", "--release", "--locked", "-p", "engine-runtime", "--example", EXAMPLE]))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    wait_for_quiet();
    let before = load_average();
    let program = setup::target(root).join("release/examples").join(EXAMPLE);
    let output = Command::new(&program)
        .arg(model)
        .args([threads.unwrap_or(cores).to_string(), repetitions.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(output.status.success(), "{} failed", program.display());
    let mut result: Json = serde_json::from_slice(&output.stdout).context("the program's answer is not JSON")?;
    result["machine"] = json!({"cpu": processor(), "cores": cores});
    (result["load_average_before"], result["load_average_after"]) = (before, load_average());
    for row in rows(&result) {
        println!(
            "{:<8} {:>5} tokens  digests are {} % of the prefill",
            row["transport"].as_str().unwrap_or_default(),
            row["prompt_tokens"],
            row["share_percent"]["median"]
        );
    }
    let file = result_file(root, "handoff.json");
    std::fs::write(&file, serde_json::to_string_pretty(&result)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

const EXAMPLE: &str = "handoff_share";

/// The handoffs of a `handoff.json`: one for each transport and length of prompt.
pub(super) fn rows(result: &Json) -> impl Iterator<Item = &Json> {
    result["handoffs"].as_array().into_iter().flatten()
}

/// As Linux calls it; null where it does not say.
pub(crate) fn processor() -> Json {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(Json::Null, |(_, name)| json!(name.trim()))
}

/// Over the last minute; null where the system does not say.
pub(super) fn load_average() -> Json {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().and_then(|load| load.parse::<f64>().ok());
    load.map_or(Json::Null, |load| json!(load))
}
