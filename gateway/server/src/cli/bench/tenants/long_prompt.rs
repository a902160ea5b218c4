//! A long prompt of one tenant beside an answer of another: how long the answer pauses.

use super::super::spread::percentile;
use super::Rig;
use super::answers::{Answer, read_on};
use crate::cli::bench::spread::Spread;
use anyhow::{Context, Result, bail};
use engine_runtime::{Engine, EngineConfig};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ANSWERS: usize = 0;
const PROMPTS: usize = 1;
const LONG_PROMPT_TOKENS: usize = 1_900;
/// The other's prompt, and what it is answered at most: longer than the long prompt takes.
const SHORT_PROMPT_TOKENS: usize = 32;
const ANSWER_TOKENS: usize = 300;
/// Tokens of the answer before the prompt comes.
const ALONE: usize = 60;
/// Gaps so long after the prompt's first token count as beside it.
const AFTERWARDS: Duration = Duration::from_millis(100);
/// Prompts that are tried for one answer that is long enough.
const TRIES: usize = 20;

pub(super) async fn measure(rig: &Arc<Rig>) -> Result<Json> {
    // A step that brings several tokens would hide how long it took for one.
    let config = EngineConfig { speculation: false, ..rig.config() };
    let engine = rig.engine(config, rig.equal()?)?;
    let target_ms = config.step_target_ms as f64;
    let (mut steps, mut pauses, mut targets, mut ttfts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut timeline = Vec::new();
    // The first repetition warms caches and is not counted.
    for repetition in 0..=rig.repetitions {
        let Seen { answer, asked, first } = seen(rig, &engine).await?;
        if repetition == 0 {
            continue;
        }
        let gaps: Vec<(Instant, f64)> = answer.came.iter().skip(1).copied().zip(answer.gaps_ms()).collect();
        let alone: Vec<f64> = gaps.iter().filter(|(at, _)| *at < asked).map(|(_, gap)| *gap).collect();
        let beside = gaps.iter().filter(|(at, _)| *at > asked && *at <= first + AFTERWARDS);
        let pause = beside.map(|(_, gap)| *gap).fold(0.0, f64::max);
        let step = percentile(&alone, 0.5)?;
        steps.push(step);
        pauses.push(pause);
        targets.push((pause - step) / target_ms);
        ttfts.push(first.duration_since(asked).as_secs_f64() * 1e3);
        if repetition == 1 {
            let since = |at: Instant| at.saturating_duration_since(answer.asked).as_secs_f64() * 1e3;
            let begin = since(asked);
            timeline = gaps.iter().map(|(at, gap)| json!([since(*at) - begin, gap])).collect();
        }
    }
    let worst = targets.iter().copied().fold(0.0, f64::max);
    Ok(json!({
        "prompt_tokens": LONG_PROMPT_TOKENS, "step_target_ms": target_ms,
        "own_step_ms": Spread::of(&steps)?, "largest_gap_ms": Spread::of(&pauses)?,
        "delay_in_step_targets": Spread::of(&targets)?, "delay_in_step_targets_worst": worst,
        "prompt_ttft_ms": Spread::of(&ttfts)?,
        "timeline_ms": timeline,
    }))
}

/// An answer, and when a prompt came beside it and had its first token.
struct Seen {
    answer: Answer,
    asked: Instant,
    first: Instant,
}

/// The model may end an answer before it was of use: then another prompt is asked.
async fn seen(rig: &Arc<Rig>, engine: &Engine) -> Result<Seen> {
    for _ in 0..TRIES {
        let seen = once(rig, engine).await?;
        rig.idle(engine).await?;
        if let Some(seen) = seen.filter(|seen| seen.answer.came.last().is_some_and(|last| *last > seen.first)) {
            return Ok(seen);
        }
    }
    bail!("{TRIES} answers ended before the prompt had its first token")
}

/// `None` when the answer ended before the prompt came.
async fn once(rig: &Arc<Rig>, engine: &Engine) -> Result<Option<Seen>> {
    let begun = Instant::now();
    let mut steps = rig.callers.submit(engine, ANSWERS, rig.fresh_prompt(SHORT_PROMPT_TOKENS), ANSWER_TOKENS)?;
    let mut came = Vec::new();
    while came.len() < ALONE {
        let Some(step) = steps.next().await else { return Ok(None) };
        if step?.tokens > 0 {
            came.push(Instant::now());
        }
    }
    let answer = tokio::spawn(read_on(begun, steps, came));
    let asked = Instant::now();
    let long = rig.ask(engine, PROMPTS, rig.fresh_prompt(LONG_PROMPT_TOKENS), 1).await?;
    let first = *long.came.first().context("no token was sampled")?;
    Ok(Some(Seen { answer: answer.await??, asked, first }))
}
