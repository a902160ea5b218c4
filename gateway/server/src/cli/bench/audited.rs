//! `bulkhead bench audit`: what the audit log can take, what its proofs cost, and what an answer pays for both.
//!
//! The log with all that belongs to it, in a folder of its own on the disk that is to be measured. What is compared is measured
//! in turn in the same run. Each part is a measurement of its own and can be left out.

mod durable;
mod evidence;
mod first_token;
mod replayed;
mod verification;

use super::callers::Callers;
use super::{check_context, prompt};
use crate::cli::machine::{self, Machine};
use crate::cli::output::note;
use crate::cli::templates;
use anyhow::{Context, Result, ensure};
use audit_log::{AuditConfig, AuditLog, OpenEntry, Outcome, RequestFacts, SealReason};
use clap::ValueEnum;
use engine_model::{LoadOptions, Model};
use engine_runtime::{Engine, EngineConfig};
use policies_domain::{Digest, Permit};
use serde_json::{Map, Value as Json, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;

/// One of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Entries that many requests write at once, each waiting until its own is durable
    Durable,
    /// A whole log, one proof and one receipt, checked
    Verification,
    /// What is kept of a long answer
    Evidence,
    /// The first token with the durable entry in front of prefill, beside it, and without
    FirstToken,
    /// Answers computed again, and the digest that this needs
    Replay,
}

impl Part {
    fn needs_a_model(self) -> bool {
        matches!(self, Self::Evidence | Self::FirstToken | Self::Replay)
    }
}

/// What to measure.
pub(crate) struct Options {
    /// Called for when a part needs it.
    pub(crate) model: Box<dyn FnOnce() -> Result<PathBuf>>,
    pub(crate) threads: usize,
    pub(crate) repetitions: usize,
    /// Where the logs are written, and removed afterwards.
    pub(crate) folder: PathBuf,
    /// All when empty.
    pub(crate) parts: Vec<Part>,
}

/// Measures the parts that the options ask for. Each is a member of the result under its own name.
pub(crate) async fn measure(options: Options) -> Result<Json> {
    let Options { model, threads, repetitions, folder, parts } = options;
    ensure!(repetitions > 0, "nothing is to be measured");
    let chosen = |part: &Part| parts.is_empty() || parts.contains(part);
    let load_average_before = machine::load_average();
    let rig = match Part::value_variants().iter().any(|part| part.needs_a_model() && chosen(part)) {
        true => Some(Rig::load(&model()?, threads)?),
        false => None,
    };
    let logs = Logs { folder, repetitions, callers: Arc::new(Callers::named("m", TENANTS)?) };
    let mut result = Map::new();
    for part in Part::value_variants().iter().filter(|part| chosen(part)) {
        let name = part.to_possible_value().context("a part without a name")?.get_name().replace('-', "_");
        note(format_args!("measuring {name}"));
        let (begun, load) = (Instant::now(), machine::load_average());
        let rig = || rig.as_ref().context("there is no model");
        let mut measured = match part {
            Part::Durable => durable::measure(&logs).await,
            Part::Verification => verification::measure(&logs).await,
            Part::Evidence => evidence::measure(&logs, rig()?).await,
            Part::FirstToken => first_token::measure(&logs, rig()?).await,
            Part::Replay => replayed::measure(repetitions, rig()?).await,
        }
        .with_context(|| format!("`{name}` could not be measured"))?;
        measured["took_s"] = json!(begun.elapsed().as_secs_f64());
        (measured["load_average_before"], measured["load_average_after"]) =
            (json!(load), json!(machine::load_average()));
        result.insert(name, measured);
    }
    let facts = json!({
        "bulkhead": env!("CARGO_PKG_VERSION"),
        "machine": Machine::read(),
        "model": rig.as_ref().map(|Rig { model, .. }| {
            json!({"name": model.name(), "sha256": hex::encode(model.digest()), "kernels": model.kernels()})
        }),
        "threads": threads,
        "repetitions": repetitions,
        "load_average_before": load_average_before,
        "load_average_after": machine::load_average(),
    });
    result.insert("facts".to_owned(), facts);
    Ok(Json::Object(result))
}

/// Tenants that write.
const TENANTS: usize = 4;
/// What a request may look like.
const BODY: &[u8] = br#"{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Name a boat."}]}"#;
const ORIGIN: &str = "bench.example/isolation";

/// What every part writes logs with.
struct Logs {
    folder: PathBuf,
    repetitions: usize,
    callers: Arc<Callers>,
}

impl Logs {
    /// A new log as a gateway opens it.
    fn open(&self) -> Result<(TempDir, AuditLog)> {
        let folder = tempfile::tempdir_in(&self.folder)
            .with_context(|| format!("there can be no log in `{}`", self.folder.display()))?;
        let log = AuditLog::open(config(folder.path()))?;
        Ok((folder, log))
    }
}

fn config(folder: &Path) -> AuditConfig {
    let index = audit_log::IndexStore::Sled(folder.join("log/index"));
    AuditConfig { index, ..AuditConfig::new(folder.join("log"), ORIGIN) }
}

async fn open_entry(log: &AuditLog, permit: &Permit) -> Result<OpenEntry> {
    let digest = Digest([1; 32]);
    let facts = RequestFacts { body: BODY, model: digest, fingerprint: digest, stream: true };
    Ok(log.open_request(permit, facts).await?)
}

fn outcome(prompt_tokens: usize, completion_tokens: usize) -> Outcome {
    Outcome {
        reason: SealReason::Length,
        prompt_tokens: prompt_tokens as u64,
        completion_tokens: completion_tokens as u64,
        queued_us: 1,
        prefill_us: 2,
        decode_us: 3,
        replay: None,
    }
}

/// The model, and who asks it.
struct Rig {
    model: Arc<Model>,
    threads: usize,
    callers: Callers,
    text: Vec<u32>,
}

impl Rig {
    fn load(path: &Path, threads: usize) -> Result<Self> {
        let load = LoadOptions { templates: templates(1)?, ..LoadOptions::new(threads) };
        let loaded = Model::load_with(path, &load);
        let model = Arc::new(loaded.with_context(|| format!("the model `{}` cannot be loaded", path.display()))?.model);
        check_context(model.config().context_length)?;
        let (callers, text) = (Callers::new(&model, 1)?, prompt(&model)?);
        Ok(Self { model, threads, callers, text })
    }

    /// What a token costs that is computed, every time: neither found in a cache nor guessed.
    fn config(&self) -> EngineConfig {
        EngineConfig { threads: self.threads, prefix_cache: false, speculation: false, ..EngineConfig::default() }
    }

    fn engine(&self) -> Result<Engine> {
        Ok(Engine::start(Arc::clone(&self.model), self.config())?)
    }

    fn prompt(&self, tokens: usize, number: usize) -> Vec<u32> {
        self.text.iter().copied().cycle().skip(number).take(tokens).collect()
    }
}
