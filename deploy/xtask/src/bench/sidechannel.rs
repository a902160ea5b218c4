//! The audit for side channels against a gateway as it is shipped, with what its log says of the result.

use super::{handoff, result_file};
use crate::phase::execute;
use crate::setup;
use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;
use std::path::Path;
use std::process::{Command, Stdio};

/// KV pages of the gateway: few, so that the eviction oracle's flood takes all of them in seconds.
const PAGES: usize = 512;

/// Rounds of the other oracles.
const ROUNDS: usize = 12;

pub(super) fn run(root: &Path, prefix_tokens: &[usize], samples: usize, seed: u64) -> Result<()> {
    let bulkhead = super::bulkhead(root)?;
    execute(setup::cargo(root).args([
        "build",
        "--release",
        "--locked",
        "-p",
        "audit-verify",
        "--bin",
        "bulkhead-verify",
    ]))?;
    let prefix_tokens = prefix_tokens.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let model = super::model(&bulkhead)?;
    super::wait_for_quiet();
    let output = Command::new("python3")
        .arg(root.join("tests/clients/sidechannel.py"))
        .arg(&bulkhead)
        .arg(setup::target(root).join("release/bulkhead-verify"))
        .arg(model)
        .arg(PAGES.to_string())
        .args(["--prefix-tokens", &prefix_tokens, "--samples", &samples.to_string()])
        .args(["--rounds", &ROUNDS.to_string(), "--seed", &seed.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("python3 cannot be started")?;
    ensure!(output.status.success(), "the audit failed");
    let mut result: Json = serde_json::from_slice(&output.stdout).context("the audit's result is not JSON")?;
    result["processor"] = handoff::processor();
    println!("{}", result["result"]["verdict"].as_str().unwrap_or("no verdict"));
    let file = result_file(root, "sidechannel.json");
    std::fs::write(&file, serde_json::to_string_pretty(&result)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}
