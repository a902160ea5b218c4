//! The log's long tests, which CI runs in small: disks that fail, and a gateway that is killed under load. What they met becomes a
//! file under tests/results.

use crate::phase::{command_line, execute};
use crate::setup::{cargo, model};
use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use serde_json::{Value as Json, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

#[derive(Subcommand)]
pub(crate) enum Soak {
    /// Lives of a log on a simulated disk that fails, stops and loses unsynced sectors, one for each seed
    Disks {
        /// Seeds, from 0
        #[arg(long, default_value_t = 1_000_000)]
        seeds: u64,
    },
    /// A gateway that is killed under load; each receipt that it handed out must stay verifiable
    Kills {
        /// How many times
        #[arg(long, default_value_t = 1_000)]
        rounds: u64,
    },
}

pub(crate) fn run(root: &Path, soak: &Soak) -> Result<()> {
    match soak {
        Soak::Disks { seeds } => {
            let test = ["-p", "audit-log", "--test", "simulation"];
            record(root, &test, ("BULKHEAD_SEEDS", format!("0..{seeds}")), "log-disks.json")
        }
        Soak::Kills { rounds } => {
            model(root)?;
            let programs = ["build", "--release", "--locked", "-p", "gateway-server", "--bin", "bulkhead"];
            execute(cargo(root).args(programs))?;
            let test = ["-p", "e2e", "--test", "kills"];
            record(root, &test, ("BULKHEAD_KILLS", rounds.to_string()), "log-kills.json")
        }
    }
}

/// Runs the one ignored test of a file; its last line of JSON is what it met.
fn record(root: &Path, test: &[&str], (variable, value): (&str, String), file: &str) -> Result<()> {
    let mut command = cargo(root);
    command.args(["test", "--release", "--locked"]).args(test).args(["--", "--ignored", "--nocapture"]);
    command.env(variable, &value).stderr(Stdio::inherit());
    eprintln!("$ {variable}={value} {}", command_line(&command));
    let begun = Instant::now();
    let output = command.output().context("cargo cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "the test failed:\n{text}");
    let met =
        text.lines().rev().find_map(|line| serde_json::from_str::<Json>(line.trim()).ok().filter(Json::is_object));
    let result = json!({
        "met": met.context("the test printed no JSON")?,
        "took_s": begun.elapsed().as_secs(),
        "processor": crate::bench::processor(),
    });
    let text = serde_json::to_string_pretty(&result)? + "\n";
    print!("{text}");
    let path = root.join("tests/results").join(file);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
