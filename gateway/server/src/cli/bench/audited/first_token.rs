//! What the durable entry costs a client that waits for its first token.

use super::super::callers::{greedy, submit};
use super::super::spread::{Series, Spread};
use super::{Logs, Rig, open_entry, outcome};
use anyhow::{Context, Result};
use audit_log::AuditLog;
use engine_runtime::{Engine, PromptInput};
use serde_json::{Value as Json, json};
use std::time::Instant;

/// Prompt lengths.
const PROMPTS: [usize; 3] = [16, 64, 512];
/// Requests that one figure is the mean of.
const REQUESTS: usize = 8;

/// When a request's entry becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Never,
    /// The engine is asked after that.
    Before,
    /// The engine is asked at once, and its first token waits for that.
    Beside,
}

const SIDES: [Entry; 3] = [Entry::Never, Entry::Before, Entry::Beside];

pub(super) async fn measure(logs: &Logs, rig: &Rig) -> Result<Json> {
    let (_folder, log) = logs.open()?;
    let engine = rig.engine()?;
    let mut result = json!({});
    for tokens in PROMPTS {
        let mut ttft: [Series; 3] = Default::default();
        // The first repetition warms caches and is not counted.
        for repetition in 0..=logs.repetitions {
            for turn in 0..SIDES.len() {
                let side = (repetition + turn) % SIDES.len();
                let mut sum = 0.0;
                for number in 0..REQUESTS {
                    sum += ask(&log, &engine, rig, SIDES[side], rig.prompt(tokens, number)).await?;
                }
                if repetition > 0 {
                    ttft[side].push(sum / REQUESTS as f64);
                }
            }
        }
        let [without, before, beside] = &ttft;
        result[format!("prompt_{tokens}")] = json!({
            "without_ms": Spread::of(without)?,
            "before_prefill_ms": Spread::of(before)?,
            "beside_prefill_ms": Spread::of(beside)?,
            "before_to_without": Spread::of_ratios(before, without)?,
            "beside_to_without": Spread::of_ratios(beside, without)?,
        });
    }
    log.shutdown();
    Ok(result)
}

/// Milliseconds to the first token.
async fn ask(log: &AuditLog, engine: &Engine, rig: &Rig, entry: Entry, prompt: Vec<u32>) -> Result<f64> {
    let permit = rig.callers.permit(0)?;
    let prompt_tokens = prompt.len();
    let sequence = engine.tokenize(&permit, &PromptInput::Tokens(prompt))?;
    let begun = Instant::now();
    let mut opened = if entry == Entry::Before { Some(open_entry(log, &permit).await?) } else { None };
    let mut steps = submit(engine, &permit, sequence, greedy(1))?;
    if entry == Entry::Beside {
        opened = Some(open_entry(log, &permit).await?);
    }
    let mut first = None;
    while let Some(step) = steps.next().await {
        if step?.tokens > 0 {
            first.get_or_insert_with(|| begun.elapsed());
        }
    }
    if let Some(opened) = opened {
        opened.seal(outcome(prompt_tokens, 1)).await?;
    }
    Ok(first.context("no token was sampled")?.as_secs_f64() * 1e3)
}
