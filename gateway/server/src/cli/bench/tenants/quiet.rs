//! A quiet tenant beside others: on one side all of them ask for their shares, on the other one of them for a hundred times
//! its share, so that its queue is always full.

use super::super::spread::percentile;
use super::answers::{self, Answer};
use super::uniform::{self, everybody, prompts};
use super::{ANSWER_TOKENS, PROMPT_TOKENS, Rig, TENANTS, in_turn};
use crate::cli::bench::spread::Spread;
use anyhow::{Context, Result};
use engine_runtime::{Engine, SubmitError};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The quiet one.
const QUIET: usize = 0;
/// Whoever floods, when somebody does.
const FLOOD: usize = 1;
/// Times its share.
const FLOOD_FACTOR: f64 = 100.0;
/// From one request of the quiet tenant to the next.
const QUIET_EVERY: Duration = Duration::from_millis(500);
/// What all its prompts begin with, and what follows.
const PREFIX_TOKENS: usize = 200;
const TAIL_TOKENS: usize = 20;
const QUIET_ANSWER_TOKENS: usize = 30;
/// Until queues are as full as they get.
const WARM_UP: Duration = Duration::from_secs(3);

/// The quiet tenant's last answer is written beside them, too.
const LAST_ANSWER: Duration = Duration::from_secs(3);

pub(super) async fn measure(rig: &Arc<Rig>) -> Result<Json> {
    let engine = rig.engine(rig.config(), rig.equal()?)?;
    // The second time is counted.
    everybody(rig, &engine, &prompts(rig)).await?;
    let begun = Instant::now();
    everybody(rig, &engine, &prompts(rig)).await?;
    let requests_per_second = (uniform::REQUESTS * TENANTS) as f64 / begun.elapsed().as_secs_f64();
    let share = requests_per_second / TENANTS as f64;
    let prefix = rig.fresh_prompt(PREFIX_TOKENS);
    let mut sides = [Vec::new(), Vec::new()];
    for repetition in 0..rig.repetitions {
        for flood in in_turn(repetition) {
            let side = side(rig, &engine, &prefix, share, flood, repetition).await?;
            sides[usize::from(flood)].push(side);
            rig.idle(&engine).await?;
        }
    }
    let [alone, flooded] = &sides;
    let ratios = |of: fn(&Seen) -> &Vec<f64>, part| -> Result<Json> {
        let each = |side: &[Seen]| side.iter().map(|seen| percentile(of(seen), part)).collect::<Result<Vec<f64>>>();
        let all = |side: &[Seen]| -> Vec<f64> { side.iter().flat_map(of).copied().collect() };
        let (share, flood) = (percentile(&all(alone), part)?, percentile(&all(flooded), part)?);
        Ok(json!({
            "share_ms": share, "flood_ms": flood, "ratio": flood / share, "samples": [all(alone).len(), all(flooded).len()],
            "ratios": Spread::of_ratios(&each(flooded)?, &each(alone)?)?,
        }))
    };
    let hits = |side: &[Seen]| -> Result<Spread> {
        Spread::of(&side.iter().map(|seen| 100.0 * seen.cached as f64 / seen.prompts.max(1) as f64).collect::<Vec<_>>())
    };
    let (alone_hits, flood_hits) = (hits(alone)?, hits(flooded)?);
    let sorted = |side: &[Seen]| {
        let mut all: Vec<f64> = side.iter().flat_map(|seen| &seen.ttft_ms).copied().collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let count = |of: fn(&Seen) -> usize| [alone, flooded].map(|side| side.iter().map(of).sum::<usize>());
    Ok(json!({
        "neighbours": TENANTS - 1, "share_requests_per_second": share, "flood_requests_per_second": share * FLOOD_FACTOR,
        "quiet_every_ms": QUIET_EVERY.as_millis() as u64, "prefix_tokens": PREFIX_TOKENS,
        "prompt_tokens": PREFIX_TOKENS + TAIL_TOKENS, "answer_tokens": QUIET_ANSWER_TOKENS,
        "ttft_p50": ratios(|seen| &seen.ttft_ms, 0.5)?, "ttft_p99": ratios(|seen| &seen.ttft_ms, 0.99)?,
        "itl_p50": ratios(|seen| &seen.gaps_ms, 0.5)?, "itl_p99": ratios(|seen| &seen.gaps_ms, 0.99)?,
        "hit_rate_share_percent": alone_hits, "hit_rate_flood_percent": flood_hits,
        "hit_rate_difference_points": (alone_hits.median - flood_hits.median).abs(),
        "neighbours_asked": count(|seen| seen.asked), "neighbours_refused": count(|seen| seen.refused),
        "quiet_refused": count(|seen| seen.quiet_refused),
        "ttft_share_ms": sorted(alone), "ttft_flood_ms": sorted(flooded),
    }))
}

/// What the quiet tenant saw, and what its neighbours did.
#[derive(Default)]
struct Seen {
    ttft_ms: Vec<f64>,
    gaps_ms: Vec<f64>,
    prompts: usize,
    cached: usize,
    asked: usize,
    refused: usize,
    quiet_refused: usize,
}

async fn side(
    rig: &Arc<Rig>,
    engine: &Engine,
    prefix: &[u32],
    share: f64,
    flood: bool,
    repetition: usize,
) -> Result<Seen> {
    let prompt = || prefix.iter().copied().chain(rig.fresh_prompt(TAIL_TOKENS)).collect::<Vec<u32>>();
    // Its prefix is there on both sides.
    rig.ask(engine, QUIET, prompt(), 1).await?;
    let mut neighbours = JoinSet::new();
    for number in 1..TENANTS {
        let factor = if flood && number == FLOOD { FLOOD_FACTOR } else { 1.0 };
        let seed = (repetition * TENANTS + number) as u64;
        neighbours.spawn(neighbour(Arc::clone(rig), engine.clone(), number, share * factor, seed));
    }
    tokio::time::sleep(WARM_UP).await;
    let (mut seen, mut answers) = (Seen::default(), JoinSet::new());
    let mut every = tokio::time::interval(QUIET_EVERY);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(rig.seconds) {
        every.tick().await;
        let asked = Instant::now();
        match rig.callers.submit(engine, QUIET, prompt(), QUIET_ANSWER_TOKENS) {
            Ok(steps) => {
                answers.spawn(answers::read(asked, steps));
            }
            Err(error) if is_full(&error) => seen.quiet_refused += 1,
            Err(error) => return Err(error),
        }
    }
    while let Some(answer) = answers.join_next().await {
        let answer: Answer = answer?.context("the quiet tenant had no answer")?;
        seen.ttft_ms.push(answer.ttft_ms()?);
        seen.gaps_ms.extend(answer.gaps_ms());
        seen.prompts += answer.usage.prompt_tokens;
        seen.cached += answer.usage.cached_tokens;
    }
    (seen.asked, seen.refused) = stopped(neighbours).await?;
    Ok(seen)
}

/// What neighbours asked and were refused, when they are told to stop.
async fn stopped(mut neighbours: JoinSet<Result<(usize, usize)>>) -> Result<(usize, usize)> {
    let (mut asked, mut refused) = (0, 0);
    while let Some(counts) = neighbours.join_next().await {
        let counts = counts??;
        (asked, refused) = (asked + counts.0, refused + counts.1);
    }
    Ok((asked, refused))
}

/// Asks at times that are decided by nothing but the seed, whether answers come or not, for as long as the quiet tenant does.
async fn neighbour(rig: Arc<Rig>, engine: Engine, number: usize, per_second: f64, seed: u64) -> Result<(usize, usize)> {
    let (mut asked, mut refused) = (0, 0);
    let mut random = Random(seed);
    // Dropped in the end, and with it what is still computed.
    let mut readers = JoinSet::new();
    let begun = tokio::time::Instant::now();
    let (mut due, end) = (begun, begun + WARM_UP + Duration::from_secs(rig.seconds) + LAST_ANSWER);
    while due < end {
        tokio::time::sleep_until(due).await;
        let asked_at = Instant::now();
        asked += 1;
        match rig.callers.submit(&engine, number, rig.fresh_prompt(PROMPT_TOKENS), ANSWER_TOKENS) {
            Ok(steps) => {
                readers.spawn(answers::read(asked_at, steps));
            }
            Err(error) if is_full(&error) => refused += 1,
            Err(error) => return Err(error),
        }
        while readers.try_join_next().is_some() {}
        due += Duration::from_secs_f64(-(1.0 - random.part()).ln() / per_second);
    }
    Ok((asked, refused))
}

/// There was no place in the queue.
fn is_full(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(SubmitError::Full { .. } | SubmitError::TenantFull { .. }))
}

/// Numbers that look random and are the same in every run: splitmix64.
struct Random(u64);

impl Random {
    /// From 0 to below 1.
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / 2f64.powi(53)
    }
}
