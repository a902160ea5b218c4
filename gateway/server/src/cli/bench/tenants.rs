//! `bulkhead bench scheduler`: what tenants have of the engine when others want it too, and what fairness costs.
//!
//! The engine with all that belongs to it, in this process, asked by several tenants at once. What is compared is measured in
//! turn in the same run. Each part is a measurement of its own and can be left out.

mod answers;
mod backlog;
mod exclusive;
mod guesses;
mod long_prompt;
mod prefixes;
mod quiet;
mod uniform;

use super::callers::Callers;
use super::spread::Spread;
use super::{check_context, prompt};
use crate::cli::machine::{self, Machine};
use crate::cli::output::note;
use crate::cli::templates;
use answers::Answer;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use engine_model::{LoadOptions, Model};
use engine_runtime::{Engine, EngineConfig, Setup, Tenancy, TenantTerms};
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Equal tenants, the engine's order against the order of arrival
    Uniform,
    /// A quiet tenant beside neighbours that ask for their shares, and beside one that floods
    Quiet,
    /// A long prompt beside an answer
    LongPrompt,
    /// Equal tenants that always wait
    Backlog,
    /// Steps that are shared with nobody
    Exclusive,
    /// Prompts that begin as earlier ones did
    Prefixes,
    /// Guessed tokens
    Guesses,
}

/// What to measure.
pub(crate) struct Options {
    pub(crate) model: PathBuf,
    pub(crate) threads: usize,
    pub(crate) repetitions: usize,
    /// How long one side of a measurement over time takes.
    pub(crate) seconds: u64,
    /// All when empty.
    pub(crate) parts: Vec<Part>,
}

/// Tenants that ask, at most.
const TENANTS: usize = 4;
/// A request as most of the load has it.
const PROMPT_TOKENS: usize = 200;
const ANSWER_TOKENS: usize = 60;
/// Slots where requests are to wait for one.
const SLOTS: usize = 16;
const QUEUE_WAIT_MAX_MS: usize = 600_000;
/// How long an engine may take to get rid of what nobody reads.
const IDLE_MAX: Duration = Duration::from_secs(30);
const IDLE_LOOK: Duration = Duration::from_millis(5);

/// Measures the parts that the options ask for. Each is a member of the result under its own name.
pub(crate) async fn measure(options: &Options) -> Result<Json> {
    let load_average_before = machine::load_average();
    let load = LoadOptions { templates: templates(1)?, ..LoadOptions::new(options.threads) };
    let loaded = Model::load_with(&options.model, &load);
    let model =
        Arc::new(loaded.with_context(|| format!("the model `{}` cannot be loaded", options.model.display()))?.model);
    check_context(model.config().context_length)?;
    let rig = Rig::new(model, options)?;
    let mut result = Map::new();
    for part in Part::value_variants() {
        if !options.parts.is_empty() && !options.parts.contains(part) {
            continue;
        }
        let name = part.to_possible_value().context("a part without a name")?.get_name().replace('-', "_");
        note(format_args!("measuring {name}"));
        let (begun, load) = (Instant::now(), machine::load_average());
        let mut measured = match part {
            Part::Uniform => uniform::measure(&rig).await,
            Part::Quiet => quiet::measure(&rig).await,
            Part::LongPrompt => long_prompt::measure(&rig).await,
            Part::Backlog => backlog::measure(&rig).await,
            Part::Exclusive => exclusive::measure(&rig).await,
            Part::Prefixes => prefixes::measure(&rig).await,
            Part::Guesses => guesses::measure(&rig).await,
        }
        .with_context(|| format!("`{name}` could not be measured"))?;
        measured["took_s"] = json!(begun.elapsed().as_secs_f64());
        (measured["load_average_before"], measured["load_average_after"]) =
            (json!(load), json!(machine::load_average()));
        result.insert(name, measured);
    }
    let model = &rig.model;
    let facts = json!({
        "bulkhead": env!("CARGO_PKG_VERSION"),
        "machine": Machine::read(),
        "model": {"name": model.name(), "sha256": hex::encode(model.digest())},
        "kernels": model.kernels(),
        "threads": options.threads,
        "repetitions": options.repetitions,
        "seconds": options.seconds,
        "step_target_ms": EngineConfig::default().step_target_ms,
        "load_average_before": load_average_before,
        "load_average_after": machine::load_average(),
    });
    result.insert("facts".to_owned(), facts);
    Ok(Json::Object(result))
}

/// What every part works with.
struct Rig {
    model: Arc<Model>,
    threads: usize,
    repetitions: usize,
    seconds: u64,
    callers: Callers,
    text: Vec<u32>,
    prompts_made: AtomicUsize,
}

impl Rig {
    fn new(model: Arc<Model>, options: &Options) -> Result<Arc<Self>> {
        let (callers, text) = (Callers::new(&model, TENANTS)?, prompt(&model)?);
        let Options { threads, repetitions, seconds, .. } = *options;
        ensure!(repetitions > 0 && seconds > 0, "nothing is to be measured");
        Ok(Arc::new(Self { model, threads, repetitions, seconds, callers, text, prompts_made: AtomicUsize::new(0) }))
    }

    /// As it is shipped, but that nobody is sent away for waiting long: a slow machine has the same requests as a fast one. And
    /// with all its memory, so that the first use of a page, which a virtual machine may take a millisecond for, is in no figure.
    fn config(&self) -> EngineConfig {
        let config = EngineConfig { queue_wait_max_ms: QUEUE_WAIT_MAX_MS, ..EngineConfig::default() };
        EngineConfig { threads: self.threads, preallocate: true, ..config }
    }

    fn engine(&self, config: EngineConfig, tenancy: Tenancy) -> Result<Engine> {
        Ok(Engine::start_with(Arc::clone(&self.model), config, Setup { tenancy, ..Setup::default() })?)
    }

    /// Everybody has these terms.
    fn tenancy(&self, terms: impl Fn(usize) -> TenantTerms) -> Result<Tenancy> {
        let tenants = (0..TENANTS).map(|number| Ok((self.callers.label(number)?, terms(number))));
        Ok(Tenancy::new(tenants.collect::<Result<Vec<_>>>()?)?)
    }

    fn equal(&self) -> Result<Tenancy> {
        self.tenancy(|_| TenantTerms::default())
    }

    /// A prompt whose first page is unlike that of every prompt before it: nothing of it is in a cache.
    fn fresh_prompt(&self, tokens: usize) -> Vec<u32> {
        let number = self.prompts_made.fetch_add(1, Ordering::Relaxed);
        let len = self.text.len();
        let name = [number % len, number / len % len, number / len / len % len];
        let name = name.into_iter().filter_map(|place| self.text.get(place).copied());
        name.chain(self.text.iter().copied().cycle().skip(number % len)).take(tokens).collect()
    }

    /// One request, to its end.
    async fn ask(&self, engine: &Engine, caller: usize, prompt: Vec<u32>, max_tokens: usize) -> Result<Answer> {
        let asked = Instant::now();
        answers::read(asked, self.callers.submit(engine, caller, prompt, max_tokens)?).await
    }

    /// Waits until the engine has nothing to do.
    async fn idle(&self, engine: &Engine) -> Result<()> {
        let begun = Instant::now();
        loop {
            let stats = engine.stats();
            if stats.sequences_running + stats.sequences_waiting == 0 {
                return Ok(());
            }
            ensure!(begun.elapsed() < IDLE_MAX, "the engine still works for clients that have left");
            tokio::time::sleep(IDLE_LOOK).await;
        }
    }
}

/// The two sides of a comparison in turn: which comes first changes from repetition to repetition.
fn in_turn(repetition: usize) -> [bool; 2] {
    if repetition.is_multiple_of(2) { [false, true] } else { [true, false] }
}

/// Two sides' measurements, one for each repetition, and their ratio: second through first.
fn compared(sides: &[Vec<f64>; 2]) -> Result<(Spread, Spread, Spread)> {
    let [first, second] = sides;
    Ok((Spread::of(first)?, Spread::of(second)?, Spread::of_ratios(second, first)?))
}
