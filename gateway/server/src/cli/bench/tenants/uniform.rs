//! What fairness costs when nobody needs it: equal tenants that ask for the same at once.
//!
//! The other side is the same engine, asked for all of it by one tenant: its requests have slots and time in the order in which
//! they came. It has the same cache, to which it gives as many pages.

use super::{ANSWER_TOKENS, PROMPT_TOKENS, Rig, SLOTS, TENANTS, compared, in_turn};
use anyhow::Result;
use engine_runtime::{Engine, EngineConfig, Tenancy, TenantTerms};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;

/// Requests of each tenant.
pub(super) const REQUESTS: usize = 16;

pub(super) async fn measure(rig: &Arc<Rig>) -> Result<Json> {
    let config = EngineConfig { sequences_max: SLOTS, ..rig.config() };
    let one = Tenancy::new([(rig.callers.label(0)?, TenantTerms::default())])?;
    let engines = [rig.engine(config, one)?, rig.engine(config, rig.equal()?)?];
    let mut sides = [Vec::new(), Vec::new()];
    // The first repetition warms caches and is not counted.
    for repetition in 0..=rig.repetitions {
        // The same on both sides, so that the answers are the same: the model may end some early.
        let asked = prompts(rig);
        for fair in in_turn(repetition) {
            let tenants = if fair { TENANTS } else { 1 };
            let tokens_per_second = at_once(rig, &engines[usize::from(fair)], &asked, tenants).await?;
            if repetition > 0 {
                sides[usize::from(fair)].push(tokens_per_second);
            }
        }
    }
    let (first_come, fair, ratio) = compared(&sides)?;
    Ok(json!({
        "tenants": TENANTS, "requests_each": REQUESTS, "prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS,
        "slots": SLOTS,
        "first_come_tokens_per_second": first_come, "fair_tokens_per_second": fair, "ratio": ratio,
    }))
}

/// What all tenants ask at once.
pub(super) fn prompts(rig: &Rig) -> Vec<Vec<u32>> {
    (0..REQUESTS * TENANTS).map(|_| rig.fresh_prompt(PROMPT_TOKENS)).collect()
}

/// As [`at_once`], of everybody.
pub(super) async fn everybody(rig: &Arc<Rig>, engine: &Engine, prompts: &[Vec<u32>]) -> Result<f64> {
    at_once(rig, engine, prompts, TENANTS).await
}

/// Tokens computed in a second, prompts and answers, when so many tenants ask at once.
async fn at_once(rig: &Arc<Rig>, engine: &Engine, prompts: &[Vec<u32>], tenants: usize) -> Result<f64> {
    let begun = Instant::now();
    let mut answers = JoinSet::new();
    for (request, prompt) in prompts.iter().enumerate() {
        let asked = Instant::now();
        let steps = rig.callers.submit(engine, request % tenants, prompt.clone(), ANSWER_TOKENS)?;
        answers.spawn(super::answers::read(asked, steps));
    }
    let mut tokens = 0;
    while let Some(answer) = answers.join_next().await {
        let usage = answer??.usage;
        tokens += usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens;
    }
    Ok(tokens as f64 / begun.elapsed().as_secs_f64())
}
