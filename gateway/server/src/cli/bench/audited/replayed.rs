//! What it costs to compute an answer again, in processor time.

use super::super::callers::{greedy, submit};
use super::super::spread::{Series, Spread};
use super::Rig;
use crate::cli::machine;
use anyhow::{Context, Result, ensure};
use engine_runtime::{Engine, PromptInput, ReplayJob, ReplayVerdict, Replayer, Sampling};
use serde_json::{Value as Json, json};
use std::sync::Arc;

const PROMPT_TOKENS: usize = 500;
const ANSWER_TOKENS: usize = 200;
/// Answers that are written at once.
const BATCHES: [usize; 2] = [1, 16];
/// As a gateway has for it.
const THREADS: usize = 1;

pub(super) async fn measure(repetitions: usize, rig: &Rig) -> Result<Json> {
    let engine = rig.engine()?;
    let config = rig.config();
    let mut replayer = Replayer::new(Arc::clone(&rig.model), config, PROMPT_TOKENS + ANSWER_TOKENS, THREADS)?;
    let mut result = json!({"prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS});
    for batch in BATCHES {
        let (mut without, mut with, mut again) = (Series::new(), Series::new(), Series::new());
        // The first repetition warms caches and is not counted.
        for repetition in 0..=repetitions {
            let mut answers = [0.0; 2];
            let mut jobs = Vec::new();
            for digests in if repetition.is_multiple_of(2) { [false, true] } else { [true, false] } {
                let before = machine::cpu_seconds();
                let answered = answer(&engine, rig, batch, digests).await?;
                answers[usize::from(digests)] = (machine::cpu_seconds() - before) * 1e3 / batch as f64;
                jobs.extend(answered);
            }
            let before = machine::cpu_seconds();
            let job = jobs.first().context("no answer has a record")?;
            ensure!(replayer.replay(job, &mut || true)? == ReplayVerdict::Same, "computed again an answer differs");
            let replay = (machine::cpu_seconds() - before) * 1e3;
            if repetition > 0 {
                without.push(answers[0]);
                with.push(answers[1]);
                again.push(replay);
            }
        }
        let all: Series = std::iter::zip(&with, &again).map(|(with, again)| with + again).collect();
        result[format!("batch_{batch}")] = json!({
            "answer_cpu_ms": Spread::of(&without)?,
            "answer_with_digest_cpu_ms": Spread::of(&with)?,
            "replay_cpu_ms": Spread::of(&again)?,
            "digest_to_answer": Spread::of_ratios(&with, &without)?,
            "replay_to_answer": Spread::of_ratios(&again, &without)?,
            "with_replay_to_answer": Spread::of_ratios(&all, &without)?,
        });
    }
    Ok(result)
}

/// So many answers at once; what is known of them afterwards where there are digests.
async fn answer(engine: &Engine, rig: &Rig, batch: usize, digests: bool) -> Result<Vec<ReplayJob>> {
    let mut asked = Vec::with_capacity(batch);
    for number in 0..batch {
        let permit = rig.callers.permit(0)?;
        let sequence = engine.tokenize(&permit, &PromptInput::Tokens(rig.prompt(PROMPT_TOKENS, number)))?;
        let sampling = Sampling { digests, ..greedy(ANSWER_TOKENS) };
        let prompt = sequence.asked();
        asked.push((prompt, sampling.clone(), submit(engine, &permit, sequence, sampling)?));
    }
    let mut jobs = Vec::new();
    for (asked, sampling, mut steps) in asked {
        while let Some(step) = steps.next().await {
            step?;
        }
        let tokens = steps.usage().completion_tokens;
        ensure!(tokens == ANSWER_TOKENS, "the model ended its answer after {tokens} tokens");
        jobs.extend(steps.record().cloned().map(|answer| ReplayJob { asked, sampling, answer }));
    }
    ensure!(jobs.len() == if digests { batch } else { 0 }, "records are missing");
    Ok(jobs)
}
