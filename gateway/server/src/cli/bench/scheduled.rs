//! The engine with all that belongs to it: permit, admission, labelled pages, step loop, sampling, channels. Its figures
//! are what a gateway can have of the forward pass.

use super::callers::Callers;
use super::spread::{Series, Spread};
use anyhow::{Context, Result};
use engine_model::Model;
use engine_runtime::{Engine, EngineConfig, Steps};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prompt lengths whose prefill is measured.
const PROMPTS: [usize; 3] = [32, 512, 2_048];
/// Sequences that decode together.
const BATCHES: [usize; 3] = [1, 4, 16];
/// The prompt of a decode measurement: short, so that it is about decoding.
const DECODE_PROMPT: usize = 32;
/// The longest prompt and a token behind it: no other measurement needs a longer context.
pub(super) const CONTEXT_TOKENS: usize = PROMPTS[PROMPTS.len() - 1] + 1;
/// Tokens that each sequence decodes in one repetition.
const DECODE_TOKENS: usize = 64;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) prefill: Vec<Prefill>,
    pub(super) decode: Vec<Decode>,
}

#[derive(Debug, Serialize)]
pub(super) struct Prefill {
    pub(super) prompt_tokens: usize,
    pub(super) tokens_per_second: Spread,
    /// From submission to the first token, alone in the engine.
    pub(super) ttft_ms: Spread,
}

#[derive(Debug, Serialize)]
pub(super) struct Decode {
    pub(super) batch: usize,
    /// Of all sequences together, while all of them decode.
    pub(super) tokens_per_second: Spread,
}

/// Measures with an engine of its own.
pub(super) async fn measure(model: &Arc<Model>, threads: usize, repetitions: usize, prompt: &[u32]) -> Result<Report> {
    // What a token costs that is computed, every time: neither found in a cache nor guessed.
    let config = EngineConfig { threads, prefix_cache: false, speculation: false, ..EngineConfig::default() };
    let engine = Engine::start(Arc::clone(model), config)?;
    let bench = Bench { engine, callers: Callers::new(model, 1)?, prompt };
    let mut report = Report { prefill: Vec::new(), decode: Vec::new() };
    for prompt_tokens in PROMPTS {
        let (mut speed, mut ttft) = (Series::new(), Series::new());
        // The first repetition warms caches and is not counted.
        for repetition in 0..=repetitions {
            let (prefill, first) = bench.prefill(prompt_tokens).await?;
            if repetition > 0 {
                speed.push(prompt_tokens as f64 / prefill.as_secs_f64());
                ttft.push(first.as_secs_f64() * 1e3);
            }
        }
        let (tokens_per_second, ttft_ms) = (Spread::of(&speed)?, Spread::of(&ttft)?);
        report.prefill.push(Prefill { prompt_tokens, tokens_per_second, ttft_ms });
    }
    for batch in BATCHES {
        let mut speed = Series::new();
        for repetition in 0..=repetitions {
            let tokens_per_second = bench.decode(batch).await?;
            if repetition > 0 {
                speed.push(tokens_per_second);
            }
        }
        report.decode.push(Decode { batch, tokens_per_second: Spread::of(&speed)? });
    }
    Ok(report)
}

struct Bench<'a> {
    engine: Engine,
    callers: Callers,
    prompt: &'a [u32],
}

impl Bench<'_> {
    fn prompt(&self, tokens: usize) -> Vec<u32> {
        self.prompt.iter().copied().cycle().take(tokens).collect()
    }

    fn submit(&self, prompt: Vec<u32>, max_tokens: usize) -> Result<Steps> {
        self.callers.submit(&self.engine, 0, prompt, max_tokens)
    }

    /// Time in prefill steps, and from submission to the first token.
    async fn prefill(&self, tokens: usize) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        let mut steps = self.submit(self.prompt(tokens), 1)?;
        let mut first = None;
        while let Some(step) = steps.next().await {
            if step?.tokens > 0 {
                first.get_or_insert_with(|| start.elapsed());
            }
        }
        let first = first.context("no token was sampled")?;
        Ok((Duration::from_micros(steps.timings().prefill_us), first))
    }

    /// Tokens per second of `batch` sequences together, from when all of them decode until the first is done.
    async fn decode(&self, batch: usize) -> Result<f64> {
        let mut tasks = Vec::new();
        for number in 0..batch {
            // Another beginning for each, as different conversations have.
            let prompt = self.prompt.iter().copied().cycle().skip(number).take(DECODE_PROMPT).collect();
            let mut steps = self.submit(prompt, DECODE_TOKENS)?;
            tasks.push(tokio::spawn(async move {
                let mut times = Vec::with_capacity(DECODE_TOKENS);
                while let Some(step) = steps.next().await {
                    if step?.tokens > 0 {
                        times.push(Instant::now());
                    }
                }
                Ok::<_, anyhow::Error>(times)
            }));
        }
        let mut sequences = Vec::with_capacity(batch);
        for task in tasks {
            sequences.push(task.await??);
        }
        together(&sequences).context("the sequences never decoded together: the model ended its answers at once")
    }
}

/// Tokens per second in the time in which every sequence decodes.
fn together(sequences: &[Vec<Instant>]) -> Option<f64> {
    let from = sequences.iter().map(|times| times.first()).collect::<Option<Vec<_>>>()?.into_iter().max()?;
    let to = sequences.iter().map(|times| times.last()).collect::<Option<Vec<_>>>()?.into_iter().min()?;
    let tokens = sequences.iter().flatten().filter(|time| *time > from && *time <= to).count();
    let seconds = to.checked_duration_since(*from)?.as_secs_f64();
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_in_which_all_decode_counts() {
        let start = Instant::now();
        let at = |seconds: &[u64]| seconds.iter().map(|s| start + Duration::from_secs(*s)).collect::<Vec<_>>();
        // All decode from 2 to 4: tokens at 3 and 4 of the first, 4 of the second.
        assert_eq!(together(&[at(&[0, 1, 2, 3, 4]), at(&[2, 4, 6])]), Some(1.5));
        assert_eq!(together(&[at(&[0, 1]), at(&[2, 3])]), None, "they never decoded together");
        assert_eq!(together(&[at(&[0, 1]), at(&[])]), None, "one had no token");
        assert_eq!(together(&[at(&[1])]), None, "one token has no pace");
        assert_eq!(together(&[]), None);
    }
}
