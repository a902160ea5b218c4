//! `bench`: speed against other engines and against the machine, written to `tests/results` and told in
//! `docs/performance.md`. Minutes on a quiet machine; nothing of it runs in CI.

mod audit;
mod checks;
mod handoff;
mod note;
mod peers;
mod plot;
mod scheduler;
mod sidechannel;
mod simulation;

pub(crate) use handoff::processor;

use crate::phase::execute;
use crate::setup;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Measures one peer that has no interface for tokens.
const MISTRALRS: &str = include_str!("bench/mistralrs.py");

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// The engine against llama.cpp on the same file and on its own best formats, and against the machine's ceilings
    Engine {
        /// Counted repetitions of each measurement
        #[arg(long, default_value_t = 7)]
        repetitions: u16,
        /// Compute threads of everybody; as many as there are cores when not given
        #[arg(long)]
        threads: Option<usize>,
        /// Leave out the curves over batches, prompts and threads
        #[arg(long)]
        no_scaling: bool,
    },
    /// One more row for the engine's table: the Python package `mistralrs`, which takes text and cannot be measured in turn
    Mistralrs {
        /// Counted repetitions of each measurement
        #[arg(long, default_value_t = 7)]
        repetitions: u16,
    },
    /// The gateway against llama.cpp's HTTP server: 16 streams over loopback
    Served {
        /// Counted repetitions of each server
        #[arg(long, default_value_t = 3)]
        repetitions: u16,
    },
    /// The share of label checks and digests, in instructions; needs valgrind
    Checks,
    /// The share of a handoff's digests in the prefill that they follow
    Handoff {
        /// Counted repetitions of each length of prompt
        #[arg(long, default_value_t = 5)]
        repetitions: u16,
        /// Compute threads of the engine; as many as there are cores when not given
        #[arg(long)]
        threads: Option<usize>,
    },
    /// What tenants have beside each other on the real model, and what that costs; ten minutes
    Scheduler {
        /// The result as JSON, which is also written to tests/results
        #[arg(long)]
        json: bool,
        /// Counted repetitions of each measurement
        #[arg(long, default_value_t = 4)]
        repetitions: u16,
        /// How long one side of a measurement over time takes
        #[arg(long, default_value_t = 20)]
        seconds: u16,
        /// Only these parts; of the others the result keeps what was measured before
        #[arg(long, value_delimiter = ',')]
        parts: Vec<String>,
    },
    /// The scheduler's own code with thousands of tenants, under an engine that is made up
    SchedulerSimulation,
    /// What the audit log takes and what an answer pays for it; some minutes
    Audit {
        /// Counted repetitions of each measurement
        #[arg(long, default_value_t = 5)]
        repetitions: u16,
        /// Only these parts; of the others the result keeps what was measured before
        #[arg(long, value_delimiter = ',')]
        parts: Vec<String>,
    },
    /// The audit for side channels against a gateway of its own: two minutes, and five for each 64 tokens of all prefixes
    Sidechannel {
        /// Lengths of the shared prefixes
        #[arg(long, value_delimiter = ',', default_value = "64,256")]
        prefix_tokens: Vec<usize>,
        /// Pairs in each positive control, at most
        #[arg(long, default_value_t = 250)]
        samples: usize,
        /// Draws prompts and orders
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Write docs/performance.md and its plots anew from tests/results, without measuring
    Note,
}

pub(crate) fn run(root: &Path, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Engine { repetitions, threads, no_scaling } => engine(root, *repetitions, *threads, !no_scaling)?,
        Bench::Mistralrs { repetitions } => mistralrs(root, *repetitions)?,
        Bench::Served { repetitions } => served(root, *repetitions)?,
        Bench::Checks => checks::run(root)?,
        Bench::Handoff { repetitions, threads } => handoff::run(root, *repetitions, *threads)?,
        Bench::Scheduler { json, repetitions, seconds, parts } => scheduler::run(
            root,
            &scheduler::Options { repetitions: *repetitions, seconds: *seconds, parts, json: *json },
        )?,
        Bench::SchedulerSimulation => simulation::run(root)?,
        Bench::Audit { repetitions, parts } => audit::run(root, *repetitions, parts)?,
        // Says nothing of speed.
        Bench::Sidechannel { prefix_tokens, samples, seed } => {
            return sidechannel::run(root, prefix_tokens, *samples, *seed);
        }
        Bench::Note => {}
    }
    note::write(root)
}

/// Where a result is kept.
fn result_file(root: &Path, name: &str) -> PathBuf {
    root.join("tests/results").join(name)
}

fn engine(root: &Path, repetitions: u16, threads: Option<usize>, scaling: bool) -> Result<()> {
    let bulkhead = bulkhead(root)?;
    let model = model(&bulkhead)?;
    let pythons = peers::llama_cpp(root)?;
    let first = pythons.first().context("no build of the peer")?;
    let files = peers::files(root, first, &model)?;
    let mut command = Command::new(&bulkhead);
    command.args(["bench", "engine", "--repetitions", &repetitions.to_string()]);
    command.arg("--model").arg(&model).arg("--output").arg(result_file(root, "engine.json"));
    command.args(["--peer", "llama-cpp-python"]);
    for python in &pythons {
        command.arg("--peer-python").arg(python);
    }
    for file in &files {
        command.arg("--peer-file").arg(file);
    }
    if let Some(threads) = threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if scaling {
        command.arg("--scaling");
    }
    wait_for_quiet();
    execute(&mut command)
}

/// Compiling leaves a load average behind that is nobody's any more after a few minutes. What is still there then is
/// others' and goes into the result.
fn wait_for_quiet() {
    let load = || -> Option<f64> { std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok() };
    for _ in 0..QUIET_LOOKS {
        match load() {
            Some(load) if load > QUIET_LOAD => eprintln!("waiting for the machine to be quiet: load average {load}"),
            _ => return,
        }
        std::thread::sleep(QUIET_LOOK);
    }
}

/// A load average that says that nobody else computes.
const QUIET_LOAD: f64 = 0.3;
const QUIET_LOOK: std::time::Duration = std::time::Duration::from_secs(15);
/// Four minutes: a load average of 10 is 0.2 then.
const QUIET_LOOKS: usize = 16;

/// Measures `mistralrs` and adds it to `engine.json` as `other_peers`.
fn mistralrs(root: &Path, repetitions: u16) -> Result<()> {
    let (python, bulkhead) = (peers::mistralrs(root)?, bulkhead(root)?);
    wait_for_quiet();
    let output = Command::new(python)
        .args(["-c", MISTRALRS])
        .arg(model(&bulkhead)?)
        .arg(root.join("tests/golden/model/perplexity.txt"))
        .arg(repetitions.to_string())
        .stderr(Stdio::inherit())
        .output()
        .context("mistralrs could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // It logs to the same place; the result comes last.
    let last = text.lines().last().filter(|_| output.status.success()).context("mistralrs failed")?;
    let row: Json = serde_json::from_str(last).with_context(|| format!("mistralrs answered `{last}`"))?;
    let file = result_file(root, "engine.json");
    let mut result: Json = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    result["other_peers"] = Json::Array(vec![row]);
    std::fs::write(&file, serde_json::to_string_pretty(&result)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))
}

fn served(root: &Path, repetitions: u16) -> Result<()> {
    let bulkhead = bulkhead(root)?;
    let model = model(&bulkhead)?;
    let pythons = peers::llama_cpp(root)?;
    // The build that runs wherever the package runs.
    let python = pythons.first().context("no build of the peer")?;
    let files = peers::files(root, python, &model)?;
    let mut command = Command::new(python);
    command.arg(root.join("tests/clients/served.py"));
    command
        .arg(&bulkhead)
        .arg(peers::llama_server(root, python)?)
        .arg(result_file(root, "served.json"))
        .arg(repetitions.to_string());
    wait_for_quiet();
    execute(command.arg(&model).args(&files))
}

/// The program as it is shipped.
fn bulkhead(root: &Path) -> Result<PathBuf> {
    execute(setup::cargo(root).args(["build", "--release", "--locked", "-p", "gateway-server", "--bin", "bulkhead"]))?;
    Ok(setup::target(root).join("release/bulkhead"))
}

/// The default model's file; the program fetches it when it is missing.
fn model(bulkhead: &Path) -> Result<PathBuf> {
    let output = Command::new(bulkhead)
        .args(["model", "fetch"])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start {}", bulkhead.display()))?;
    if !output.status.success() {
        bail!("the model could not be fetched");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
