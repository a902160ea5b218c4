//! What it costs when the steps of one tenant are shared with nobody: two tenants with streams, with and without.

use super::super::spread::percentile;
use super::{ANSWER_TOKENS, PROMPT_TOKENS, Rig, compared, in_turn};
use anyhow::Result;
use engine_runtime::{Engine, TenantTerms};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;

/// Whose steps are its own.
const EXCLUSIVE: usize = 0;
const OTHER: usize = 1;
/// Streams of each, and requests of each stream.
const STREAMS: usize = 4;
const REQUESTS: usize = 2;

pub(super) async fn measure(rig: &Arc<Rig>) -> Result<Json> {
    let terms =
        |exclusive| move |number| TenantTerms { exclusive: exclusive && number == EXCLUSIVE, ..TenantTerms::default() };
    let engines = [rig.engine(rig.config(), rig.equal()?)?, rig.engine(rig.config(), rig.tenancy(terms(true))?)?];
    let mut figures: [[Vec<f64>; 2]; FIGURES.len()] = Default::default();
    // The first repetition warms caches and is not counted.
    for repetition in 0..=rig.repetitions {
        for exclusive in in_turn(repetition) {
            let side = usize::from(exclusive);
            let seen = streams(rig, &engines[side]).await?;
            if repetition > 0 {
                for (figure, value) in std::iter::zip(&mut figures, seen) {
                    figure[side].push(value);
                }
            }
        }
    }
    let mut result = json!({"streams_each": STREAMS, "prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS});
    for (name, sides) in std::iter::zip(FIGURES, &figures) {
        let (shared, exclusive, ratio) = compared(sides)?;
        result[name] = json!({"shared": shared, "exclusive": exclusive, "ratio": ratio});
    }
    Ok(result)
}

/// What is measured: of both together, of the exclusive tenant, and of the other one.
const FIGURES: [&str; 5] = ["tokens_per_second", "ttft_p50_ms", "itl_p50_ms", "other_ttft_p50_ms", "other_itl_p50_ms"];

async fn streams(rig: &Arc<Rig>, engine: &Engine) -> Result<[f64; FIGURES.len()]> {
    let begun = Instant::now();
    let mut streams = JoinSet::new();
    for stream in 0..2 * STREAMS {
        let (rig, engine, tenant) = (Arc::clone(rig), engine.clone(), [EXCLUSIVE, OTHER][stream % 2]);
        streams.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..REQUESTS {
                answers.push(rig.ask(&engine, tenant, rig.fresh_prompt(PROMPT_TOKENS), ANSWER_TOKENS).await?);
            }
            Ok::<_, anyhow::Error>((tenant, answers))
        });
    }
    let (mut tokens, mut ttft_ms, mut gaps_ms) = (0, [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    while let Some(stream) = streams.join_next().await {
        let (tenant, answers) = stream??;
        for answer in answers {
            tokens += answer.usage.prompt_tokens + answer.usage.completion_tokens;
            ttft_ms[tenant].push(answer.ttft_ms()?);
            gaps_ms[tenant].extend(answer.gaps_ms());
        }
    }
    let tokens_per_second = tokens as f64 / begun.elapsed().as_secs_f64();
    let middle = |values: &[Vec<f64>; 2], of: usize| percentile(&values[of], 0.5);
    Ok([
        tokens_per_second,
        middle(&ttft_ms, EXCLUSIVE)?,
        middle(&gaps_ms, EXCLUSIVE)?,
        middle(&ttft_ms, OTHER)?,
        middle(&gaps_ms, OTHER)?,
    ])
}
