//! Equal tenants that always wait: whether each has the same of the engine, at every time.
//!
//! Work is counted as it is delivered: pages of prompts and tokens of answers, each as what it costs this machine, which is
//! measured before.

use super::{ANSWER_TOKENS, PROMPT_TOKENS, Rig, SLOTS};
use anyhow::{Context, Result};
use engine_runtime::{Engine, EngineConfig};
use serde_json::{Value as Json, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Tokens of a page.
const PAGE_TOKENS: usize = 16;
/// Until every slot is taken. Only what follows counts.
const WARM_UP: Duration = Duration::from_secs(3);
/// The windows of the index, or the whole time when that is shorter.
const WINDOW_S: f64 = 10.0;
/// From one look at what everybody has had to the next.
const LOOK_S: f64 = 0.5;
/// Tokens of the prompt whose cost is measured.
const COST_PROMPT: usize = 512;

pub(super) async fn measure(rig: &Arc<Rig>) -> Result<Json> {
    let config = EngineConfig { sequences_max: SLOTS, ..rig.config() };
    let mut result = json!({"prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS, "slots": SLOTS});
    for (tenants, name) in [(2, "two"), (4, "four")] {
        let engine = rig.engine(config, rig.equal()?)?;
        let costs = Costs::measure(rig, &engine).await?;
        let work = work(rig, &engine, tenants, costs).await?;
        result[name] = summary(&work, tenants, costs, rig.seconds as f64);
        rig.idle(&engine).await?;
    }
    Ok(result)
}

/// What a token costs, in milliseconds.
#[derive(Clone, Copy)]
struct Costs {
    prompt_ms: f64,
    answer_ms: f64,
}

impl Costs {
    /// A prompt alone, and answers that fill the slots.
    async fn measure(rig: &Arc<Rig>, engine: &Engine) -> Result<Self> {
        let mut prompt_ms = f64::INFINITY;
        for _ in 0..2 {
            let ttft_ms = rig.ask(engine, 0, rig.fresh_prompt(COST_PROMPT), 1).await?.ttft_ms()?;
            prompt_ms = prompt_ms.min(ttft_ms / COST_PROMPT as f64);
        }
        let mut answers = JoinSet::new();
        for _ in 0..SLOTS {
            let asked = Instant::now();
            let steps = rig.callers.submit(engine, 0, rig.fresh_prompt(PAGE_TOKENS), ANSWER_TOKENS)?;
            answers.spawn(super::answers::read(asked, steps));
        }
        let mut came = Vec::new();
        while let Some(answer) = answers.join_next().await {
            came.extend(answer??.came);
        }
        came.sort_unstable();
        // The middle half: everybody decodes.
        let (from, to) = (came.len() / 4, came.len() * 3 / 4);
        let (first, last) = came.get(from).zip(came.get(to)).context("no token was sampled")?;
        Ok(Self { prompt_ms, answer_ms: (*last - *first).as_secs_f64() * 1e3 / (to - from).max(1) as f64 })
    }
}

/// Work that was delivered: when, in seconds, to whom, and what it cost, in milliseconds.
type Work = Vec<(f64, usize, f64)>;

/// Tenants with as many streams each as there are slots; each stream asks again when it is answered.
async fn work(rig: &Arc<Rig>, engine: &Engine, tenants: usize, costs: Costs) -> Result<Work> {
    let work = Arc::new(Mutex::new(Work::new()));
    let begun = Instant::now();
    let mut streams = JoinSet::new();
    for stream in 0..tenants * SLOTS {
        streams.spawn(ask_for_ever(Arc::clone(rig), engine.clone(), stream % tenants, begun, Arc::clone(&work), costs));
    }
    tokio::time::sleep(WARM_UP + Duration::from_secs(rig.seconds)).await;
    streams.abort_all();
    while let Some(ended) = streams.join_next().await {
        if let Ok(error) = ended {
            error?;
        }
    }
    let work = std::mem::take(&mut *work.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(work)
}

async fn ask_for_ever(
    rig: Arc<Rig>,
    engine: Engine,
    tenant: usize,
    begun: Instant,
    work: Arc<Mutex<Work>>,
    costs: Costs,
) -> Result<()> {
    loop {
        let mut steps = rig.callers.submit(&engine, tenant, rig.fresh_prompt(PROMPT_TOKENS), ANSWER_TOKENS)?;
        let mut answering = false;
        while let Some(step) = steps.next().await {
            let step = step?;
            // A page is named when it comes into the table: for a prompt that is about when it is computed.
            let prompt = if answering { 0.0 } else { (step.trace.pages.len() * PAGE_TOKENS) as f64 };
            answering |= step.tokens > 0;
            let cost = prompt * costs.prompt_ms + f64::from(step.tokens) * costs.answer_ms;
            let at = begun.elapsed().as_secs_f64();
            work.lock().unwrap_or_else(PoisonError::into_inner).push((at, tenant, cost));
        }
    }
}

fn summary(work: &Work, tenants: usize, costs: Costs, seconds: f64) -> Json {
    let from = WARM_UP.as_secs_f64();
    // What each had until each look.
    let looks: Vec<(f64, Vec<f64>)> = (0..=(seconds / LOOK_S) as usize)
        .map(|look| {
            let until = from + look as f64 * LOOK_S;
            let mut had = vec![0.0; tenants];
            for (_, tenant, cost) in work.iter().filter(|(at, ..)| *at >= from && *at < until) {
                had[*tenant] += cost;
            }
            (look as f64 * LOOK_S, had)
        })
        .collect();
    let apart = (WINDOW_S.min(seconds) / LOOK_S) as usize;
    let windows: Vec<(f64, f64)> = std::iter::zip(&looks, looks.iter().skip(apart))
        .map(|((_, before), (at, after))| {
            let in_window: Vec<f64> = std::iter::zip(before, after).map(|(before, after)| after - before).collect();
            (*at, jain(&in_window))
        })
        .collect();
    let difference =
        |had: &[f64]| had.iter().copied().fold(f64::MIN, f64::max) - had.iter().copied().fold(f64::MAX, f64::min);
    let differences: Vec<(f64, f64)> = looks.iter().map(|(at, had)| (*at, difference(had) / 1e3)).collect();
    // What has a slot goes on: the slots of one tenant, twice.
    let request_ms = PROMPT_TOKENS as f64 * costs.prompt_ms + ANSWER_TOKENS as f64 * costs.answer_ms;
    let bound_s = 2.0 * SLOTS.div_ceil(tenants) as f64 * request_ms / 1e3;
    let worst = |pairs: &[(f64, f64)]| pairs.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let least = windows.iter().map(|(_, index)| *index).fold(1.0, f64::min);
    json!({
        "tenants": tenants,
        "jain_min": least,
        "jain": windows,
        "prompt_token_ms": costs.prompt_ms, "answer_token_ms": costs.answer_ms,
        "work_s": looks.last().map(|(_, had)| had.iter().map(|ms| ms / 1e3).collect::<Vec<_>>()),
        "difference_s": differences, "difference_max_s": worst(&differences), "difference_bound_s": bound_s,
    })
}

/// Jain's index: 1 when all have the same, 1 through their number when one has all.
fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    if squares > 0.0 { sum * sum / (values.len() as f64 * squares) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_the_same_size_is_fair_and_of_one_alone_is_not() {
        let costs = Costs { prompt_ms: 0.4, answer_ms: 0.5 };
        let at = |look: usize| WARM_UP.as_secs_f64() + look as f64 * 0.1;
        let even: Work = (0..200).map(|look| (at(look), look % 2, 10.0)).collect();
        let summary_of = |work: &Work| summary(work, 2, costs, 20.0);
        assert_eq!(summary_of(&even)["jain_min"], 1.0);
        assert!(summary_of(&even)["difference_max_s"].as_f64().unwrap() <= 0.011);
        let one: Work = (0..200).map(|look| (at(look), 0, 10.0)).collect();
        assert_eq!(summary_of(&one)["jain_min"], 0.5);
        // Before everybody has a slot nothing counts.
        assert_eq!(summary_of(&vec![(1.0, 0, 1e6)])["difference_max_s"], 0.0);
    }
}
